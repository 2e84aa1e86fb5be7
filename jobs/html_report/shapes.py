"""What the files of a run hold, as far as the page shows it. Fields that it does not know are ignored."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.config import without_credentials
from sparse_core.errors import SparseError

S = TypeVar("S", bound="Shape")


class Shape(BaseModel):
    """Base of all."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, allow_inf_nan=False)


class Interval(Shape):
    """A figure with its 95% interval; None where it could not be worked out."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class Row(Shape):
    """See `jobs.summary.ProtectionRow`."""

    name: str
    protection: str
    basis: str
    epsilon: float | None = None
    epsilon_euclidean: float | None = None
    rho: float | None = None
    leakage: float | None = None
    leakage_low: float | None = None
    leakage_high: float | None = None
    leakage_attack: str | None = None
    leakage_concept: str | None = None
    leakage_learned: float | None = None
    utility: float | None = None
    utility_low: float | None = None
    utility_high: float | None = None
    utility_task: str | None = None
    reidentification: float | None = None
    confidence: float | None = None
    leakage_unprotected: float | None = None
    leakage_floor: float | None = None
    leakage_normalized: float | None = None
    statistics: str | None = None
    policy_membership: float | None = None
    policy_membership_informed: float | None = None
    policy_values: float | None = None
    policy_values_informed: float | None = None
    policy_values_floor: float | None = None


class Attack(Shape):
    """What one attack got of one protection."""

    verdict: str
    unprotected: Interval
    protected: Interval
    floor: Interval
    leakage_normalized: Interval = Interval()
    confidence: float | None = None


Attacks = dict[str, dict[str, Attack]]


class Concept(Shape):
    """What was attacked of one concept, and with what success."""

    listed: bool = True
    tokens_attacked: int | None = None
    tokens_coverage: float | None = None
    concept_test_records: int | None = None
    attacks: Attacks = {}


class Group(Shape):
    """Leakage of one group of words, see `jobs.similar_tokens`."""

    tokens: int
    unprotected: Interval
    protected: Interval


class Linked(Shape):
    """Re-identification of one protection."""

    top1: Interval = Interval()
    mrr: float | None = None
    n_candidates: int | None = None


class Dictionary(Shape):
    """The dictionary attack on one protection, by an attacker who knows the rest of a text or not."""

    top1: Interval = Interval()
    unprotected: Interval = Interval()
    floor: float | None = None
    verdict: str = ""
    n_records: int | None = None
    n_candidates: int | None = None


class Membership(Shape):
    """How well one adversary tells records of a policy's statistics from others."""

    adversary: str
    score: str = ""
    verdict: str = ""
    auc: Interval = Interval()
    true_positive_rate: Interval = Interval()
    control: Interval = Interval()


class ValuesRead(Shape):
    """What one adversary reads of values in known sentences from a policy's statistics."""

    adversary: str
    score: str = ""
    verdict: str = ""
    top1: Interval = Interval()
    outside: Interval = Interval()
    control: Interval = Interval()


class PolicyAlone(Shape):
    """What one policy tells without any vector."""

    kind: str
    records: int | None = None
    membership: list[Membership] = []
    values: list[ValuesRead] = []
    why_not: str | None = None


class Averaged(Shape):
    """What several releases of every record give away."""

    noise: str
    releases: int
    error: Interval = Interval()
    reidentification: Interval = Interval()


class Utility(Shape):
    """One task on one protection."""

    name: str
    task: str = ""
    metric: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    n_records: int | None = None


class Example(Shape):
    """One text before and after; concept terms are masked by whoever wrote it."""

    original: str
    unprotected: str
    protected: str


class Reconstruction(Shape):
    """What an attack that writes texts got of one protection."""

    bleu: dict[str, Interval] = {}
    rouge_l: dict[str, Interval] = {}
    token_f1: dict[str, Interval] = {}
    cosine: dict[str, Interval] = {}
    n_records: int | None = None
    examples: list[Example] = []


class Tried(Shape):
    """One policy that a calibration measured in its search."""

    penalty: float | None = Field(None, alias="lambda")
    directions_open: int | None = None
    rho: float | None = None
    epsilon: float | None = None
    leakage: float | None = None
    leakage_low: float | None = None
    leakage_high: float | None = None
    utility: float | None = None
    utility_loss: float | None = None


class Counts(Shape):
    """How many rows went in and out."""

    rows_in: int | None = None
    rows_out: int | None = None
    quarantined: dict[str, int] = {}


class Results(Shape):
    """``summary.json``."""

    job: str
    policy_hash: str | None = None
    counts: Counts = Counts()
    durations: dict[str, float] = {}
    protections: list[Row] = []
    train_records: int | None = None
    test_records: int | None = None
    concept_test_records: int | None = None
    tokens_attacked: int | None = None
    tokens_coverage: float | None = None
    attacks: Attacks = {}
    concepts: dict[str, Concept] = {}
    token_groups: dict[str, dict[str, Group]] = {}
    reidentification: dict[str, Linked] = {}
    dictionary: dict[str, dict[str, Dictionary]] = {}
    averaging: dict[str, list[Averaged]] = {}
    policy_alone: dict[str, PolicyAlone] = {}
    reconstruction: dict[str, dict[str, Reconstruction]] = {}
    utilities: dict[str, list[Utility]] = {}
    reason: str | None = None
    tried: list[Tried] = []
    chosen_on_other_records: bool = True


class Parameters(Shape):
    """What a trial tried."""

    penalty: float | None = Field(None, alias="lambda")
    basis: str | None = None
    rho: float | None = None
    epsilon: float | None = None
    floor: float | None = None
    read_out: str | None = None
    removal: str | None = None
    seed: int | None = None
    encoder: str = ""
    concept: str = ""
    mechanism: str = ""


class TrialMask(Shape):
    """A trial's mask."""

    values: list[float] = []
    directions_open: float | None = None
    sparsity: float | None = None
    accuracy: float | None = None
    accuracy_length_only: float | None = None
    energy_open: float | None = None


class Trial(Shape):
    """``trials/ID.json`` of a study."""

    trial: str
    status: str
    reason: str | None = None
    parameters: Parameters
    row: Row | None = None
    attacks: dict[str, Attack] | None = None
    utilities: list[Utility] | None = None
    mask: TrialMask | None = None
    mask_path: str | None = None
    durations: dict[str, float] | None = None


class Study(Shape):
    """``study.json``."""

    job: str
    fingerprint: str = ""
    settings: dict[str, Any] = {}
    concept: Any = None
    encoders: Any = None
    space: Any = None


def shaped(shape: type[S], content: Any, url: str) -> S:
    """Check what a file holds.

    Raises
    ------
    SparseError
        Naming the file and the field; never what stands there.
    """
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        shown = without_credentials(url)
        raise SparseError(f"{shown} is damaged: {field or 'the whole'}: {first['msg']}.") from None
