import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.evaluation.tokens import token_labels

TOKENS = [("anna", "paris"), ("anna",), ("anna", "bert"), ("bert", "zoe"), ("anna", "zoe", "carl"), ()]


def test_only_training_records_decide_the_vocabulary():
    made = token_labels(TOKENS, train=np.array([0, 1, 2, 3]), min_count=2)
    assert made.vocabulary == ("anna", "bert")
    assert made.labels.tolist() == [[1, 0], [1, 0], [1, 1], [0, 1], [1, 0], [0, 0]]
    assert made.coverage == pytest.approx(1 / 3)


def test_masks_and_row_numbers_mean_the_same():
    mask = np.array([True, True, True, True, False, False])
    by_mask = token_labels(TOKENS, train=mask, min_count=1)
    assert by_mask.vocabulary == token_labels(TOKENS, train=np.flatnonzero(mask), min_count=1).vocabulary


def test_the_most_frequent_tokens_are_kept_first():
    assert token_labels(TOKENS, train=np.arange(6), min_count=1, max_tokens=2).vocabulary == ("anna", "bert")


def test_a_repr_shows_no_token():
    assert "anna" not in repr(token_labels(TOKENS, train=np.arange(6), min_count=1))


def test_an_empty_vocabulary_is_refused_with_the_count_reached():
    with pytest.raises(SparseError, match="the most frequent in 4"):
        token_labels(TOKENS, train=np.arange(6), min_count=5)
    with pytest.raises(SparseError, match="names no record"):
        token_labels(TOKENS, train=np.array([], dtype=int))
    with pytest.raises(SparseError, match="row 6"):
        token_labels(TOKENS, train=np.array([6]))
