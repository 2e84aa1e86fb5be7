"""Learn which directions of an embedding carry a concept, and save the mask."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, replace

import numpy as np

from jobs import sources, storage
from jobs.cli import job_main
from jobs.cluster import one_thread_each
from jobs.config import MaskTrainingConfig, TrainMaskConfig
from jobs.progress import console, steps
from jobs.registry import register_mask
from jobs.stages import (
    RememberingEncoder,
    check_output,
    divide,
    find_concept,
    named_split,
    refuse_missing_entity_model,
    usable_vectors,
)
from jobs.summary import Summary
from jobs.tracking import tracked
from sparse_core.attacks import PublicKnowledge, build_attack
from sparse_core.concepts import (
    Concept,
    Span,
    check_prevalence,
    concept_fingerprint,
    concept_tokens,
    contrast_pairs,
    value_substitutions,
)
from sparse_core.errors import SparseError
from sparse_core.evaluation import token_labels
from sparse_core.masks import WHITEBOX_BASES, Mask, label_basis, learn_mask, require_captum, whitebox_mask

CONFIG = TrainMaskConfig
_LEARNING = {"basis", "directions", "penalty", "seed", "epochs", "learning_rate", "gate_learning_rate"}


@dataclass(frozen=True)
class Plan:
    """What a run will read and learn."""

    source: sources.Source
    concept: Concept
    lines: tuple[str, ...]


def plan(config: TrainMaskConfig) -> Plan:
    """Check inputs, concept and output."""
    check_output("train_mask", config)
    source = sources.plan(config.input)
    concept = config.concept.build()
    refuse_missing_entity_model(concept, config.input)
    _refuse_other_concept(config, concept)
    if config.mask.whitebox:
        require_captum()
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    return Plan(
        source,
        concept,
        (
            f"read        {rows} rows of {config.input.shown_path} in {len(source.units)} units",
            f"concept     {concept!r}",
            f"encoder     {config.encoder.model}",
            f"mask        basis {config.mask.basis}, {_settings(config.mask)}",
            f"write       {config.output}/mask, {config.output}/summary.json",
        ),
    )


def _refuse_other_concept(config: TrainMaskConfig, concept: Concept) -> None:
    """Refuse to overwrite the mask of another concept."""
    found = storage.read_json(storage.join(config.output, "mask", "mask.json"))
    if found is not None and concept_fingerprint(concept, salt=found["salt"]) != found["concept_fingerprint"]:
        raise SparseError(
            f"output: {config.output} holds the mask of another concept ({', '.join(found['concepts'])}). Choose "
            "another output directory."
        )


def run(config: TrainMaskConfig, *, encoder: RememberingEncoder | None = None, verbose: bool = False) -> Mask:
    """Learn a mask and write it to ``<output>/mask``.

    Parameters
    ----------
    config : TrainMaskConfig
    encoder : RememberingEncoder, optional
        Loaded already.
    """
    planned = plan(config)
    summary = Summary("train_mask")
    with summary.timed("read"):
        corpus = sources.read_all(planned.source)
    spans = find_concept(corpus, planned.concept, config.input)
    encoder = encoder or RememberingEncoder.load(config.encoder)
    with tracked(config, summary) as tracking:
        with summary.timed("encode"):
            embeddings = encoder.encode(corpus.texts, title="Encoding the corpus")
            usable = usable_vectors(embeddings)
            train = usable.copy()
            if config.split is not None:
                train[:] = False
                train[divide(corpus.texts, config.split).mask] = True
                train &= usable
            rows = np.flatnonzero(train)
            texts, spans = [corpus.texts[row] for row in rows], [spans[row] for row in rows]
            check_prevalence(spans, name=planned.concept.name)
            records = Records(texts, spans, embeddings[rows])
            given = {} if config.mask.whitebox else mask_inputs(config.mask, planned.concept, records, encoder)
        salt = secrets.token_hex(16)
        named = {
            "concepts": (planned.concept.name,),
            "concept_fingerprint": concept_fingerprint(planned.concept, salt=salt),
            "salt": salt,
            "encoder": encoder.spec,
        }
        title = f"Learning the mask ({config.mask.basis} basis)"
        # The networks are small: a second thread costs more in waiting than it saves.
        with summary.timed("learn"), one_thread_each(), steps(title) as advance:
            if config.mask.whitebox:
                mask = _attributed(config.mask, records, named)
            else:
                mask = learn_mask(
                    embeddings=records.embeddings,
                    **given,
                    **named,
                    **config.mask.model_dump(include=_LEARNING),
                    progress=lambda done, total, metrics: advance(done, total, _shown(metrics)),
                )
        mask = replace(
            mask, info=replace(mask.info, learned_from=named_split(planned.source.fingerprint, config.split))
        )
        with storage.upload_directory(storage.join(config.output, "mask")) as local:
            mask.save(local)
        summary.rows_in = len(corpus.texts) + sum(corpus.quarantined.values())
        summary.rows_out = len(rows)
        summary.quarantined = dict(corpus.quarantined) | _count("unusable_vector", int((~usable).sum()))
        summary.details = {
            "concept_rows": sum(map(bool, spans)),
            "pairs": len(given.get("positive", ())),
            "mask_metrics": mask.info.metrics,
            "fingerprints": {"data": planned.source.fingerprint},
        }
        place = storage.join(config.output, "mask")
        tracking.log_directory(place, "mask")
        registered = None if config.registry is None else register_mask(tracking, place, config.registry)
        summary.details["registered"] = registered and asdict(registered)
        summary.write(config.output)
    console.print(
        f"Mask of {np.count_nonzero(mask.values)} of {mask.dimension} directions ({config.mask.basis} basis) "
        f"from {_source(summary.details)}: {config.output}/mask",
        highlight=False,
        soft_wrap=True,
    )
    return mask


@dataclass(frozen=True)
class Records:
    """What a mask is made of."""

    texts: list[str]
    spans: list[list[Span]]
    embeddings: np.ndarray

    def token_labels(self, min_count: int) -> np.ndarray:
        """Which record holds which concept token, of those that enough records hold."""
        tokens = [concept_tokens(text, found) for text, found in zip(self.texts, self.spans, strict=True)]
        return token_labels(tokens, train=np.arange(len(tokens)), min_count=min_count).labels


def mask_inputs(
    config: MaskTrainingConfig, concept: Concept, records: Records, encoder: RememberingEncoder
) -> dict[str, np.ndarray]:
    """Sentences with and without the concept, and what else the chosen basis needs, as `learn_mask` takes it."""
    generator = np.random.default_rng(config.seed)
    pairs = contrast_pairs(records.texts, records.spans, how=config.removal, generator=generator)
    given = {
        "positive": records.embeddings[pairs.index],
        "negative": encoder.encode(pairs.negative, title="Encoding sentences without the concept"),
        "lengths": (_lengths(pairs.positive), _lengths(pairs.negative)),
    }
    if config.basis in ("substitution", "blend", "erasure", "label"):
        # Tokens seen once say little of themselves but much of those that the corpus does not have.
        given["token_labels"] = records.token_labels(min_count=1)
    if config.basis == "substitution":
        substitutions = value_substitutions(
            records.texts,
            records.spans,
            values=concept.terms,
            n_contexts=config.contexts,
            max_values=config.max_values,
            generator=np.random.default_rng(config.seed),
        )
        vectors = encoder.encode(substitutions.texts, title="Encoding sentences with other values of the concept")
        given["substitutions"] = substitutions.shaped(vectors)
    return given


def _attributed(config: MaskTrainingConfig, records: Records, named: dict) -> Mask:
    """The mask over what an attacker, trained on unprotected vectors, reads the concept from."""
    labels = records.token_labels(config.min_token_count)
    attacker = build_attack("mlc").fit(records.embeddings, labels, public=PublicKnowledge(), seed=config.seed)
    subspace = {}
    if config.basis == "whitebox-label":
        subspace = {"basis": label_basis(records.embeddings, records.token_labels(min_count=1)), "basis_name": "label"}
    mask = whitebox_mask(
        attacker.as_module(),
        embeddings=records.embeddings,
        token_labels=labels,
        share=_share(config),
        seed=config.seed,
        **subspace,
        **named,
    )
    metrics = mask.info.metrics | {"attacker_leakage": attacker.validation_leakage}
    return replace(mask, info=replace(mask.info, metrics=metrics))


def _share(config: MaskTrainingConfig) -> float:
    return WHITEBOX_BASES[config.basis] if config.share is None else config.share


def _settings(config: MaskTrainingConfig) -> str:
    if config.whitebox:
        return f"{_share(config):g} of what an mlc attacker reads"
    return f"lambda {config.penalty:g}, removal {config.removal}"


def _source(details: dict) -> str:
    metrics = details["mask_metrics"]
    if "attacker_leakage" in metrics:
        return f"an attacker that recovers {metrics['attacker_leakage']:.0%} of held-out concept tokens"
    return f"{details['pairs']} pairs, held-out accuracy {metrics['accuracy']:.2f}"


def _lengths(texts: list[str]) -> np.ndarray:
    return np.array([(len(text), len(text.split())) for text in texts], dtype=float)


def _shown(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in metrics.items())


def _count(reason: str, count: int) -> dict[str, int]:
    return {reason: count} if count else {}


if __name__ == "__main__":
    job_main("train_mask")
