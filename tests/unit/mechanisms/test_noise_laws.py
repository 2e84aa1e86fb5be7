"""Do the samplers follow the laws that the guarantees are proved for?"""

import numpy as np
import pytest
from mechanism_laws import (
    BROKEN,
    PLANTED,
    SOUND,
    concept_mechanism,
    graded_mask,
    law_pvalues,
    orthogonal,
    uniforms_for,
    unit_rows,
    variance_error,
)
from scipy.special import gammainc
from scipy.stats import kstest

from sparse_core.mechanisms import Gaussian, Laplace, Mahalanobis, NoMechanism, Purkayastha, round_to_grid
from sparse_core.mechanisms.radial import radial_laplace
from sparse_core.mechanisms.root import sigma_root
from sparse_core.mechanisms.sigma import spectrum

COUNT = 10_000
MECHANISMS = {
    "laplace": Laplace(dimension=24, epsilon=5.0),
    "laplace, one dimension": Laplace(dimension=1, epsilon=5.0),
    "laplace, 384 dimensions": Laplace(dimension=384, rho=2.0),
    "few directions": concept_mechanism(),
    "few directions, smallest floor": concept_mechanism(floor=1e-6),
    "many directions": concept_mechanism(active=20, floor=0.1),
    "coordinates": Mahalanobis(weights=graded_mask(24, 6), epsilon=7.0),
    "384 dimensions": concept_mechanism(384, active=80, rho=2.0),
    "given Sigma": Mahalanobis.from_sigma(np.diag([4.0, 1.0, 0.25]) + 0.1, epsilon=2.0),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_follows_its_law(name):
    mechanism = MECHANISMS[name]
    noise = mechanism.noise(uniforms_for(mechanism, COUNT))
    pvalues = law_pvalues(mechanism, noise)
    assert min(pvalues.values()) > SOUND, pvalues
    assert variance_error(mechanism, noise) < 4.5


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("size", [24, 128])
def test_planted_errors_are_caught(planted, size):
    mechanism = concept_mechanism(size, active=size // 4, kind=planted, rho=2.0)
    pvalues = law_pvalues(mechanism, mechanism.noise(uniforms_for(mechanism, COUNT)))
    assert min(pvalues.values()) < BROKEN, pvalues


def test_a_release_scaled_back_to_the_sphere_is_caught():
    mechanism = concept_mechanism(rho=2.0)
    embeddings = unit_rows(COUNT, 24)
    released = mechanism.release(embeddings, uniforms_for(mechanism, COUNT))
    assert min(law_pvalues(mechanism, released - embeddings).values()) > SOUND
    renormalised = released / np.linalg.norm(released, axis=1, keepdims=True)
    assert min(law_pvalues(mechanism, renormalised - embeddings).values()) < BROKEN


@pytest.mark.parametrize("dimension", [1, 2, 384, 4096])
def test_the_radius_inverts_the_gamma_law_into_both_tails(dimension):
    uniforms = np.full((9, dimension + 1), 0.3)
    uniforms[:, 0] = [2.0**-53, 1e-12, 1e-6, 0.01, 0.5, 0.99, 1 - 1e-6, 1 - 1e-12, 1 - 2.0**-53]
    radius = np.linalg.norm(radial_laplace(uniforms, 2.0), axis=1)
    assert np.isfinite(radius).all()
    assert np.allclose(gammainc(dimension, 2.0 * radius), uniforms[:, 0], rtol=1e-11, atol=0)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dimension", [2, 4096])
def test_noise_is_finite_at_extreme_settings(dimension, epsilon):
    weights = graded_mask(dimension, max(1, dimension // 8))
    for mechanism in (
        Laplace(dimension=dimension, epsilon=epsilon),
        Mahalanobis(weights=weights, epsilon=epsilon),
        Gaussian(dimension=dimension, epsilon=epsilon),
        Purkayastha(dimension=dimension, epsilon=epsilon),
    ):
        uniforms = uniforms_for(mechanism, 3)
        uniforms[0], uniforms[1] = 2.0**-53, 1 - 2.0**-53
        assert np.isfinite(mechanism.release(unit_rows(3, dimension), uniforms)).all()


def test_gaussian_noise_is_gaussian():
    mechanism = Gaussian(dimension=12, epsilon=2.0)
    noise = mechanism.noise(uniforms_for(mechanism, COUNT))
    assert kstest(noise.ravel() / mechanism.sigma, "norm").pvalue > SOUND
    assert variance_error(mechanism, noise) < 4.5
    covariance = np.cov(noise.T) / mechanism.sigma**2
    assert np.abs(covariance - np.eye(12)).max() < 5 * np.sqrt(2 / COUNT)


def test_no_mechanism_adds_nothing_and_draws_nothing():
    mechanism = NoMechanism(dimension=5)
    embeddings = unit_rows(4, 5)
    released = mechanism.release(embeddings, np.empty((4, 0)))
    assert np.abs(released - embeddings).max() <= mechanism.grid / 2
    assert not mechanism.noise_variance().any()


@pytest.mark.parametrize(
    "mechanism",
    [
        Laplace(dimension=6, epsilon=4.0),
        concept_mechanism(6, active=2, epsilon=4.0),
        Mahalanobis(weights=[1, 0, 0.5, 0, 0, 0.2], floor=0.1, epsilon=4.0),
        Gaussian(dimension=6, epsilon=1.0),
    ],
    ids=lambda m: m.name,
)
def test_the_log_density_is_normalised_and_belongs_to_the_sampler(mechanism):
    """The mean of q(z) / p(z) under p is 1 for every density q, here a narrow Gaussian."""
    noise = mechanism.noise(uniforms_for(mechanism, 200_000))
    coordinates = noise if mechanism.basis is None else noise @ mechanism.basis
    scale = 0.6 * np.sqrt(mechanism.noise_variance() * 6 / 7)
    log_q = -0.5 * np.sum((coordinates / scale) ** 2 + np.log(2 * np.pi * scale**2), axis=1)
    ratio = np.exp(log_q - mechanism.log_density(noise))
    assert abs(ratio.mean() - 1) < 4.5 * ratio.std() / np.sqrt(len(ratio)) < 0.03


@pytest.mark.parametrize("size", [10, 1_030])
def test_the_root_of_sigma_multiplies_to_sigma(size):
    basis, variances = orthogonal(size), spectrum(graded_mask(size, size // 5), floor=1e-3)
    root = sigma_root(basis, variances)
    assert root.triangular == (size == 10)
    assert np.allclose(root.matrix @ root.matrix.T, (basis * variances) @ basis.T, rtol=0, atol=1e-12)
    rows = 2.0**20 * unit_rows(3, size)
    assert np.abs(root(rows) - rows @ root.matrix.T).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("active", [4, 90])
def test_a_release_is_the_embedding_plus_the_noise_rounded(active):
    mechanism = concept_mechanism(100, active=active, rho=2.0)
    uniforms = uniforms_for(mechanism, 500)
    embeddings = round_to_grid(unit_rows(500, 100), mechanism.grid)
    released = mechanism.release(embeddings, uniforms)
    assert np.abs(released - embeddings - mechanism.noise(uniforms)).max() <= 0.6 * mechanism.grid
