"""The configuration of a study: which policies are tried, how they are searched, and what is measured of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from jobs.config.inputs import ConceptConfig, EncoderConfig, InputConfig, SplitConfig
from jobs.config.jobs import JobConfig, refuse_off_the_sphere, refuse_unrecorded, refuse_vectors
from jobs.config.release import MaskTrainingConfig, RegistryConfig, WorkersConfig
from jobs.config.section import Positive, Section, Share
from jobs.config.utility import UtilityTasks
from sparse_core.attacks import ATTACKS
from sparse_core.concepts import REMOVALS
from sparse_core.masks import BASES, DEFAULT_BASIS, DEFAULT_PENALTY
from sparse_core.mechanisms import DEFAULT_FLOOR, MECHANISMS, SMALLEST_FLOOR

NOISE_LAWS = tuple(name for name in MECHANISMS if name != "none")


class Range(Section):
    """Any number between two, for the search 'optuna'."""

    low: Positive
    """Smallest value."""
    high: Positive
    """Largest value."""
    log: bool = True
    """Whether to draw magnitudes evenly, as suits numbers that differ by factors."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low must be smaller than high")
        return self


def _listed(value: Any) -> Any:
    """One value alone may stand without a list."""
    return value if isinstance(value, list | tuple | None) else (value,)


def _not_empty(values: tuple) -> tuple:
    if not values:
        raise ValueError("is empty, which leaves nothing to try; list at least one")
    if len(set(map(repr, values))) < len(values):
        raise ValueError("lists one twice")
    return values


def _values_or_range(value: Any) -> str:
    return "range" if isinstance(value, Mapping | Section) else "values"


def _axis(item: Any) -> Any:
    return Annotated[tuple[item, ...], BeforeValidator(_listed), AfterValidator(_not_empty)]


def _numeric_axis(item: Any) -> Any:
    either = Annotated[_axis(item), Tag("values")] | Annotated[Range, Tag("range")]
    return Annotated[either, Discriminator(_values_or_range)]


class SpaceConfig(Section):
    """Which policies a study tries. Every field takes a list of values, or one alone; a grid tries each with each.

    For the search 'optuna', penalty, rho, epsilon and floor may also be ranges {low, high}.
    """

    mechanism: _axis(Literal[NOISE_LAWS]) = ("mahalanobis",)
    """Noise laws. What shapes the noise (penalty, basis, removal, floor) is not varied for any but 'mahalanobis'."""
    penalty: _numeric_axis(Annotated[float, Field(ge=0)]) = (DEFAULT_PENALTY,)
    """Lambda, the weight of the L0 penalty of a mask."""
    basis: _axis(Literal[BASES]) = (DEFAULT_BASIS,)
    """Bases of the mask."""
    removal: _axis(Literal[REMOVALS]) = ("delete",)
    """How the concept is taken out of a sentence to make D-."""
    rho: _numeric_axis(Positive) | None = None
    """Noise-to-signal ratios. Give this or epsilon."""
    epsilon: _numeric_axis(Positive) | None = None
    """Privacy parameters, each in its mechanism's own metric. Give this or rho."""
    floor: _numeric_axis(Annotated[float, Field(ge=SMALLEST_FLOOR, lt=1)]) = (DEFAULT_FLOOR,)
    """Shares of the noise variance spread evenly over all directions."""
    read_out: _axis(Literal["wiener", "none"]) = ("wiener",)
    """Read-outs."""
    seed: _axis(Annotated[int, Field(ge=0)]) = (0,)
    """Seeds of mask training, noise and attackers: each policy is tried with each."""

    @model_validator(mode="after")
    def _one_strength(self) -> Self:
        if (self.rho is None) == (self.epsilon is None):
            raise ValueError("give exactly one of rho and epsilon: how strong the noise is")
        return self

    @model_validator(mode="after")
    def _floor_within_bounds(self) -> Self:
        if isinstance(self.floor, Range) and not SMALLEST_FLOOR <= self.floor.low < self.floor.high < 1:
            raise ValueError(f"floor is a share: its range must lie between {SMALLEST_FLOOR:g} and 1")
        return self

    @property
    def ranges(self) -> tuple[str, ...]:
        """Fields that are ranges."""
        return tuple(name for name in type(self).model_fields if isinstance(getattr(self, name), Range))


