"""Sections on what is made and written: mask, protection, key, budget, dataset, limits."""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from jobs.config.section import Positive, Section, Share
from sparse_core.concepts import REMOVALS
from sparse_core.masks import BASES, DEFAULT_BASIS, DEFAULT_PENALTY, WHITEBOX_BASES
from sparse_core.mechanisms import DEFAULT_FLOOR, MECHANISMS, SMALLEST_FLOOR


class MaskTrainingConfig(Section):
    """How a mask is learned."""

    basis: Literal[(*BASES, *WHITEBOX_BASES)] = DEFAULT_BASIS
    """Directions the mask speaks about: 'coordinate' as in the paper, or a subspace found from the concept. 'whitebox'
    masks the coordinates, 'whitebox-label' the directions, that an attacker trained here reads (extra 'whitebox')."""
    directions: Annotated[int, Field(gt=0)] | None = None
    """Most concept directions a subspace basis may have; null keeps all that the data show."""
    penalty: Annotated[float, Field(ge=0)] = DEFAULT_PENALTY
    """Lambda, the weight of the L0 penalty: larger closes more gates."""
    removal: Literal[REMOVALS] = "delete"
    """How the concept is taken out of a sentence to make D-."""
    contexts: Annotated[int, Field(gt=0)] = 8
    """Sentences that the concept's values are put into, for the basis 'substitution'."""
    max_values: Annotated[int, Field(gt=1)] = 200
    """Most values to put in: listed terms first, then the most frequent found."""
    epochs: Annotated[int, Field(gt=0)] = 100
    """Most passes over the pairs; training stops early when nothing moves."""
    learning_rate: Positive = 1e-3
    """Adam step of the classifier."""
    gate_learning_rate: Positive = 0.05
    """Adam step of the gates."""
    share: Share | None = None
    """For a whitebox basis: how much of what the attacker reads to cover, as a share of its attributions; null takes
    0.9 of coordinates and 0.5 of label directions."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """For a whitebox basis: concept tokens in fewer training records are not attributed, as nobody could learn them."""
    seed: int = 0
    """Seed of everything drawn in training."""

    @property
    def whitebox(self) -> bool:
        """Whether the mask is made from an attacker's attributions instead of learned."""
        return self.basis in WHITEBOX_BASES

    @model_validator(mode="after")
    def _only_what_counts(self) -> Self:
        idle = self.model_fields_set & (_OF_LEARNING if self.whitebox else _OF_WHITEBOX)
        if idle:
            kind = f"basis {self.basis!r}" if self.whitebox else "a basis other than " + " and ".join(WHITEBOX_BASES)
            raise ValueError(f"{', '.join(sorted(idle))} would have no effect with {kind}; leave out")
        return self


_OF_WHITEBOX = {"share", "min_token_count"}
_OF_LEARNING = set(MaskTrainingConfig.model_fields) - _OF_WHITEBOX - {"basis", "seed"}


class ProtectionConfig(Section):
    """The noise and the read-out."""

    mechanism: Literal[MECHANISMS] = "mahalanobis"
    """Noise law; 'mahalanobis' is shaped by the mask, 'laplace' is the same in every direction."""
    epsilon: Positive | None = None
    """Privacy parameter in the mechanism's own metric. Give this or rho."""
    rho: Positive | None = None
    """Noise-to-signal: median noise norm over median embedding norm. Give this or epsilon."""
    embedding_norm: Positive | None = None
    """Median norm of the embeddings, which rho refers to; to be given where they are not normalised to 1."""
    floor: Annotated[float, Field(ge=SMALLEST_FLOOR, lt=1)] = DEFAULT_FLOOR
    """Share of the noise variance spread evenly over all directions: protects what lies outside the mask."""
    read_out: Literal["wiener", "none"] = "wiener"
    """Post-processing with public quantities that restores utility at no privacy cost."""
    unit_norm: bool = False
    """Scale published vectors to norm 1, for consumers that use inner products."""
    delta: Share | None = None
    """For 'gaussian' only: the probability that its epsilon may fail with; null takes 1e-6."""

    @property
    def settings(self) -> dict[str, Any]:
        """As `Policy.build` takes them."""
        return self.model_dump()

    @model_validator(mode="after")
    def _one_strength(self) -> Self:
        given = (self.epsilon is not None) + (self.rho is not None)
        if given != (self.mechanism != "none"):
            wanted = "neither epsilon nor rho" if self.mechanism == "none" else "exactly one of epsilon and rho"
            raise ValueError(f"mechanism {self.mechanism!r} takes {wanted}")
        return self

    @model_validator(mode="after")
    def _delta_where_it_belongs(self) -> Self:
        if self.delta is not None and self.mechanism != "gaussian":
            raise ValueError(f"delta belongs to the mechanism 'gaussian'; {self.mechanism!r} has none, leave it out")
        return self


class WeightedMask(Section):
    """One of several masks."""

    path: str
    """Mask directory, or its name in MLflow's registry."""
    weight: Positive = 1.0
    """Its share of the noise, relative to the others."""


