"""A root of Sigma: R with R R^T = Sigma, chosen for speed and the same to the last bit everywhere.

With s isotropic, R s has the same law for every root. The lower triangular one (Cholesky) takes n**2
operations per vector and U diag(sqrt(v)) twice as many, but it takes too long to find in more than 1,024
dimensions.
"""

import numpy as np

from sparse_core.mechanisms.linear import RoundedProduct

_LARGEST_TRIANGULAR = 1024


def sigma_root(basis: np.ndarray, variances: np.ndarray) -> RoundedProduct:
    """A root of basis @ diag(variances) @ basis.T, ready to multiply rows.

    Parameters
    ----------
    basis : float64 array, shape (n, n)
        Orthogonal.
    variances : float64 array, shape (n,)
        Positive.
    """
    if len(variances) > _LARGEST_TRIANGULAR:
        return RoundedProduct(basis * np.sqrt(variances))
    return RoundedProduct(_cholesky(_assembled(basis, variances)), triangular=True)


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
