"""Checks of a sampler against its stated law, shared by sound and deliberately broken mechanisms."""

import numpy as np
from scipy.stats import chi2, gamma, kstest, spearmanr

from sparse_core.mechanisms import Laplace, Mahalanobis
from sparse_core.mechanisms.radial import radial_laplace

SOUND = 1e-3
BROKEN = 1e-6


def orthogonal(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def unit_rows(count, size, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, size))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def uniforms_for(mechanism, count, seed=0):
    return np.random.default_rng(seed).random((count, mechanism.uniforms_per_record))


def graded_mask(size, active, seed=3):
    weights = np.zeros(size)
    weights[:active] = np.random.default_rng(seed).uniform(0.2, 1.0, active)
    return weights


def concept_mechanism(size=24, *, active=6, floor=0.02, kind=Mahalanobis, **strength):
    strength = strength or {"epsilon": 7.0}
    return kind(weights=graded_mask(size, active), basis=orthogonal(size), floor=floor, **strength)


def whitened(mechanism, noise):
    if isinstance(mechanism, Laplace):
        return noise
    coordinates = noise if mechanism.basis is None else noise @ mechanism.basis
    return coordinates / np.sqrt(mechanism.variances)


def law_pvalues(mechanism, noise):
    """P-values of the four facts that make up the law exp(-epsilon * |z|_M).

    Radius ~ Gamma(n, 1/epsilon); directions uniform, by projections (Kolmogorov-Smirnov), mean (Rayleigh)
    and covariance (Bingham); radius independent of direction.
    """
    count, size = noise.shape
    white = whitened(mechanism, noise)
    radius = np.linalg.norm(white, axis=1)
    direction = white / radius[:, None]
    radius_pvalue = kstest(radius, gamma(size, scale=1 / mechanism.epsilon).cdf).pvalue
    if size == 1:
        return {"radius": radius_pvalue}
    axes = np.random.default_rng(1).standard_normal((size, 3))
    axes /= np.linalg.norm(axes, axis=0)
    reference = unit_rows(count, size, seed=2)
    projections = [kstest(direction @ axis, reference @ axis).pvalue for axis in axes.T]
    deviation = direction.T @ direction / count - np.eye(size) / size
    bingham = size * (size + 2) / 2 * count * np.sum(deviation**2)
    widest = np.argmax(mechanism.noise_variance()) if len(np.unique(mechanism.noise_variance())) > 1 else 0
    return {
        "radius": radius_pvalue,
        "projection": min(projections),
        "mean": chi2.sf(size * count * np.sum(direction.mean(axis=0) ** 2), size),
        "covariance": chi2.sf(bingham, (size - 1) * (size + 2) / 2),
        "independence": spearmanr(radius, direction[:, widest] ** 2).pvalue,
    }


def variance_error(mechanism, noise):
    """Largest deviation of a variance along the basis from its closed form, in standard errors."""
    coordinates = noise if mechanism.basis is None else noise @ mechanism.basis
    squares = coordinates**2
    error = squares.mean(axis=0) - mechanism.noise_variance()
    return np.abs(error / (squares.std(axis=0) / np.sqrt(len(noise)))).max()


class RenormalisedSampler(Mahalanobis):
    """Planted: shapes the direction, then scales it back to the sphere."""

    def noise(self, uniforms):
        isotropic = radial_laplace(uniforms, self.epsilon)
        shaped = (isotropic * np.sqrt(self.variances)) @ self.basis.T
        radius = np.linalg.norm(isotropic, axis=1) / np.linalg.norm(shaped, axis=1)
        return shaped * radius[:, None]


class SigmaInPlaceOfItsRoot(Mahalanobis):
    """Planted: multiplies by Sigma where its square root belongs."""

    def noise(self, uniforms):
        return (radial_laplace(uniforms, self.epsilon) * self.variances) @ self.basis.T


class WrongGammaShape(Mahalanobis):
    """Planted: draws the radius from Gamma(n - 1), the exponent of the density, instead of Gamma(n)."""

    def noise(self, uniforms):
        size = self.dimension
        isotropic = radial_laplace(uniforms, self.epsilon)
        radius = gamma(size - 1, scale=1 / self.epsilon).ppf(uniforms[:, 0])
        isotropic *= (radius / np.linalg.norm(isotropic, axis=1))[:, None]
        return (isotropic * np.sqrt(self.variances)) @ self.basis.T


PLANTED = (RenormalisedSampler, SigmaInPlaceOfItsRoot, WrongGammaShape)
