"""Mechanisms by name, and every refusal that a user can meet."""

import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
from mechanism_laws import graded_mask, orthogonal, uniforms_for, unit_rows

from sparse_core.errors import SparseError
from sparse_core.mechanisms import MECHANISMS, Laplace, Mahalanobis, Purkayastha, build_mechanism

MASK = SimpleNamespace(values=graded_mask(8, 3), basis=orthogonal(8))


def build(name, **options):
    strength = {} if name == "none" else {"epsilon": 5.0}
    return build_mechanism(name, **{"dimension": 8, "mask": MASK, **strength, **options})


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_registered_mechanism_releases_and_names_itself(name):
    mechanism = build(name)
    released = mechanism.release(unit_rows(4, 8), uniforms_for(mechanism, 4))
    assert released.shape == (4, 8) and released.dtype == np.float64
    assert mechanism.name == mechanism.guarantee().mechanism == name
    assert mechanism.noise_variance().shape == (8,)
    assert "epsilon=" in repr(mechanism)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_survives_the_trip_to_a_worker(name):
    mechanism = build(name)
    copy = pickle.loads(pickle.dumps(mechanism))
    embeddings, uniforms = unit_rows(4, 8), uniforms_for(mechanism, 4)
    assert np.array_equal(copy.release(embeddings, uniforms), mechanism.release(embeddings, uniforms))


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_empty_batch_is_released_as_an_empty_batch(name):
    mechanism = build(name)
    empty = mechanism.release(np.empty((0, 8)), np.empty((0, mechanism.uniforms_per_record)))
    assert empty.shape == (0, 8)


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "none"])
@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, True, "5"])
@pytest.mark.parametrize("parameter", ["epsilon", "rho"])
def test_a_strength_that_is_not_a_positive_finite_number_is_refused(name, parameter, value):
    with pytest.raises(SparseError, match=rf"{parameter} is .*above 0"):
        build(name, **{"epsilon": None, parameter: value})


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "none"])
def test_epsilon_and_rho_together_or_neither_are_refused(name):
    with pytest.raises(SparseError, match="exactly one of epsilon or rho; 2"):
        build(name, rho=1.0)
    with pytest.raises(SparseError, match="exactly one of epsilon or rho; 0"):
        build(name, epsilon=None)


@pytest.mark.parametrize("name", MECHANISMS)
def test_embeddings_and_uniforms_that_do_not_fit_are_refused(name):
    mechanism = build(name)
    embeddings, uniforms = unit_rows(4, 8), uniforms_for(mechanism, 4)
    with pytest.raises(SparseError, match=r"shape \(4, 7\).*\(n_records, 8\)"):
        mechanism.release(embeddings[:, :7], uniforms)
    with pytest.raises(SparseError, match=r"shape \(8,\)"):
        mechanism.release(embeddings[0], uniforms)
    with pytest.raises(SparseError, match="real numbers"):
        mechanism.release(embeddings.astype(str), uniforms)
    with pytest.raises(SparseError, match="4 embeddings but uniforms for 3"):
        mechanism.release(embeddings, uniforms[:3])
    with pytest.raises(SparseError, match="Uniforms have shape"):
        mechanism.release(embeddings, np.full((4, 33), 0.5))
    for bad in (np.nan, np.inf):
        broken = embeddings.copy()
        broken[2, 5] = bad
        with pytest.raises(SparseError, match="row 2"):
            mechanism.release(broken, uniforms)


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, -0.1])
def test_uniforms_outside_the_open_interval_are_refused(value):
    mechanism = build("laplace")
    uniforms = uniforms_for(mechanism, 4)
    uniforms[1, 3] = value
    with pytest.raises(SparseError, match="strictly between 0 and 1"):
        mechanism.noise(uniforms)


def test_vectors_off_the_unit_sphere_are_refused_by_purkayastha_with_the_row_and_its_norm():
    mechanism = build("purkayastha")
    embeddings = unit_rows(4, 8)
    embeddings[3] *= 1.5
    with pytest.raises(SparseError, match=r"row 3 .* norm 1\.5.*Normalise"):
        mechanism.release(embeddings, uniforms_for(mechanism, 4))
    with pytest.raises(SparseError, match="unit vectors only"):
        Purkayastha(dimension=8, rho=0.5, embedding_norm=2.0)


