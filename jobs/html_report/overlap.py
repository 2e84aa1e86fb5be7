"""How much of two masks' noise falls on the same directions, whatever basis each speaks about.

Coordinates of different bases cannot be compared; the noise itself can. With V the mask over its mean on the diagonal,
U the basis and Sigma = U V U^T, the inner product of two noises is

    tr(Sigma_a Sigma_b) = sum_ij v_a[i] v_b[j] (u_a[i] . u_b[j])^2,

and the same with ones in place of v compares the projections on the open directions. For masks over single coordinates
both come down to sums over coordinates, as in the paper's figure (arXiv 2602.07090).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse_core.masks import Mask


@dataclass(frozen=True)
class Overlap:
    """Two masks compared.

    Attributes
    ----------
    jaccard : float
        Of the open directions: dimensions of their spans in common over dimensions of both together.
    cosine : float
        Of the noise energy, between the two Sigma.
    jaccard_chance, cosine_chance : float
        The same for two masks of the same values in random bases.
    """

    jaccard: float
    cosine: float
    jaccard_chance: float
    cosine_chance: float


def overlap(first: Mask, second: Mask) -> Overlap:
    """Compare two masks of the same encoder.

    Parameters
    ----------
    first, second : Mask
        With at least one open direction each.
    """
    squares = (first.basis.T @ second.basis) ** 2
    n = first.dimension
    v, w = first.values / first.values.mean(), second.values / second.values.mean()
    norms = np.linalg.norm(v) * np.linalg.norm(w)
    opened, other = (first.values > 0).astype(float), (second.values > 0).astype(float)
    common, chance = opened @ squares @ other, opened.sum() * other.sum() / n
    total = opened.sum() + other.sum()
    return Overlap(
        jaccard=float(common / (total - common)),
        cosine=float(v @ squares @ w / norms),
        jaccard_chance=float(chance / (total - chance)),
        cosine_chance=float(v.sum() * w.sum() / n / norms),
    )
