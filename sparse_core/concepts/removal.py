"""R(s, C): a text without its concept (paper arXiv 2602.07090, the D- side of a contrast)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import regex

from sparse_core.concepts.spans import Span, check_spans, merge_spans
from sparse_core.concepts.surrogates import SurrogatePool
from sparse_core.concepts.words import APOSTROPHES, compile_shape, word_tokens
from sparse_core.errors import SparseError

REMOVALS = ("delete", "placeholder", "surrogate")
DEFAULT_PLACEHOLDER = "[REDACTED]"

_SUFFIX = compile_shape(r"<A><W>{1,6}(?!<W>)|\s<A>s(?!<W>)", regex.IGNORECASE)
_PLURAL_POSSESSIVE = compile_shape(r"(?<=[sxz])<A>(?!<W>)", regex.IGNORECASE)
_ELISION = compile_shape(r"(?<!<W>|<A>)<W>{1,2}<A>\Z")
_HYPHEN_BEFORE = compile_shape(r"(?<=<W>)[<D>--[—―]]\Z")
_HYPHEN_AFTER = compile_shape(r"[<D>--[—―]](?=<W>)")
_LETTER = compile_shape(r"<W>")
_ORPHANS_AT_START = compile_shape(r"(?:<S>|[,;:!?)\]}…]|\.(?!\d)|<D>(?=<S>|\Z))+")
_ORPHANS_AT_END = compile_shape(r"(?:<S>|[,;]|(?<=<S>)<D>)+\Z")
_SEPARATORS = compile_shape(r"<S>*[,;:]+")
_CLOSING = compile_shape(r"[,;:!?)\]}…]|\.(?!<W>)")
_STOPS = compile_shape(r"[.!?…]+(?!<W>)")
_ENDS_SENTENCE = compile_shape(r"[.!?…]\Z")
_TAKES_NO_SEPARATOR = tuple(".!?…,;:([{“«")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "“": "”", "‘": "’", "«": "»", "„": "“"}
_OPENING_QUOTE = compile_shape(r"(?<![^\s(\[{])[\"']\Z")


def remove_spans(
    text: str,
    spans: Sequence[Span],
    *,
    how: str = "delete",
    placeholder: str = DEFAULT_PLACEHOLDER,
    surrogates: Sequence[str] | SurrogatePool | None = None,
    generator: np.random.Generator | None = None,
) -> str:
    """Take a concept out of a text.

    Parameters
    ----------
    text : str
        The text.
    spans : sequence of Span
        Where it holds the concept; overlapping spans are merged.
    how : {"delete", "placeholder", "surrogate"}
        ``delete`` leaves nothing, and tidies the spaces, punctuation, hyphens and possessive endings that
        lose their word. ``placeholder`` puts one token for each span, which takes the possessive ending
        along. ``surrogate`` puts another value of the same concept, in the case style of the one it
        replaces; a value that occurs twice in the text gets the same surrogate.
    placeholder : str
        The token.
    surrogates : sequence of str or SurrogatePool
        Values to draw from; required for ``surrogate``.
    generator : numpy.random.Generator
        Source of the draws; required for ``surrogate``.

    Returns
    -------
    str
        The text itself if there are no spans.

    Raises
    ------
    SparseError
        If a span does not lie in the text, `how` is unknown, or an option that `how` needs is missing.
    """
    check_removal(how, placeholder=placeholder, surrogates=surrogates, generator=generator)
    check_spans(text, spans)
    spans = merge_spans(spans)
    if not spans:
        return text
    if how == "surrogate":
        return _substitute(text, spans, SurrogatePool.of(surrogates), generator)
    if how == "placeholder":
        return _replace(text, spans, placeholder)
    return _delete(text, spans)


def check_removal(
    how: str,
    *,
    placeholder: str,
    surrogates: Sequence[str] | SurrogatePool | None,
    generator: np.random.Generator | None,
) -> None:
    """Check the options of `remove_spans` once, before many texts.

    Parameters
    ----------
    how, placeholder, surrogates, generator
        As in `remove_spans`.

    Raises
    ------
    SparseError
        If `how` is unknown or an option that it needs is missing.
    """
    if how not in REMOVALS:
        raise SparseError(f"There is no removal {how!r}; choose one of {', '.join(REMOVALS)}.")
    if how == "placeholder" and not (isinstance(placeholder, str) and placeholder.strip()):
        raise SparseError("The placeholder must be a non-blank string.")
    if how == "surrogate" and surrogates is None:
        raise SparseError("Removal by surrogate needs surrogates: a list of other values of the concept.")
    if how == "surrogate" and not isinstance(generator, np.random.Generator):
        raise SparseError("Removal by surrogate draws: pass generator=numpy.random.default_rng(seed).")


def _substitute(text: str, spans: Sequence[Span], pool: SurrogatePool, generator: np.random.Generator) -> str:
    pieces, end, drawn = [], 0, {}
    for span in spans:
        surface = text[span.start : span.end]
        identity = word_tokens(surface) or surface
        if identity not in drawn:
            drawn[identity] = pool.draw(surface, generator)
        value = pool.styled(drawn[identity], surface)
        pieces += [text[end : span.start], value]
        end = span.end
        possessive = _bare_possessive(text, span)
        if possessive and value[-1].lower() not in "sxz":
            pieces += [possessive.group(), "S" if value.isupper() else "s"]
            end = possessive.end()
    return "".join([*pieces, text[end:]])


def _replace(text: str, spans: Sequence[Span], placeholder: str) -> str:
    pieces, end = [], 0
    for span in spans:
        pieces += [text[end : span.start], placeholder]
        end = max(end, _end_with_suffix(text, span))
    return "".join([*pieces, text[end:]])


def _end_with_suffix(text: str, span: Span) -> int:
    """End of the span and the ending glued to it by an apostrophe, which means nothing on its own."""
    suffix = _SUFFIX.match(text, span.end) or _bare_possessive(text, span)
    return suffix.end() if suffix else span.end


def _bare_possessive(text: str, span: Span) -> regex.Match | None:
    """The apostrophe of ``James' book``, unless it closes a quotation that opens before the span."""
    opened = span.start > 0 and text[span.start - 1] in APOSTROPHES
    return None if opened else _PLURAL_POSSESSIVE.match(text, span.end)


