import dataclasses

import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.masks import unite_masks


def shape_of(mask):
    return (mask.basis * (mask.values / mask.values.sum())) @ mask.basis.T


@pytest.fixture(scope="module")
def pair(learn, corpus):
    first, second = corpus.token_labels[:, 0], corpus.token_labels[:, 1]
    return [
        learn(basis="label", token_labels=labels[:, None], concepts=(name,))
        for name, labels in (("first", first), ("second", second))
    ]


def test_the_union_has_the_weighted_sum_of_the_noise_shapes(pair):
    united = unite_masks(pair, weights=[3, 1])
    expected = 0.75 * shape_of(pair[0]) + 0.25 * shape_of(pair[1])
    np.testing.assert_allclose(shape_of(united), expected, atol=1e-10)
    assert united.info.concepts == ("first", "second")


def test_the_union_keeps_the_signal_model(pair):
    united = unite_masks(pair)
    np.testing.assert_allclose(
        united.basis @ united.covariance @ united.basis.T,
        pair[0].basis @ pair[0].covariance @ pair[0].basis.T,
        atol=1e-10,
    )
    np.testing.assert_allclose(united.mean, pair[0].mean)


def test_one_mask_is_its_own_union(pair):
    assert unite_masks(pair[:1]) is pair[0]


def test_the_union_survives_saving(pair, tmp_path):
    united = unite_masks(pair)
    united.save(tmp_path)
    np.testing.assert_array_equal(type(united).load(tmp_path).values, united.values)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, -1.0]])
def test_unfit_weights_are_refused(pair, weights):
    with pytest.raises(SparseError, match="Weights"):
        unite_masks(pair, weights=weights)


def test_masks_of_different_encoders_are_refused(pair):
    other = dataclasses.replace(
        pair[1],
        info=dataclasses.replace(pair[1].info, encoder=dataclasses.replace(pair[1].info.encoder, pooling="cls")),
    )
    with pytest.raises(SparseError, match="different encoders"):
        unite_masks([pair[0], other])


def test_nothing_to_unite_is_refused():
    with pytest.raises(SparseError, match="no mask"):
        unite_masks([])
