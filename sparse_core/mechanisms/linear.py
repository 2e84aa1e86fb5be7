"""A matrix product whose result does not depend on how it was batched.

BLAS sums in an order that depends on the number of rows, the number of threads and the processor, so the
last bits of ``rows @ matrix.T`` differ between a batch of 1 and a batch of 1,000. Rounding alone does not
cure it: a value next to a rounding boundary still falls to one side or the other.
"""

import math

import numpy as np
from scipy.linalg.blas import dtrmm

from sparse_core.mechanisms.base import row_norms
from sparse_core.mechanisms.grid import check_grid

_BLOCK = 128
_UNIT_ROUNDOFF = 2.0**-53
_SPLITTER = 2.0**27 + 1.0


def apply_rows(matrix: np.ndarray, rows: np.ndarray, *, grid: float) -> np.ndarray:
    """Multiply every row by a matrix and round the exact product to a grid.

    Parameters
    ----------
    matrix : float64 array, shape (m, n)
    rows : float64 array, shape (n_rows, n)
    grid : float
        A power of two. The finer it is, the more entries need exact arithmetic (see
        :class:`RoundedProduct`): about ``2e-16 * n * |row| * |matrix row| / grid`` of them.

    Returns
    -------
    float64 array, shape (n_rows, m)
        ``rows @ matrix.T`` in multiples of ``grid``; each row is a function of its own row alone.
    """
    check_grid(grid)
    products = RoundedProduct(matrix)(rows * (1.0 / grid))
    products *= grid
    products += 0.0
    return products


class RoundedProduct:
    """Multiply rows by a fixed matrix and round each exact product to the nearest integer.

    The product is computed by BLAS. Whatever the order of summation, its error is at most
    gamma_n * |row| * |matrix row| with gamma_n = n u / (1 - n u) (Higham, "Accuracy and Stability of
    Numerical Algorithms", section 3.1); an offset is one term more. Entries that lie within this bound of a
    rounding boundary, a few per million, are computed again exactly. So each entry is the correctly rounded
    exact sum (up to the sign of zero): the same for any batch, thread count, library or processor.

    Parameters
    ----------
    matrix : float64 array, shape (m, n)
    triangular : bool
        Whether the matrix is lower triangular, so that half of the work can be left out.
    """

    def __init__(self, matrix: np.ndarray, *, triangular: bool = False):
        self.matrix = matrix
        self.triangular = triangular
        self._factor = np.asfortranarray(matrix) if triangular else None
        terms = matrix.shape[1] + 1
        self._gamma = 1.01 * terms * _UNIT_ROUNDOFF / (1.0 - terms * _UNIT_ROUNDOFF)
        self._longest = np.sqrt(np.max(np.einsum("ij,ij->i", matrix, matrix), initial=0.0))

    def __call__(self, rows: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
        """Return the nearest integers to ``rows @ matrix.T + offsets``, float64, shape (n_rows, m).

        Parameters
        ----------
        rows : float64 array, shape (n_rows, n)
        offsets : float64 array of whole numbers, shape (n_rows, m), optional
        """
        products = np.empty((rows.shape[0], self.matrix.shape[0]))
        for start in range(0, rows.shape[0], _BLOCK):
            block = slice(start, start + _BLOCK)
            self._fill(products[block], rows[block], None if offsets is None else offsets[block])
        return products

    def _fill(self, nearest: np.ndarray, rows: np.ndarray, offsets: np.ndarray | None) -> None:
        distance = self._product(rows)
        if offsets is not None:
            distance += offsets
        np.rint(distance, out=nearest)
        distance -= nearest
        farthest = max(distance.max(initial=0.0), -distance.min(initial=0.0))
        # First by norms of the whole block, which cost less than those of its rows and mostly suffice.
        if farthest < 0.5 - self._error(np.linalg.norm(rows), 0.0 if offsets is None else np.linalg.norm(offsets)):
            return
        error = self._error(row_norms(rows), 0.0 if offsets is None else row_norms(offsets))
        for row, column in np.argwhere(np.abs(distance) >= 0.5 - error[:, None]):
            offset = 0.0 if offsets is None else offsets[row, column]
            nearest[row, column] = _nearest_integer(rows[row], self.matrix[column], offset)

    def _error(self, row_norm, offset_norm):
        return self._gamma * (self._longest * row_norm + offset_norm)

    def _product(self, rows: np.ndarray) -> np.ndarray:
        if not self.triangular:
            return rows @ self.matrix.T
        return dtrmm(1.0, self._factor, np.ascontiguousarray(rows).T, lower=1).T


def _nearest_integer(left: np.ndarray, right: np.ndarray, offset: float) -> float:
    """The integer nearest to the exact dot product plus an offset, ties to even.

    Veltkamp halves multiply without error and ``fsum`` rounds once, so the sign of the distance to the
    rounding boundary is exact.
    """
    left_high, left_low = _halves(left)
    right_high, right_low = _halves(right)
    products = (left_high * right_high, left_high * right_low, left_low * right_high, left_low * right_low)
    terms = [offset, *np.concatenate(products).tolist()]
    below = math.floor(math.fsum(terms))
    beyond = math.fsum([*terms, -below - 0.5])
    return below + (beyond > 0.0 or (beyond == 0.0 and below % 2 == 1))


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    return high, values - high
