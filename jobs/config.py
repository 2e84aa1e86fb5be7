"""Configuration: validated models, read from YAML and overridden on the command line.

The docstring under a field is its documentation: ``--help`` and error messages are made from it.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparse_core.attacks import ATTACKS
from sparse_core.concepts import REMOVALS, Concept
from sparse_core.encoders import DEFAULT_MODEL
from sparse_core.errors import SparseError
from sparse_core.masks import BASES, DEFAULT_BASIS
from sparse_core.mechanisms import DEFAULT_FLOOR, MECHANISMS

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
_CREDENTIALS = re.compile(r"://[^/\s]*@")


class Section(BaseModel):
    """Base of every section: unknown fields are errors, values cannot change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class InputConfig(Section):
    """The corpus to read."""

    path: str
    """A Parquet, CSV or JSON-lines file, a folder of them, or a glob; local or s3://bucket/key."""
    text: str = "text"
    """Column that holds the text."""
    id: str | None = "id"
    """Column that holds a unique string or integer per record; null makes ids from file path and row position."""
    annotations: str | None = None
    """Column of annotated spans, each a struct {start, end, label} in characters, for concepts by entity type."""


class ConceptConfig(Section):
    """What is to be hidden. Terms and patterns stay in this file: they are never logged or stored."""

    name: str
    """Public name of the concept; appears in artifacts and reports."""
    terms: tuple[str, ...] = ()
    """Words or names of several words, matched as whole words in any case."""
    terms_file: str | None = None
    """Text file with one term a line, for long lists."""
    patterns: tuple[str, ...] = ()
    """Regular expressions (syntax of the regex package)."""
    entity_types: tuple[str, ...] = ()
    """Entity types, from input.annotations where given, else found by entity_model."""
    entity_model: str | None = None
    """spaCy model for entity_types, by name or path; needs the extra 'ner'."""

    def build(self) -> Concept:
        """The concept, with the terms of ``terms_file`` read."""
        terms = list(self.terms)
        if self.terms_file is not None:
            try:
                lines = Path(self.terms_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SparseError(f"concept.terms_file: {self.terms_file!r} cannot be read ({error}).") from None
            terms += [line.strip() for line in lines if line.strip()]
        return Concept(
            name=self.name,
            terms=tuple(dict.fromkeys(terms)),
            patterns=self.patterns,
            entity_types=self.entity_types,
            entity_model=self.entity_model,
        )


class EncoderConfig(Section):
    """The model that turns text into vectors."""

    model: str = DEFAULT_MODEL
    """Any sentence-transformers or transformers model: hub id or local folder."""
    revision: str | None = None
    """Hub revision; pin a commit so that a re-run publishes the same vectors."""
    device: str | None = None
    """cpu, cuda or cuda:N; null takes the best there is."""
    normalize: bool = True
    """Scale vectors to unit norm."""
    prompt: str = ""
    """Put before every text, such as 'passage: ' for E5 models."""


class SplitConfig(Section):
    """Who sees which records: the mask, the attackers, and nobody before the test. Near-duplicates stay together.

    Attackers get records of their own, because on the records that a mask was learned from its directions have taken
    away more than they do elsewhere.
    """

    test_share: Share = 0.25
    """Share of records that attackers are tested on."""
    attack_share: Share = 0.3
    """Share of records that attackers are trained on; the mask is learned from what is left."""
    seed: int = 0
    """The same seed and corpus give every job the same split."""

    @model_validator(mode="after")
    def _leaves_some(self) -> Self:
        if self.test_share + self.attack_share >= 1:
            raise ValueError("test_share and attack_share leave no records for the mask; their sum must be below 1")
        return self


class MaskTrainingConfig(Section):
    """How a mask is learned."""

    basis: Literal[BASES] = DEFAULT_BASIS
    """Directions the mask speaks about: 'coordinate' as in the paper, or a subspace found from the concept."""
    directions: Annotated[int, Field(gt=0)] | None = None
    """Most concept directions a subspace basis may have; null keeps all that the data show."""
    penalty: Annotated[float, Field(ge=0)] = 0.5
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
    seed: int = 0
    """Seed of everything drawn in training."""


class ProtectionConfig(Section):
    """The noise and the read-out."""

    mechanism: Literal[MECHANISMS] = "mahalanobis"
    """Noise law; 'mahalanobis' is shaped by the mask, 'laplace' is the same in every direction."""
    epsilon: Positive | None = None
    """Privacy parameter in the mechanism's own metric. Give this or rho."""
    rho: Positive | None = None
    """Noise-to-signal: median noise norm over median embedding norm. Give this or epsilon."""
    floor: Annotated[float, Field(ge=DEFAULT_FLOOR, lt=1)] = 0.03
    """Share of the noise variance spread evenly over all directions: protects what lies outside the mask."""
    read_out: Literal["wiener", "none"] = "wiener"
    """Post-processing with public quantities that restores utility at no privacy cost."""
    unit_norm: bool = False
    """Scale published vectors to norm 1, for consumers that use inner products."""

    @model_validator(mode="after")
    def _one_strength(self) -> Self:
        given = (self.epsilon is not None) + (self.rho is not None)
        if given != (self.mechanism != "none"):
            wanted = "neither epsilon nor rho" if self.mechanism == "none" else "exactly one of epsilon and rho"
            raise ValueError(f"mechanism {self.mechanism!r} takes {wanted}")
        return self


class KeyConfig(Section):
    """Where the secret key of the noise comes from. The key itself never stands in a configuration."""

    file: str | None = None
    """Key file, readable by its owner only; 'sparse key new FILE' writes one."""
    environment: str | None = "SPARSE_KEY"
    """Environment variable that holds the key in hex or base64; used if no file is named."""
    ephemeral: bool = False
    """Draw a key for this run and forget it. For demonstrations: re-runs publish fresh noise, which averages away."""


class TrackingConfig(Section):
    """MLflow."""

    enabled: bool = True
    """Whether to record runs at all."""
    uri: str | None = None
    """Tracking URI; null keeps a SQLite store at <output>/mlflow.db."""
    experiment: str = "sparse"
    """MLflow experiment."""


class BudgetConfig(Section):
    """What a record may spend over all its releases."""

    max_epsilon_per_record: Positive | None = None
    """Most a record may have spent, in epsilon_euclidean; a run that would exceed it is refused before it starts."""
    include: tuple[str, ...] = ()
    """Output directories with earlier releases of the same records, whose ledgers count, as do those they include."""


class LimitsConfig(Section):
    """When to stop."""

    max_quarantined: Annotated[float, Field(ge=0)] | None = None
    """Stop once more rows than this are quarantined: a share of the rows if below 1, else a count."""


class WorkersConfig(Section):
    """Ray."""

    actors: Annotated[int, Field(gt=0)] | None = None
    """Actors that encode and protect; null takes one per GPU, or one per CPU core."""
    address: str | None = None
    """Address of a running Ray cluster; null starts one on this machine and stops it afterwards."""


class ClassificationUtility(Section):
    """Utility as classification: logistic regression on the vectors."""

    task: Literal["classification"] = "classification"
    """Name of the task."""
    label: str
    """Column with the class of each record."""
    min_class_size: Annotated[int, Field(gt=1)] = 20
    """Classes with fewer training records are left out."""
    samples_per_label: Annotated[int, Field(gt=0)] | None = None
    """Training records per class in each of ten experiments, as in MTEB (8 there); null trains once on all."""


class Compared(Section):
    """One protection to attack: an existing release, or one to simulate with a key drawn for the audit."""

    name: str
    """Row in the table."""
    release: str | None = None
    """Output directory of a privatize job, whose published vectors and policy are taken."""
    protection: ProtectionConfig | None = None
    """Protection to simulate instead."""
    mask: str | None = None
    """Mask directory for the simulated protection; a read-out needs one too."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.release is None) == (self.protection is None):
            raise ValueError("give exactly one of release and protection")
        if self.release is not None and self.mask is not None:
            raise ValueError("a release brings its own mask; leave mask out")
        if self.protection is not None and self.mask is None:
            _refuse_missing_mask(self.protection)
        return self


def _refuse_missing_mask(protection: ProtectionConfig) -> None:
    if protection.mechanism == "mahalanobis":
        raise ValueError("mechanism 'mahalanobis' needs a mask; name one in mask")
    if protection.read_out == "wiener" and protection.mechanism != "none":
        raise ValueError("read_out 'wiener' needs a mask, whose mean and covariance it uses; name one in mask, or none")


class JobConfig(Section):
    """What every job has."""

    output: str
    """Directory to write to."""
    tracking: TrackingConfig = TrackingConfig()


class TrainMaskConfig(JobConfig):
    """Learn which directions of an embedding carry a concept."""

    input: InputConfig
    concept: ConceptConfig
    encoder: EncoderConfig = EncoderConfig()
    mask: MaskTrainingConfig = MaskTrainingConfig()
    split: SplitConfig | None = SplitConfig()


class WeightedMask(Section):
    """One of several masks."""

    path: str
    """Mask directory."""
    weight: Positive = 1.0
    """Its share of the noise, relative to the others."""


class PrivatizeConfig(JobConfig):
    """Embed and protect a corpus with Ray Data."""

    input: InputConfig
    passthrough: tuple[str, ...] = ()
    """Input columns to copy into the output. The text is not copied unless it is named here."""
    encoder: EncoderConfig = EncoderConfig()
    mask: str | Annotated[tuple[WeightedMask, ...], Field(min_length=1)] | None = None
    """Mask directory, as written by train_mask; or a list of {path, weight}, to hide several concepts at once."""
    protection: ProtectionConfig
    key: KeyConfig = KeyConfig()
    budget: BudgetConfig = BudgetConfig()
    limits: LimitsConfig = LimitsConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _mask_where_needed(self) -> Self:
        if self.mask is None:
            _refuse_missing_mask(self.protection)
        return self


class AuditConfig(JobConfig):
    """Attack protected vectors and measure what they are still good for."""

    input: InputConfig
    concept: ConceptConfig
    encoder: EncoderConfig = EncoderConfig()
    split: SplitConfig = SplitConfig()
    compare: Annotated[tuple[Compared, ...], Field(min_length=1)]
    """Protections to compare, one row each."""
    attacks: Annotated[tuple[Literal[tuple(sorted(ATTACKS))], ...], Field(min_length=1)] = tuple(sorted(ATTACKS))
    """Attacks to run; the headline leakage is the highest of them."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens seen in fewer training records are not attacked: nobody could learn them."""
    utility: ClassificationUtility | None = None
    """Task that the vectors should still be good for; null measures none."""
    seed: int = 0
    """Seed of attackers and intervals."""

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [c.name for c in self.compare]
        if len(set(names)) < len(names):
            raise ValueError("names in compare must differ")
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
    floor: Annotated[float, Field(ge=DEFAULT_FLOOR, lt=1)] = 0.03
    """Share of the noise variance spread evenly over all directions."""
    compare: Annotated[tuple[QuickstartProtection, ...], Field(min_length=1)]
    """Protections to compare, at equal rho and with the same read-out."""
    release: str
    """Name of the protection that the corpus is published under."""
    attacks: Annotated[tuple[Literal[tuple(sorted(ATTACKS))], ...], Field(min_length=1)] = tuple(sorted(ATTACKS))
    """Attacks to run."""
    min_token_count: Annotated[int, Field(gt=0)] = 5
    """Concept tokens seen in fewer training records are not attacked."""
    utility: ClassificationUtility | None = None
    """Task that the vectors should still be good for."""
    key: KeyConfig = KeyConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _names(self) -> Self:
        rows = {row.name: row for row in self.compare}
        if self.release not in rows:
            raise ValueError(f"release {self.release!r} is not one of compare: {', '.join(rows)}")
        for row in self.compare:
            if (row.mechanism == "mahalanobis") != (row.mask is not None):
                raise ValueError(f"row {row.name!r}: a mask belongs to the mechanism mahalanobis, and only to it")
            if row.mask is not None and row.mask not in self.masks:
                raise ValueError(f"row {row.name!r}: there is no mask {row.mask!r} in masks: {', '.join(self.masks)}")
        return self


C = TypeVar("C", bound=JobConfig)


def load_config(model: type[C], path: str | None, overrides: list[str]) -> C:
    """Read a YAML file, apply ``dotted.key=value`` overrides and validate.

    Raises
    ------
    SparseError
        Naming each field that is wrong; for an unknown one, the nearest that exists.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise SparseError(f"There is no configuration file {path}.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SparseError(f"The configuration file {path} cannot be read ({error}).") from None
        except yaml.YAMLError as error:
            # PyYAML's own message quotes the line, which may hold a term of the concept.
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise SparseError(f"The configuration file {path} is not valid YAML{where}.") from None
        if not isinstance(values, dict):
            raise SparseError(
                f"The configuration file {path} must hold fields and values, not {type(values).__name__}."
            )
    for override in overrides:
        _apply_override(values, override)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        where = f"{path} " if path else "the command line "
        problems = "; ".join(_problem(model, problem) for problem in error.errors(include_input=False))
        end = "" if problems.endswith("?") else "."
        raise SparseError(f"The configuration from {where}is not valid: {problems}{end}") from None


def _apply_override(values: dict, override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise SparseError(f"{override!r} is not an override; write field=value, such as output=/data/out.")
    *parents, leaf = key.split(".")
    target = values
    for depth, parent in enumerate(parents, start=1):
        target = target.setdefault(parent, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise SparseError(f"The override {key!r} does not fit: {'.'.join(parents[:depth])} has no fields.")
    try:
        value = yaml.safe_load(text)
        # A text such as 'passage: ' is not meant as a field of its own.
        target[leaf] = text if isinstance(value, dict) and not text.lstrip().startswith("{") else value
    except yaml.YAMLError:
        raise SparseError(f"The value of the override {key!r} is not valid YAML; quote it.") from None


def _problem(model: type[BaseModel], problem: dict) -> str:
    location = problem["loc"]
    name = ".".join(str(part) for part in location)
    if problem["type"] != "extra_forbidden":
        return f"{name or 'the whole'}: {problem['msg'].removeprefix('Value error, ')}"
    fields = list(_section_at(model, location[:-1]).model_fields)
    nearest = difflib.get_close_matches(str(location[-1]), fields, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(fields)}"
    return f"{name}: no such field; {hint}"


def _section_at(model: type[BaseModel], location: tuple) -> type[BaseModel]:
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = section_of(model.model_fields[part].annotation) or model
    return model


def section_of(annotation: Any) -> type[Section] | None:
    """The section inside an annotation such as ``Section | None`` or ``tuple[Section, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for arg in get_args(annotation) if (found := section_of(arg))), None)