def _delete(text: str, spans: Sequence[Span]) -> str:
    kept, end = text[: spans[0].start], 0
    for span in spans:
        if end:
            kept = _join(kept, text[end : span.start])
        kept = _cut(kept, _HYPHEN_BEFORE)
        kept = _cut(kept, _ELISION)
        end = max(end, _end_with_suffix(text, span))
        if hyphen := _HYPHEN_AFTER.match(text, end):
            end = hyphen.end()
    rest = text[end:].rstrip()
    closed = _join(kept, rest).lstrip()
    return closed if rest else _cut(closed.rstrip(), _ORPHANS_AT_END)


def _cut(text: str, ending: regex.Pattern) -> str:
    """Cut an ending of at most a few characters off."""
    found = ending.search(text, max(0, len(text) - 8))
    return text[: found.start()] if found else text


def _join(left: str, right: str) -> str:
    """Close the hole that a deleted span leaves between two stretches of text."""
    left, right = _without_empty_pair(left, right)
    stripped = left.rstrip()
    if not stripped:
        orphans = _ORPHANS_AT_START.match(right)
        return right[orphans.end() :] if orphans else right
    starts_line = "\n" in left[len(stripped) :]
    separators = _SEPARATORS.match(right)
    if separators and (starts_line or stripped.endswith(_TAKES_NO_SEPARATOR)):
        right = right[separators.end() :]
    elif stop := _STOPS.match(right):
        left = stripped.rstrip(",;:")
        if _ENDS_SENTENCE.search(left, len(left) - 1):
            right = right[stop.end() :]
    elif _CLOSING.match(right):
        left = stripped.rstrip(",;") if right[0] in ")]}" else stripped
    if stripped.endswith(tuple(_BRACKETS)) or _OPENING_QUOTE.search(left, max(0, len(left) - 2)):
        right = right.lstrip()
    if left[-1:].isspace() and right[:1].isspace():
        left, right = _one_gap(left, right)
    return f"{left} {right}" if _LETTER.match(left[-1:]) and _LETTER.match(right) else left + right


def _without_empty_pair(left: str, right: str) -> tuple[str, str]:
    """Drop brackets and quotes that hold nothing any more."""
    while True:
        before, after = left.rstrip(), right.lstrip()
        if before and after and _BRACKETS.get(before[-1]) == after[0]:
            left, right = before[:-1], after[1:]
        elif left and left[-1] == right[:1] and _OPENING_QUOTE.search(left, max(0, len(left) - 2)):
            left, right = left[:-1], right[1:]
        else:
            return left, right


def _one_gap(left: str, right: str) -> tuple[str, str]:
    """Keep one of two gaps: the one that breaks the line, else the first."""
    before, after = left.rstrip(), right.lstrip()
    if "\n" in right[: len(right) - len(after)] and "\n" not in left[len(before) :]:
        return before, right
    return left, after
