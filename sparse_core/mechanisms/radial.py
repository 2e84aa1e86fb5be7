"""The law exp(-epsilon * |z|) in n dimensions, from uniforms.

In polar coordinates the density r**(n-1) * exp(-epsilon * r) is Gamma(n, 1/epsilon), and the direction is
uniform on the sphere, independent of it (Feyisetan et al., "Privacy- and utility-preserving textual
analysis via calibrated multivariate perturbations", WSDM 2020).
"""

import math

import numpy as np
from scipy.special import gammaincinv, gammaln, ndtri

from sparse_core.mechanisms.base import log_sphere_area, row_norms


def radial_laplace(uniforms: np.ndarray, epsilon: float) -> np.ndarray:
    """Noise with density proportional to exp(-epsilon * |z|).

    Parameters
    ----------
    uniforms : float64 array in (0, 1), shape (n_records, 1 + dimension)
        The first column gives the radius, by the inverse of the regularised incomplete gamma function
        (relative error below 1e-13 up to 4,096 dimensions); the others give the direction, as Gaussians
        by the inverse normal distribution function.
    epsilon : float

    Returns
    -------
    float64 array, shape (n_records, dimension)
    """
    noise = ndtri(uniforms[:, 1:])
    radius = gammaincinv(noise.shape[1], uniforms[:, 0])
    radius /= epsilon
    radius /= row_norms(noise)
    noise *= radius[:, None]
    return noise


def median_radius(dimension: int) -> float:
    """Median of Gamma(dimension, 1)."""
    return float(gammaincinv(dimension, 0.5))


def log_normalizer(dimension: int, epsilon: float) -> float:
    """Log of the integral of exp(-epsilon * |z|) over all space."""
    return log_sphere_area(dimension) + float(gammaln(dimension)) - dimension * math.log(epsilon)
