"""What every mechanism offers.

A mechanism turns embeddings into releases. It draws nothing itself: all randomness arrives as uniform
numbers, so a release is a deterministic function of the embedding and its uniforms.
"""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln

from sparse_core.mechanisms.checks import checked_counts, checked_embeddings, checked_uniforms, positive
from sparse_core.mechanisms.grid import release_grid, round_to_grid

_BLOCK = 128  # rows whose intermediate results stay in cache


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What one release of one record promises, with every figure needed to compare it with others.

    Attributes
    ----------
    mechanism, metric : str
        Epsilon means nothing without its metric.
    epsilon : float
        Log-likelihood ratio per unit of ``metric``.
    grid, rounding : float
        Embeddings are rounded to multiples of ``grid`` first, which may bring two of them farther apart, by
        ``rounding`` in ``metric`` at most: embeddings at distance d > 0 differ in log-likelihood by at most
        ``epsilon * (d + rounding)``.
    delta : float
        0 for pure metric privacy. Otherwise epsilon holds except with this probability, and for pairs at
        distance 1 only: ask the mechanism's ``privacy_map`` for others.
    epsilon_euclidean : float
        Log-likelihood ratio per unit of Euclidean distance in the worst direction.
    epsilon_per_dimension : float
        ``epsilon / dimension``.
    rho : float or None
        Median noise norm over the norm of an embedding; None where that is not known.
    median_noise_norm : float
        Median Euclidean norm of the difference between release and embedding.
    """

    mechanism: str
    metric: str
    epsilon: float
    grid: float
    rounding: float
    delta: float
    epsilon_euclidean: float
    epsilon_per_dimension: float
    rho: float | None
    median_noise_norm: float


class Mechanism(abc.ABC):
    """A randomised map from embeddings to releases with a stated guarantee.

    Attributes
    ----------
    name, metric : str
    dimension : int
    epsilon, delta : float
    uniforms_per_record : int
        How many uniform numbers one release consumes.
    grid : float
        Releases are multiples of this power of two (see :mod:`sparse_core.mechanisms.grid`).
    signal_gain : float
        The release's expectation given embedding x is ``signal_gain * x``; 1 for additive noise.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    dimension: int
    epsilon: float
    delta: float = 0.0
    signal_gain: float = 1.0
    median_noise_norm: float

    @property
    def grid(self) -> float:
        return release_grid(self.median_noise_norm)

    @property
    @abc.abstractmethod
    def uniforms_per_record(self) -> int: ...

    def on_grid(self, embeddings: np.ndarray) -> np.ndarray:
        """What `release` adds noise to: embeddings as the mechanism accepts them, rounded to the grid.

        Parameters
        ----------
        embeddings : float array, shape (n_records, dimension)

        Returns
        -------
        float64 array of the same shape

        Raises
        ------
        SparseError
            For a wrong shape or a non-finite embedding, and what else the mechanism does not protect.
        """
        return round_to_grid(checked_embeddings(embeddings, self.dimension), self.grid)

    def release(self, embeddings: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Protect a batch.

        Embeddings are rounded to the grid first, so that differences in their last bits vanish unless a
        coordinate straddles a rounding boundary. An encoder must be reproducible for that never to happen;
        no grid can mend one that is not.

        Parameters
        ----------
        embeddings : float array, shape (n_records, dimension)
        uniforms : float64 array in (0, 1), shape (n_records, uniforms_per_record)

        Returns
        -------
        float64 array, shape (n_records, dimension), multiples of ``grid``

        Raises
        ------
        SparseError
            For a wrong shape, a non-finite embedding or uniforms outside (0, 1).
        """
        embeddings = self.on_grid(embeddings)
        uniforms = checked_uniforms(uniforms, self.uniforms_per_record)
        checked_counts(embeddings, uniforms)
        released = np.empty(embeddings.shape)
        for start in range(0, len(released), _BLOCK):
            block = slice(start, start + _BLOCK)
            released[block] = self._released(embeddings[block], uniforms[block])
        return released

    @abc.abstractmethod
    def _released(self, embeddings: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Protect a small batch of embeddings that are already checked and on the grid, onto the grid."""

    @abc.abstractmethod
    def log_likelihood(self, outputs: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
        """Log-density of each output given its embedding; float64, shape (n_records,)."""

    @abc.abstractmethod
    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Distance between corresponding rows in the mechanism's metric; broadcasts."""

    @property
    @abc.abstractmethod
    def rounding(self) -> float:
        """How much farther apart, in the mechanism's metric, two inputs may be once both are on the grid."""

    def privacy_map(self, distance: np.ndarray | float) -> np.ndarray | float:
        """The log-likelihood ratio that inputs at this distance can never exceed.

        ``epsilon * (distance + rounding)``, and 0 at distance 0: equal inputs round alike. Without the second term
        it would be wrong for inputs on two sides of a rounding boundary, however near they are to each other. It
        is the relaxation that OpenDP's maps add (`laplace_map`).
        """
        return self.epsilon * self._on_grid(distance)

    def _on_grid(self, distance: np.ndarray | float) -> np.ndarray | float:
        """The distance that inputs at this distance can have at most once both are on the grid."""
        distance = np.asarray(distance, dtype=np.float64)
        return np.where(distance > 0.0, distance + self.rounding, 0.0)[()]

    @abc.abstractmethod
    def noise_variance(self) -> np.ndarray:
        """E[(y - signal_gain * x)_i ** 2] along each direction of ``basis``; float64, shape (dimension,)."""

    @property
    def basis(self) -> np.ndarray | None:
        """Columns are the directions of :meth:`noise_variance`; None means the coordinates themselves."""
        return None

    @property
    @abc.abstractmethod
    def epsilon_euclidean(self) -> float: ...

    def guarantee(self, *, embedding_norm: float | None = 1.0) -> Guarantee:
        """State what one release promises.

        Parameters
        ----------
        embedding_norm : float or None
            Median norm of the embeddings to protect; sets the scale of rho.
        """
        return Guarantee(
            mechanism=self.name,
            metric=self.metric,
            epsilon=self.epsilon,
            grid=self.grid,
            rounding=self.rounding,
            delta=self.delta,
            epsilon_euclidean=self.epsilon_euclidean,
            epsilon_per_dimension=self.epsilon / self.dimension,
            rho=None if embedding_norm is None else self.median_noise_norm / positive(embedding_norm, "embedding_norm"),
            median_noise_norm=self.median_noise_norm,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension}, epsilon={self.epsilon:.6g})"


class AdditiveMechanism(Mechanism):
    """A mechanism that adds noise drawn independently of the embedding.

    For such a mechanism the privacy map follows from the triangle inequality alone: with density
    f(z) proportional to exp(-epsilon * |z|) in a norm, log f(y - x) - log f(y - x') =
    epsilon * (|y - x'| - |y - x|) <= epsilon * |x - x'|, with equality for y beyond x on the line from x'.

    Rounding. Let q round to a grid of step g. Every coordinate of q(x) - x is at most g/2 in absolute value, so that
    q(x) - q(x') = (x - x') + e with |e_i| <= g, and |q(x) - q(x')| <= |x - x'| + max |e|: ``rounding`` is the largest
    norm of a vector in the cube [-g, g]**n. What is added to q(x) and then rounded to the grid again is
    post-processed only, the same function for every input.
    """

    @abc.abstractmethod
    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        """Turn uniforms into noise, deterministically.

        Parameters
        ----------
        uniforms : float64 array in (0, 1), shape (n_records, uniforms_per_record)

        Returns
        -------
        float64 array, shape (n_records, dimension)
        """

    @abc.abstractmethod
    def log_density(self, noise: np.ndarray) -> np.ndarray:
        """Log-density of noise vectors, normalised; float64, shape (n_records,)."""

    def _released(self, embeddings: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        noise = self.noise(uniforms)
        noise += embeddings
        return round_to_grid(noise, self.grid)

    def log_likelihood(self, outputs: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
        return self.log_density(np.asarray(outputs) - np.asarray(embeddings))


def row_norms(rows: np.ndarray) -> np.ndarray:
    """Euclidean norm of each row, summed in an order that does not depend on the number of rows."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def log_sphere_area(dimension: int) -> float:
    """Log of the surface area of the unit sphere in ``dimension`` dimensions."""
    return math.log(2.0) + 0.5 * dimension * math.log(math.pi) - float(gammaln(0.5 * dimension))
