import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import (
    Interval,
    interval_of,
    ratio_interval,
    resample_counts,
    resample_ratios,
    widen_at_bounds,
)


def draws(seed=0):
    return np.random.default_rng(seed)


def test_interval_of_a_ratio_covers_the_truth_about_as_often_as_stated():
    generator = draws()
    covered = 0
    for _ in range(400):
        tokens = generator.integers(1, 5, size=80)
        skill = generator.beta(2, 3, size=80)  # records differ, so tokens are not independent
        interval = ratio_interval(generator.binomial(tokens, skill), tokens, n_resamples=400, generator=generator)
        covered += interval.low <= 0.4 <= interval.high
    assert 0.91 <= covered / 400 <= 0.98


def test_every_resample_draws_as_many_records_as_there_are():
    blocks = list(resample_counts(50, 200, generator=draws()))
    counts = np.concatenate(blocks)
    assert counts.shape == (200, 50)
    assert (counts.sum(axis=1) == 50).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(50), abs=0.3)


def test_resamples_of_many_records_come_in_blocks_of_bounded_size():
    sizes = [block.size for block in resample_counts(1_000_000, 10, generator=draws())]
    assert max(sizes) <= 4_000_000
    assert len(sizes) == 3


def test_figures_in_one_call_share_their_resamples():
    hits = draws().integers(0, 2, size=100)
    replicates = resample_ratios(np.column_stack([hits, 1 - hits]), np.ones(100), generator=draws())
    assert replicates.sum(axis=1) == pytest.approx(np.ones(1000))


def test_pairing_narrows_the_interval_of_a_difference():
    generator = draws()
    base = generator.random(200)
    pair = np.column_stack([base, base + 0.01 * generator.standard_normal(200)])
    replicates = resample_ratios(pair, np.ones(200), generator=generator)
    assert (replicates[:, 0] - replicates[:, 1]).std() < 0.1 * replicates[:, 0].std()


def test_same_generator_state_gives_the_same_interval():
    hits = draws(1).integers(0, 2, size=60)
    assert ratio_interval(hits, generator=draws(2)) == ratio_interval(hits, generator=draws(2))


def test_a_rate_of_zero_or_one_is_not_reported_as_certain():
    none, every = (ratio_interval(np.full(50, value), generator=draws()) for value in (0, 1))
    exact = 1 - 0.025 ** (1 / 50)  # Clopper-Pearson
    assert (none.low, none.high) == (0, pytest.approx(exact))
    assert (every.low, every.high) == (pytest.approx(1 - exact), 1)


def test_other_rates_are_not_widened():
    interval = Interval(0.5, 0.4, 0.6)
    assert widen_at_bounds(interval, 10) == interval


def test_mostly_undefined_replicates_give_no_interval():
    replicates = np.where(np.arange(100) < 80, 0.5, np.nan)
    assert np.isnan(interval_of(0.5, replicates).low)


def test_nothing_to_resample_is_refused():
    with pytest.raises(SparseError, match="no records"):
        ratio_interval(np.array([]), generator=draws())
    with pytest.raises(SparseError, match="3 numerators but 2 denominators"):
        ratio_interval(np.ones(3), np.ones(2), generator=draws())
    with pytest.raises(SparseError, match="sum to 0"):
        ratio_interval(np.zeros(3), np.zeros(3), generator=draws())
