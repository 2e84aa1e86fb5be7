"""Does the log-likelihood ratio stay within epsilon * distance, and is the bound as tight as it can be?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_laws import concept_mechanism, graded_mask, uniforms_for, unit_rows
from scipy.integrate import quad
from scipy.stats import norm

from sparse_core.mechanisms import Gaussian, Laplace, Mahalanobis, NoMechanism, Purkayastha
from sparse_core.mechanisms.gaussian import log_delta

PURE = {
    "laplace": Laplace(dimension=32, rho=2.0),
    "mahalanobis, coordinates": Mahalanobis(weights=graded_mask(32, 8), floor=1e-6, rho=2.0),
    "mahalanobis, basis": concept_mechanism(32, active=8, floor=1e-6, rho=2.0),
    "mahalanobis, floor .05": concept_mechanism(32, active=8, floor=0.05, rho=2.0),
    "purkayastha": Purkayastha(dimension=32, epsilon=40.0),
    "purkayastha, weak": Purkayastha(dimension=32, epsilon=1e-3),
    "purkayastha, plane": Purkayastha(dimension=2, epsilon=3.0),
}
PAIRS = 4_000


def pairs(mechanism, seed=0):
    """Pairs of unit vectors at distances from 1e-6 to opposite."""
    generator = np.random.default_rng(seed)
    x = unit_rows(PAIRS, mechanism.dimension, seed=seed + 1)
    step = 10.0 ** generator.uniform(-6, 1, (PAIRS, 1))
    other = x + step * unit_rows(PAIRS, mechanism.dimension, seed=seed + 2)
    return x, other / np.linalg.norm(other, axis=1, keepdims=True)


def outputs_beyond(mechanism, x, other):
    """Outputs on the geodesic from x' through x and further, where the bound is attained."""
    if not isinstance(mechanism, Purkayastha):
        return x + 0.5 * (x - other)
    angle = mechanism.distance(x, other)[:, None]
    outward = (x * np.cos(angle) - other) / np.sin(angle)
    further = np.minimum(0.3, 0.5 * (np.pi - angle))
    return x * np.cos(further) + outward * np.sin(further)


def ratio_over_bound(mechanism, outputs, x, other):
    loss = mechanism.log_likelihood(outputs, x) - mechanism.log_likelihood(outputs, other)
    return loss / mechanism.privacy_map(mechanism.distance(x, other))


@pytest.mark.parametrize("name", PURE)
def test_the_log_ratio_never_exceeds_epsilon_times_the_distance_and_attains_it(name):
    mechanism = PURE[name]
    x, other = pairs(mechanism)
    sampled = mechanism.release(x, uniforms_for(mechanism, PAIRS))
    swapped = mechanism.release(other, uniforms_for(mechanism, PAIRS, seed=9))
    beyond = outputs_beyond(mechanism, x, other)
    far = mechanism.distance(x, other) > 1e-3
    worst = max(
        ratio_over_bound(mechanism, outputs[far], x[far], other[far]).max() for outputs in (sampled, swapped, beyond)
    )
    assert 0.99 < worst < 1 + 1e-6
    rounding = 1e-9 * (1 + np.abs(mechanism.log_likelihood(beyond, x)))
    loss = mechanism.log_likelihood(beyond, x) - mechanism.log_likelihood(beyond, other)
    assert (loss <= mechanism.privacy_map(mechanism.distance(x, other)) + rounding).all()


