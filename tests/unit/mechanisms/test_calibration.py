"""Epsilon or rho, and the figures that a guarantee reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_laws import concept_mechanism, graded_mask, orthogonal, uniforms_for, unit_rows

from sparse_core.errors import SparseError
from sparse_core.mechanisms import Gaussian, Laplace, Mahalanobis, NoMechanism, Purkayastha
from sparse_core.mechanisms.sigma import decomposed, median_norm, spectrum

SPECTRA = {
    "one of 2": np.eye(2)[0],
    "one of 96": np.eye(96)[0],
    "two of 96": np.eye(96)[0] + 0.3 * np.eye(96)[1],
    "twenty of 96": graded_mask(96, 20),
    "geometric": 0.8 ** np.arange(96),
    "slow geometric": 0.97 ** np.arange(96),
    "nearly flat": np.linspace(0.9, 1.0, 96),
}


@pytest.mark.parametrize("floor", [1e-6, 0.05, 0.5])
@pytest.mark.parametrize("name", SPECTRA)
def test_rho_is_hit_within_half_a_percent_for_any_mask(name, floor):
    mechanism = Mahalanobis(weights=SPECTRA[name], floor=floor, rho=3.0, embedding_norm=2.0)
    noise = mechanism.noise(uniforms_for(mechanism, 30_000))
    norms = np.linalg.norm(noise, axis=1)
    sampling_error = 2.5 * np.ptp(np.quantile(norms, [0.49, 0.51])) / 0.02 * 0.5 / np.sqrt(len(norms))
    assert abs(np.median(norms) / 6.0 - 1) < 0.005 + sampling_error / 6.0


@pytest.mark.parametrize("name", SPECTRA)
def test_the_median_norm_agrees_with_direct_simulation(name):
    variances = spectrum(SPECTRA[name], floor=1e-3)
    generator = np.random.default_rng(0)
    squares = sum(v * generator.standard_normal(200_000, dtype=np.float32) ** 2 for v in variances[:20])
    for v in variances[20:]:
        squares = squares + v * generator.standard_normal(200_000, dtype=np.float32) ** 2
    mixing = generator.gamma((len(variances) + 1) / 2, 2.0, 200_000)
    simulated = np.median(np.sqrt(mixing * squares))
    assert median_norm(variances) == pytest.approx(simulated, rel=0.006)


@pytest.mark.parametrize(
    "make",
    [
        lambda **s: Laplace(dimension=64, **s),
        lambda **s: concept_mechanism(64, active=9, **s),
        lambda **s: Purkayastha(dimension=64, **s),
        lambda **s: Gaussian(dimension=64, **s),
    ],
    ids=["laplace", "mahalanobis", "purkayastha", "gaussian"],
)
@pytest.mark.parametrize("rho", [0.05, 0.7, 1.3])
def test_epsilon_and_rho_are_two_names_of_one_setting(make, rho):
    by_rho = make(rho=rho)
    assert by_rho.guarantee().rho == pytest.approx(rho, rel=1e-9)
    by_epsilon = make(epsilon=by_rho.epsilon)
    assert by_epsilon.guarantee().rho == pytest.approx(rho, rel=1e-6)
    embeddings = unit_rows(4_000, 64)
    released = by_rho.release(embeddings, uniforms_for(by_rho, 4_000))
    assert np.median(np.linalg.norm(released - embeddings, axis=1)) == pytest.approx(rho, rel=0.03)


def test_a_guarantee_reports_every_figure():
    mechanism = concept_mechanism(24, active=6, floor=0.02, epsilon=7.0)
    guarantee = mechanism.guarantee(embedding_norm=2.0)
    assert guarantee.mechanism == guarantee.metric == "mahalanobis"
    assert guarantee.epsilon == 7.0
    assert guarantee.epsilon_per_dimension == 7.0 / 24
    assert guarantee.epsilon_euclidean == pytest.approx(7.0 / np.sqrt(0.02))
    assert guarantee.rho == guarantee.median_noise_norm / 2.0


def test_a_small_floor_degrades_the_euclidean_guarantee_a_thousandfold():
    guarantee = concept_mechanism(24, floor=1e-6, epsilon=1.0).guarantee()
    assert guarantee.epsilon_euclidean == pytest.approx(1000.0)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=50).filter(lambda w: np.ptp(w) > 1e-6),
    st.floats(1e-6, 0.999),
)
def test_the_spectrum_keeps_the_total_noise_and_the_floor(weights, floor):
    variances = spectrum(weights, floor=floor)
    assert variances.mean() == pytest.approx(1.0)
    assert (variances >= floor).all()
    assert (np.argsort(weights, kind="stable") == np.argsort(variances, kind="stable")).any()


def test_a_mask_of_equal_weights_is_isotropic_only_when_asked():
    for weights in (np.zeros(5), np.ones(5), np.full(5, 0.3)):
        with pytest.raises(SparseError, match="degenerate='isotropic'"):
            Mahalanobis(weights=weights, epsilon=1.0)
        mechanism = Mahalanobis(weights=weights, epsilon=1.0, degenerate="isotropic")
        assert mechanism.variances.tolist() == [1.0] * 5
        laplace = Laplace(dimension=5, epsilon=1.0)
        uniforms = uniforms_for(laplace, 10)
        assert np.array_equal(mechanism.noise(uniforms), laplace.noise(uniforms))


def test_a_given_sigma_is_used_as_it_is():
    basis = orthogonal(6)
    sigma = (basis * [5.0, 3.0, 2.0, 1.0, 0.5, 0.1]) @ basis.T
    recovered, values = decomposed(sigma)
    assert np.allclose((recovered * values) @ recovered.T, sigma)
    mechanism = Mahalanobis.from_sigma(sigma, epsilon=2.0)
    assert mechanism.epsilon_euclidean == pytest.approx(2.0 / np.sqrt(0.1))
    x, y = unit_rows(2, 6)
    expected = np.sqrt((x - y) @ np.linalg.inv(sigma) @ (x - y))
    assert mechanism.distance(x, y) == pytest.approx(expected)


def test_no_mechanism_states_infinite_epsilon_and_zero_rho():
    guarantee = NoMechanism(dimension=3).guarantee()
    assert (guarantee.epsilon, guarantee.epsilon_euclidean, guarantee.rho) == (np.inf, np.inf, 0.0)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 20), st.floats(1e-10, 0.1))
def test_gaussian_sigma_meets_the_epsilon_asked_for(epsilon, delta):
    mechanism = Gaussian(dimension=4, epsilon=epsilon, delta=delta)
    assert mechanism.epsilon == pytest.approx(epsilon, rel=1e-6)


def test_purkayastha_refuses_a_rho_beyond_a_uniform_direction():
    with pytest.raises(SparseError, match=r"between .* and 1\.414"):
        Purkayastha(dimension=64, rho=1.5)
