"""Other values of a concept, to put in the place of the one found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.concepts.spans import Span
from sparse_core.concepts.words import strip_possessive, word_tokens
from sparse_core.errors import SparseError
from sparse_core.positions import by_position

_QUICK_DRAWS = 16


@dataclass(frozen=True, repr=False)
class SurrogatePool:
    """Distinct values of a concept. Its representation shows their number only.

    Attributes
    ----------
    values : tuple of str
        Distinct whatever the case.
    """

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_words", tuple(frozenset(word_tokens(value)) for value in self.values))

    def __repr__(self) -> str:
        return f"SurrogatePool({len(self.values)} values)"

    @classmethod
    def of(cls, values: Iterable[str] | SurrogatePool) -> SurrogatePool:
        """Build a pool from values; of the same value in several cases, one not all capitals is kept.

        Parameters
        ----------
        values : iterable of str or SurrogatePool
            A pool is returned as it is.

        Returns
        -------
        SurrogatePool

        Raises
        ------
        SparseError
            If there are no values, or one is not a non-blank string.
        """
        if isinstance(values, cls):
            return values
        values = by_position(values, "surrogates")
        distinct: dict[tuple[str, ...] | str, str] = {}
        for position, value in enumerate(values, start=1):
            if not isinstance(value, str) or not value.strip():
                raise SparseError(f"Surrogate {position} of {len(values)} is not a non-blank string.")
            value = strip_possessive(value.strip()) or value.strip()
            identity = word_tokens(value) or value
            if identity not in distinct or distinct[identity].isupper():
                distinct[identity] = value
        if not distinct:
            raise SparseError("There are no surrogates to draw from; give a list of other values.")
        return cls(tuple(distinct.values()))

    @classmethod
    def from_spans(cls, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> SurrogatePool:
        """Build a pool from what the spans of a corpus cover.

        Parameters
        ----------
        texts : sequence of str
            The corpus.
        spans : sequence of (sequence of Span)
            Spans of each text.

        Returns
        -------
        SurrogatePool

        Raises
        ------
        SparseError
            If no span covers anything but whitespace.
        """
        texts = by_position(texts, "texts")
        spans = by_position(spans, "spans", length=len(texts))
        surfaces = (text[span.start : span.end] for text, row in zip(texts, spans, strict=True) for span in row)
        return cls.of(surface for surface in surfaces if surface.strip())

    def draw(self, surface: str, generator: np.random.Generator) -> str:
        """Draw a value other than the one it replaces.

        Parameters
        ----------
        surface : str
            The value to replace.
        generator : numpy.random.Generator
            Source of the draw.

        Returns
        -------
        str
            Uniform among the values that share no word with `surface`; if there are none, among those
            that are not equal to it whatever the case; if there are none, any value.
        """
        own = frozenset(word_tokens(surface))
        for index in generator.integers(len(self.values), size=_QUICK_DRAWS):
            if own.isdisjoint(self._words[index]) and self.values[index].casefold() != surface.casefold():
                return self.values[index]
        others = [
            index
            for index, value in enumerate(self.values)
            if value.casefold() != surface.casefold() and (not own or self._words[index] != own)
        ]
        apart = [index for index in others if own.isdisjoint(self._words[index])]
        choices = apart or others or range(len(self.values))
        return self.values[choices[generator.integers(len(choices))]]

    @staticmethod
    def styled(value: str, surface: str) -> str:
        """Write a value in the case style of the one it replaces.

        Parameters
        ----------
        value : str
            The surrogate.
        surface : str
            The value it replaces.

        Returns
        -------
        str
            Capitals for capitals (two letters or more), small letters for small letters; a value in small
            letters gets capital initials where `surface` has one.
        """
        if surface.isupper() and sum(map(str.isalpha, surface)) > 1:
            return value.upper()
        if surface.islower():
            return value.lower()
        if value.islower() and surface[:1].isupper():
            return value.title()
        return value
