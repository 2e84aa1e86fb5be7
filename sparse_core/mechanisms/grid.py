"""The grid that every published number lies on.

The low-order bits of a floating-point sum ``x + z`` tell which ``x`` it came from (Mironov, "On
significance of the least significant bits for differential privacy", CCS 2012). So embeddings are rounded
to a power-of-two grid before noise is added, and released values are multiples of the same grid: every
input then shares one set of possible outputs, and rounding the released value is post-processing. Rounding the
embedding is not: it may move two of them apart, which `Mechanism.privacy_map` counts.

Which grid. ``DEFAULT_GRID`` is 2**-20, about 1e-6: it moves a unit vector in 384 dimensions by 5e-6, and
float32 holds its multiples exactly below 16. When the noise is larger than the signal by far, the grid
grows with it (:func:`release_grid`), so that float32 still holds published values exactly. A float32 beyond
that bound is a multiple of the grid all the same: its spacing is then a larger power of two, and the cast
is post-processing too.
"""

import math

import numpy as np

from sparse_core.errors import SparseError

DEFAULT_GRID = 2.0**-20
_FLOAT32_SIGNIFICAND = 24
_LARGEST_NORM_ON_DEFAULT_GRID = 64.0


def round_to_grid(values: np.ndarray, grid: float = DEFAULT_GRID) -> np.ndarray:
    """Round to the nearest multiple of a power of two, ties to even.

    Parameters
    ----------
    values : float array, any shape
    grid : float
        A power of two.

    Returns
    -------
    float64 array of the same shape
        Exact multiples of ``grid``, without negative zeros.

    Examples
    --------
    >>> round_to_grid([0.3, -0.01], 0.25).tolist()
    [0.25, 0.0]
    """
    check_grid(grid)
    rounded = np.multiply(values, 1.0 / grid, dtype=np.float64)
    np.rint(rounded, out=rounded)
    rounded *= grid
    rounded += 0.0
    return rounded


def release_grid(noise_norm: float) -> float:
    """The grid for releases with this median noise norm: 2**-20 up to 64, then in proportion."""
    if not noise_norm > _LARGEST_NORM_ON_DEFAULT_GRID:
        return DEFAULT_GRID
    return DEFAULT_GRID * 2.0 ** math.ceil(math.log2(noise_norm / _LARGEST_NORM_ON_DEFAULT_GRID))


def exact_float32_bound(grid: float) -> float:
    """The magnitude up to which float32 represents every multiple of ``grid`` exactly."""
    check_grid(grid)
    return 2.0**_FLOAT32_SIGNIFICAND * grid


def check_grid(grid: float) -> None:
    """Refuse a grid that is not a positive power of two.

    Raises
    ------
    SparseError
    """
    if not (isinstance(grid, float | int) and grid > 0 and math.isfinite(grid) and math.frexp(grid)[0] == 0.5):
        raise SparseError(f"The grid is {grid!r}; it must be a power of two such as 2**-20.")
