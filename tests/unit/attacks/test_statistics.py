"""What statistics tell of the records they were made of, against populations whose laws are known."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from sparse_core.attacks.statistics import (
    PublishedStatistics,
    epsilon_lower_bound,
    geometry_confirmation,
    likelihood_ratio,
    made_of,
    membership_attack,
    separation,
    undo_shrinkage,
    value_attack,
)
from sparse_core.errors import SparseError
from sparse_core.mechanisms import Gaussian

DIMENSION, VALUES = 32, 8


@pytest.fixture
def world():
    return World(0)


class World:
    """Texts of one population: a context and one of eight values, at norm 1."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        turn = np.linalg.qr(self.generator.normal(size=(DIMENSION, DIMENSION)))[0]
        self.root = turn * 0.9 ** np.arange(DIMENSION)
        self.shifts = 0.3 * self.generator.normal(size=(VALUES, DIMENSION))

    def candidates(self, count):
        contexts = self.generator.normal(size=(count, 1, DIMENSION)) @ self.root.T
        filled = contexts + self.shifts
        return filled / np.linalg.norm(filled, axis=2, keepdims=True)

    def records(self, count):
        """Vectors, their candidates and the true ones."""
        candidates, truth = self.candidates(count), self.generator.integers(0, VALUES, count)
        return candidates[np.arange(count), truth], candidates, truth


def attacked(world, count, *, made=None, **options):
    """Both attacks on statistics of `count` records, by adversary and score."""
    records, candidates, truth = world.records(count)
    outsiders, outside_candidates, outside_truth = world.records(400)
    reference = world.records(400)[0]
    statistics = (made or PublishedStatistics.of)(records)
    shared = {"reference": reference, "n_bootstrap": 200, "generator": np.random.default_rng(1)}
    found = membership_attack(statistics, members=records, outsiders=outsiders, **shared)
    read = value_attack(
        statistics,
        candidates=candidates,
        truth=truth,
        outside_candidates=outside_candidates,
        outside_truth=outside_truth,
        members=records,
        **shared,
    )
    return tuple({(one.adversary, one.score): one for one in results} for results in (found, read))


def shrunk(records):
    return PublishedStatistics(records.mean(axis=0), ledoit_wolf(records)[0], len(records))


@pytest.mark.parametrize("count", [20, 300])
def test_exact_statistics_give_every_record_to_whoever_knows_the_others(world, count):
    found, read = attacked(world, count, made=shrunk)
    assert found["informed", "others known"].auc.value == 1
    assert found["informed", "others known"].true_positive_rate.value == 1
    assert read["informed", "others known"].top1.value == 1


def test_the_sum_less_the_others_is_the_record_itself(world):
    records, *_ = world.records(50)
    statistics = shrunk(records)
    residual = 50 * statistics.mean - records[1:].sum(axis=0)
    assert np.linalg.norm(residual - records[0]) < 1e-13
    assert min(np.linalg.norm(residual - other) for other in world.records(500)[0]) > 0.16


def test_few_records_are_exact_to_whoever_knows_only_the_population(world):
    found, read = attacked(world, 20, made=shrunk)
    assert found["population", "leverage"].auc.value == 1
    assert read["population", "leverage"].top1.value > 0.95
    assert read["population", "leverage"].outside.high < 0.4


def test_more_records_tell_less_of_each(world):
    areas = [attacked(world, count)[0]["population", "contrast"].auc.value for count in (40, 200, 2000)]
    assert areas[0] > areas[1] > areas[2] > 0.5


def test_every_score_separates_when_statistics_are_of_few_records(world):
    found, _ = attacked(world, 40)
    assert all(one.auc.low > 0.6 and one.verdict == "ok" for one in found.values())


def test_statistics_of_others_tell_nothing(world):
    others = PublishedStatistics.of(world.records(300)[0])
    found, read = attacked(world, 300, made=lambda records: others)
    assert ("informed", "others known") not in found
    for one in found.values():
        assert abs(one.auc.value - 0.5) < 0.08
        assert one.true_positive_rate.low < 0.05
    for one in read.values():
        assert one.top1.low < one.outside.high


def test_shuffled_records_are_at_one_half(world):
    found, _ = attacked(world, 300)
    assert all(abs(one.floor.value - 0.5) < 0.08 for one in found.values())
    assert all(0.04 < one.floor.high - one.floor.low < 0.2 for one in found.values())


