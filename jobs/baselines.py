"""What others do to hide a concept, without a guarantee: rows to compare protections with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobs.config import Compared
from sparse_core.concepts import Span, SurrogatePool, remove_spans
from sparse_core.errors import SparseError
from sparse_core.masks import Mask

_REDACTION, _ROTATION = 4, 5


def redacted(texts: Sequence[str], spans: Sequence[Sequence[Span]], *, how: str, seed: int) -> list[str]:
    """Texts without the concept, see `remove_spans`; surrogates are drawn from the corpus itself."""
    pool = SurrogatePool.from_spans(texts, spans) if how == "surrogate" else None
    generator = np.random.default_rng([seed, _REDACTION])
    return [
        remove_spans(text, found, how=how, surrogates=pool, generator=generator)
        for text, found in zip(texts, spans, strict=True)
    ]


def rotation(dimension: int, *, seed: int) -> np.ndarray:
    """A uniformly random orthogonal matrix (Mezzadri 2007), float64, shape (dimension, dimension)."""
    normal = np.random.default_rng([seed, _ROTATION]).normal(size=(dimension, dimension))
    columns, upper = np.linalg.qr(normal)
    return columns * np.sign(np.diag(upper))


def dropped(vectors: np.ndarray, mask: Mask) -> np.ndarray:
    """Vectors at the mean in every direction that the mask opens; float32, shape (n_records, n)."""
    closed = mask.basis[:, mask.values == 0]
    return (mask.mean + (vectors - mask.mean) @ closed @ closed.T).astype(np.float32)


def refuse_nothing_left(compared: Compared, mask: Mask) -> None:
    """Refuse to drop all directions there are.

    Raises
    ------
    SparseError
        If the mask opens every direction.
    """
    if (mask.values > 0).all():
        raise SparseError(
            f"compare {compared.name!r}: the mask in {compared.mask} opens all {mask.dimension} directions, and "
            "dropping them would leave nothing. Learn one with a larger mask.penalty or fewer directions."
        )
