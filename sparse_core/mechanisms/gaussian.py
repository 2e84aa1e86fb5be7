"""Gaussian noise, for comparison. It gives approximate privacy only, and says so."""

import math

import numpy as np
from scipy.special import gammaincinv, log_ndtr, ndtri

from sparse_core.errors import SparseError
from sparse_core.mechanisms.base import AdditiveMechanism
from sparse_core.mechanisms.checks import check_noise_norm, checked_dimension, checked_uniforms, exactly_one, positive

DEFAULT_DELTA = 1e-6
_BISECTIONS = 200


class Gaussian(AdditiveMechanism):
    """Independent Gaussian noise of standard deviation ``sigma`` in every coordinate.

    Inputs at Euclidean distance d are as distinguishable as N(0, 1) and N(d / sigma, 1), that is
    (d / sigma)-Gaussian differential privacy (Dong, Roth and Su, 2022). The log-likelihood ratio is
    unbounded, so there is no pure metric privacy: for every d, (privacy_map(d), delta) holds, with the
    exact curve of Balle and Wang, "Improving the Gaussian mechanism for differential privacy" (2018), read at
    d + ``rounding``. The curve is not proportional to d. ``epsilon`` is its value at distance 1 on the grid.

    Parameters
    ----------
    dimension : int
    epsilon : float, optional
        Epsilon at Euclidean distance 1, for the given delta.
    rho : float, optional
        Median noise norm over ``embedding_norm``, instead of epsilon.
    embedding_norm : float
        Median norm of the embeddings; used with rho.
    delta : float
        In (0, 1); by default 1e-6.
    """

    name = "gaussian"
    metric = "euclidean"

    def __init__(
        self,
        *,
        dimension: int,
        epsilon: float | None = None,
        rho: float | None = None,
        embedding_norm: float = 1.0,
        delta: float = DEFAULT_DELTA,
    ):
        self.dimension = checked_dimension(dimension)
        self.delta = positive(delta, "delta")
        if self.delta >= 1.0:
            raise SparseError(f"delta is {delta}; it must be below 1, and small to mean anything.")
        unit = math.sqrt(2.0 * gammaincinv(self.dimension / 2.0, 0.5))
        if exactly_one(epsilon=epsilon, rho=rho) == "epsilon":
            mu = _mu_for(positive(epsilon, "epsilon"), self.delta)
            self.sigma = 1.0 / mu if mu > 0.0 else math.inf
        else:
            self.sigma = positive(rho, "rho") * positive(embedding_norm, "embedding_norm") / unit
        self.median_noise_norm = unit * self.sigma
        check_noise_norm(self.median_noise_norm, f"rho {rho:g}" if epsilon is None else f"epsilon {epsilon:g}")
        self.epsilon = float(self._curve(1.0))

    @property
    def uniforms_per_record(self) -> int:
        return self.dimension

    @property
    def rounding(self) -> float:
        return self.grid * math.sqrt(self.dimension)

    @property
    def epsilon_euclidean(self) -> float:
        """Epsilon at Euclidean distance 1; holds together with ``delta``."""
        return self.epsilon

    @property
    def mu_per_distance(self) -> float:
        """Gaussian differential privacy parameter per unit of Euclidean distance: 1 / sigma."""
        return 1.0 / self.sigma

    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        noise = ndtri(checked_uniforms(uniforms, self.uniforms_per_record))
        noise *= self.sigma
        return noise

    def log_density(self, noise: np.ndarray) -> np.ndarray:
        squares = np.sum(np.square(np.asarray(noise, dtype=np.float64) / self.sigma), axis=-1)
        return -0.5 * squares - self.dimension * (math.log(self.sigma) + 0.5 * math.log(2.0 * math.pi))

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.linalg.norm(np.asarray(x, dtype=np.float64) - y, axis=-1)

    def privacy_map(self, distance: np.ndarray | float) -> np.ndarray:
        """The smallest epsilon such that (epsilon, ``delta``) privacy holds at a distance, rounding included."""
        return self._curve(self._on_grid(distance))

    def _curve(self, distance: np.ndarray | float) -> np.ndarray:
        mu = np.asarray(distance, dtype=np.float64) / self.sigma
        low = np.zeros_like(mu)
        # At this epsilon the exact delta is below Phi(-sqrt(2 log(1/delta))) < delta.
        high = mu * (mu / 2.0 + math.sqrt(2.0 * math.log(1.0 / self.delta)))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            met = log_delta(middle, mu) <= math.log(self.delta)
            low, high = np.where(met, low, middle), np.where(met, middle, high)
        return high

    def noise_variance(self) -> np.ndarray:
        return np.full(self.dimension, self.sigma**2)


def log_delta(epsilon: np.ndarray | float, mu: np.ndarray | float) -> np.ndarray:
    """Log of the exact delta of Gaussian noise: Phi(mu/2 - eps/mu) - exp(eps) Phi(-mu/2 - eps/mu).

    Theorem 8 of Balle and Wang (2018), with mu = distance / sigma; minus infinity at distance 0.
    """
    epsilon, mu = np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(mu > 0.0, epsilon / mu, np.inf)
        first = log_ndtr(mu / 2.0 - ratio)
        second = epsilon + log_ndtr(-mu / 2.0 - ratio)
        return np.where(mu > 0.0, first + np.log1p(-np.exp(np.minimum(second - first, 0.0))), -np.inf)


def _mu_for(epsilon: float, delta: float) -> float:
    """The mu at which (epsilon, delta) is met exactly; delta rises with mu."""
    low, high = 0.0, 1.0
    while log_delta(epsilon, high) < math.log(delta):
        high *= 2.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if log_delta(epsilon, middle) < math.log(delta):
            low = middle
        else:
            high = middle
    return low
