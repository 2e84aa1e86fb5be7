import dataclasses

import numpy as np
import pytest

from sparse_core.errors import SparseError


def test_noise_by_the_mask_leaves_a_linear_attacker_nothing_of_the_planted_tokens(mask, corpus):
    labels = corpus.token_labels - corpus.token_labels.mean(axis=0)
    crossed = (corpus.embeddings - mask.mean).T @ labels / len(labels)
    covariance = np.cov(corpus.embeddings, rowvar=False, bias=True)
    noise = 1e4 * (mask.basis * mask.values) @ mask.basis.T
    before, after = (np.trace(crossed.T @ np.linalg.solve(covariance + n, crossed)) for n in (0 * noise, noise))
    assert after < 0.02 * before
    assert 5 <= np.count_nonzero(mask.values) <= 10


def test_training_tells_removed_from_present_on_pairs_it_has_not_seen(mask):
    assert mask.info.metrics["accuracy"] > 0.9


def test_the_same_seed_gives_the_same_mask(learn, mask):
    again = learn()
    np.testing.assert_array_equal(again.values, mask.values)
    np.testing.assert_array_equal(again.basis, mask.basis)
    assert again.info == mask.info


def test_a_larger_penalty_opens_fewer_gates(learn):
    kept = [learn(basis="coordinate", penalty=p).info.metrics["directions_open"] for p in (0.1, 1.0)]
    assert kept[1] < kept[0]


def test_directions_with_little_of_the_concept_close(learn):
    kept = learn(basis="shift", penalty=1.0).info.metrics
    assert kept["directions_open"] <= kept["directions_candidate"]
    assert kept["energy_open"] > 0.8


def test_the_number_of_directions_can_be_limited(learn):
    assert learn(directions=3).info.metrics["directions_candidate"] == 3


def test_a_coordinate_mask_keeps_the_encoders_axes(learn):
    coordinate = learn(basis="coordinate", penalty=2.0)
    np.testing.assert_array_equal(coordinate.basis, np.eye(32))
    np.testing.assert_allclose(coordinate.covariance, coordinate.covariance.T)


def test_mean_and_covariance_are_those_of_the_corpus(mask, corpus):
    np.testing.assert_allclose(mask.mean, corpus.embeddings.mean(axis=0))
    true = mask.basis.T @ np.cov(corpus.embeddings, rowvar=False, bias=True) @ mask.basis
    np.testing.assert_allclose(mask.covariance, true, atol=0.05)
    np.testing.assert_array_equal(mask.variance, np.diag(mask.covariance))


def test_every_gate_closed_is_refused_with_the_way_out(learn):
    with pytest.raises(SparseError, match=r"penalty 1000 is too large.*lower"):
        learn(penalty=1000.0)


def test_every_gate_open_is_refused_unless_asked_for(learn):
    with pytest.raises(SparseError, match="isotropic noise: raise penalty"):
        learn(basis="coordinate", penalty=0.0)
    isotropic = learn(basis="coordinate", penalty=0.0, allow_degenerate=True)
    assert isotropic.values.min() > 0


def test_an_empty_mask_can_be_asked_for(learn):
    assert not learn(penalty=1000.0, allow_degenerate=True).values.any()


def test_length_alone_is_reported_when_lengths_are_given(learn, corpus):
    n_pairs = len(corpus.positive)
    longer = np.random.default_rng(0).normal(10, 1, n_pairs)
    told = learn(lengths=(longer, longer - 5)).info.metrics["accuracy_length_only"]
    useless = learn(lengths=(longer, longer)).info.metrics["accuracy_length_only"]
    assert told > 0.95
    assert useless == pytest.approx(0.5)


def test_progress_reports_each_epoch(learn):
    seen = []
    learn(
        progress=lambda step, total, metrics: seen.append((step, total, metrics["expected_l0"])),
        epochs=7,
        allow_degenerate=True,
    )
    assert [step for step, _, _ in seen] == list(range(1, 8))
    assert {total for _, total, _ in seen} == {7}


def test_embeddings_that_are_not_finite_are_refused(learn, corpus):
    broken = corpus.embeddings.copy()
    broken[3, 4] = np.nan
    with pytest.raises(SparseError, match="embeddings has values that are not finite"):
        learn(embeddings=broken)


def test_vectors_of_another_dimension_are_refused(learn, spec):
    with pytest.raises(SparseError, match=r"positive has shape \(\d+, 32\); \(rows, 48\)"):
        learn(encoder=dataclasses.replace(spec, dimension=48))


def test_unequal_numbers_of_pairs_are_refused(learn, corpus):
    with pytest.raises(SparseError, match="pairs go by row"):
        learn(negative=corpus.negative[:-1])


def test_a_handful_of_pairs_is_too_few(learn, corpus):
    with pytest.raises(SparseError, match="too few"):
        learn(positive=corpus.positive[:4], negative=corpus.negative[:4])


def test_token_labels_of_other_records_are_refused(learn, corpus):
    with pytest.raises(SparseError, match="token_labels has shape"):
        learn(token_labels=corpus.token_labels[:-1])


@pytest.mark.parametrize("option", [{"penalty": -1.0}, {"penalty": float("nan")}, {"validation_share": 1.0}])
def test_options_out_of_range_are_refused_by_name(learn, option):
    with pytest.raises(SparseError, match=next(iter(option))):
        learn(**option)
