"""The shape of Mahalanobis noise: Sigma = U diag(v) U^T from a mask and a floor, or given outright."""

import numpy as np
from scipy.special import gammaincinv, ndtri

from sparse_core.errors import SparseError

DEFAULT_FLOOR = 0.03
SMALLEST_FLOOR = 1e-6
"""The delta of arXiv 2602.07090, at which directions outside the mask are all but unprotected."""
_ORTHOGONALITY = 1e-8
_QUASI_POINTS = 2**16
_LEADING = 12
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)


def spectrum(weights: np.ndarray, *, floor: float = DEFAULT_FLOOR, degenerate: str = "refuse") -> np.ndarray:
    """Eigenvalues of Sigma: v = (1 - floor) * m / mean(m) + floor, whose mean is 1.

    Equation of Sigma in arXiv 2602.07090, with its delta as ``floor``.

    Parameters
    ----------
    weights : float array, shape (n,)
        The mask, in [0, 1].
    floor : float
        Share of the noise variance spread evenly, in [1e-6, 1).
    degenerate : {"refuse", "isotropic"}
        What to do with a mask that selects nothing or everything: an error, or v = 1 everywhere.

    Returns
    -------
    float64 array, shape (n,), positive, mean 1

    Raises
    ------
    SparseError
        For weights that are not finite, outside [0, 1] or all equal, and for a floor outside its range.
    """
    if degenerate not in ("refuse", "isotropic"):
        raise SparseError(f"degenerate is {degenerate!r}; choose 'refuse' or 'isotropic'.")
    if not SMALLEST_FLOOR <= floor < 1.0:
        raise SparseError(f"floor is {floor}; it must be at least {SMALLEST_FLOOR:g} and below 1.")
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 1 or not weights.size:
        raise SparseError(f"Mask weights have shape {weights.shape}; they must be one row of numbers.")
    if not np.isfinite(weights).all():
        index = int(np.argmin(np.isfinite(weights)))
        raise SparseError(f"The mask weight at position {index} is not finite. Train the mask again.")
    if weights.min() < 0.0 or weights.max() > 1.0:
        raise SparseError(f"Mask weights run from {weights.min():.6g} to {weights.max():.6g}; they must lie in [0, 1].")
    if np.ptp(weights) == 0.0:
        if degenerate == "isotropic":
            return np.ones_like(weights)
        raise SparseError(
            f"All mask weights are {weights[0]:.6g}, so the mask tells no direction from another. Train it "
            "again, or ask for isotropic noise with degenerate='isotropic'."
        )
    return (1.0 - floor) * weights / weights.mean() + floor


def checked_basis(basis: np.ndarray | None, dimension: int) -> np.ndarray | None:
    """Return an orthogonal basis as float64, or None when it is absent or the identity.

    Raises
    ------
    SparseError
        If it has another shape, non-finite entries or columns that are not orthonormal to 1e-8.
    """
    if basis is None:
        return None
    basis = np.ascontiguousarray(basis, dtype=np.float64)
    if basis.shape != (dimension, dimension):
        raise SparseError(f"The basis has shape {basis.shape}; it must be ({dimension}, {dimension}).")
    identity = np.eye(dimension)
    if np.array_equal(basis, identity):
        return None
    error = np.abs(basis.T @ basis - identity).max() if np.isfinite(basis).all() else np.inf
    if not error <= _ORTHOGONALITY:
        raise SparseError(
            f"The basis is not orthogonal: U^T U differs from the identity by {error:.3g} (at most "
            f"{_ORTHOGONALITY:g}). Take numpy.linalg.qr of it in float64."
        )
    return basis


def decomposed(sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split a covariance into its basis (columns) and eigenvalues.

    Raises
    ------
    SparseError
        If it is not square, finite, symmetric and positive definite (eigenvalues above 1e-12 of the
        largest).
    """
    sigma = np.asarray(sigma, dtype=np.float64)
    if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1] or not np.isfinite(sigma).all():
        raise SparseError(f"Sigma has shape {sigma.shape}; it must be a square matrix of finite numbers.")
    if not np.allclose(sigma, sigma.T, rtol=1e-10, atol=1e-12 * np.abs(sigma).max()):
        raise SparseError("Sigma is not symmetric. Pass (Sigma + Sigma.T) / 2 if rounding is the cause.")
    values, basis = np.linalg.eigh((sigma + sigma.T) / 2.0)
    if not values[0] > 1e-12 * max(values[-1], 0.0):
        raise SparseError(
            f"Sigma is not positive definite: its smallest eigenvalue is {values[0]:.3g}. Some direction "
            "would get no noise and no guarantee; add a multiple of the identity."
        )
    return np.ascontiguousarray(basis), values


def median_norm(variances: np.ndarray) -> float:
    """Median Euclidean norm of Mahalanobis noise at epsilon = 1.

    With density proportional to exp(-sqrt(z^T Sigma^-1 z)), z is a scale mixture of Gaussians:
    |z|**2 = W * sum_i v_i g_i**2 with W ~ Gamma((n+1)/2, scale 2) and g standard normal (Gomez et al., "A
    multivariate generalization of the power exponential family", 1998). The median over a fixed
    low-discrepancy (Richtmyer) sequence of 65,536 points takes the twelve largest terms one by one and
    the remainder as the gamma variable with its mean and variance; it lies within 0.2% of the true
    median, whatever the spectrum.

    Parameters
    ----------
    variances : float64 array, shape (n,)
        The eigenvalues v of Sigma.
    """
    ordered = np.sort(variances)[::-1]
    leading, rest = ordered[:_LEADING], ordered[_LEADING:]
    steps = np.arange(1, _QUASI_POINTS + 1)[:, None] * np.sqrt(_PRIMES)
    points = np.clip(steps % 1.0, 2.0**-53, 1.0 - 2.0**-53)
    squares = ndtri(points[:, : len(leading)]) ** 2 @ leading
    if rest.size:
        scale = 2.0 * (rest**2).sum() / rest.sum()
        squares += scale * gammaincinv(rest.sum() / scale, points[:, -2])
    mixing = 2.0 * gammaincinv((len(ordered) + 1) / 2.0, points[:, -1])
    return float(np.sqrt(np.median(mixing * squares)))
