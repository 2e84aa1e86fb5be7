import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_laws import SOUND, uniforms_for, unit_rows
from scipy.integrate import cumulative_simpson, quad
from scipy.stats import chi2, kstest

from sparse_core.mechanisms import Purkayastha
from sparse_core.mechanisms.angle import AngleLaw

SETTINGS = [(2, 3.0), (3, 1e-3), (3, 1.0), (24, 8.0), (384, 1e-3), (384, 200.0), (384, 1e6), (4096, 5e3)]


def integrated_distribution(dimension, epsilon):
    """The law of the angle by Simpson's rule on a fine grid, written without the code under test."""
    centre = np.arctan2(dimension - 2, epsilon)
    spread = 1 / epsilon if dimension == 2 else np.sin(centre) / np.sqrt(dimension - 2)
    low, high = max(1e-300, centre - 14 * spread), min(np.pi, centre + 60 * spread)
    angles = np.linspace(low, high, 100_001)
    log_density = -epsilon * angles + (dimension - 2) * np.log(np.sin(angles))
    density = np.exp(log_density - log_density.max())
    mass = cumulative_simpson(density, x=angles, initial=0)
    return angles, mass / mass[-1]


@pytest.mark.parametrize(("dimension", "epsilon"), SETTINGS)
def test_the_distribution_of_the_angle_agrees_with_numerical_integration(dimension, epsilon):
    angles, mass = integrated_distribution(dimension, epsilon)
    chosen = slice(None, None, 250)
    computed = AngleLaw(dimension, epsilon).distribution(angles[chosen])
    assert np.abs(computed - mass[chosen]).max() < 1e-9


@pytest.mark.parametrize(("dimension", "epsilon"), SETTINGS)
def test_released_angles_follow_the_law(dimension, epsilon):
    mechanism = Purkayastha(dimension=dimension, epsilon=epsilon)
    count = 20_000 if dimension < 384 else 1_500
    centre = unit_rows(count, dimension)
    released = mechanism.release(centre, uniforms_for(mechanism, count))
    angles, mass = integrated_distribution(dimension, epsilon)
    if angles[-1] - angles[0] > 1e4 * mechanism.grid:
        measured = mechanism.distance(released, centre)
        assert kstest(measured, lambda angle: np.interp(angle, angles, mass)).pvalue > SOUND
    drawn = AngleLaw(dimension, epsilon).quantile(np.random.default_rng(5).random(20_000))
    assert kstest(drawn, lambda angle: np.interp(angle, angles, mass)).pvalue > SOUND


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 4096),
    st.floats(-3, 6).map(lambda exponent: 10.0**exponent),
    st.lists(st.integers(0, 2**52 - 1).map(lambda k: (2 * k + 1) / 2**53), min_size=1, max_size=20),
)
def test_quantiles_invert_the_distribution_for_every_dimension_and_epsilon(dimension, epsilon, chances):
    law = AngleLaw(dimension, epsilon)
    angles = law.quantile(np.array(chances))
    assert np.isfinite(angles).all()
    assert ((angles >= 0) & (angles <= np.pi)).all()
    assert np.abs(law.distribution(angles) - chances).max() < 1e-13 * max(1, epsilon)


@pytest.mark.parametrize(("dimension", "epsilon"), SETTINGS)
def test_the_lower_tail_keeps_its_digits(dimension, epsilon):
    law = AngleLaw(dimension, epsilon)
    chances = np.array([2.0**-53, 1e-12, 1e-6])
    assert np.allclose(law.distribution(law.quantile(chances)), chances, rtol=1e-10, atol=0)


def test_quantiles_do_not_depend_on_the_batch():
    law = AngleLaw(384, 150.0)
    uniforms = np.random.default_rng(0).random(500)
    one_by_one = np.concatenate([law.quantile(uniforms[row : row + 1]) for row in range(500)])
    assert np.array_equal(law.quantile(uniforms), one_by_one)


def test_directions_are_uniform_around_the_centre():
    mechanism = Purkayastha(dimension=16, epsilon=10.0)
    centre = np.repeat(unit_rows(1, 16), 20_000, axis=0)
    released = mechanism.release(centre, uniforms_for(mechanism, 20_000))
    tangent = released - np.sum(released * centre, axis=1, keepdims=True) * centre
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    basis = np.linalg.svd(centre[:1])[2][1:]
    direction = tangent @ basis.T
    assert chi2.sf(15 * 20_000 * np.sum(direction.mean(axis=0) ** 2), 15) > SOUND
    deviation = direction.T @ direction / 20_000 - np.eye(15) / 15
    assert chi2.sf(15 * 17 / 2 * 20_000 * np.sum(deviation**2), 14 * 17 / 2) > SOUND


def test_releases_lie_on_the_sphere_to_within_the_grid():
    mechanism = Purkayastha(dimension=384, epsilon=300.0)
    released = mechanism.release(unit_rows(50, 384), uniforms_for(mechanism, 50))
    assert np.abs(np.linalg.norm(released, axis=1) - 1).max() < 384**0.5 * mechanism.grid


def test_the_density_is_normalised_on_the_circle_and_the_sphere():
    circle = Purkayastha(dimension=2, epsilon=3.0)
    pole = np.array([[1.0, 0.0]])
    total = quad(
        lambda a: np.exp(circle.log_density(np.array([[np.cos(a), np.sin(a)]]), center=pole))[0],
        -np.pi,
        np.pi,
    )
    assert np.isclose(total[0], 1)
    sphere = AngleLaw(3, 2.0)
    assert np.isclose(np.exp(sphere.log_normalizer), 2 * np.pi * (1 + np.exp(-2 * np.pi)) / 5)


@pytest.mark.parametrize("dimension", [2, 5, 384])
def test_a_zero_epsilon_law_is_the_uniform_direction(dimension):
    law = AngleLaw(dimension, 0.0)
    assert abs(law.mean_of(np.cos)) < 1e-12
    assert np.isclose(law.mean_of(lambda angle: np.cos(angle) ** 2), 1 / dimension)
    assert np.isclose(law.quantile(np.array([0.5]))[0], np.pi / 2)


def test_expectation_and_variance_of_releases_match_their_closed_forms():
    mechanism = Purkayastha(dimension=24, epsilon=30.0)
    centre = unit_rows(40_000, 24)
    released = mechanism.release(centre, uniforms_for(mechanism, 40_000))
    cosine = np.sum(released * centre, axis=1)
    assert abs(cosine.mean() - mechanism.signal_gain) < 5 * cosine.std() / 200
    residual = np.sum((released - mechanism.signal_gain * centre) ** 2, axis=1)
    assert abs(residual.mean() - mechanism.noise_variance().sum()) < 5 * residual.std() / 200


def test_the_mean_cosine_on_the_circle_has_its_closed_form():
    epsilon = 2.0
    decay = np.exp(-epsilon * np.pi)
    closed = epsilon**2 / (epsilon**2 + 1) * (1 + decay) / (1 - decay)
    assert np.isclose(Purkayastha(dimension=2, epsilon=epsilon).signal_gain, closed)