def test_a_control_of_few_records_is_read_where_many_are_not(world):
    found, read = attacked(world, 4000)
    leverage = found["population", "leverage"]
    assert leverage.control.value > 0.75 > leverage.auc.value
    assert read["population", "leverage"].control.value > 2 * read["population", "leverage"].top1.value


def test_shrinkage_is_undone_exactly_below_full_rank(world):
    records = world.records(20)[0]
    published, share = ledoit_wolf(records)
    assert share > 0.1
    found = undo_shrinkage(published, np.cov(world.records(400)[0].T), records=20)
    np.testing.assert_allclose(found, PublishedStatistics.of(records).covariance, atol=1e-12)


def test_shrinkage_is_undone_closely_at_full_rank(world):
    records = world.records(400)[0]
    sample, reference = (PublishedStatistics.of(one).covariance for one in (records, world.records(400)[0]))
    published = 0.9 * sample + 0.1 * np.trace(sample) / DIMENSION * np.eye(DIMENSION)
    found = undo_shrinkage(published, reference, records=400)
    assert np.linalg.norm(found - sample) < 0.3 * np.linalg.norm(published - sample)


# Noise


def draw(records, *, mean_noise, second_moment_noise, generator):
    """Statistics with Gaussian noise."""
    n, d = records.shape
    mean = records.mean(axis=0) + mean_noise * generator.normal(size=d)
    noise = generator.normal(size=(d, d)) * second_moment_noise
    second = records.T @ records / n + (noise + noise.T) / 2
    return PublishedStatistics(mean, second - np.outer(mean, mean), n, mean_noise, second_moment_noise)


def proven(*, mean=1.0, second_moment=1.0, draws=10_000):
    """Epsilon that the most powerful test proves at delta .1, where noise is that of epsilon 1 times two factors."""
    generator = np.random.default_rng(0)
    others = generator.normal(size=(9, 3))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    record, instead = np.eye(3)[:2]
    # Between these two, the sum and the sum of squares of the records move by sqrt(2) each.
    scale = 2 * Gaussian(dimension=3, epsilon=1, delta=0.1).sigma / 10

    def scores(last):
        records = np.vstack([others, last])
        made = (
            replace(
                draw(records, mean_noise=mean * scale, second_moment_noise=second_moment * scale, generator=generator),
                mean_noise=scale,
                second_moment_noise=scale,
            )
            for _ in range(draws)
        )
        return np.array([likelihood_ratio(one, others, record, instead) for one in made])

    return epsilon_lower_bound(scores(record), scores(instead), delta=0.1)


def test_private_statistics_keep_their_epsilon_against_the_most_powerful_test():
    assert 0.7 < proven() < 1


@pytest.mark.parametrize("planted", [{"mean": 0.5}, {"second_moment": 0.5}, {"second_moment": 0.0}])
def test_noise_too_small_is_found_out(planted):
    assert proven(**planted) > 1.1


def test_the_bound_is_found_where_it_is_tight():
    """Randomised response at epsilon 1: rates that meet TPR = e FPR."""
    generator = np.random.default_rng(0)
    keep = np.e / (1 + np.e)
    inside, outside = generator.random(50_000) < keep, generator.random(50_000) >= keep
    assert 0.9 < epsilon_lower_bound(inside.astype(float), outside.astype(float)) < 1


def test_noise_takes_from_whoever_knows_the_others_what_is_not_there(world):
    generator = np.random.default_rng(3)
    areas = []
    for noise in (0.001, 0.02, 10.0):
        scales = {"mean_noise": noise, "second_moment_noise": noise}
        found, _ = attacked(world, 300, made=lambda records, s=scales: draw(records, **s, generator=generator))
        areas.append(found["informed", "others known"].auc.value)
    assert areas[0] > 0.95 > areas[1] > areas[2]
    assert abs(areas[2] - 0.5) < 0.06


def test_the_mean_stays_exact_where_only_the_second_moment_has_noise(world):
    found, _ = attacked(
        world,
        50,
        made=lambda records: draw(records, mean_noise=0.0, second_moment_noise=1.0, generator=world.generator),
    )
    assert found["informed", "others known"].auc.value == 1


# Which records


