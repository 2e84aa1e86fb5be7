"""A matrix product whose result does not depend on how it was batched.

BLAS sums in an order that depends on the number of rows, the number of threads and the processor, so the
last bits of ``rows @ matrix.T`` differ between a batch of 1 and a batch of 1,000. Rounding alone does not
cure it: a value next to a rounding boundary still falls to one side or the other.
"""

import math

import numpy as np

from sparse_core.mechanisms.grid import check_grid

_BLOCK = 256
_PANEL = 64
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
    Numerical Algorithms", section 3.1). Entries that lie within this bound of a rounding boundary, a few
    per million, are computed again exactly. So each entry is the correctly rounded exact product (up to
    the sign of zero): the same for any batch, thread count, library or processor.

    Parameters
    ----------
    matrix : float64 array, shape (m, n)
    triangular : bool
        Whether the matrix is lower triangular, so that nearly half of the work can be left out.
    """

    def __init__(self, matrix: np.ndarray, *, triangular: bool = False):
        self.matrix = matrix
        self.triangular = triangular
        size = matrix.shape[1]
        gamma = size * _UNIT_ROUNDOFF / (1.0 - size * _UNIT_ROUNDOFF)
        longest = np.sqrt(np.max(np.einsum("ij,ij->i", matrix, matrix), initial=0.0))
        self._relative_error = 1.01 * gamma * longest

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the nearest integers to ``rows @ matrix.T``, float64, shape (n_rows, m)."""
        products = np.empty((rows.shape[0], self.matrix.shape[0]))
        for start in range(0, rows.shape[0], _BLOCK):
            block = slice(start, start + _BLOCK)
            self._fill(products[block], rows[block])
        return products

    def _fill(self, nearest: np.ndarray, rows: np.ndarray) -> None:
        distance = self._product(rows)
        np.rint(distance, out=nearest)
        distance -= nearest
        np.abs(distance, out=distance)
        certain = 0.5 - self._relative_error * np.sqrt(np.einsum("ij,ij->i", rows, rows))
        if distance.max(initial=0.0) < certain.min():
            return
        for row, column in np.argwhere(distance >= certain[:, None]):
            nearest[row, column] = _nearest_integer(rows[row], self.matrix[column])

    def _product(self, rows: np.ndarray) -> np.ndarray:
        if not self.triangular:
            return rows @ self.matrix.T
        product = np.empty((len(rows), len(self.matrix)))
        for start in range(0, len(self.matrix), _PANEL):
            stop = start + _PANEL
            np.matmul(rows[:, :stop], self.matrix[start:stop, :stop].T, out=product[:, start:stop])
        return product


def _nearest_integer(left: np.ndarray, right: np.ndarray) -> float:
    """The integer nearest to the exact dot product, ties to even.

    Veltkamp halves multiply without error and ``fsum`` rounds once, so the sign of the distance to the
    rounding boundary is exact.
    """
    left_high, left_low = _halves(left)
    right_high, right_low = _halves(right)
    products = (left_high * right_high, left_high * right_low, left_low * right_high, left_low * right_low)
    terms = np.concatenate(products).tolist()
    below = math.floor(math.fsum(terms))
    beyond = math.fsum([*terms, -below - 0.5])
    return below + (beyond > 0.0 or (beyond == 0.0 and below % 2 == 1))


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    return high, values - high