class StudyConfig(JobConfig):
    """Try many policies with Ray Tune: train a mask, protect, attack and measure utility, once for each."""

    input: InputConfig
    concepts: _axis(ConceptConfig)
    """Concepts, a list or one alone; each is hidden and attacked on its own."""
    encoders: _axis(EncoderConfig) = (EncoderConfig(),)
    """Encoders, a list or one alone."""
    split: SplitConfig = SplitConfig()
    space: SpaceConfig
    search: Literal["grid", "optuna"] = "grid"
    """'grid' tries every combination; 'optuna' (extra 'study') proposes trials by what earlier ones came to."""
    trials: Annotated[int, Field(gt=0)] | None = None
    """For 'optuna': how many trials. A larger number continues a finished study."""
    early_stopping: bool = False
    """Measure each trial by ridge on a third of the records first, and stop those that do worst there (ASHA)."""
    leakage_weight: Positive = 1.0
    """What is sought: the share of utility kept, less this times the normalised leakage. Without utility, the latter
    alone."""
    mask: MaskTrainingConfig = MaskTrainingConfig()
    """How masks are learned, apart from what `space` varies."""
    unit_norm: bool = False
    """Scale published vectors to norm 1."""
    delta: Share | None = None
    """For 'gaussian' only: the probability that its epsilon may fail with; null takes 1e-6."""
    attacks: _axis(Literal[tuple(sorted(ATTACKS))]) = tuple(sorted(ATTACKS))
    """Attacks to run; the headline leakage is the highest of them."""
    draws: Annotated[int, Field(ge=0, le=64)] = 7
    """Further draws of noise that attackers who know the policy simulate to train on, as in an audit."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens seen in fewer training records are not attacked: nobody could learn them."""
    utility: UtilityTasks = ()
    """Tasks that the vectors should still be good for, as in an audit; the first is the one that is sought."""
    cache: str | None = None
    """Directory of embeddings for studies to share; null takes <output>/embeddings. They are unprotected: keep them as
    the texts are kept."""
    retry_failed: bool = False
    """Whether a study that continues also repeats trials that failed."""
    registry: RegistryConfig | None = None
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _texts(self) -> Self:
        refuse_vectors(self.input)
        return self

    @model_validator(mode="after")
    def _registered_where_recorded(self) -> Self:
        refuse_unrecorded(self.registry, self.tracking)
        return self

    @model_validator(mode="after")
    def _what_is_searched(self) -> Self:
        if self.search == "grid":
            if self.space.ranges:
                raise ValueError(
                    f"space.{self.space.ranges[0]} is a range, which a grid cannot try; list values, or set search to "
                    "'optuna'"
                )
            if self.trials is not None:
                raise ValueError("trials belongs to the search 'optuna'; a grid has as many as it has combinations")
        elif self.trials is None:
            raise ValueError("search 'optuna' needs to know when to stop; say how many trials")
        return self

    @model_validator(mode="after")
    def _varied_in_one_place(self) -> Self:
        twice = self.mask.model_fields_set & {"basis", "penalty", "removal"}
        if twice:
            raise ValueError(f"mask.{min(twice)} is what a study varies; list its values in space.{min(twice)}")
        for what, chosen in (("search 'optuna'", self.search == "optuna"), ("early_stopping", self.early_stopping)):
            if chosen and len(self.concepts) > 1:
                raise ValueError(
                    f"{what} compares policies, and those of another concept are no rivals; list one concept"
                )
        names = [concept.name for concept in self.concepts]
        if len(set(names)) < len(names):
            raise ValueError("names of concepts must differ")
        if self.delta is not None and "gaussian" not in self.space.mechanism:
            raise ValueError("delta belongs to the mechanism 'gaussian', which space.mechanism does not list")
        return self

    @model_validator(mode="after")
    def _unit_vectors_where_needed(self) -> Self:
        for encoder in self.encoders:
            for mechanism in self.space.mechanism:
                rho = self.space.rho
                largest = rho.high if isinstance(rho, Range) else max(rho or (0,))
                refuse_off_the_sphere(mechanism, largest or None, encoder)
        return self
