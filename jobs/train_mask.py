"""Learn which directions of an embedding carry a concept, and save the mask."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from jobs import sources, storage
from jobs.cli import job_main
from jobs.cluster import one_thread_each
from jobs.config import TrainMaskConfig
from jobs.progress import console, steps
from jobs.stages import (
    RememberingEncoder,
    check_output,
    divide,
    find_concept,
    refuse_missing_entity_model,
    usable_vectors,
)
from jobs.summary import Summary
from jobs.tracking import tracked
from sparse_core.concepts import (
    Concept,
    check_prevalence,
    concept_fingerprint,
    concept_tokens,
    contrast_pairs,
    value_substitutions,
)
from sparse_core.evaluation import token_labels
from sparse_core.masks import Mask, learn_mask

CONFIG = TrainMaskConfig


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
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    return Plan(
        source,
        concept,
        (
            f"read        {rows} rows of {config.input.path} in {len(source.units)} units",
            f"concept     {concept!r}",
            f"encoder     {config.encoder.model}",
            f"mask        basis {config.mask.basis}, lambda {config.mask.penalty:g}, removal {config.mask.removal}",
            f"write       {config.output}/mask, {config.output}/summary.json",
        ),
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
            generator = np.random.default_rng(config.mask.seed)
            pairs = contrast_pairs(texts, spans, how=config.mask.removal, generator=generator)
            negative = encoder.encode(pairs.negative, title="Encoding sentences without the concept")
            material = _material(config, planned.concept, texts, spans, encoder)
        salt = secrets.token_hex(16)
        title = f"Learning the mask ({config.mask.basis} basis)"
        # The networks are small: a second thread costs more in waiting than it saves.
        with summary.timed("learn"), one_thread_each(), steps(title) as advance:
            mask = learn_mask(
                positive=embeddings[rows][pairs.index],
                negative=negative,
                embeddings=embeddings[rows],
                **material,
                concepts=(planned.concept.name,),
                concept_fingerprint=concept_fingerprint(planned.concept, salt=salt),
                salt=salt,
                encoder=encoder.spec,
                basis=config.mask.basis,
                directions=config.mask.directions,
                penalty=config.mask.penalty,
                seed=config.mask.seed,
                epochs=config.mask.epochs,
                learning_rate=config.mask.learning_rate,
                gate_learning_rate=config.mask.gate_learning_rate,
                lengths=(_lengths(pairs.positive), _lengths(pairs.negative)),
                progress=lambda done, total, metrics: advance(done, total, _shown(metrics)),
            )
        with storage.upload_directory(storage.join(config.output, "mask")) as local:
            mask.save(local)
        summary.rows_in = len(corpus.texts) + sum(corpus.quarantined.values())
        summary.rows_out = len(rows)
        summary.quarantined = dict(corpus.quarantined) | _count("unusable_vector", int((~usable).sum()))
        summary.details = {
            "concept_rows": sum(map(bool, spans)),
            "pairs": len(pairs),
            "mask_metrics": mask.info.metrics,
            "fingerprints": {"data": planned.source.fingerprint},
        }
        summary.write(config.output)
        tracking.log_directory(storage.join(config.output, "mask"), "mask")
    console.print(
        f"Mask of {np.count_nonzero(mask.values)} of {mask.dimension} directions ({config.mask.basis} basis) "
        f"from {len(pairs)} pairs, held-out accuracy {mask.info.metrics['accuracy']:.2f}: {config.output}/mask",
        highlight=False,
        soft_wrap=True,
    )
    return mask


def _material(config: TrainMaskConfig, concept: Concept, texts: list[str], spans: list, encoder) -> dict:
    """What the chosen basis needs beside the pairs."""
    material = {}
    if config.mask.basis in ("substitution", "blend", "erasure", "label"):
        # Tokens seen once say little of themselves but much of those that the corpus does not have.
        tokens = [concept_tokens(text, found) for text, found in zip(texts, spans, strict=True)]
        material["token_labels"] = token_labels(tokens, train=np.arange(len(texts)), min_count=1).labels
    if config.mask.basis == "substitution":
        substitutions = value_substitutions(
            texts,
            spans,
            values=concept.terms,
            n_contexts=config.mask.contexts,
            max_values=config.mask.max_values,
            generator=np.random.default_rng(config.mask.seed),
        )
        vectors = encoder.encode(substitutions.texts, title="Encoding sentences with other values of the concept")
        material["substitutions"] = substitutions.shaped(vectors)
    return material


def _lengths(texts: list[str]) -> np.ndarray:
    return np.array([(len(text), len(text.split())) for text in texts], dtype=float)


def _shown(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in metrics.items())


def _count(reason: str, count: int) -> dict[str, int]:
    return {reason: count} if count else {}


if __name__ == "__main__":
    job_main("train_mask")
