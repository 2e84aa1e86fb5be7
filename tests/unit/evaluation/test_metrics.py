import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score, v_measure_score

from sparse_core.evaluation.metrics import (
    few_per_label,
    ndcg,
    resampled_ranks,
    spearman,
    top_columns,
    unit_rows,
    v_measure,
)


def test_resampled_spearman_is_that_of_the_resample_itself():
    generator = np.random.default_rng(0)
    x = generator.standard_normal(60)
    y = np.round(x + generator.standard_normal(60))  # ties
    counts = generator.multinomial(60, np.full(60, 1 / 60), size=20)
    expected = [spearmanr(np.repeat(x, row), np.repeat(y, row)).statistic for row in counts]
    assert spearman(x, y, counts) == pytest.approx(expected, abs=1e-12)


def test_ranks_of_ties_are_averaged():
    assert resampled_ranks(np.array([3.0, 1.0, 3.0]), np.ones((1, 3), dtype=int)).tolist() == [[2.5, 1, 2.5]]


def test_ndcg_of_a_hand_computed_ranking():
    relevance = {4: 2.0, 1: 1.0, 7: 1.0}
    gained = 2 / np.log2(3) + 1 / np.log2(5)  # 4 at rank 2, 1 at rank 4
    best = 2 / np.log2(2) + 1 / np.log2(3) + 1 / np.log2(4)
    assert ndcg(np.array([0, 4, 9, 1]), relevance, 10) == pytest.approx(gained / best)


def test_ndcg_ignores_negative_judgements_and_what_lies_below_the_depth():
    assert ndcg(np.array([0, 1]), {1: 1.0, 0: -5.0}, 1) == 0.0
    assert ndcg(np.array([1, 0]), {1: 1.0, 0: -5.0}, 1) == 1.0
    assert ndcg(np.array([0, 1]), {3: 0.0}, 2) == 0.0


def test_ndcg_agrees_with_scikit_learn():
    generator = np.random.default_rng(0)
    for _ in range(20):
        scores, relevance = generator.random(30), generator.integers(0, 3, size=30).astype(float)
        ours = ndcg(top_columns(scores[None], 10)[0], dict(enumerate(relevance)), 10)
        assert ours == pytest.approx(ndcg_score(relevance[None], scores[None], k=10))


def test_top_columns_sorts_and_breaks_ties_by_the_later():
    assert top_columns(np.array([[1.0, 5.0, 5.0, 3.0, 3.0]]), 3).tolist() == [[2, 1, 4]]
    assert top_columns(np.array([[1.0, 2.0]]), 5).tolist() == [[1, 0]]


def test_v_measure_of_a_resample_is_scikit_learns_of_its_records():
    generator = np.random.default_rng(0)
    classes, clusters = generator.integers(0, 4, size=(2, 200))
    counts = np.vstack([np.ones(200, int), generator.multinomial(200, np.full(200, 1 / 200), size=20)])
    expected = [v_measure_score(np.repeat(classes, row), np.repeat(clusters, row)) for row in counts]
    assert v_measure(classes, clusters, counts) == pytest.approx(expected)


def test_v_measure_of_clusters_that_are_the_classes_is_one():
    classes = np.repeat([0, 1], [3, 5])
    assert v_measure(classes, 1 - classes, np.ones((1, 8), int))[0] == pytest.approx(1)


def test_few_per_label_takes_the_first_of_each_label_in_a_reshuffled_order():
    targets = np.random.default_rng(0).integers(0, 5, size=200)
    rows, expected = list(range(200)), []
    for _ in range(3):
        np.random.RandomState(42).shuffle(rows)
        taken = {}
        expected.append([])
        for row in rows:
            taken[targets[row]] = taken.get(targets[row], 0) + 1
            if taken[targets[row]] <= 8:
                expected[-1].append(row)
    assert [draw.tolist() for draw in few_per_label(targets, 8, 3, seed=42)] == expected


def test_zero_rows_have_no_direction():
    assert unit_rows(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0, 0], [0.6, 0.8]]
