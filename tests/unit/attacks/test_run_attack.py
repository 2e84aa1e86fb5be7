from dataclasses import replace

import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge, build_attack, headline, leakage_intervals, run_attack
from sparse_core.errors import SparseError
from sparse_core.evaluation import Interval

NAMES = ("ridge", "neighbour", "mlc")
OPTIONS = {"mlc": {"hidden": 64, "epochs": 20}}


def run(name, data, **changes):
    given = {
        "unprotected": data.unprotected,
        "protected": data.protected,
        "labels": data.labels,
        "train": data.train,
        "test": data.test,
        "public": data.public,
        "seed": 0,
    }
    return run_attack(build_attack(name, **OPTIONS.get(name, {})), **(given | changes))


@pytest.fixture(scope="module")
def result(gaussian):
    return run("ridge", gaussian)


@pytest.mark.parametrize("name", NAMES)
def test_the_positive_control_beats_the_floor(name, make_gaussian):
    result = run(name, make_gaussian(n_noisy=20, noise=4.0), n_bootstrap=200)
    assert result.verdict == "ok"
    assert result.unprotected.low > result.protected.value > result.floor.high
    assert result.floor.value == pytest.approx(0.5, abs=0.15)
    assert 0 < result.leakage_normalized.low < result.leakage_normalized.high < 1


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_pure_noise(name, gaussian):
    found, control = [], None
    for seed in range(6):
        noise = np.random.default_rng(seed).standard_normal(gaussian.unprotected.shape)
        control = run(
            name, gaussian, protected=noise, public=PublicKnowledge(), seed=seed, n_shuffles=1, control=control
        )
        found.append(control.leakage_normalized.value)
    standard_error = (2 * 0.25 / len(gaussian.test)) ** 0.5 / 0.43 / 6**0.5
    assert abs(np.mean(found)) < 3 * standard_error


def test_the_floor_averages_shuffles_where_there_are_few_tokens(gaussian, result):
    assert set(np.unique(result.hits_floor)) <= {0, 0.2, 0.4, 0.6, 0.8, 1}
    once = run("ridge", gaussian, n_shuffles=1, control=result)
    assert set(np.unique(once.hits_floor)) == {0, 1}


def test_an_attack_that_finds_nothing_in_unprotected_vectors_has_failed(gaussian):
    noise = np.random.default_rng(1).standard_normal(gaussian.unprotected.shape)
    result = run("ridge", gaussian, unprotected=noise, protected=noise, public=PublicKnowledge())
    assert result.verdict == "attack failed"
    assert np.isnan(result.leakage_normalized.value)
    assert headline([result]) is None


def test_the_headline_is_the_strongest_sound_attack(result):
    weaker = replace(result, attack="weaker", protected=Interval(0.1, 0.0, 0.2))
    failed = replace(result, attack="failed", protected=Interval(1.0, 1.0, 1.0), verdict="attack failed")
    assert headline([weaker, result, failed]) is result
    assert headline([]) is None


def test_confidence_falls_with_protection(result):
    assert result.confidence_unprotected > result.confidence > 0.5


def test_only_test_records_with_a_token_are_attacked(gaussian):
    labels = gaussian.labels.copy()
    labels[gaussian.test[::2]] = False
    result = run("ridge", gaussian, labels=labels)
    assert result.records.tolist() == gaussian.test[1::2].tolist()
    assert result.true.sum() == len(result.records)


def test_masks_and_row_numbers_mean_the_same_records(gaussian, result):
    in_test = np.isin(np.arange(len(gaussian.labels)), gaussian.test)
    again = run("ridge", gaussian, train=~in_test, test=in_test)
    assert (again.protected, again.floor) == (result.protected, result.floor)


def test_the_control_of_another_run_is_taken_over(gaussian, result):
    again = run("ridge", gaussian, protected=gaussian.unprotected, public=gaussian.public, control=result)
    assert again.unprotected == result.unprotected
    with pytest.raises(SparseError, match="the control is ridge on"):
        run("neighbour", gaussian, control=result)


def test_hits_pool_by_record_and_by_token(result):
    generator = np.random.default_rng(0)
    both = leakage_intervals(
        result.hits_unprotected, result.hits_protected, result.hits_floor, result.true, generator=generator
    )
    assert both[1].value == result.protected.value == result.hits_protected.sum() / result.true.sum()
    first = leakage_intervals(
        *(h[:, :1] for h in (result.hits_unprotected, result.hits_protected, result.hits_floor, result.true)),
        generator=generator,
    )
    assert first[1].value == result.hits_protected[:, 0].sum() / result.true[:, 0].sum()


def test_normalised_leakage_covers_its_true_value():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        true = generator.random((150, 6)) < 0.3
        skill = generator.random((150, 1))  # the same records are easy for every figure
        hits = [true & (skill < share) for share in (0.7, 0.4, 0.1)]
        normalized = leakage_intervals(*hits, true, n_bootstrap=300, generator=generator)[3]
        covered += normalized.low <= 0.5 <= normalized.high
    assert covered / 200 >= 0.9


def test_a_repr_shows_figures_only(result):
    assert repr(result).startswith("AttackResult(ridge: ok, unprotected 0.9")


def test_unusable_input_is_refused(gaussian):
    with pytest.raises(SparseError, match="protected has 10"):
        run("ridge", gaussian, protected=gaussian.protected[:10])
    with pytest.raises(SparseError, match="protected has dimension 5 where 24"):
        run("ridge", gaussian, protected=gaussian.protected[:, :5])
    with pytest.raises(SparseError, match="both in train and in test"):
        run("ridge", gaussian, test=np.arange(700, 1200))
    with pytest.raises(SparseError, match="vocabulary is empty"):
        run("ridge", gaussian, labels=gaussian.labels[:, :0])
    with pytest.raises(SparseError, match="names row 9999"):
        run("ridge", gaussian, test=np.array([9999]))


def test_too_few_test_records_are_refused_with_the_width_they_would_give(gaussian):
    with pytest.raises(SparseError, match=r"only 16 test records .* ±0\.2\d wide"):
        run("ridge", gaussian, test=gaussian.test[:16])
    with pytest.raises(SparseError, match="only 0 test records"):
        run("ridge", gaussian, labels=np.zeros_like(gaussian.labels))
