"""The same record gives the same bits in any batch, on any number of threads."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_laws import concept_mechanism, graded_mask, orthogonal, uniforms_for, unit_rows
from threadpoolctl import threadpool_limits

from sparse_core.errors import SparseError
from sparse_core.mechanisms import (
    DEFAULT_GRID,
    Gaussian,
    Laplace,
    Mahalanobis,
    Purkayastha,
    ReadOut,
    apply_rows,
    exact_float32_bound,
    release_grid,
    round_to_grid,
)
from sparse_core.mechanisms.linear import RoundedProduct

COUNT = 1_000
MECHANISMS = {
    "laplace": Laplace(dimension=100, rho=2.0),
    "few directions": concept_mechanism(100, active=20, rho=2.0),
    "many directions": concept_mechanism(100, active=90, rho=2.0),
    "coordinates": Mahalanobis(weights=graded_mask(100, 20), rho=2.0),
    "purkayastha": Purkayastha(dimension=100, epsilon=90.0),
    "gaussian": Gaussian(dimension=100, rho=2.0),
}


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_do_not_depend_on_the_batch(name, batch):
    mechanism = MECHANISMS[name]
    embeddings, uniforms = unit_rows(COUNT, 100), uniforms_for(mechanism, COUNT)
    whole = mechanism.release(embeddings, uniforms)
    for shift in {0, min(3, batch - 1)}:
        parts = [
            mechanism.release(embeddings[start : start + batch], uniforms[start : start + batch])
            for start in range(shift, COUNT, batch)
        ]
        assert np.array_equal(np.concatenate(parts), whole[shift:])


@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_do_not_depend_on_the_threads_or_the_memory_layout(name):
    mechanism = MECHANISMS[name]
    embeddings, uniforms = unit_rows(COUNT, 100), uniforms_for(mechanism, COUNT)
    with threadpool_limits(1):
        single = mechanism.release(embeddings, uniforms)
    with threadpool_limits(2):
        double = mechanism.release(np.asfortranarray(embeddings), np.asfortranarray(uniforms))
    assert single.tobytes() == double.tobytes()


@pytest.mark.parametrize("name", MECHANISMS)
def test_releases_lie_on_the_grid_and_fit_float32(name):
    mechanism = MECHANISMS[name]
    released = mechanism.release(unit_rows(50, 100), uniforms_for(mechanism, 50))
    assert np.array_equal(released, round_to_grid(released, mechanism.grid))
    assert np.array_equal(released.astype(np.float32), released)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_last_bits_of_an_embedding_do_not_reach_the_release(name):
    mechanism = MECHANISMS[name]
    embeddings = round_to_grid(unit_rows(50, 100), mechanism.grid)
    nudged = embeddings + np.random.default_rng(0).uniform(-1e-7, 1e-7, embeddings.shape)
    uniforms = uniforms_for(mechanism, 50)
    assert np.array_equal(mechanism.release(embeddings, uniforms), mechanism.release(nudged, uniforms))


def exact_product(matrix, rows, grid):
    def entry(row, line):
        total = sum(Fraction(a) * Fraction(b) for a, b in zip(row.tolist(), line.tolist(), strict=True))
        return float(round(total / Fraction(grid)) * Fraction(grid))

    return np.array([[entry(row, line) for line in matrix] for row in rows])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 2**32 - 1), st.integers(-60, -5))
def test_a_product_is_the_exact_one_rounded_once(size, lines, seed, exponent):
    generator = np.random.default_rng(seed)
    matrix, rows = generator.standard_normal((lines, size)), generator.standard_normal((5, size))
    computed = apply_rows(matrix, rows, grid=2.0**-40)
    assert np.array_equal(computed, exact_product(matrix, rows, 2.0**-40))
    coarse = round_to_grid(rows, 2.0**-5), round_to_grid(matrix, 2.0**-5)
    ties = apply_rows(coarse[1], coarse[0], grid=2.0**-9)
    assert np.array_equal(ties, exact_product(coarse[1], coarse[0], 2.0**-9))
    assert np.isfinite(apply_rows(matrix, rows * 2.0**exponent, grid=2.0**-30)).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.integers(0, 45), st.booleans())
def test_an_offset_joins_a_product_before_it_is_rounded(size, seed, exponent, triangular):
    generator = np.random.default_rng(seed)
    matrix = generator.standard_normal((size, size))
    matrix = np.tril(matrix) if triangular else matrix
    rows = 2.0**exponent * generator.standard_normal((5, size))
    offsets = np.rint(1e6 * generator.standard_normal((5, size)))
    widened = np.hstack([rows, np.ones((5, 1))])
    expected = [exact_product(np.column_stack([matrix, o]), widened[i : i + 1], 1.0)[0] for i, o in enumerate(offsets)]
    assert np.array_equal(RoundedProduct(matrix, triangular=triangular)(rows, offsets), expected)


def test_products_next_to_a_rounding_boundary_do_not_depend_on_the_batch():
    """Plain BLAS and rounding fail here: the boundary is closer than the order of summation is exact."""
    generator = np.random.default_rng(0)
    matrix, rows = orthogonal(192), generator.standard_normal((12, 192))
    grid = 2.0**-44
    whole = apply_rows(matrix, rows, grid=grid)
    assert all(np.array_equal(apply_rows(matrix, rows[i : i + 1], grid=grid), whole[i : i + 1]) for i in range(12))
    naive = round_to_grid(rows @ matrix.T, grid)
    alone = np.concatenate([round_to_grid(rows[i : i + 1] @ matrix.T, grid) for i in range(12)])
    assert not np.array_equal(naive, alone)


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_read_outs_do_not_depend_on_the_batch(batch):
    read_out = ReadOut(
        mean=unit_rows(1, 100)[0],
        basis=orthogonal(100),
        shrinkage=np.linspace(0, 1, 100),
        unit_norm=True,
    )
    releases = 3.0 * unit_rows(200, 100)
    parts = [read_out.apply(releases[start : start + batch]) for start in range(0, 200, batch)]
    assert np.array_equal(np.concatenate(parts), read_out.apply(releases))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(-30, 3))
def test_rounding_is_to_the_nearest_multiple_and_stays_put(values, exponent):
    grid = 2.0**exponent
    rounded = round_to_grid(values, grid)
    assert np.abs(rounded - values).max() <= grid / 2
    assert np.array_equal(rounded / grid, np.rint(rounded / grid))
    assert np.array_equal(round_to_grid(rounded, grid), rounded)
    assert not np.signbit(rounded[rounded == 0]).any()


@given(st.integers(-(2**24), 2**24))
def test_float32_holds_every_multiple_of_the_grid_up_to_its_bound(multiple):
    value = multiple * DEFAULT_GRID
    assert abs(value) <= exact_float32_bound(DEFAULT_GRID) == 16.0
    assert np.float32(value) == value


@given(st.floats(0, 1e9))
def test_the_grid_follows_large_noise_so_that_float32_still_holds_it(noise_norm):
    grid = release_grid(noise_norm)
    assert grid >= DEFAULT_GRID
    assert noise_norm <= 4 * exact_float32_bound(grid)
    assert grid == DEFAULT_GRID or noise_norm > 2 * exact_float32_bound(grid)


@pytest.mark.parametrize("grid", [0.0, -0.5, 0.3, np.nan, np.inf, "fine"])
def test_a_grid_that_is_no_power_of_two_is_refused(grid):
    with pytest.raises(SparseError, match="power of two"):
        round_to_grid(np.ones(3), grid)
