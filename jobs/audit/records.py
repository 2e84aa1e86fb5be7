"""The records of an audit: where they hold the concepts, who may see which, and whether they are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs import sources
from jobs.closed_sets import choose
from jobs.config import AuditConfig
from jobs.measuring import Material
from jobs.stages import RememberingEncoder, Roles, find_concept
from sparse_core.attacks import check_enough_records
from sparse_core.concepts import Concept, Span, concept_tokens, merge_spans
from sparse_core.errors import SparseError
from sparse_core.evaluation import token_labels

_SAMPLED = 32
_SAME_COSINE = 0.99


@dataclass(frozen=True)
class Found:
    """Where the corpus holds the concepts.

    Attributes
    ----------
    spans : dict of str to (list of (list of Span))
        Of each concept, in each text.
    tokens : dict of str to (list of (tuple of str))
        The concept's tokens there.
    """

    spans: dict[str, list[list[Span]]]
    tokens: dict[str, list[tuple[str, ...]]]


def find(config: AuditConfig, concepts: Sequence[Concept], corpus: sources.Corpus) -> Found:
    """Find every concept in every text."""
    spans = {concept.name: find_concept(corpus, concept, config.input) for concept in concepts}
    tokens = {
        name: [concept_tokens(text, found) for text, found in zip(corpus.texts, located, strict=True)]
        for name, located in spans.items()
    }
    return Found(spans, tokens)


def hidden_spans(config: AuditConfig, found: Found) -> list[list[Span]]:
    """Where the texts hold what is to be hidden, of whichever concept."""
    listed = [found.spans[concept.name] for concept in (config.concept, *config.other_concepts)]
    return [merge_spans(span for spans in of_text for span in spans) for of_text in zip(*listed, strict=True)]


def refuse_few(config: AuditConfig, corpus: sources.Corpus, found: Found, roles: Roles, present: np.ndarray) -> int:
    """Refuse a corpus too small to attack before anything is encoded; otherwise, how many records will be attacked."""
    rows = np.flatnonzero(present)
    train, test = (np.flatnonzero(np.isin(rows, role)) for role in (roles.attack, roles.test))
    for role, having in (("attackers are to know", train), ("are to be attacked", test)):
        if len(having) == 0:
            raise SparseError(f"compare: none of the records that {role} has a vector in every row of the table.")
    attacked = {}
    for name, tokens in found.tokens.items():
        try:
            labels = token_labels([tokens[row] for row in rows], train=train, min_count=config.min_token_count).labels
            attacked[name] = int(labels[test].any(axis=1).sum())
            check_enough_records(attacked[name])
        except SparseError as error:
            raise SparseError(f"concept {name!r}: {error}") from None
    if config.dictionary is not None:
        texts, spans = [corpus.texts[row] for row in rows], [found.spans[config.concept.name][row] for row in rows]
        choose(config.dictionary, texts, spans, train=train, test=test, seed=config.seed)
    return attacked[config.concept.name]


def refuse_other_vectors(
    config: AuditConfig,
    corpus: sources.Corpus,
    present: np.ndarray,
    vectors: np.ndarray,
    encoder: RememberingEncoder | None,
) -> None:
    """Refuse unprotected vectors that the encoder does not make of the texts, by a sample of them."""
    if encoder is None:
        return
    rows = np.random.default_rng(config.seed).permutation(np.flatnonzero(present))[:_SAMPLED]
    made = encoder.encode([corpus.texts[row] for row in rows], title="Checking the unprotected vectors")
    shown = vectors[rows]
    lengths = np.linalg.norm(made, axis=1) * np.linalg.norm(shown, axis=1)
    cosine = float(np.median(np.einsum("ij,ij->i", made, shown) / np.maximum(lengths, 1e-12)))
    if cosine < _SAME_COSINE:
        raise SparseError(
            f"unprotected: {config.encoder.model} does not make the vectors of {config.unprotected.shown_path} from "
            f"these texts: the median cosine of {len(rows)} of them is {cosine:.3f}. Name their model in encoder."
        )


def material_of(
    config: AuditConfig,
    corpus: sources.Corpus,
    found: Found,
    roles: Roles,
    vectors: np.ndarray,
    rows: np.ndarray,
) -> Material:
    """The records that count: those of the corpus's `rows`."""
    train, test = (np.flatnonzero(np.isin(rows, role)) for role in (roles.attack, roles.test))
    return Material(
        ids=[corpus.ids[row] for row in rows],
        texts=[corpus.texts[row] for row in rows],
        vectors=vectors[rows],
        concepts={
            name: token_labels([tokens[row] for row in rows], train=train, min_count=config.min_token_count)
            for name, tokens in found.tokens.items()
        },
        train=train,
        test=test,
        columns={name: [values[row] for row in rows] for name, values in corpus.columns.items()},
    )
