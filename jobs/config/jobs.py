"""The configuration of each job."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from jobs.config.attacks import AveragingConfig, DictionaryConfig, TextAttackConfig
from jobs.config.compared import Compared, StoredVectors, refuse_missing_mask
from jobs.config.inputs import ConceptConfig, EncoderConfig, InputConfig, SplitConfig, StorageConfig
from jobs.config.release import (
    BudgetConfig,
    ChunkConfig,
    KeyConfig,
    LimitsConfig,
    MaskTrainingConfig,
    OutputConfig,
    ProtectionConfig,
    RegistryConfig,
    TrackingConfig,
    WeightedMask,
    WorkersConfig,
)
from jobs.config.section import Positive, Section
from jobs.config.utility import UtilityTasks
from sparse_core.attacks import ATTACKS
from sparse_core.attacks.text import TEXT_ATTACKS
from sparse_core.mechanisms import DEFAULT_FLOOR, MECHANISMS, SMALLEST_FLOOR

_ALL_ATTACKS = tuple(sorted({**ATTACKS, **TEXT_ATTACKS}))


class JobConfig(Section):
    """What every job has."""

    output: str
    """Directory to write to."""
    tracking: TrackingConfig = TrackingConfig()
    storage: StorageConfig = StorageConfig()


class TrainMaskConfig(JobConfig):
    """Learn which directions of an embedding carry a concept."""

    input: InputConfig
    concept: ConceptConfig
    encoder: EncoderConfig = EncoderConfig()
    mask: MaskTrainingConfig = MaskTrainingConfig()
    split: SplitConfig | None = SplitConfig()
    registry: RegistryConfig | None = None

    @model_validator(mode="after")
    def _texts(self) -> Self:
        refuse_vectors(self.input)
        return self

    @model_validator(mode="after")
    def _registered_where_recorded(self) -> Self:
        refuse_unrecorded(self.registry, self.tracking)
        return self


class PrivatizeConfig(JobConfig):
    """Embed and protect a corpus with Ray Data."""

    input: InputConfig
    passthrough: tuple[str, ...] = ()
    """Input columns to copy into the output. The text is not copied unless it is named here."""
    dataset: OutputConfig = OutputConfig()
    chunk: ChunkConfig | None = None
    """Cut long texts into chunks, each a record 'id#n' with columns parent and chunk; null encodes the start of each
    text and counts those it cut off."""
    encoder: EncoderConfig | Literal["none"] = EncoderConfig()
    """The model; 'none' where input.embedding names a column of vectors computed already."""
    mask: str | Annotated[tuple[WeightedMask, ...], Field(min_length=1)] | None = None
    """Mask directory, as written by train_mask, or models:/NAME@ALIAS or models:/NAME/VERSION in MLflow's registry; or
    a list of {path, weight}, to hide several concepts at once."""
    protection: ProtectionConfig
    key: KeyConfig = KeyConfig()
    budget: BudgetConfig = BudgetConfig()
    limits: LimitsConfig = LimitsConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _mask_where_needed(self) -> Self:
        if self.mask is None:
            refuse_missing_mask(self.protection)
        return self

    @model_validator(mode="after")
    def _an_encoder_or_vectors(self) -> Self:
        _refuse_encoder_beside_vectors(self.encoder, self.input)
        return self

    @model_validator(mode="after")
    def _subjects_that_stay(self) -> Self:
        if self.budget.counts and self.budget.subject is None and self.input.id is None:
            raise ValueError(
                "budget: without input.id each row's id is made from its place and content, so that a row which moves "
                "is another and nothing adds up; name input.id, or a column in budget.subject"
            )
        return self

    @model_validator(mode="after")
    def _unit_vectors_where_needed(self) -> Self:
        if self.encoder == "none":
            if self.chunk is not None:
                raise ValueError("chunk cuts texts; where vectors are stored there is none, leave it out")
            return self
        refuse_off_the_sphere(self.protection.mechanism, self.protection.rho, self.encoder)
        if not self.encoder.normalize and self.protection.rho is not None and self.protection.embedding_norm is None:
            raise ValueError(
                "protection.rho is relative to the norm of the embeddings, which is not 1 with encoder.normalize "
                "false; state their median norm in protection.embedding_norm, or give epsilon"
            )
        return self


class AuditConfig(JobConfig):
    """Attack protected vectors and measure what they are still good for."""

    input: InputConfig
    concept: ConceptConfig
    other_concepts: tuple[ConceptConfig, ...] = ()
    """More concepts that the protections are to hide, each attacked on its own; the headline is the highest leakage
    of any."""
    unlisted_concepts: tuple[ConceptConfig, ...] = ()
    """Concepts that no mask was told of, attacked too, but shown apart: whether protection moved away from them."""
    encoder: EncoderConfig | Literal["none"] = EncoderConfig()
    """The model that the vectors were made with; 'none' where `unprotected` names its vectors and nothing else is to
    be encoded: no redaction, dictionary, similar tokens or attack that writes sentences."""
    unprotected: StoredVectors | None = None
    """Unprotected vectors of the texts, computed already; null encodes the texts."""
    split: SplitConfig = SplitConfig()
    compare: Annotated[tuple[Compared, ...], Field(min_length=1)]
    """Protections to compare, one row each."""
    attacks: Annotated[tuple[Literal[_ALL_ATTACKS], ...], Field(min_length=1)] = tuple(sorted(ATTACKS))
    """Attacks to run; the headline leakage is the highest of them. Those that write sentences take minutes each."""
    text_attacks: TextAttackConfig = TextAttackConfig()
    draws: Annotated[int, Field(ge=0, le=64)] = 7
    """Further draws of noise that attackers who know the policy simulate to train on."""
    dictionary: DictionaryConfig | None = None
    """Attack a closed set of values as well; null leaves it out. What it recovers counts for the headline."""
    averaging: AveragingConfig | None = None
    """Attack several releases of the same records as well; null leaves it out."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens seen in fewer training records are not attacked: nobody could learn them."""
    utility: UtilityTasks = ()
    """Tasks that the vectors should still be good for, a list or one alone; the first is shown in the table."""
    similar_tokens: bool = True
    """Whether to attack, with ridge, words beside the concept's too: words that mean nearly the same, and unrelated
    ones, which show whether protection went where it was wanted."""
    seed: int = 0
    """Seed of attackers and intervals."""

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        refuse_vectors(self.input)
        for what, named in {"compare": self.compare, "the concepts": self.concepts}.items():
            names = [one.name for one in named]
            if len(set(names)) < len(names):
                raise ValueError(f"names in {what} must differ")
        return self

    @model_validator(mode="after")
    def _an_encoder_where_needed(self) -> Self:
        if self.encoder != "none":
            return self
        if self.unprotected is None:
            raise ValueError("encoder 'none' leaves nothing to make vectors with; name them in unprotected")
        needing = {
            "dictionary": self.dictionary is not None,
            "an attack that writes sentences": bool(set(self.attacks) & set(TEXT_ATTACKS)),
            "a row with baseline 'redaction'": any(row.baseline == "redaction" for row in self.compare),
            "similar_tokens": self.similar_tokens and "similar_tokens" in self.model_fields_set,
            "a row with a protection but no mask": any(row.protection and not row.mask for row in self.compare),
        }
        asked = [name for name, wanted in needing.items() if wanted]
        if asked:
            raise ValueError(f"{asked[0]} needs the encoder; name it in encoder, or leave that out")
        return self

    @property
    def concepts(self) -> tuple[ConceptConfig, ...]:
        """All concepts, the main one first, those never listed last."""
        return (self.concept, *self.other_concepts, *self.unlisted_concepts)

    @model_validator(mode="after")
    def _unit_vectors_where_needed(self) -> Self:
        for compared in self.compare:
            if compared.protection is not None and self.encoder != "none":
                refuse_off_the_sphere(compared.protection.mechanism, compared.protection.rho, self.encoder)
        return self


