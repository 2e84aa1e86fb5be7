import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.evaluation.leakage import confidence, guess_hits, micro_leakage


def test_leakage_guesses_as_many_tokens_as_a_record_holds():
    scores = np.array([[0.9, 0.8, 0.1], [0.1, 0.2, 0.7]])
    labels = np.array([[True, False, True], [False, False, True]])
    assert guess_hits(scores, labels).tolist() == [[True, False, False], [False, False, True]]
    assert micro_leakage(scores, labels) == pytest.approx(2 / 3)


def test_records_weigh_by_their_tokens():
    scores = np.array([[1.0, 0.9, 0.8, 0.0], [0.0, 0.0, 0.0, 1.0]])
    labels = np.array([[True, True, True, False], [True, False, False, False]])
    assert micro_leakage(scores, labels) == 3 / 4


def test_equal_scores_do_not_favour_the_truth():
    labels = np.eye(4, dtype=bool)
    assert micro_leakage(np.zeros((4, 4)), labels) == 1 / 4


def test_only_the_order_of_scores_matters():
    generator = np.random.default_rng(0)
    scores, labels = generator.standard_normal((50, 8)), generator.random((50, 8)) < 0.3
    assert micro_leakage(scores, labels) == micro_leakage(np.exp(3 * scores) - 7, labels)


def test_random_scores_leak_in_proportion_to_guesses():
    generator = np.random.default_rng(0)
    labels = np.zeros((4000, 20), dtype=bool)
    labels[:, :5] = True
    assert micro_leakage(generator.random((4000, 20)), labels) == pytest.approx(5 / 20, abs=0.01)


def test_confidence_is_the_mean_probability_of_true_tokens():
    probabilities = np.array([[0.8, 0.1], [0.3, 0.4]])
    labels = np.array([[True, False], [True, True]])
    assert confidence(probabilities, labels) == pytest.approx(0.5)
    assert np.isnan(confidence(probabilities, np.zeros((2, 2), dtype=bool)))


def test_unusable_scores_are_refused():
    labels = np.ones((2, 2), dtype=bool)
    with pytest.raises(SparseError, match="shape"):
        guess_hits(np.zeros((2, 3)), labels)
    with pytest.raises(SparseError, match="nan, first in row 1"):
        guess_hits(np.array([[0.0, 1.0], [0.0, np.nan]]), labels)
    with pytest.raises(SparseError, match="no record holds a token"):
        micro_leakage(np.zeros((2, 2)), ~labels)
