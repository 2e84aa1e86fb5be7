"""PurMech: noise on the unit sphere whose guarantee is stated in angles."""

import math

import numpy as np
from scipy.special import ndtri

from sparse_core.errors import SparseError
from sparse_core.mechanisms.angle import AngleLaw
from sparse_core.mechanisms.base import Mechanism, row_norms
from sparse_core.mechanisms.checks import (
    UNIT_TOLERANCE,
    checked_dimension,
    exactly_one,
    positive,
)
from sparse_core.mechanisms.grid import round_to_grid

_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-6, 1e9


class Purkayastha(Mechanism):
    """Releases on the unit sphere with density proportional to exp(-epsilon * angle(x, y)).

    The Purkayastha mechanism of Weggenmann and Kerschbaum, "Differential privacy for directional data"
    (CCS 2021). The normalising constant is the same for every centre and the angle is a metric, so the
    triangle inequality gives pure metric privacy: the log-likelihood ratio of x and x' is at most
    epsilon * angle(x, x'). Since angle <= (pi / 2) * |x - x'| on the sphere (equality at antipodes),
    ``epsilon_euclidean = (pi / 2) * epsilon``.

    Sampling: the angle theta by exact inversion of its law (:class:`AngleLaw`), then
    y = cos(theta) x + sin(theta) t with t uniform among the unit vectors orthogonal to x.

    Parameters
    ----------
    dimension : int
        At least 2.
    epsilon : float, optional
        Log-likelihood ratio per radian.
    rho : float, optional
        Median length of the chord from embedding to release, below sqrt(2), which is what a uniformly
        random direction gives.
    embedding_norm : float
        Must be 1: the mechanism lives on the unit sphere.
    """

    name = "purkayastha"
    metric = "angular"

    def __init__(
        self,
        *,
        dimension: int,
        epsilon: float | None = None,
        rho: float | None = None,
        embedding_norm: float = 1.0,
    ):
        self.dimension = checked_dimension(dimension, smallest=2)
        if abs(positive(embedding_norm, "embedding_norm") - 1.0) > UNIT_TOLERANCE:
            raise SparseError(
                f"embedding_norm is {embedding_norm}; 'purkayastha' protects unit vectors only. Normalise "
                "the embeddings or choose 'laplace'."
            )
        if exactly_one(epsilon=epsilon, rho=rho) == "epsilon":
            self.epsilon = positive(epsilon, "epsilon")
            if not _SMALLEST_EPSILON <= epsilon <= _LARGEST_EPSILON:
                raise SparseError(
                    f"epsilon is {epsilon:g}; the angle's law is computed for {_SMALLEST_EPSILON:g} to "
                    f"{_LARGEST_EPSILON:g} only. Choose an epsilon in between."
                )
        else:
            self.epsilon = _epsilon_for_chord(self.dimension, positive(rho, "rho"))
        self._law = AngleLaw(self.dimension, self.epsilon)
        self.median_noise_norm = _median_chord(self._law)
        self.signal_gain = self._law.mean_of(np.cos)

    @property
    def uniforms_per_record(self) -> int:
        return self.dimension + 1

    @property
    def rounding(self) -> float:
        """Twice the largest angle between x and q(x), both of which have a norm above .999.

        |x - q(x)| >= |q(x)| sin(angle) and |x - q(x)| <= r = grid * sqrt(n) / 2, so the angle is at most
        asin(r / .999).
        """
        shift = self.grid * math.sqrt(self.dimension) / 2.0 / (1.0 - UNIT_TOLERANCE)
        return 2.0 * math.asin(min(shift, 1.0))

    def _on_grid(self, distance: np.ndarray | float) -> np.ndarray | float:
        return np.minimum(super()._on_grid(distance), math.pi)

    @property
    def epsilon_euclidean(self) -> float:
        return self.epsilon * math.pi / 2.0

    def on_grid(self, embeddings: np.ndarray) -> np.ndarray:
        embeddings = super().on_grid(embeddings)
        norms = row_norms(embeddings)
        wrong = np.abs(norms - 1.0) > UNIT_TOLERANCE
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SparseError(
                f"The embedding in row {row} (counted from 0) has norm {norms[row]:.6g}; 'purkayastha' "
                "protects unit vectors only. Normalise the embeddings or choose 'laplace'."
            )
        return embeddings

    def _released(self, embeddings: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        centre = embeddings / row_norms(embeddings)[:, None]
        angle = self._law.quantile(uniforms[:, 0])
        released = ndtri(uniforms[:, 1:])
        released -= np.einsum("ij,ij->i", released, centre)[:, None] * centre
        released *= (np.sin(angle) / row_norms(released))[:, None]
        released += np.cos(angle)[:, None] * centre
        return round_to_grid(released, self.grid)

    def log_density(self, outputs: np.ndarray, *, center: np.ndarray) -> np.ndarray:
        """Log-density of outputs on the sphere, per unit of its surface area.

        Parameters
        ----------
        outputs, center : float array, shape (n_records, dimension)
            Scaled to norm 1 here; the grid moves releases off the sphere by less than 1e-4.

        Returns
        -------
        float64 array, shape (n_records,)
        """
        return -self.epsilon * self.distance(outputs, center) - self._law.log_normalizer

    def log_likelihood(self, outputs: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
        return self.log_density(outputs, center=embeddings)

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Angle in radians; accurate near 0 and pi (Kahan's formula)."""
        x, y = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (np.asarray(x), np.asarray(y)))
        return 2.0 * np.arctan2(np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1))

    def noise_variance(self) -> np.ndarray:
        """Variance per direction around ``signal_gain * x``, averaged over directions.

        |y|**2 = 1 and E[y] = signal_gain * x, so that the total is 1 - signal_gain**2.
        """
        return np.full(self.dimension, self._law.mean_of(self._excess) / self.dimension)

    def _excess(self, angle: np.ndarray) -> np.ndarray:
        return np.sin(angle) ** 2 + (np.cos(angle) - self.signal_gain) ** 2


def _median_chord(law: AngleLaw) -> float:
    return float(2.0 * np.sin(law.quantile(np.array([0.5]))[0] / 2.0))


def _epsilon_for_chord(dimension: int, chord: float) -> float:
    """Solve for the epsilon whose median chord is given, by bisection on its logarithm."""
    low, high = math.log(_SMALLEST_EPSILON), math.log(_LARGEST_EPSILON)
    longest, shortest = (_median_chord(AngleLaw(dimension, math.exp(end))) for end in (low, high))
    if not shortest <= chord <= longest:
        raise SparseError(
            f"rho is {chord:g}; on the unit sphere the median distance from embedding to release lies "
            f"between {shortest:.3g} and {longest:.6g} in {dimension} dimensions. Choose a rho in between."
        )
    for _ in range(60):
        middle = (low + high) / 2.0
        if _median_chord(AngleLaw(dimension, math.exp(middle))) > chord:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2.0)
