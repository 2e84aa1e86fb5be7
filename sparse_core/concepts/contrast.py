"""D+ and D-: sentences that hold a concept, and the same sentences without it (paper arXiv 2602.07090)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.concepts.removal import DEFAULT_PLACEHOLDER, check_removal, remove_spans
from sparse_core.concepts.spans import Span
from sparse_core.concepts.surrogates import SurrogatePool
from sparse_core.concepts.words import has_word
from sparse_core.positions import by_position


@dataclass(frozen=True, repr=False, eq=False)
class ContrastPairs:
    """Texts with a concept beside the same texts without it. Its representation shows counts only.

    Attributes
    ----------
    positive : list of str, length n_pairs
        D+.
    negative : list of str, length n_pairs
        D-.
    index : int64 array, shape (n_pairs,)
        Row of each pair in the corpus, increasing.
    dropped : int
        Rows that hold the concept but give no pair: nothing but the concept was in them, or there was no
        other value to put in its place.
    """

    positive: list[str]
    negative: list[str]
    index: np.ndarray
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.positive)

    def __repr__(self) -> str:
        return f"ContrastPairs({len(self)} pairs, {self.dropped} dropped)"


def contrast_pairs(
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    *,
    how: str = "delete",
    placeholder: str = DEFAULT_PLACEHOLDER,
    surrogates: Sequence[str] | None = None,
    generator: np.random.Generator | None = None,
) -> ContrastPairs:
    """Pair each text that holds the concept with itself without it.

    Parameters
    ----------
    texts : sequence of str
        The corpus.
    spans : sequence of (sequence of Span)
        Spans of each text, from `find_spans`. Rows without spans are skipped.
    how, placeholder, generator
        As in `remove_spans`.
    surrogates : sequence of str, optional
        Values to draw from; by default those that the spans of this corpus cover.

    Returns
    -------
    ContrastPairs

    Raises
    ------
    SparseError
        If there is not one list of spans for each text, a span does not lie in its text, or the options
        do not fit `how`.
    """
    texts = by_position(texts, "texts")
    spans = by_position(spans, "spans", length=len(texts))
    surrogates = () if surrogates is None else by_position(surrogates, "surrogates")
    check_removal(how, placeholder=placeholder, surrogates=surrogates, generator=generator)
    rows = [row for row, found in enumerate(spans) if len(found)]
    pool = None
    if how == "surrogate" and rows:
        pool = SurrogatePool.of(surrogates) if surrogates else SurrogatePool.from_spans(texts, spans)
    positive, negative, index = [], [], []
    for row in rows:
        text = texts[row]
        without = remove_spans(text, spans[row], how=how, placeholder=placeholder, surrogates=pool, generator=generator)
        rest = without if how != "placeholder" else remove_spans(text, spans[row], how="delete")
        if has_word(rest) and without != text:
            positive.append(text)
            negative.append(without)
            index.append(row)
    return ContrastPairs(positive, negative, np.array(index, dtype=np.int64), len(rows) - len(index))