class QueryConfig(JobConfig):
    """Turn trusted queries into vectors to search a release with. Queries are not protected: keep them to yourself."""

    release: str
    """Output directory of a privatize job, which is to be searched."""
    input: InputConfig
    passthrough: tuple[str, ...] = ()
    """Input columns to copy beside the query vectors."""
    encoder: EncoderConfig | Literal["none"] = EncoderConfig()
    """The model of the release, with the prompt it wants for queries; 'none' where input.embedding names vectors."""
    tracking: TrackingConfig = TrackingConfig(enabled=False)

    @model_validator(mode="after")
    def _an_encoder_or_vectors(self) -> Self:
        _refuse_encoder_beside_vectors(self.encoder, self.input)
        return self


class QuickstartProtection(Section):
    """One row of the quickstart's table."""

    name: str
    """Row in the table."""
    mechanism: Literal[MECHANISMS]
    """Noise law."""
    mask: str | None = None
    """Name of one of `masks`, for the mechanism mahalanobis."""


class QuickstartConfig(JobConfig):
    """Learn masks, privatize a corpus and audit the result, in one go."""

    input: InputConfig
    passthrough: tuple[str, ...] = ()
    """Input columns to copy into the release."""
    concept: ConceptConfig
    encoder: EncoderConfig = EncoderConfig()
    split: SplitConfig = SplitConfig()
    masks: dict[str, MaskTrainingConfig]
    """Masks to learn, by name."""
    rho: Positive
    """Noise-to-signal of every protection compared."""
    floor: Annotated[float, Field(ge=SMALLEST_FLOOR, lt=1)] = DEFAULT_FLOOR
    """Share of the noise variance spread evenly over all directions."""
    compare: Annotated[tuple[QuickstartProtection, ...], Field(min_length=1)]
    """Protections to compare, at equal rho and with the same read-out."""
    release: str
    """Name of the protection that the corpus is published under."""
    attacks: Annotated[tuple[Literal[tuple(sorted(ATTACKS))], ...], Field(min_length=1)] = tuple(sorted(ATTACKS))
    """Attacks to run."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens seen in fewer training records are not attacked."""
    utility: UtilityTasks = ()
    """Tasks that the vectors should still be good for, as in an audit."""
    key: KeyConfig = KeyConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _names(self) -> Self:
        rows = {row.name: row for row in self.compare}
        if self.release not in rows:
            raise ValueError(f"release {self.release!r} is not one of compare: {', '.join(rows)}")
        for row in self.compare:
            refuse_off_the_sphere(row.mechanism, self.rho, self.encoder)
            if (row.mechanism == "mahalanobis") != (row.mask is not None):
                raise ValueError(f"row {row.name!r}: a mask belongs to the mechanism mahalanobis, and only to it")
            if row.mask is not None and row.mask not in self.masks:
                raise ValueError(f"row {row.name!r}: there is no mask {row.mask!r} in masks: {', '.join(self.masks)}")
        return self


