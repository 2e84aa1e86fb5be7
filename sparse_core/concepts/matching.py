"""Finding a concept in text: whole-word terms, regular expressions and entities, as offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import regex

from sparse_core.concepts.concept import Concept, split_term
from sparse_core.concepts.entities import annotated_spans, model_spans
from sparse_core.concepts.spans import Span, merge_spans
from sparse_core.concepts.words import WORD, compile_shape, fold_edge, fold_gap, fold_word
from sparse_core.errors import SparseError
from sparse_core.positions import by_position

PATTERN_TIMEOUT_SECONDS = 2.0
PROGRESS_ROWS = 1_000

_ASCII_WORD = re.compile(r"\w+", re.ASCII)
# don't is one word, so Don is not in it; the s of Sophy's is not a word of its own.
_NEGATION = compile_shape(r"<A>t(?!<W>)", regex.IGNORECASE)
_CLITIC = compile_shape(r"(?<=<W><A>)(?:s|t|d|m|ll|re|ve)(?!<W>)", regex.IGNORECASE)
_LETTER_AFTER = compile_shape(r"<W>")
_LETTER_BEFORE = compile_shape(r"(?<=<W>)")


def find_spans(
    texts: Iterable[str],
    concept: Concept,
    *,
    annotations: Iterable[Iterable[dict] | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Span]]:
    """Find where each text holds the concept.

    Terms match whole words only; at each place the longest term wins. Matches that overlap or touch,
    from whatever source, are merged into one span, so nothing found is left outside. A possessive ending
    stays outside the span of a term or a model's entity.

    Parameters
    ----------
    texts : iterable of str
        The texts.
    concept : Concept
        What to look for.
    annotations : iterable of (iterable of mappings or None), optional
        For each text its annotated spans, mappings with ``start``, ``end`` (code points, end exclusive)
        and ``label``. Then no entity model is run: `concept.entity_types` select labels, and if there are
        none every annotated span counts.
    progress : callable, optional
        Called as ``progress(rows_done, rows)``.

    Returns
    -------
    list of list of Span
        For each text its spans: sorted, not overlapping.

    Raises
    ------
    SparseError
        If a text is not a string, an annotated span does not lie in its text, a pattern takes longer than
        `PATTERN_TIMEOUT_SECONDS` on one text, or the entity model is missing.
    """
    texts = _checked_texts(texts)
    if annotations is not None:
        entities = annotated_spans(texts, annotations, concept)
    elif concept.uses_entities:
        entities = model_spans(texts, concept)
    else:
        entities = ([] for _ in texts)
    trie = _term_trie(concept.terms)
    patterns = [regex.compile(pattern) for pattern in concept.patterns]
    found = []
    for row, (text, spans) in enumerate(zip(texts, entities, strict=True)):
        spans = list(spans)
        if trie:
            spans += _term_spans(text, trie)
        for position, pattern in enumerate(patterns, start=1):
            spans += _pattern_spans(text, pattern, concept.name, position, row)
        found.append(merge_spans(spans))
        if progress is not None and ((row + 1) % PROGRESS_ROWS == 0 or row + 1 == len(texts)):
            progress(row + 1, len(texts))
    return found


def _checked_texts(texts: Iterable[str]) -> Sequence[str]:
    texts = by_position(texts, "texts")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise SparseError(f"Row {row}: the text is {type(text).__name__}, not a string; fill or drop it.")
    return texts


@lru_cache(maxsize=16)
def _term_trie(terms: tuple[str, ...]) -> dict:
    """Nested dictionaries by folded word; None holds the (lead, trail) of the terms that end there."""
    root: dict = {}
    for term in terms:
        lead, words, trail = split_term(term)
        node = root
        for word in words:
            node = node.setdefault(word, {})
        node.setdefault(None, set()).add((lead, trail))
    return root


def _term_spans(text: str, trie: dict) -> list[Span]:
    if text.isascii():
        matches = list(_ASCII_WORD.finditer(text.lower()))
        starts = [i for i, match in enumerate(matches) if match.group() in trie]
    else:
        matches = [match for match in WORD.finditer(text) if fold_word(match.group())]
        starts = [i for i, match in enumerate(matches) if fold_word(match.group()) in trie]
    spans = []
    for first in starts:
        span = _longest_term(text, matches, first, trie)
        if span is not None:
            spans.append(span)
    return spans


def _longest_term(text: str, matches: list, first: int, trie: dict) -> Span | None:
    start, end = matches[first].span()
    if _CLITIC.match(text, start):
        return None
    node, longest = trie[fold_word(matches[first].group())], None
    for following in range(first + 1, len(matches) + 1):
        edges = node.get(None)
        if edges and not _NEGATION.match(text, end):
            longest = _with_edges(text, start, end, edges) or longest
        if following == len(matches):
            break
        match = matches[following]
        node = node.get(fold_gap(text[end : match.start()]) + fold_word(match.group()))
        if node is None:
            break
        end = match.end()
    return longest


def _with_edges(text: str, start: int, end: int, edges: set[tuple[str, str]]) -> Span | None:
    """The longest span whose punctuation before and after the words is the term's own."""
    spans = []
    for lead, trail in edges:
        before, after = start - len(lead), end + len(trail)
        if before < 0 or fold_edge(text[before:start]) != lead or fold_edge(text[end:after]) != trail:
            continue
        if (lead and _LETTER_BEFORE.match(text, before)) or (trail and _LETTER_AFTER.match(text, after)):
            continue
        spans.append(Span(before, after))
    return max(spans, key=lambda span: span.end - span.start, default=None)


def _pattern_spans(text: str, pattern: regex.Pattern, name: str, position: int, row: int) -> list[Span]:
    try:
        matches = [match.span() for match in pattern.finditer(text, timeout=PATTERN_TIMEOUT_SECONDS)]
    except TimeoutError:
        matches = None
    if matches is None:
        raise SparseError(
            f"Concept {name!r}, row {row}: pattern {position} took longer than {PATTERN_TIMEOUT_SECONDS:g} s"
            "; rewrite it without nested repetition."
        )
    return [Span(start, end) for start, end in matches if start < end]