@pytest.mark.parametrize(
    ("sigma", "message"),
    [
        (np.diag([1.0, 0.0]), "not positive definite"),
        (np.diag([1.0, -1.0]), "not positive definite"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "not symmetric"),
        (np.diag([1.0, np.nan]), "finite"),
        (np.ones((2, 3)), "square"),
    ],
)
def test_a_sigma_that_is_no_covariance_is_refused(sigma, message):
    with pytest.raises(SparseError, match=message):
        Mahalanobis.from_sigma(sigma, epsilon=1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [0.0, np.nan, 1.0]}, "position 1 is not finite"),
        ({"weights": [0.0, 1.5, 1.0]}, r"lie in \[0, 1\]"),
        ({"weights": [-0.1, 0.5, 1.0]}, r"lie in \[0, 1\]"),
        ({"weights": [[0.0, 1.0]]}, "one row"),
        ({"floor": 0.0}, "floor is 0"),
        ({"floor": 1e-9}, "at least 1e-06"),
        ({"floor": 1.0}, "below 1"),
        ({"floor": np.nan}, "floor is nan"),
        ({"degenerate": "shrug"}, "choose 'refuse' or 'isotropic'"),
        ({"basis": np.eye(4)}, r"must be \(3, 3\)"),
        ({"basis": 2 * np.eye(3)}, "not orthogonal"),
        ({"basis": orthogonal(3).astype(np.float32)}, "numpy.linalg.qr"),
        ({"basis": np.full((3, 3), np.nan)}, "not orthogonal"),
    ],
)
def test_a_mask_floor_or_basis_that_cannot_shape_noise_is_refused(changes, message):
    with pytest.raises(SparseError, match=message):
        Mahalanobis(**{"weights": [0.0, 0.5, 1.0], "epsilon": 1.0, **changes})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("laplce", {}, "choose one of laplace, mahalanobis"),
        ("mahalanobis", {"mask": None}, "needs a mask"),
        ("mahalanobis", {"dimension": 9}, "8 directions but the embeddings 9"),
        ("laplace", {"delta": 1e-5}, "belongs to 'gaussian'"),
        ("gaussian", {"delta": 0.0}, "delta is 0"),
        ("gaussian", {"delta": 1.0}, "below 1"),
        ("none", {"epsilon": 1.0}, "neither epsilon nor rho"),
        ("laplace", {"dimension": 0}, "at least 1"),
        ("purkayastha", {"dimension": 1}, "at least 2"),
        ("laplace", {"dimension": 8.0}, "whole number"),
        ("laplace", {"epsilon": None, "rho": 1.0, "embedding_norm": 0.0}, "embedding_norm is 0"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(name, changes, message):
    with pytest.raises(SparseError, match=message):
        build(name, **changes)


def test_floats_of_any_width_are_accepted():
    mechanism = Laplace(dimension=8, epsilon=np.float32(2.0))
    embeddings = unit_rows(3, 8).astype(np.float32)
    uniforms = uniforms_for(mechanism, 3)
    wide = mechanism.release(embeddings.astype(np.float64), uniforms)
    assert np.array_equal(mechanism.release(embeddings, uniforms), wide)


@pytest.mark.parametrize("name", ["laplace", "mahalanobis", "purkayastha", "gaussian"])
@pytest.mark.parametrize("strength", ["epsilon", "rho"])
def test_whatever_strength_is_accepted_releases_finite_float32_even_at_the_ends_of_the_law(name, strength):
    refused = 0
    for exponent in (-320, -100, -40, -20, -6, 0, 6, 9, 15, 40, 100, 308):
        try:
            mechanism = build_mechanism(name, dimension=8, mask=MASK, **{strength: 10.0**exponent})
        except SparseError as error:
            assert re.search(r"between|from .* to ", str(error)), "names the usable range"
            refused += 1
            continue
        uniforms = np.full((3, mechanism.uniforms_per_record), 0.4)
        uniforms[1], uniforms[2] = 1 - 2.0**-53, 2.0**-53
        with np.errstate(over="raise", invalid="raise"):
            assert np.isfinite(mechanism.release(unit_rows(3, 8), uniforms).astype(np.float32)).all()
        guarantee = mechanism.guarantee()
        assert np.isfinite([guarantee.epsilon, guarantee.epsilon_euclidean, guarantee.rho, guarantee.rounding]).all()
    assert 3 <= refused <= 10


def test_the_usable_range_is_told_in_epsilon():
    with pytest.raises(SparseError, match=r"epsilon 1e-40 comes to .* epsilon from 6.05e-30 to 8.43e\+12"):
        build_mechanism("laplace", dimension=8, epsilon=1e-40)