def refuse_unrecorded(registry: RegistryConfig | None, tracking: TrackingConfig) -> None:
    """Refuse to register the mask of a run that is not recorded."""
    if registry is not None and not tracking.enabled:
        raise ValueError("registry: a mask is registered from the run that made it; set tracking.enabled to true")


def refuse_vectors(source: InputConfig) -> None:
    """Refuse vectors in place of texts, for a job that looks for a concept."""
    if source.embedding is not None:
        raise ValueError("a concept is found in texts; name their column in input.text instead of input.embedding")


def _refuse_encoder_beside_vectors(encoder: EncoderConfig | str, source: InputConfig) -> None:
    if (encoder == "none") != (source.embedding is not None):
        raise ValueError("encoder 'none' and input.embedding go together: name the column, and take no encoder")


def refuse_off_the_sphere(mechanism: str, rho: float | None, encoder: EncoderConfig) -> None:
    """Refuse a mechanism on directions for vectors that are none, or more noise than directions can have."""
    if mechanism != "purkayastha":
        return
    if not encoder.normalize:
        raise ValueError("mechanism 'purkayastha' protects vectors of norm 1; set encoder.normalize to true")
    if rho is not None and rho >= math.sqrt(2):
        raise ValueError(
            f"mechanism 'purkayastha' publishes directions, and rho {rho:g} is more than random ones have; "
            "choose a rho below 1.41"
        )
