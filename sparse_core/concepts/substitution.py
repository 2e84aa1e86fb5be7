"""The same sentences with every value of a concept in turn: what a value does to a vector, its sentence held fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.concepts.spans import Span
from sparse_core.concepts.surrogates import SurrogatePool
from sparse_core.errors import SparseError
from sparse_core.positions import by_position


@dataclass(frozen=True, repr=False)
class Substitutions:
    """Context sentences with the values of a concept put in. Its representation shows counts only.

    Attributes
    ----------
    texts : list of str, length n_contexts * n_values
        The first context with every value, then the second, and so on.
    n_contexts, n_values : int
    """

    texts: list[str]
    n_contexts: int
    n_values: int

    def __repr__(self) -> str:
        return f"Substitutions({self.n_contexts} contexts, {self.n_values} values)"

    def shaped(self, embeddings: np.ndarray) -> np.ndarray:
        """Arrange the embeddings of `texts` as `learn_mask` takes them.

        Parameters
        ----------
        embeddings : float array, shape (n_contexts * n_values, n)

        Returns
        -------
        float array, shape (n_contexts, n_values, n)
        """
        return np.asarray(embeddings).reshape(self.n_contexts, self.n_values, -1)


def value_substitutions(
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    *,
    values: Sequence[str] = (),
    n_contexts: int = 8,
    max_values: int = 200,
    generator: np.random.Generator,
) -> Substitutions:
    """Put every value of a concept into the same few sentences of the corpus.

    Parameters
    ----------
    texts : sequence of str
        The corpus.
    spans : sequence of (sequence of Span)
        Spans of each text, from `find_spans`.
    values : sequence of str
        Values to put in, such as a concept's terms. Those that the spans cover are added, the most frequent first.
    n_contexts : int
        Sentences to put them into, drawn among those with a single span where there are enough.
    max_values : int
        At most so many values, the listed ones first.
    generator : numpy.random.Generator
        Draws the contexts.

    Returns
    -------
    Substitutions

    Raises
    ------
    SparseError
        If no text has a span, or there is not one list of spans for each text.
    """
    texts, values = by_position(texts, "texts"), by_position(values, "values")
    spans = by_position(spans, "spans", length=len(texts))
    surfaces = Counter(text[s.start : s.end] for text, row in zip(texts, spans, strict=True) for s in row)
    bearing = [row for row, found in enumerate(spans) if len(found)]
    if not bearing:
        raise SparseError("No text holds the concept, so there is no sentence to put its values into.")
    frequent = [surface for surface, _ in surfaces.most_common() if surface.strip()]
    chosen = SurrogatePool.of([*values, *frequent]).values[:max_values]
    single = [row for row in bearing if len(spans[row]) == 1]
    candidates = single if len(single) >= n_contexts else bearing
    rows = generator.permutation(candidates)[:n_contexts]
    filled = []
    for row in rows:
        text, span = texts[row], spans[row][0]
        surface = text[span.start : span.end]
        filled += [text[: span.start] + SurrogatePool.styled(v, surface) + text[span.end :] for v in chosen]
    return Substitutions(filled, len(rows), len(chosen))
