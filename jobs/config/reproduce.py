"""An experiment of the paper: what is measured, what the paper found, and why ours may differ."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from jobs.config.attacks import TextAttackConfig
from jobs.config.compared import BASELINES
from jobs.config.inputs import ConceptConfig, EncoderConfig, SplitConfig
from jobs.config.paper_data import AnswersData, PairsData, SentencesData
from jobs.config.release import MaskTrainingConfig
from jobs.config.section import Positive, Section
from jobs.config.utility import ClassificationUtility
from sparse_core.attacks import ATTACKS
from sparse_core.attacks.text import TEXT_ATTACKS
from sparse_core.mechanisms import MECHANISMS, SMALLEST_FLOOR

MEASURES = ("leakage", "utility")
_OF_THE_PAGE = {"title", "source", "reports", "figures", "explanations", "each_attack", "trade_off_rate", "reduced"}
NOISE_FACTOR = 17.0
AttackName = Literal[(*sorted(ATTACKS), *sorted(TEXT_ATTACKS))]
Percent = Annotated[float, Field(ge=0, le=100)]


def rho_of(budget: float) -> float:
    """Noise-to-signal that stands for a budget of the paper.

    The paper's epsilon does not say how strong its noise is on another encoder. 17 / epsilon is what keeps as much of
    the utility on STS12 as LapMech keeps in the paper: 82% at 10, 40% at 5.
    """
    return NOISE_FACTOR / budget


class ExperimentRow(Section):
    """One protection, at every budget that its noise allows."""

    name: str
    """Row in the table."""
    paper: str | None = None
    """What the paper calls it; null for what the paper does not have."""
    mechanism: Literal[MECHANISMS] | None = None
    """Noise law. Give this or baseline."""
    baseline: Literal[BASELINES] | None = None
    """What others do, without noise and hence without a budget."""
    mask: str | None = None
    """One of `masks`; a read-out needs one too."""
    floor: Annotated[float, Field(ge=SMALLEST_FLOOR, lt=1)] = SMALLEST_FLOOR
    """Share of the noise variance spread evenly; the paper's is the smallest there is."""
    read_out: Literal["wiener", "none"] = "none"
    """Post-processing; the paper has none."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.mechanism is None) == (self.baseline is None):
            raise ValueError(f"row {self.name!r}: give exactly one of mechanism and baseline")
        needy = self.mechanism == "mahalanobis" or self.baseline == "dropping" or self.read_out == "wiener"
        if needy and self.mask is None:
            raise ValueError(f"row {self.name!r}: name one of masks in mask")
        return self

    @property
    def noisy(self) -> bool:
        """Whether there is noise, and so a row for every budget."""
        return self.mechanism not in (None, "none")


class PaperFigure(Section):
    """What the paper reports of one row, in percent."""

    row: str
    """Name of the row."""
    budget: Positive | None = None
    """The paper's epsilon; null where there is no noise."""
    concept: str | None = None
    """Name of the concept, where there are several."""
    attack: str | None = None
    """Our attack that stands for the paper's, where every attack has a line of its own."""
    leakage: Percent | None = None
    """Share of concept tokens recovered."""
    utility: Percent | None = None
    """The task's main score."""
    kept: Percent | None = None
    """Utility as a share of that of unprotected vectors, where the paper's own utility of these could not be read."""


class Explanation(Section):
    """Why a figure of ours may differ from the paper's."""

    measure: Literal[MEASURES]
    """What differs."""
    rows: tuple[str, ...] = ()
    """Rows it speaks of; none are all that no earlier explanation speaks of."""
    text: str
    """One sentence."""


class Reduced(Section):
    """What is left of an experiment with reduced=true, to see within seconds that it works."""

    records: Annotated[int, Field(gt=0)]
    """Records, or pairs, drawn from the data."""
    budgets: tuple[Positive, ...]
    """Budgets."""
    rows: tuple[str, ...]
    """Names of rows."""
    attacks: tuple[AttackName, ...]
    """Attacks."""
    concepts: tuple[str, ...] = ()
    """Names of concepts; none are all."""