def describe_fields(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str]]:
    """Every field as (dotted name, default, documentation), sections expanded."""
    rows = []
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None or field.description:
            default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
            choices = _choices(field.annotation)
            text = (field.description or "") + (f" One of: {', '.join(choices)}." if len(choices) > 1 else "")
            rows.append((prefix + name, default, text))
        if section is not None:
            many = {tuple: "[]", dict: ".NAME"}.get(getattr(field.annotation, "__origin__", None), "")
            rows += describe_fields(section, f"{prefix}{name}{many}.")
    return rows


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for arg in get_args(annotation) if not isinstance(arg, str) for choice in _choices(arg)]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def without_credentials(text: str) -> str:
    """A setting without the user name and password that a URL in it may carry."""
    return _CREDENTIALS.sub("://***@", text)


def public_settings(config: BaseModel) -> dict[str, str]:
    """The configuration as flat, loggable settings: without terms, patterns or anything secret."""
    flat: dict[str, str] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else key)
        elif isinstance(value, list | tuple) and any(isinstance(v, dict) for v in value):
            for position, inner in enumerate(value):
                walk(inner, f"{name}.{position}")
        elif name.endswith(("concept.terms", "concept.patterns")):
            flat[name] = f"{len(value)} given"
        else:
            flat[name] = without_credentials(str(value))

    walk(config.model_dump(mode="json"), "")
    return flat
