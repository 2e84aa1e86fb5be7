"""Read-out: Wiener shrinkage of releases, with public quantities only.

Post-processing costs no privacy. With embeddings of mean mu and covariance C, and releases y = k x + e with
E[e] = 0 and covariance N (k is the mechanism's ``signal_gain``, 1 for additive noise), the best linear
estimate of x is

    x' = mu + W (y - k mu),    W = k C (k^2 C + N)^-1

(Wiener's filter; exact posterior mean for Gaussian x and e). With C and N diagonal in one basis, W is one
shrinkage factor per direction.

Searching with a trusted query. Let q be a clean query. The score that one would want is q . x; the best
estimate of it from a release is E[q . x | y] = q . E[x | y] = q . x'. So against read-out vectors the query
stays as it is: the documents carry the one factor W that is due, and applying W to the query as well would
weigh the noisy directions by W^2. Dividing each document by its norm (``unit_norm``) rescales documents,
not directions, so no transform of the query can do better there either. Against raw releases y the same
ranking needs the adjoint: q . x' = (A^T q) . y + a constant that all documents share, with A the matrix of
W in coordinates. :meth:`ReadOut.query_transform` gives both.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.mechanisms.base import row_norms
from sparse_core.mechanisms.checks import checked_embeddings
from sparse_core.mechanisms.grid import DEFAULT_GRID, round_to_grid
from sparse_core.mechanisms.linear import apply_rows
from sparse_core.mechanisms.sigma import checked_basis

_MATRIX_GRID = 2.0**-28
_PRODUCT_GRID = 2.0**-26


class SignalModel(Protocol):
    """What a read-out needs to know of the embeddings; :class:`sparse_core.masks.Mask` is one."""

    mean: np.ndarray
    basis: np.ndarray | None
    variance: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadOut:
    """An affine map from releases to estimates of the embeddings.

    Attributes
    ----------
    mean : float64 array, shape (n,)
    basis : float64 array, shape (n, n), or None for the coordinates
    shrinkage : float64 array, shape (n,), optional
        One factor per direction; or give ``gain``.
    gain : float64 array, shape (n, n), optional
        A full Wiener matrix in the basis, when the signal's covariance is not diagonal there.
    signal_gain : float
    unit_norm : bool
        Scale each estimate to norm 1, as sentence encoders do.
    """

    mean: np.ndarray
    basis: np.ndarray | None = None
    shrinkage: np.ndarray | None = None
    gain: np.ndarray | None = None
    signal_gain: float = 1.0
    unit_norm: bool = False

    def __post_init__(self) -> None:
        mean = np.asarray(self.mean, dtype=np.float64)
        if mean.ndim != 1:
            raise SparseError(f"The mean has shape {mean.shape}; it must be one row of numbers.")
        size = len(mean)
        if (self.shrinkage is None) == (self.gain is None):
            raise SparseError("A read-out needs either shrinkage (one factor per direction) or gain (a matrix).")
        for name, shape in (("shrinkage", (size,)), ("gain", (size, size))):
            value = getattr(self, name)
            if value is not None:
                value = np.asarray(value, dtype=np.float64)
                if value.shape != shape:
                    raise SparseError(f"The {name} has shape {value.shape}; it must be {shape}.")
                object.__setattr__(self, name, value)
        if not all(np.isfinite(v).all() for v in (mean, self.shrinkage, self.gain) if v is not None):
            raise SparseError("The read-out has NaN or infinite values. Estimate the mask's statistics again.")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "basis", checked_basis(self.basis, size))

    @property
    def dimension(self) -> int:
        return len(self.mean)

    @cached_property
    def matrix(self) -> np.ndarray:
        """W in coordinates, U W U^T; float64, shape (n, n), multiples of 2**-28."""
        gain = np.diag(self.shrinkage) if self.gain is None else self.gain
        if self.basis is None:
            return gain
        half = self.basis * self.shrinkage if self.gain is None else apply_rows(gain.T, self.basis, grid=_MATRIX_GRID)
        return apply_rows(self.basis, half, grid=_MATRIX_GRID)

    def apply(self, releases: np.ndarray, *, grid: float = DEFAULT_GRID) -> np.ndarray:
        """Estimate embeddings from releases.

        Parameters
        ----------
        releases : float array, shape (n_records, n)
        grid : float
            Estimates are rounded to multiples of this power of two.

        Returns
        -------
        float64 array, shape (n_records, n)
            The same for any batch size, as :func:`apply_rows` is.
        """
        releases = checked_embeddings(releases, self.dimension)
        estimates = self._product(self.matrix, releases - self.signal_gain * self.mean)
        estimates += self.mean
        if self.unit_norm:
            estimates = _normalised(estimates)
        return round_to_grid(estimates, grid)

    def query_transform(self, queries: np.ndarray, *, against: str = "read_out") -> np.ndarray:
        """Prepare trusted, unprotected queries for search among protected records.

        The module's docstring derives it.

        Parameters
        ----------
        queries : float array, shape (n_queries, n)
        against : {"read_out", "release"}
            Whether the records are read-out vectors (queries stay as they are) or raw releases (queries
            take the adjoint of W).

        Returns
        -------
        float64 array, shape (n_queries, n)
            For ranking by inner product; of norm 1 if ``unit_norm``, which changes no ranking.
        """
        queries = checked_embeddings(queries, self.dimension)
        if against == "release":
            queries = self._product(np.ascontiguousarray(self.matrix.T), queries)
        elif against != "read_out":
            raise SparseError(f"against is {against!r}; choose 'read_out' or 'release'.")
        return _normalised(queries) if self.unit_norm else queries

    def _product(self, matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self.basis is None and self.gain is None:
            return rows * self.shrinkage
        return apply_rows(matrix, rows, grid=_PRODUCT_GRID)


def wiener(
    signal: SignalModel,
    noise_variance: np.ndarray,
    *,
    covariance: np.ndarray | None = None,
    signal_gain: float = 1.0,
    unit_norm: bool = False,
) -> ReadOut:
    """Build the Wiener read-out for a signal model and a noise.

    Parameters
    ----------
    signal : SignalModel
        A mask, or anything with ``mean`` (n,), ``basis`` (n, n) or None, and ``variance`` (n,).
    noise_variance : float array, shape (n,)
        Per direction of the same basis; a mechanism's ``noise_variance()``.
    covariance : float array, shape (n, n), optional
        The signal's full covariance in the basis, used instead of ``variance``: concept directions are
        not principal components, so it is seldom diagonal there.
    signal_gain : float
        The mechanism's ``signal_gain``.
    unit_norm : bool

    Returns
    -------
    ReadOut

    Raises
    ------
    SparseError
        For wrong shapes, negative variances or a covariance that is not symmetric positive semidefinite.
    """
    mean = np.asarray(signal.mean, dtype=np.float64)
    noise = _checked_variance(noise_variance, len(mean), "noise variance")
    options = {"mean": mean, "basis": signal.basis, "signal_gain": signal_gain, "unit_norm": unit_norm}
    if covariance is None:
        variance = _checked_variance(signal.variance, len(mean), "signal variance")
        total = signal_gain**2 * variance + noise
        shrinkage = np.divide(signal_gain * variance, total, out=np.ones_like(total), where=total > 0.0)
        return ReadOut(shrinkage=shrinkage, **options)
    covariance = np.asarray(covariance, dtype=np.float64)
    if covariance.shape != (len(mean), len(mean)) or not np.isfinite(covariance).all():
        raise SparseError(
            f"The signal covariance has shape {covariance.shape}; it must be ({len(mean)}, {len(mean)}) finite numbers."
        )
    if not np.allclose(covariance, covariance.T, rtol=1e-8, atol=1e-10 * np.abs(covariance).max()):
        raise SparseError("The signal covariance is not symmetric.")
    total = signal_gain**2 * covariance + np.diag(noise)
    values, vectors = np.linalg.eigh(total)
    if values[0] < -1e-8 * max(values[-1], 0.0):
        raise SparseError(
            "The signal covariance is not positive semidefinite: with the noise added, its smallest "
            f"eigenvalue is {values[0]:.3g}. Estimate it from more vectors, or pass the variances alone."
        )
    keep = values > 1e-12 * values[-1]
    inverse = (vectors[:, keep] / values[keep]) @ vectors[:, keep].T
    return ReadOut(gain=signal_gain * covariance @ inverse, **options)


def _checked_variance(variance: np.ndarray, size: int, name: str) -> np.ndarray:
    variance = np.asarray(variance, dtype=np.float64)
    if variance.shape != (size,) or not np.isfinite(variance).all() or (variance < 0.0).any():
        raise SparseError(
            f"The {name} has shape {variance.shape}; it must be {size} finite numbers, none negative, "
            "one per direction of the basis."
        )
    return variance


def _normalised(rows: np.ndarray) -> np.ndarray:
    lengths = row_norms(rows)
    return rows / np.where(lengths > 0.0, lengths, 1.0)[:, None]
