"""No protection, for comparison: the same path through a job, and an honest guarantee of nothing."""

import math

import numpy as np

from sparse_core.mechanisms.base import AdditiveMechanism
from sparse_core.mechanisms.checks import checked_dimension, checked_uniforms


class NoMechanism(AdditiveMechanism):
    """Release embeddings as they are, rounded to the grid. Epsilon is infinite.

    Parameters
    ----------
    dimension : int
    """

    name = "none"
    metric = "euclidean"

    def __init__(self, *, dimension: int):
        self.dimension = checked_dimension(dimension)
        self.epsilon = math.inf
        self.median_noise_norm = 0.0

    @property
    def uniforms_per_record(self) -> int:
        return 0

    @property
    def rounding(self) -> float:
        return self.grid * math.sqrt(self.dimension)

    @property
    def epsilon_euclidean(self) -> float:
        return math.inf

    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        return np.zeros((len(checked_uniforms(uniforms, 0)), self.dimension))

    def log_density(self, noise: np.ndarray) -> np.ndarray:
        """0 where nothing was added, minus infinity elsewhere: all mass is in one point."""
        return np.where(np.any(np.asarray(noise) != 0.0, axis=-1), -np.inf, 0.0)

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.linalg.norm(np.asarray(x, dtype=np.float64) - y, axis=-1)

    def privacy_map(self, distance: np.ndarray | float) -> np.ndarray:
        return np.where(np.asarray(distance) > 0.0, np.inf, 0.0)

    def noise_variance(self) -> np.ndarray:
        return np.zeros(self.dimension)