class KeyConfig(Section):
    """Where the secret key of the noise comes from. The key itself never stands in a configuration."""

    file: str | None = None
    """Key file, readable by its owner only; 'sparse key new FILE' writes one."""
    environment: str | None = "SPARSE_KEY"
    """Environment variable that holds the key, 64 or more hexadecimal digits or 'base64:...'; if no file is named."""
    ephemeral: bool = False
    """Draw a key for this run and forget it. For demonstrations: re-runs publish fresh noise, which averages away."""


class TrackingConfig(Section):
    """MLflow."""

    enabled: bool = True
    """Whether to record runs at all."""
    uri: str | None = None
    """Tracking URI: a server, or sqlite:////path/mlflow.db; null takes MLFLOW_TRACKING_URI, or else keeps a SQLite
    store at <output>/mlflow.db."""
    experiment: str = "sparse"
    """MLflow experiment."""
    required: bool = True
    """Whether to refuse to start where the tracking server cannot be reached; otherwise the run is recorded in the
    SQLite store in the output."""


class RegistryConfig(Section):
    """MLflow's model registry, where the mask gets a name that other jobs can use: models:/NAME@ALIAS."""

    name: Annotated[str, Field(pattern=r"^\w[\w\- .]*$")]
    """Name of the mask there; each one registered is a version of it."""
    alias: Annotated[str, Field(pattern=r"^[\w\-]+$")] = "champion"
    """What points at this version from now on."""

    @field_validator("alias")
    @classmethod
    def _not_reserved(cls, alias: str) -> str:
        if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
            raise ValueError(f"MLflow keeps {alias!r} for itself; choose another, such as champion")
        return alias


class BudgetConfig(Section):
    """What a subject may spend over all its releases."""

    subject: str | None = None
    """Column of strings or integers that says whose each row is, such as a person's. Noise and budget go by subject;
    null takes input.id: each row is a subject of its own, whole or in chunks."""
    max_epsilon_per_subject: Positive | None = None
    """Most a subject may have spent, in epsilon_euclidean; a run that would exceed it is refused before it starts."""
    include: tuple[str, ...] = ()
    """Output directories with earlier releases of the same subjects, whose ledgers count, as do those they include.
    They must be finished."""

    @property
    def counts(self) -> bool:
        """Whether subjects must be known again in another release."""
        return self.max_epsilon_per_subject is not None or bool(self.include)

    @model_validator(mode="before")
    @classmethod
    def _by_its_old_name(cls, values: Any) -> Any:
        old, new = "max_epsilon_per_record", "max_epsilon_per_subject"
        if not isinstance(values, dict) or old not in values:
            return values
        if new in values:
            raise ValueError(f"{old} is the old name of {new}; leave it out")
        warnings.warn(
            f"budget.{old} is now called budget.{new}; the old name will be refused in the next version.",
            FutureWarning,
            stacklevel=2,
        )
        return {new if name == old else name: value for name, value in values.items()}


class LimitsConfig(Section):
    """When to stop."""

    duplicate_ids: Literal["quarantine", "fail"] = "quarantine"
    """What to do with rows whose id stands in an earlier row: quarantine them, or refuse to start."""
    max_quarantined: Annotated[float, Field(ge=0)] | None = None
    """Stop once more rows than this are quarantined: a share of the rows if below 1, else a count."""


class WorkersConfig(Section):
    """Ray."""

    actors: Annotated[int, Field(gt=0)] | None = None
    """Actors that encode and protect; null takes one per GPU, or one per CPU core."""
    address: str | None = None
    """Address of a running Ray cluster; null starts one on this machine and stops it afterwards."""
    allow_unauthenticated: bool = False
    """Join a cluster that asks for no token: whoever reaches it can then read the texts and the key of the job."""


class OutputConfig(Section):
    """The dataset that is published: its table format and the precision of its vectors."""

    format: Literal["parquet", "delta", "lance"] = "parquet"
    """Parquet files; or the same files as a Delta Lake table (extra 'delta'); or a Lance dataset (extra 'lance')."""
    precision: Literal["float32", "float16", "int8"] = "float32"
    """Numbers the vectors are stored as. Rounding comes after the noise, so the guarantee does not depend on it."""
    row_group_rows: Annotated[int, Field(gt=0)] = 8192
    """Rows of a row group; what a writer holds in memory, and what a reader can skip."""

    @model_validator(mode="after")
    def _known_to_the_format(self) -> Self:
        if self.format == "delta" and self.precision == "float16":
            raise ValueError("Delta Lake has no 16-bit floats; take precision float32 or int8, or format parquet")
        return self


class ChunkConfig(Section):
    """Long texts as several records, so that nothing is cut off. Needs the extra 'chunk'."""

    tokens: Annotated[int, Field(gt=0)] = 256
    """Most tokens of a chunk, special ones included; the encoder must read as many."""
    overlap: Annotated[int, Field(ge=0)] = 32
    """Most tokens that a chunk repeats from the one before."""

    @model_validator(mode="after")
    def _moves_on(self) -> Self:
        if self.overlap >= self.tokens:
            raise ValueError("overlap must be smaller than tokens, or no chunk gets further than the one before")
        return self
