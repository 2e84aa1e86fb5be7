"""The configuration of a calibration: the limits, what is varied to meet them, and what is measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jobs.config.inputs import ConceptConfig, EncoderConfig, InputConfig, SplitConfig
from jobs.config.jobs import JobConfig, refuse_unrecorded, refuse_vectors
from jobs.config.release import MaskTrainingConfig, RegistryConfig
from jobs.config.section import Share
from jobs.config.study import Range
from jobs.config.utility import UtilityTasks
from sparse_core.attacks import ATTACKS
from sparse_core.mechanisms import DEFAULT_FLOOR, SMALLEST_FLOOR


def _share(value: Any) -> Any:
    """A share may be written as a percentage."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value
    return value


def _several(values: tuple) -> tuple:
    if not values:
        raise ValueError("is empty, which leaves nothing to try; list at least one")
    if len(set(values)) < len(values):
        raise ValueError("lists one twice")
    return values


Percentage = Annotated[Share, BeforeValidator(_share)]


class CalibrateConfig(JobConfig):
    """Find the policy with the highest utility whose leakage stays within a limit, and write it."""

    input: InputConfig
    concept: ConceptConfig
    encoder: EncoderConfig = EncoderConfig()
    split: SplitConfig = SplitConfig()
    """One half of the test records chooses the policy, the other tells what it came to."""
    max_leakage: Percentage
    """Highest leakage allowed, such as 0.2 or 20%: the upper end of the strongest attack's 95% interval."""
    max_utility_loss: Percentage | None = None
    """Largest part of the unprotected vectors' utility that may be lost, such as 0.05 or 5%; null allows any."""
    penalty: Annotated[tuple[Annotated[float, Field(ge=0)], ...], AfterValidator(_several)] = (0.05, 0.1, 0.2, 0.4, 0.8)
    """Lambdas: each gives a mask of another size, and for each the noise is searched."""
    directions: Annotated[tuple[Annotated[int, Field(gt=0)], ...], AfterValidator(_several)] | None = None
    """Most directions of the masks; each is tried with each lambda. Null leaves the size to lambda."""
    rho: Range = Range(low=0.25, high=16)
    """Noise-to-signal ratios to search in."""
    steps: Annotated[int, Field(gt=0, le=20)] = 5
    """How often the interval in which leakage meets its limit is halved; with 5, rho is found to 14%."""
    floor: Annotated[float, Field(ge=SMALLEST_FLOOR, lt=1)] = DEFAULT_FLOOR
    """Share of the noise variance spread evenly over all directions."""
    read_out: Literal["wiener", "none"] = "wiener"
    """Read-out of the policy."""
    unit_norm: bool = False
    """Scale published vectors to norm 1."""
    mask: MaskTrainingConfig = MaskTrainingConfig()
    """How masks are learned, apart from what is varied."""
    attacks: Annotated[tuple[Literal[tuple(sorted(ATTACKS))], ...], Field(min_length=1)] = tuple(sorted(ATTACKS))
    """Attacks to run; the headline leakage is the highest of them."""
    draws: Annotated[int, Field(ge=0, le=64)] = 7
    """Further draws of noise that attackers who know the policy simulate to train on, as in an audit."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens seen in fewer training records are not attacked: nobody could learn them."""
    utility: UtilityTasks
    """Tasks that the vectors should still be good for, as in an audit; the first is the one that is sought."""
    seed: int = 0
    """Seed of masks, attackers and intervals."""
    cache: str | None = None
    """Directory of embeddings to share with studies; null takes <output>/embeddings. They are unprotected: keep them as
    the texts are kept."""
    registry: RegistryConfig | None = None

    @model_validator(mode="after")
    def _something_to_seek(self) -> Self:
        refuse_vectors(self.input)
        if not self.utility:
            raise ValueError("utility: without a task there is nothing to prefer one policy by; name one")
        refuse_unrecorded(self.registry, self.tracking)
        return self

    @model_validator(mode="after")
    def _varied_in_one_place(self) -> Self:
        if twice := self.mask.model_fields_set & {"penalty", "directions"}:
            raise ValueError(f"mask.{min(twice)} is what is searched; list its values in {min(twice)}")
        if self.mask.whitebox:
            raise ValueError(f"mask.basis {self.mask.basis!r} has no lambda to vary; take another basis")
        return self