@pytest.mark.parametrize("name", PURE)
def test_the_euclidean_guarantee_holds_in_the_worst_direction_and_is_attained_there(name):
    mechanism = PURE[name]
    x, other = pairs(mechanism)
    if isinstance(mechanism, Mahalanobis):
        quietest = np.eye(32) if mechanism.basis is None else mechanism.basis
        other[0] = x[0] + 0.1 * quietest[:, np.argmin(mechanism.variances)]
    elif isinstance(mechanism, Purkayastha):
        other[0] = -x[0]
    bound = mechanism.epsilon_euclidean * np.linalg.norm(x - other, axis=1)
    loss = mechanism.epsilon * mechanism.distance(x, other)
    assert (loss <= bound * (1 + 1e-9)).all()
    assert loss[0] > 0.99 * bound[0]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(0, 2**32 - 1),
    st.floats(1e-3, 1e4),
    st.sampled_from(["laplace", "mahalanobis", "purkayastha"]),
)
def test_no_pair_and_output_break_the_bound(dimension, seed, epsilon, name):
    generator = np.random.default_rng(seed)
    if name == "laplace":
        mechanism = Laplace(dimension=dimension, epsilon=epsilon)
    elif name == "purkayastha":
        mechanism = Purkayastha(dimension=dimension, epsilon=epsilon)
    else:
        weights = generator.random(dimension)
        basis = np.linalg.qr(generator.standard_normal((dimension, dimension)))[0]
        mechanism = Mahalanobis(weights=weights, basis=basis, floor=0.01, epsilon=epsilon)
    x, other, output = generator.standard_normal((3, 20, dimension))
    loss = mechanism.log_likelihood(output, x) - mechanism.log_likelihood(output, other)
    bound = mechanism.privacy_map(mechanism.distance(x, other))
    assert (np.abs(loss) <= bound + 1e-9 * (1 + np.abs(mechanism.log_likelihood(output, x)))).all()


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 30.0), st.floats(1e-12, 0.3), st.floats(0.05, 4.0))
def test_the_gaussian_curve_is_the_exact_delta(sigma, delta, distance):
    mechanism = Gaussian(dimension=3, rho=sigma, delta=delta)
    epsilon = float(mechanism.privacy_map(distance))
    assert epsilon >= 0
    if epsilon > 1e-9:
        mu = (distance + mechanism.rounding) / mechanism.sigma
        assert np.isclose(log_delta(epsilon, mu), np.log(delta), rtol=1e-6)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_gaussian_delta_is_the_integral_of_the_excess_likelihood(mu, epsilon):
    def excess(z):
        return max(0.0, norm.pdf(z, mu) - np.exp(epsilon) * norm.pdf(z))

    start = epsilon / mu + mu / 2
    integral = quad(excess, start, start + 15, epsabs=1e-14)[0]
    assert np.isclose(np.exp(log_delta(epsilon, mu)), integral, rtol=1e-6)


def test_the_gaussian_never_claims_pure_privacy():
    mechanism = Gaussian(dimension=32, epsilon=1.0)
    guarantee = mechanism.guarantee()
    assert guarantee.delta == mechanism.delta > 0
    assert np.isclose(guarantee.epsilon, 1.0)
    assert mechanism.privacy_map(2.0) > 2 * mechanism.privacy_map(1.0)
    x, other = np.zeros((1, 32)), np.eye(32)[:1]
    loss = mechanism.log_likelihood(x - 100 * other, x) - mechanism.log_likelihood(x - 100 * other, other)
    assert loss > mechanism.privacy_map(1.0)


# Rounding


ROUNDED = {
    "laplace": Laplace(dimension=32, epsilon=2e5),
    "mahalanobis, coordinates": Mahalanobis(weights=graded_mask(32, 8), floor=1e-3, epsilon=2e4),
    "mahalanobis, basis": concept_mechanism(32, active=8, floor=1e-3, epsilon=2e4),
    "purkayastha": Purkayastha(dimension=32, epsilon=2e5),
}


def straddling(mechanism, seed):
    """Pairs at a distance of some 1e-9, with a rounding boundary between them in many or few coordinates."""
    generator = np.random.default_rng(seed)
    middle = mechanism.on_grid(unit_rows(200, 32, seed=seed)) + mechanism.grid / 2
    shift = 1e-9 * generator.choice([-1.0, 1.0], middle.shape)
    shift *= generator.random(middle.shape) < generator.random((200, 1))
    if isinstance(mechanism, Mahalanobis):
        basis = np.eye(32) if mechanism.basis is None else mechanism.basis
        shift[0] = 1e-9 * np.sign(basis[:, np.argmin(mechanism.variances)])
    return middle + shift, middle - shift


@pytest.mark.parametrize("name", ROUNDED)
def test_inputs_on_two_sides_of_a_rounding_boundary_lose_no_more_than_the_map_says(name):
    mechanism = ROUNDED[name]
    x, other = straddling(mechanism, seed=5)
    distance = mechanism.distance(x, other)
    real = mechanism.epsilon * mechanism.distance(mechanism.on_grid(x), mechanism.on_grid(other))
    assert (real <= mechanism.privacy_map(distance) * (1 + 1e-9)).all()
    assert real.max() > 100 * mechanism.epsilon * distance.max(), "without the rounding the map would be wrong"


