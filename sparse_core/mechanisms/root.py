"""Roots of Sigma: R with R R^T = Sigma, chosen for speed and the same to the last bit everywhere.

With s isotropic, R s has the same law for every root. Per vector of n numbers, and with k eigenvalues that
differ from the most frequent one:

- symmetric, level * I + H diag(sqrt(v_H) - level) H^T: 4 n k operations, for masks that are exactly 0
  outside a few directions H;
- lower triangular (Cholesky): little more than n**2;
- U diag(sqrt(v)): 2 n**2, for more than 1,024 dimensions, where the triangular root takes too long to find.
"""

from dataclasses import dataclass

import numpy as np

from sparse_core.mechanisms.linear import RoundedProduct

_LARGEST_TRIANGULAR = 1024
_FEW = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Root:
    """level * I + expand @ reduce, or ``expand`` alone.

    Attributes
    ----------
    expand : RoundedProduct, n x k or n x n
    reduce : RoundedProduct, k x n, optional
    level : float
    """

    expand: RoundedProduct
    reduce: RoundedProduct | None = None
    level: float = 0.0

    @classmethod
    def of(cls, basis: np.ndarray, variances: np.ndarray) -> "Root":
        """Choose a root of basis @ diag(variances) @ basis.T.

        Parameters
        ----------
        basis : float64 array, shape (n, n)
            Orthogonal.
        variances : float64 array, shape (n,)
            Positive.
        """
        size = len(variances)
        deviations = np.sqrt(variances)
        levels, counts = np.unique(deviations, return_counts=True)
        level = levels[np.argmax(counts)]
        special = deviations != level
        if special.sum() <= _FEW * size:
            directions = np.ascontiguousarray(basis[:, special])
            reduce = np.ascontiguousarray((directions * (deviations[special] - level)).T)
            return cls(expand=RoundedProduct(directions), reduce=RoundedProduct(reduce), level=float(level))
        if size <= _LARGEST_TRIANGULAR:
            return cls(expand=RoundedProduct(_cholesky(_assembled(basis, variances)), triangular=True))
        return cls(expand=RoundedProduct(basis * deviations))

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Multiply every row by the root, rounding products to integers. Overwrites ``rows``."""
        if self.reduce is None:
            return self.expand(rows)
        shaped = self.expand(self.reduce(rows))
        rows *= self.level
        rows += shaped
        return rows


def _assembled(basis: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Sigma, summed one direction at a time: BLAS would change its last bits with the threads."""
    sigma = np.zeros_like(basis)
    for direction, variance in zip(basis.T.copy(), variances, strict=True):
        sigma += np.multiply.outer(variance * direction, direction)
    return sigma


def _cholesky(sigma: np.ndarray) -> np.ndarray:
    """Lower triangular root, by one outer product per column, for the same reason."""
    rest, root = sigma.copy(), np.zeros_like(sigma)
    for column in range(len(sigma)):
        root[column:, column] = rest[column:, column] / np.sqrt(rest[column, column])
        below = root[column + 1 :, column]
        rest[column + 1 :, column + 1 :] -= np.multiply.outer(below, below)
    return root
