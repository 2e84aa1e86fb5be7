"""Concept-aware noise: large along the directions of a mask, small along the others."""

import math

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.mechanisms.base import AdditiveMechanism
from sparse_core.mechanisms.checks import checked_uniforms, chosen_epsilon
from sparse_core.mechanisms.grid import round_to_grid
from sparse_core.mechanisms.radial import log_normalizer, radial_laplace
from sparse_core.mechanisms.root import sigma_root
from sparse_core.mechanisms.sigma import DEFAULT_FLOOR, checked_basis, decomposed, median_norm, spectrum


class Mahalanobis(AdditiveMechanism):
    """Noise with density proportional to exp(-epsilon * |z|_M), |z|_M = sqrt(z^T Sigma^-1 z).

    The elliptical mechanism of Xu et al., "A differentially private text perturbation method using
    regularized Mahalanobis metric" (2020), with Sigma shaped by a concept mask as in arXiv 2602.07090.
    |.|_M is a norm, so the triangle inequality gives pure metric privacy: the log-likelihood ratio of x
    and x' is at most epsilon * |x - x'|_M. Since |d|_M <= |d| / sqrt(lambda_min(Sigma)), the Euclidean
    guarantee is ``epsilon_euclidean = epsilon / sqrt(lambda_min)``, far weaker when the floor is small.

    Sampling: z = R s with R R^T = Sigma, s isotropic and |s| ~ Gamma(n, 1/epsilon). Nothing is renormalised
    after shaping; that would replace the law, and void the guarantee. Every root R gives the same law;
    :func:`sparse_core.mechanisms.root.sigma_root` takes a cheap one.

    Parameters
    ----------
    epsilon : float, optional
        Log-likelihood ratio per unit of Mahalanobis distance.
    rho : float, optional
        Median Euclidean noise norm over ``embedding_norm``, instead of epsilon; hit within 0.5%.
    embedding_norm : float
        Median norm of the embeddings; used with rho.
    weights : float array, shape (n,)
        The mask, in [0, 1], over the columns of ``basis``.
    basis : float array, shape (n, n), optional
        Orthogonal; by default the coordinates.
    floor : float
        Share of the noise variance spread evenly, in [1e-6, 1).
    degenerate : {"refuse", "isotropic"}
        What to do when all weights are equal.
    """

    name = "mahalanobis"
    metric = "mahalanobis"

    def __init__(
        self,
        *,
        weights: np.ndarray,
        basis: np.ndarray | None = None,
        floor: float = DEFAULT_FLOOR,
        epsilon: float | None = None,
        rho: float | None = None,
        embedding_norm: float = 1.0,
        degenerate: str = "refuse",
    ):
        self._set_up(
            spectrum(weights, floor=floor, degenerate=degenerate),
            basis,
            epsilon=epsilon,
            rho=rho,
            embedding_norm=embedding_norm,
        )

    @classmethod
    def from_sigma(
        cls,
        sigma: np.ndarray,
        *,
        epsilon: float | None = None,
        rho: float | None = None,
        embedding_norm: float = 1.0,
    ) -> "Mahalanobis":
        """Use a covariance as it is, without a mask; its trace is not rescaled.

        Parameters
        ----------
        sigma : float array, shape (n, n)
            Symmetric and positive definite.
        epsilon, rho, embedding_norm
            As for the class.
        """
        mechanism = cls.__new__(cls)
        basis, variances = decomposed(sigma)
        mechanism._set_up(variances, basis, epsilon=epsilon, rho=rho, embedding_norm=embedding_norm)
        return mechanism

    def _set_up(self, variances, basis, *, epsilon, rho, embedding_norm) -> None:
        self.dimension = len(variances)
        self.variances = variances
        self._basis = checked_basis(basis, self.dimension)
        unit = median_norm(variances)
        self.epsilon = chosen_epsilon(epsilon=epsilon, rho=rho, embedding_norm=embedding_norm, unit_noise_norm=unit)
        self.median_noise_norm = unit / self.epsilon
        self._root = None if self._basis is None else sigma_root(self._basis, variances)

    @property
    def basis(self) -> np.ndarray | None:
        return self._basis

    @property
    def uniforms_per_record(self) -> int:
        return self.dimension + 1

    @property
    def rounding(self) -> float:
        """Largest |e|_M with |e_i| <= grid: exact along coordinates; else by |e|_M <= |e| / sqrt(lambda_min).

        A corner of the cube taken at random has |e|_M**2 = grid**2 * trace(Sigma^-1) on average. Where most directions
        are near the floor, as under any concept mask, the bound is therefore tight to some percent.
        """
        if self._basis is None:
            return self.grid * math.sqrt((1.0 / self.variances).sum())
        return self.grid * math.sqrt(self.dimension / self.variances.min())

    @property
    def epsilon_euclidean(self) -> float:
        return self.epsilon / math.sqrt(self.variances.min())

    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        uniforms = checked_uniforms(uniforms, self.uniforms_per_record)
        if self._root is None:
            return self._along_coordinates(uniforms)
        # Rounded to a grid only so that no bit depends on the batch, far below the quietest direction's noise.
        grid = 2.0 ** math.floor(math.log2(min(self.grid / 8.0, self.median_noise_norm * 2.0**-24)))
        noise = self._root(radial_laplace(uniforms, self.epsilon * grid))
        noise *= grid
        return noise

    def _released(self, embeddings: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        if self._root is None:
            return round_to_grid(embeddings + self._along_coordinates(uniforms), self.grid)
        # In units of the grid, so that the exact sum of embedding and noise is rounded once.
        released = self._root(radial_laplace(uniforms, self.epsilon * self.grid), embeddings * (1.0 / self.grid))
        released *= self.grid
        released += 0.0
        return released

    def _along_coordinates(self, uniforms: np.ndarray) -> np.ndarray:
        noise = radial_laplace(uniforms, self.epsilon)
        noise *= np.sqrt(self.variances)
        return noise

    def log_density(self, noise: np.ndarray) -> np.ndarray:
        log_root = 0.5 * np.log(self.variances).sum()
        return -self.epsilon * self._norm(noise) - log_normalizer(self.dimension, self.epsilon) - log_root

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._norm(np.asarray(x, dtype=np.float64) - y)

    def noise_variance(self) -> np.ndarray:
        return (self.dimension + 1) / self.epsilon**2 * self.variances

    def _norm(self, difference: np.ndarray) -> np.ndarray:
        difference = np.asarray(difference, dtype=np.float64)
        if difference.shape[-1] != self.dimension:
            raise SparseError(f"Vectors have {difference.shape[-1]} dimensions; expected {self.dimension}.")
        if self._basis is not None:
            difference = difference @ self._basis
        return np.linalg.norm(difference / np.sqrt(self.variances), axis=-1)