class Experiment(Section):
    """One result of the paper, and how it is measured here."""

    title: str
    """What the paper's result shows."""
    source: str
    """Where the paper's figures were read, and which could not be."""
    data: Annotated[SentencesData | PairsData | AnswersData, Field(discriminator="kind")]
    """What is protected."""
    concepts: Annotated[tuple[ConceptConfig, ...], Field(min_length=1)]
    """What is hidden; each is trained for and attacked on its own."""
    masks: dict[str, MaskTrainingConfig] = Field(default_factory=dict)
    """Masks to learn, by name."""
    rows: Annotated[tuple[ExperimentRow, ...], Field(min_length=1)]
    """Protections to compare."""
    budgets: tuple[Positive, ...]
    """The paper's epsilons; rho is 17 divided by each."""
    attacks: Annotated[tuple[AttackName, ...], Field(min_length=1)] = tuple(sorted(ATTACKS))
    """Attacks to run."""
    text_attacks: TextAttackConfig = TextAttackConfig()
    each_attack: bool = False
    """Whether every attack has a line of its own; otherwise the strongest is shown."""
    trade_off_rate: bool = False
    """Whether to show how much leakage falls per utility lost."""
    draws: Annotated[int, Field(ge=0)] = 3
    """Further draws of noise that attackers simulate to train on."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens in fewer of the attackers' records are not attacked."""
    split: SplitConfig = SplitConfig()
    utility: ClassificationUtility | None = None
    """Task for data of kind 'sentences'; pairs and answers bring their own."""
    reports: tuple[Literal[MEASURES], ...] = MEASURES
    """What the paper's result is about."""
    figures: tuple[PaperFigure, ...] = ()
    """Those of the paper's figures that could be read."""
    explanations: tuple[Explanation, ...] = ()
    """Why ours may differ, first match first."""
    reduced: Reduced | None = None
    """What reduced=true leaves; null where there is no such cut."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        rows = {row.name for row in self.rows}
        if len(rows) < len(self.rows):
            raise ValueError("names in rows must differ")
        for row in self.rows:
            if row.mask is not None and row.mask not in self.masks:
                raise ValueError(f"row {row.name!r}: there is no mask {row.mask!r} in masks: {', '.join(self.masks)}")
        named = [figure.row for figure in self.figures] + [row for one in self.explanations for row in one.rows]
        named += self.reduced.rows if self.reduced else ()
        for name in named:
            if name not in rows:
                raise ValueError(f"there is no row {name!r}; there are {', '.join(sorted(rows))}")
        return self

    @model_validator(mode="after")
    def _explained(self) -> Self:
        for figure in self.figures:
            for measure in MEASURES:
                if getattr(figure, measure) is not None and self.explanation(measure, figure.row) is None:
                    raise ValueError(f"explanations: none speaks of the {measure} of row {figure.row!r}")
        return self

    def explanation(self, measure: str, row: str) -> str | None:
        """Why a figure of ours may differ from the paper's; None if nothing is said."""
        fitting = (
            one.text for one in self.explanations if one.measure == measure and (not one.rows or row in one.rows)
        )
        return next(fitting, None)

    @property
    def measured(self) -> dict:
        """What decides our figures, as plain data."""
        return self.model_dump(mode="json", exclude=_OF_THE_PAGE)

    def cut(self) -> Experiment:
        """The experiment as `reduced` says."""
        kept = [row for row in self.rows if row.name in self.reduced.rows]
        needed = {row.mask for row in kept}
        concepts = self.reduced.concepts or [concept.name for concept in self.concepts]
        return self.model_copy(
            update={
                "rows": tuple(kept),
                "masks": {name: mask for name, mask in self.masks.items() if name in needed},
                "concepts": tuple(concept for concept in self.concepts if concept.name in concepts),
                "budgets": self.reduced.budgets,
                "attacks": self.reduced.attacks,
            }
        )


class ReproduceConfig(Section):
    """Measure a result of the paper, and print its figure beside ours."""

    data: str | None = None
    """Folder of public data sets, laid out as configs/paper/README.md says."""
    output: str = "outputs/paper"
    """Directory to write to; every experiment gets a folder of its own."""
    reduced: bool = False
    """Cut data, budgets and attacks to what takes seconds, to see that an experiment works."""
    encoder: EncoderConfig = EncoderConfig()

    @model_validator(mode="after")
    def _on_the_sphere(self) -> Self:
        if not self.encoder.normalize:
            raise ValueError(
                "encoder.normalize: the paper's budgets are mapped to noise around vectors of norm 1; leave it true"
            )
        return self
