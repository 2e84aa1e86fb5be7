"""A matrix product whose result does not depend on how it was batched.

BLAS sums in an order that depends on the number of rows, the number of threads and the processor, so the
last bits of ``rows @ matrix.T`` differ between a batch of 1 and a batch of 1,000. Rounding alone does not
cure it: a value next to a rounding boundary still falls to one side or the other.
"""

import math

import numpy as np

from sparse_core.mechanisms.grid import check_grid

_BLOCK = 1024
_UNIT_ROUNDOFF = 2.0**-53
_SPLITTER = 2.0**27 + 1.0


def apply_rows(matrix: np.ndarray, rows: np.ndarray, *, grid: float) -> np.ndarray:
    """Multiply every row by a matrix and round the exact product to a grid.

    The product is computed by BLAS. Whatever the order of summation, its error is at most
    gamma_n * |row| * |matrix row| with gamma_n = n u / (1 - n u) (Higham, "Accuracy and Stability of
    Numerical Algorithms", section 3.1). Entries that lie within this bound of a rounding boundary, a few
    per million, are computed again exactly. So each entry is the correctly rounded value of the exact
    product, a function of its own row alone: the same for any batch, thread count, library or processor.

    Parameters
    ----------
    matrix : float64 array, shape (m, n)
    rows : float64 array, shape (n_rows, n)
    grid : float
        A power of two. The finer it is, the more entries take the exact path: about
        ``2e-16 * n * |row| * |matrix row| / grid`` of them.

    Returns
    -------
    float64 array, shape (n_rows, m)
        ``rows @ matrix.T`` in multiples of ``grid``.
    """
    check_grid(grid)
    size = matrix.shape[1]
    gamma = size * _UNIT_ROUNDOFF / (1.0 - size * _UNIT_ROUNDOFF)
    longest = np.sqrt(np.max(np.einsum("ij,ij->i", matrix, matrix), initial=0.0))
    scaled_matrix = matrix.T * (1.0 / grid)
    products = np.empty((rows.shape[0], matrix.shape[0]))
    for start in range(0, rows.shape[0], _BLOCK):
        chunk = rows[start : start + _BLOCK]
        scaled = chunk @ scaled_matrix
        nearest = products[start : start + _BLOCK]
        np.rint(scaled, out=nearest)
        scaled -= nearest
        lengths = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
        clear = 0.5 - 1.01 * gamma * longest / grid * lengths
        furthest = np.maximum(scaled.max(axis=1), -scaled.min(axis=1))
        for row in np.flatnonzero(furthest >= clear):
            for column in np.flatnonzero(np.abs(scaled[row]) >= clear[row]):
                nearest[row, column] = np.rint(_exact_dot(chunk[row], matrix[column]) / grid)
        nearest *= grid
        nearest += 0.0
    return products


def _exact_dot(left: np.ndarray, right: np.ndarray) -> float:
    """The dot product of two vectors, rounded once: Veltkamp halves multiply without error."""
    left_high, left_low = _halves(left)
    right_high, right_low = _halves(right)
    parts = (left_high * right_high, left_high * right_low, left_low * right_high, left_low * right_low)
    return math.fsum(np.concatenate(parts))


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    return high, values - high
