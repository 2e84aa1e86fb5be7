from types import SimpleNamespace

import numpy as np
import pytest
from mechanism_laws import concept_mechanism, orthogonal, uniforms_for, unit_rows

from sparse_core.errors import SparseError
from sparse_core.mechanisms import DEFAULT_GRID, Purkayastha, ReadOut, wiener

SIZE = 32
BASIS = orthogonal(SIZE)


def signal_and_model(count=6_000, seed=0):
    """Correlated embeddings of a known mean, and their statistics in the basis."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((SIZE, SIZE)) * 0.8 ** np.arange(SIZE)
    mean = generator.standard_normal(SIZE)
    x = mean + generator.standard_normal((count, SIZE)) @ mixing.T
    covariance = BASIS.T @ mixing @ mixing.T @ BASIS
    return x, SimpleNamespace(mean=mean, basis=BASIS, variance=np.diag(covariance)), covariance


def released(x, *, active=8, rho=6.0):
    mechanism = concept_mechanism(SIZE, active=active, floor=0.02, rho=rho)
    return mechanism, mechanism.release(x, uniforms_for(mechanism, len(x)))


def error(estimate, x):
    return np.mean((estimate - x) ** 2)


def test_shrinkage_is_signal_over_signal_plus_noise_in_the_basis():
    model = SimpleNamespace(mean=np.zeros(4), basis=np.eye(4), variance=np.array([1.0, 1.0, 0.0, 0.0]))
    read_out = wiener(model, np.array([0.0, 3.0, 1.0, 0.0]))
    assert read_out.shrinkage.tolist() == [1.0, 0.25, 0.0, 1.0]


def test_the_read_out_is_the_affine_map_it_says():
    _, model, _ = signal_and_model(10)
    read_out = ReadOut(mean=model.mean, basis=BASIS, shrinkage=np.linspace(0, 1, SIZE))
    y = 3 * unit_rows(20, SIZE)
    expected = model.mean + ((y - model.mean) @ BASIS * np.linspace(0, 1, SIZE)) @ BASIS.T
    assert np.abs(read_out.apply(y) - expected).max() < 2 * DEFAULT_GRID
    full = ReadOut(mean=model.mean, basis=BASIS, gain=np.diag(np.linspace(0, 1, SIZE)))
    assert np.abs(full.apply(y) - read_out.apply(y)).max() < 2 * DEFAULT_GRID


def test_a_matrix_gain_that_is_not_symmetric_keeps_its_orientation():
    gain = np.random.default_rng(0).standard_normal((SIZE, SIZE)) / SIZE
    read_out = ReadOut(mean=np.zeros(SIZE), basis=BASIS, gain=gain)
    y = unit_rows(5, SIZE)
    assert np.allclose(read_out.apply(y), y @ (BASIS @ gain @ BASIS.T).T, atol=1e-6)


def test_shrinkage_brings_releases_nearer_to_the_embeddings_and_the_full_filter_more_so():
    x, model, covariance = signal_and_model()
    mechanism, y = released(x)
    diagonal = wiener(model, mechanism.noise_variance()).apply(y)
    full = wiener(model, mechanism.noise_variance(), covariance=covariance).apply(y)
    assert error(full, x) < error(diagonal, x) < error(y, x)


def test_the_full_filter_attains_the_least_square_error_of_all_linear_maps():
    x, model, covariance = signal_and_model()
    mechanism, y = released(x)
    read_out = wiener(model, mechanism.noise_variance(), covariance=covariance)
    train, test = slice(0, 4_000), slice(4_000, None)
    design = np.c_[y, np.ones(len(y))]
    fitted = np.linalg.lstsq(design[train], x[train], rcond=None)[0]
    assert error(read_out.apply(y[test]), x[test]) <= error(design[test] @ fitted, x[test])
    noise = np.diag(mechanism.noise_variance())
    theory = np.trace(covariance - covariance @ np.linalg.solve(covariance + noise, covariance)) / SIZE
    assert error(read_out.apply(y), x) == pytest.approx(theory, rel=0.05)


def test_without_noise_the_read_out_returns_the_release():
    x, model, covariance = signal_and_model(50)
    for options in ({}, {"covariance": covariance}):
        estimate = wiener(model, np.zeros(SIZE), **options).apply(x)
        assert np.abs(estimate - x).max() < 1e-5


def test_a_gain_below_one_is_undone():
    mechanism = Purkayastha(dimension=SIZE, rho=0.7)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((6_000, SIZE)) * 0.7 ** np.arange(SIZE) + 0.3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = mechanism.release(x, uniforms_for(mechanism, len(x)))
    model = SimpleNamespace(mean=x.mean(axis=0), basis=None, variance=x.var(axis=0))
    aware = wiener(model, mechanism.noise_variance(), signal_gain=mechanism.signal_gain)
    naive = wiener(model, mechanism.noise_variance())
    assert error(aware.apply(y), x) < error(naive.apply(y), x) < error(y, x)


def test_unit_norm_scales_to_norm_one_and_leaves_a_zero_vector_alone():
    read_out = ReadOut(mean=np.zeros(SIZE), shrinkage=np.ones(SIZE), unit_norm=True)
    estimates = read_out.apply(np.r_[5 * unit_rows(3, SIZE), np.zeros((1, SIZE))])
    assert np.allclose(np.linalg.norm(estimates, axis=1), [1, 1, 1, 0], atol=1e-5)


def test_a_query_against_read_outs_stays_as_it_is_because_that_ranks_best():
    """The score wanted is q . x. Against shrunk documents the clean query errs least."""
    x, model, covariance = signal_and_model()
    x, model.mean = x - model.mean, np.zeros(SIZE)
    mechanism, y = released(x)
    read_out = wiener(model, mechanism.noise_variance(), covariance=covariance)
    queries = x[:50]
    documents = read_out.apply(y)[50:]
    wanted = queries @ x[50:].T
    plain = np.mean((read_out.query_transform(queries) @ documents.T - wanted) ** 2)
    shrunk = np.mean((read_out.apply(queries) @ documents.T - wanted) ** 2)
    assert np.array_equal(read_out.query_transform(queries), queries)
    assert plain < shrunk


@pytest.mark.parametrize("full", [False, True])
def test_a_query_against_raw_releases_ranks_as_the_query_against_read_outs(full):
    x, model, covariance = signal_and_model(400)
    mechanism, y = released(x)
    options = {"covariance": covariance} if full else {}
    read_out = wiener(model, mechanism.noise_variance(), **options)
    queries = unit_rows(5, SIZE)
    against_raw = read_out.query_transform(queries, against="release") @ y.T
    against_read_out = read_out.query_transform(queries) @ read_out.apply(y).T
    difference = against_raw - against_read_out
    assert np.abs(difference - difference.mean(axis=1, keepdims=True)).max() < 1e-4


def test_a_query_has_unit_norm_when_the_documents_do():
    read_out = ReadOut(mean=np.zeros(SIZE), shrinkage=np.ones(SIZE), unit_norm=True)
    assert np.allclose(np.linalg.norm(read_out.query_transform(4 * unit_rows(3, SIZE)), axis=1), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shrinkage": None}, "either shrinkage"),
        ({"gain": np.eye(4)}, "either shrinkage"),
        ({"shrinkage": np.ones(3)}, r"shrinkage has shape \(3,\)"),
        ({"shrinkage": None, "gain": np.eye(3)}, r"gain has shape \(3, 3\)"),
        ({"mean": np.full(4, np.nan)}, "NaN"),
        ({"mean": np.zeros((2, 2))}, "mean has shape"),
        ({"basis": np.ones((4, 4))}, "not orthogonal"),
    ],
)
def test_a_read_out_that_cannot_work_is_refused(changes, message):
    with pytest.raises(SparseError, match=message):
        ReadOut(**{"mean": np.zeros(4), "shrinkage": np.ones(4), **changes})


@pytest.mark.parametrize(
    ("noise", "options", "message"),
    [
        (np.ones(3), {}, "noise variance has shape"),
        (-np.ones(4), {}, "none negative"),
        (np.ones(4), {"covariance": np.eye(3)}, "covariance has shape"),
        (np.ones(4), {"covariance": np.triu(np.ones((4, 4)))}, "not symmetric"),
        (np.ones(4), {"covariance": -5 * np.eye(4)}, "positive semidefinite"),
    ],
)
def test_statistics_that_cannot_be_are_refused(noise, options, message):
    model = SimpleNamespace(mean=np.zeros(4), basis=None, variance=np.ones(4))
    with pytest.raises(SparseError, match=message):
        wiener(model, noise, **options)


def test_releases_of_another_dimension_and_unknown_targets_are_refused():
    read_out = ReadOut(mean=np.zeros(4), shrinkage=np.ones(4))
    with pytest.raises(SparseError, match=r"\(n_records, 4\)"):
        read_out.apply(np.ones((2, 5)))
    with pytest.raises(SparseError, match="choose 'read_out' or 'release'"):
        read_out.query_transform(np.ones((2, 4)), against="documents")
