"""Stretches of text, and what a list of them says about a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparse_core.concepts.words import word_tokens
from sparse_core.errors import SparseError
from sparse_core.positions import by_position


@dataclass(frozen=True, order=True)
class Span:
    """A stretch of text.

    Attributes
    ----------
    start, end : int
        Offsets in code points of the original text, end exclusive.
    """

    start: int
    end: int


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Sort spans and merge those that overlap or touch.

    Parameters
    ----------
    spans : iterable of Span
        In any order.

    Returns
    -------
    list of Span
    """
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def check_spans(text: str, spans: Iterable[Span]) -> None:
    """Check that spans lie in a text.

    Parameters
    ----------
    text : str
        The text.
    spans : iterable of Span
        In any order.

    Raises
    ------
    SparseError
        If one is empty or reaches outside.
    """
    for span in spans:
        if not 0 <= span.start < span.end <= len(text):
            raise SparseError(
                f"Span {span.start} to {span.end} does not lie in the text of {len(text)} characters: "
                "were the spans found in this text?"
            )


def concept_tokens(text: str, spans: Sequence[Span]) -> tuple[str, ...]:
    """The words a reader of the spans would learn.

    Parameters
    ----------
    text : str
        The text.
    spans : sequence of Span
        Where it holds the concept.

    Returns
    -------
    tuple of str
        Distinct case-folded words, composed (NFC), possessive endings taken off, in order of first
        appearance.

    Raises
    ------
    SparseError
        If a span does not lie in the text.
    """
    check_spans(text, spans)
    tokens = (token for span in sorted(spans) for token in word_tokens(text[span.start : span.end]))
    return tuple(dict.fromkeys(tokens))


def check_prevalence(spans: Sequence[Sequence[Span]], n: int | None = None, *, name: str = "?") -> int:
    """Refuse a corpus that cannot tell with the concept from without.

    Parameters
    ----------
    spans : sequence of (sequence of Span)
        Spans of each row, from `find_spans`.
    n : int, optional
        Number of rows; by default the length of `spans`.
    name : str
        The concept's name, for the message.

    Returns
    -------
    int
        Number of rows that hold the concept.

    Raises
    ------
    SparseError
        If no row or every row holds the concept, or there are no rows.
    """
    spans = by_position(spans, "spans")
    n = len(spans) if n is None else n
    found = sum(1 for row in spans if len(row))
    if n == 0:
        raise SparseError(f"Concept {name!r}: there are no rows to look for it in.")
    if found == 0:
        raise SparseError(
            f"Concept {name!r} is found in 0 of {n} rows: check its terms, patterns or entity types, and "
            "that the texts are the right column."
        )
    if found >= n:
        raise SparseError(
            f"Concept {name!r} is found in all {n} rows, so nothing shows what a text without it looks like: "
            "add rows without it, or narrow the concept."
        )
    return found