def test_the_rounding_of_the_map_is_attained_along_coordinates():
    for mechanism in (ROUNDED["laplace"], ROUNDED["mahalanobis, coordinates"]):
        corner = np.full((1, 32), mechanism.grid / 2)
        x, other = 0.25 + corner * (1 + 1e-9), 0.25 - corner * (1 + 1e-9)
        apart = mechanism.distance(mechanism.on_grid(x), mechanism.on_grid(other))
        assert apart == pytest.approx(2 * mechanism.rounding)
        near = mechanism.distance(mechanism.on_grid(0.25 + corner * (1 + 1e-9)), mechanism.on_grid(0.25 + corner * 0.9))
        assert near == pytest.approx(mechanism.rounding)


@pytest.mark.parametrize("name", ["mahalanobis, basis", "purkayastha"])
def test_the_rounding_of_the_map_is_far_from_attained_by_chance_and_near_in_the_worst_case(name):
    mechanism = ROUNDED[name]
    x, other = straddling(mechanism, seed=6)
    apart = mechanism.distance(mechanism.on_grid(x), mechanism.on_grid(other))
    assert 0.3 * mechanism.rounding < apart.max() <= mechanism.rounding + mechanism.distance(x, other).max()


def test_a_release_of_inputs_on_two_sides_of_a_boundary_really_tells_them_apart():
    """By its own outputs: with n = 1 the law on the grid is a discrete one, and its histogram shows the loss."""
    mechanism, count = Laplace(dimension=1, epsilon=2e5), 200_000
    x, other = mechanism.grid * (0.5 + 1e-3), mechanism.grid * (0.5 - 1e-3)
    released = [
        mechanism.release(np.full((count, 1), value), uniforms_for(mechanism, count, seed=seed))
        for seed, value in enumerate((x, other))
    ]
    counts = [(np.abs(one - mechanism.grid) < mechanism.grid / 4).sum() for one in released]
    loss = np.log(counts[0] / counts[1])
    assert loss > 10 * mechanism.epsilon * (x - other)
    assert loss <= mechanism.privacy_map(x - other) + 0.03


@pytest.mark.parametrize("name", PURE)
def test_equal_inputs_are_told_apart_by_nothing(name):
    assert PURE[name].privacy_map(0.0) == 0.0
    assert PURE[name].privacy_map(np.array([0.0, 1e-300])).tolist()[0] == 0.0


def test_the_guarantee_states_the_rounding_and_the_gaussian_curve_contains_it():
    mechanism = Gaussian(dimension=32, epsilon=2e5)
    told = mechanism.guarantee()
    assert (told.grid, told.rounding) == (2.0**-20, 2.0**-20 * np.sqrt(32))
    mu = (1e-9 + told.rounding) / mechanism.sigma
    assert log_delta(mechanism.privacy_map(1e-9), mu) == pytest.approx(np.log(mechanism.delta))


def test_pure_mechanisms_state_no_delta():
    assert all(mechanism.guarantee().delta == 0 for mechanism in PURE.values())


def test_no_mechanism_guarantees_nothing():
    mechanism = NoMechanism(dimension=3)
    assert mechanism.guarantee().epsilon == np.inf
    assert mechanism.privacy_map(np.array([0.0, 0.1])).tolist() == [0.0, np.inf]
    assert mechanism.log_density(np.array([[0, 0, 0], [0, 0.1, 0]])).tolist() == [0.0, -np.inf]


@pytest.mark.parametrize("name", PURE)
def test_distance_is_a_metric(name):
    mechanism = PURE[name]
    x, y, z = (unit_rows(500, mechanism.dimension, seed=seed) for seed in (1, 2, 3))
    assert np.allclose(mechanism.distance(x, y), mechanism.distance(y, x))
    assert np.allclose(mechanism.distance(x, x), 0)
    assert (mechanism.distance(x, z) <= mechanism.distance(x, y) + mechanism.distance(y, z) + 1e-9).all()