def test_records_are_recognised_by_their_mean(world):
    records = world.records(100)[0]
    statistics = shrunk(records)
    assert made_of(statistics, records)
    assert made_of(statistics, records.astype(np.float32))
    assert not made_of(statistics, records[1:])
    assert not made_of(statistics, np.vstack([records[1:], world.records(1)[0]]))


# Figures


def test_areas_and_rates_of_known_scores():
    generator = np.random.default_rng(0)
    auc, rate = separation(np.array([3.0, 2.0]), np.array([1.0, 2.0]), generator=generator)
    assert (auc.value, rate.value) == (0.875, 0.5)
    auc, rate = separation(np.ones(5), np.ones(7), generator=generator)
    assert (auc.value, rate.value) == (0.5, 0.0)


def test_intervals_cover_the_area_between_two_normal_laws():
    from scipy.stats import norm

    expected, covered = norm.cdf(1 / np.sqrt(2)), 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        auc, _ = separation(generator.normal(1, 1, 80), generator.normal(size=80), generator=generator, n_bootstrap=300)
        covered += auc.low <= expected <= auc.high
    assert covered >= 51


# Geometry


def test_geometry_confirms_terms_whose_directions_are_noised():
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.normal(size=(DIMENSION, DIMENSION)))[0]
    values = (np.arange(DIMENSION) < 4).astype(float)
    hidden = generator.normal(size=(6, 4)) @ basis[:, :4].T
    shares = geometry_confirmation(values, basis, np.vstack([hidden, generator.normal(size=(400, DIMENSION))]))
    np.testing.assert_allclose(shares[:6], 1)
    assert abs(shares[6:].mean() - 4 / DIMENSION) < 0.02


# Refusals


@pytest.fixture
def inputs(world):
    records, candidates, truth = world.records(30)
    return records, candidates, truth, {"reference": world.records(60)[0], "generator": np.random.default_rng(0)}


def test_statistics_of_another_dimension_are_refused(inputs):
    records, _, _, shared = inputs
    with pytest.raises(SparseError, match="members has dimension 31 where 32 is expected"):
        membership_attack(PublishedStatistics.of(records), members=records[:, 1:], outsiders=records, **shared)


def test_no_record_of_the_statistics_is_refused(inputs):
    records, _, _, shared = inputs
    with pytest.raises(SparseError, match="members holds no record"):
        membership_attack(PublishedStatistics.of(records), members=records[:0], outsiders=records, **shared)


def test_an_attacker_without_a_population_is_refused(inputs):
    records, *_ = inputs
    with pytest.raises(SparseError, match="give at least 10"):
        membership_attack(
            PublishedStatistics.of(records),
            members=records,
            outsiders=records,
            reference=records[:9],
            generator=np.random.default_rng(0),
        )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda candidates, truth: (candidates[:, :1], truth * 0), "1 candidate; give at least 2"),
        (lambda candidates, truth: (candidates, truth + VALUES), "one of the 8 candidates"),
        (lambda candidates, truth: (candidates, truth[1:]), "rows do not match"),
        (lambda candidates, truth: (candidates[..., 1:], truth), "n_candidates, 32"),
        (lambda candidates, truth: (candidates * np.nan, truth), "not finite"),
    ],
)
def test_unusable_candidates_are_refused(inputs, change, told):
    records, candidates, truth, shared = inputs
    changed = change(candidates, truth)
    with pytest.raises(SparseError, match=told):
        value_attack(
            PublishedStatistics.of(records),
            candidates=changed[0],
            truth=changed[1],
            outside_candidates=candidates,
            outside_truth=truth,
            **shared,
        )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"covariance": np.eye(3)}, "give \\(n,\\) and \\(n, n\\)"),
        ({"mean": np.array([np.nan, 0])}, "not finite"),
        ({"records": 0}, "tell of none"),
        ({"mean_noise": -1.0}, "0 or more"),
    ],
)
def test_unusable_statistics_are_refused(change, told):
    with pytest.raises(SparseError, match=told):
        PublishedStatistics(**{"mean": np.zeros(2), "covariance": np.eye(2), "records": 5} | change)


def test_a_term_that_moves_nothing_is_refused():
    with pytest.raises(SparseError, match="term 1 moves no sentence"):
        geometry_confirmation(np.ones(3), np.eye(3), np.array([[1.0, 0, 0], [0, 0, 0]]))
