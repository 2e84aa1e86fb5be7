"""LapMech: multivariate Laplace noise, the same in every direction."""

import math

import numpy as np

from sparse_core.mechanisms.base import AdditiveMechanism
from sparse_core.mechanisms.checks import checked_dimension, checked_uniforms, chosen_epsilon
from sparse_core.mechanisms.radial import log_normalizer, median_radius, radial_laplace


class Laplace(AdditiveMechanism):
    """Noise with density proportional to exp(-epsilon * |z|), pure metric privacy for Euclidean distance.

    Parameters
    ----------
    dimension : int
    epsilon : float, optional
        Log-likelihood ratio per unit of Euclidean distance.
    rho : float, optional
        Median noise norm over ``embedding_norm``, instead of epsilon.
    embedding_norm : float
        Median norm of the embeddings; used with rho.
    """

    name = "laplace"
    metric = "euclidean"

    def __init__(
        self,
        *,
        dimension: int,
        epsilon: float | None = None,
        rho: float | None = None,
        embedding_norm: float = 1.0,
    ):
        self.dimension = checked_dimension(dimension)
        unit = median_radius(self.dimension)
        self.epsilon = chosen_epsilon(epsilon=epsilon, rho=rho, embedding_norm=embedding_norm, unit_noise_norm=unit)
        self.median_noise_norm = unit / self.epsilon

    @property
    def uniforms_per_record(self) -> int:
        return self.dimension + 1

    @property
    def rounding(self) -> float:
        return self.grid * math.sqrt(self.dimension)

    @property
    def epsilon_euclidean(self) -> float:
        return self.epsilon

    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        return radial_laplace(checked_uniforms(uniforms, self.uniforms_per_record), self.epsilon)

    def log_density(self, noise: np.ndarray) -> np.ndarray:
        radius = np.linalg.norm(noise, axis=-1)
        return -self.epsilon * radius - log_normalizer(self.dimension, self.epsilon)

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.linalg.norm(np.asarray(x, dtype=np.float64) - y, axis=-1)

    def noise_variance(self) -> np.ndarray:
        return np.full(self.dimension, (self.dimension + 1) / self.epsilon**2)
