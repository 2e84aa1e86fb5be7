import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_core.budget import (
    Charge,
    Releases,
    compose,
    distinct,
    foreseen,
    joined,
    outlook,
    releases_under,
    subject_numbers,
)
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks import Mask, MaskInfo
from sparse_core.mechanisms import build_mechanism
from sparse_core.mechanisms.gaussian import log_delta
from sparse_core.noise import Key, record_uniforms, release_fingerprints
from sparse_core.policy import Policy

KEY, OTHER_KEY = Key(bytes(range(32))), Key(bytes(range(1, 33)))
SPEC = EncoderSpec("m", None, "0" * 64, 8, "mean", True, 128)
EMBEDDING = np.full((1, 4), 0.5)
LAPLACE = Policy.build(encoder=SPEC, mechanism="laplace", epsilon=3.0, read_out="none")
STRONGER = Policy.build(encoder=SPEC, mechanism="laplace", epsilon=0.5, read_out="none")
ANGULAR = Policy.build(encoder=SPEC, mechanism="purkayastha", epsilon=2.0, read_out="none")
GAUSSIAN = Policy.build(encoder=SPEC, mechanism="gaussian", epsilon=1.5, read_out="none")
NONE = Policy.build(encoder=SPEC, mechanism="none")
MASK = Mask(
    values=np.r_[np.ones(3), np.zeros(5)],
    basis=np.eye(8),
    mean=np.zeros(8),
    covariance=np.eye(8) / 8,
    info=MaskInfo(("made-up",), "f" * 16, "5a17", SPEC, "coordinate", 0.02, 0, {}),
)


def shaped(epsilon, floor):
    return Policy.build(encoder=SPEC, mechanism="mahalanobis", mask=MASK, epsilon=epsilon, floor=floor)


def released(policy=LAPLACE, key=KEY, ids=("a", "b"), texts=("one", "two"), embeddings=None):
    """Releases of subjects; without embeddings as far as they can be foreseen."""
    named = {"subjects": [str(i) for i in ids], "contents": texts}
    contents = release_fingerprints(key, policy_hash=policy.hash, **named)
    vectors = None if embeddings is None else policy.fingerprints(embeddings, key=key, **named)
    return releases_under(Charge.of(policy, key), subject_numbers(ids), contents, vectors)


def spent(*parts):
    return compose(joined(parts))


# What a release is.


@settings(max_examples=50, deadline=None)
@given(
    fields=st.lists(
        st.tuples(
            st.sampled_from([KEY, OTHER_KEY]),
            st.sampled_from(["a", "b", 1, "1"]),
            st.text(max_size=3),
            st.sampled_from(["ab", "cd"]),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_fingerprints_agree_exactly_where_the_noise_does(fields):
    noise, fingerprints = [], []
    for key, record, text, policy in fields:
        named = {"subjects": [record], "contents": [text], "policy_hash": policy}
        noise.append(record_uniforms(key, count=4, embeddings=EMBEDDING, **named)[0].tobytes())
        fingerprints.append(release_fingerprints(key, **named)[0].tobytes())
    assert (noise[0] == noise[1]) == (fingerprints[0] == fingerprints[1])


def test_fingerprints_share_nothing_with_the_noise():
    named = {"subjects": ["a"], "contents": ["one"], "policy_hash": "ab"}
    words = release_fingerprints(KEY, **named).view("<u8").ravel()
    uniforms = record_uniforms(KEY, count=2, embeddings=EMBEDDING, **named)[0]
    assert not np.isin((words >> np.uint64(12)) * 2.0**-52 + 2.0**-53, uniforms).any()


def test_fingerprints_of_no_records_are_none():
    assert release_fingerprints(KEY, subjects=[], contents=[], policy_hash="ab").shape == (0, 16)
    with pytest.raises(SparseError, match="1 subjects but 0 contents"):
        release_fingerprints(KEY, subjects=["a"], contents=[], policy_hash="ab")


def test_the_same_release_again_costs_nothing():
    once, again = spent(released()), spent(released(), released(), released())
    assert again.releases.tolist() == [1, 1]
    assert np.array_equal(once.epsilon_euclidean, again.epsilon_euclidean)


@pytest.mark.parametrize(
    "other",
    [
        released(texts=("one", "two, changed")),
        released(policy=STRONGER, ids=("b",), texts=("two",)),
        released(key=OTHER_KEY, ids=("b",), texts=("two",)),
    ],
    ids=["content", "policy", "key"],
)
def test_another_content_policy_or_key_is_another_release(other):
    total = spent(released(), other)
    assert total.releases[total.positions(subject_numbers(["a", "b"]))].tolist() == [1, 2]


def test_rotating_the_key_makes_every_record_a_new_release():
    seen = outlook(released(), released(key=OTHER_KEY))
    assert seen.new.tolist() == [1, 1]
    assert np.allclose(seen.after.epsilon_euclidean, 2 * LAPLACE.law.epsilon)


def test_an_integer_id_and_its_text_are_one_record():
    assert np.array_equal(subject_numbers([7, "x"]), subject_numbers(["7", "x"]))
    assert len(spent(released(ids=(7,), texts=("t",)), released(STRONGER, ids=("7",), texts=("t",)))) == 1


def test_copies_of_a_text_within_a_subject_are_one_release():
    total = spent(released(ids=("a", "a", "b"), texts=("one", "one", "one"), embeddings=np.ones((3, 8))))
    assert total.releases.tolist() == [1, 1] and total.epsilon_euclidean.tolist() == [3.0, 3.0]


def test_one_text_with_two_embeddings_is_two_releases():
    """As other hardware may make it: each vector has noise of its own."""
    vectors = np.full((2, 8), 0.3)
    vectors[1, 0] += 2.0**-10
    total = spent(*(released(ids=("a",), texts=("one",), embeddings=vector[None]) for vector in vectors))
    assert total.releases.tolist() == [2] and total.epsilon_euclidean.tolist() == [6.0]


def test_a_release_is_foreseen_by_its_content_whatever_its_vector_was():
    earlier = released(embeddings=np.full((2, 8), 0.3))
    coming = released(ids=("a", "b", "b", "c"), texts=("one", "one", "two", "one"))
    assert foreseen(coming, earlier).tolist() == [True, False, True, False]
    assert not foreseen(released(key=OTHER_KEY), earlier).any()
    assert foreseen(coming, joined([])).tolist() == [False] * 4
    seen = outlook(earlier, coming)
    numbers = subject_numbers(["a", "b", "c"])
    assert seen.new[seen.after.positions(numbers)].tolist() == [0, 1, 1]
    assert seen.after.epsilon_euclidean[seen.after.positions(numbers)].tolist() == [3.0, 6.0, 3.0]


def test_what_an_earlier_release_came_to_in_two_vectors_is_counted_twice_in_an_outlook():
    vectors = np.full((2, 8), 0.3)
    vectors[1, 0] += 2.0**-10
    earlier = joined([released(ids=("a",), texts=("one",), embeddings=vector[None]) for vector in vectors])
    seen = outlook(earlier, released(ids=("a",), texts=("one",)))
    assert seen.new.tolist() == [0] and seen.after.epsilon_euclidean.tolist() == [6.0]


# What releases add up to.


def test_epsilons_add_in_the_own_metric_only_where_it_is_shared():
    one_metric, two_metrics = spent(released(), released(STRONGER)), spent(released(), released(ANGULAR))
    assert one_metric.epsilon == pytest.approx([3.5, 3.5])
    assert np.isnan(two_metrics.epsilon).all()
    assert two_metrics.epsilon_euclidean == pytest.approx([3.0 + 2.0 * math.pi / 2] * 2)


def test_mahalanobis_epsilons_share_a_metric_only_under_one_sigma():
    one_sigma = spent(released(shaped(2.0, 0.1)), released(shaped(1.0, 0.1)))
    two_sigmas = spent(released(shaped(2.0, 0.1)), released(shaped(2.0, 0.2)))
    assert one_sigma.epsilon == pytest.approx([3.0, 3.0])
    assert np.isnan(two_sigmas.epsilon).all()
    worst = 2.0 / math.sqrt(0.1) + 2.0 / math.sqrt(0.2)
    assert two_sigmas.epsilon_euclidean == pytest.approx([worst, worst])


def test_another_encoder_is_another_metric_and_still_adds_in_the_euclidean():
    elsewhere = Policy.build(
        encoder=replace(SPEC, weights_sha256="1" * 64), mechanism="laplace", epsilon=3.0, read_out="none"
    )
    total = spent(released(), released(elsewhere))
    assert np.isnan(total.epsilon).all() and total.epsilon_euclidean == pytest.approx([6.0, 6.0])


def test_deltas_add_beside_epsilons():
    total = spent(released(GAUSSIAN), released(GAUSSIAN, key=OTHER_KEY), released())
    assert total.delta == pytest.approx([2 * GAUSSIAN.law.delta] * 2)
    assert total.epsilon_euclidean == pytest.approx([2 * 1.5 + 3.0] * 2)


def test_a_release_without_noise_spends_infinitely_much_and_exceeds_every_limit():
    total = spent(released(), released(NONE, ids=("a",), texts=("one",)))
    at_a, at_b = total.positions(subject_numbers(["a", "b"]))
    assert total.epsilon_euclidean[at_a] == math.inf and total.epsilon[at_a] == math.inf
    assert total.epsilon_euclidean[at_b] == 3.0
    assert outlook(joined([]), released(NONE)).over(1e300).all()


LAWS = {
    "laplace": lambda n: build_mechanism("laplace", dimension=n, epsilon=3.0),
    "angular": lambda n: build_mechanism("purkayastha", dimension=n, epsilon=2.0),
}


@pytest.mark.parametrize("first, second", [("laplace", "laplace"), ("laplace", "angular"), ("angular", "angular")])
def test_the_joint_likelihood_ratio_never_exceeds_the_sum_and_comes_close(first, second):
    n, draws, generator = 3, 20_000, np.random.default_rng(5)
    laws = [LAWS[first](n), LAWS[second](n)]
    x, other = (v / np.linalg.norm(v) for v in (np.array([1.0, 0.2, 0.0]), np.array([1.0, -0.2, 0.1])))
    ratio = np.zeros(draws)
    for law in laws:
        y = law.release(np.tile(x, (draws, 1)), generator.uniform(1e-9, 1, (draws, law.uniforms_per_record)))
        ratio += law.log_likelihood(y, np.tile(x, (draws, 1))) - law.log_likelihood(y, np.tile(other, (draws, 1)))
    own = sum(law.epsilon * law.distance(x[None], other[None])[0] for law in laws)
    euclidean = sum(law.epsilon_euclidean for law in laws) * np.linalg.norm(x - other)
    assert own <= euclidean + 1e-9
    assert ratio.max() <= own + 1e-6
    assert ratio.max() > 0.9 * own


def test_charging_one_of_two_releases_only_would_be_caught():
    """The planted error: without composition, the bound is exceeded."""
    n, draws, generator = 3, 20_000, np.random.default_rng(5)
    law = LAWS["laplace"](n)
    x, other = np.array([[0.3, 0.0, 0.0]]), np.array([[-0.3, 0.0, 0.0]])
    ratio = 0.0
    for _ in range(2):
        y = law.release(np.repeat(x, draws, 0), generator.uniform(1e-9, 1, (draws, law.uniforms_per_record)))
        ratio = ratio + law.log_likelihood(y, x) - law.log_likelihood(y, other)
    assert ratio.max() > 1.5 * law.epsilon * law.distance(x, other)[0]


def test_two_gaussian_releases_keep_the_sum_of_epsilons_but_for_the_sum_of_deltas():
    law = build_mechanism("gaussian", dimension=2, epsilon=1.0)
    mu = math.sqrt(2.0) * law.mu_per_distance  # two releases at distance 1 are one at distance sqrt(2)
    assert math.exp(log_delta(2 * law.epsilon, mu)) <= 2 * law.delta


# Arrays.


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 1)), max_size=40))
def test_composition_agrees_with_counting_by_hand_in_any_order(rows):
    table = (Charge.of(LAPLACE, KEY), Charge.of(STRONGER, KEY))
    # A fingerprint stands for one policy: release r of a record is under policy r % 2.
    rows = [(record, release, release % 2) for record, release, _ in rows]
    by_hand = {record: sum(table[c].epsilon for r, _, c in set(rows) if r == record) for record, *_ in rows}
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    numbers = [columns[:, i].astype(np.uint64) for i in (0, 1, 1)]
    releases = Releases(*numbers, columns[:, 2].astype(np.int32), table)
    total = compose(releases)
    assert dict(zip(total.subjects.tolist(), total.epsilon_euclidean.tolist(), strict=True)) == pytest.approx(by_hand)
    assert total.releases.sum() == len(set(rows)) == len(distinct(releases))
    assert np.array_equal(compose(releases.take(np.arange(len(rows))[::-1])).releases, total.releases)


def test_nothing_released_is_nothing_spent():
    nothing = compose(joined([]))
    assert len(nothing) == 0
    assert nothing.positions(subject_numbers(["a"])).tolist() == [-1]
    assert outlook(joined([]), joined([])).over(1.0).tolist() == []


def test_an_outlook_counts_earlier_releases_of_these_records_only():
    seen = outlook(released(STRONGER, ids=("a", "z"), texts=("one", "z")), released())
    at_a, at_b = seen.after.positions(subject_numbers(["a", "b"]))
    assert len(seen.after) == 2
    assert seen.after.releases[[at_a, at_b]].tolist() == [2, 1]
    assert seen.after.epsilon_euclidean[[at_a, at_b]] == pytest.approx([3.5, 3.0])
    assert seen.over(3.0)[[at_a, at_b]].tolist() == [True, False]


def test_a_record_over_the_limit_already_is_not_held_against_a_run_that_adds_nothing():
    seen = outlook(joined([released(), released(key=OTHER_KEY)]), released())
    assert seen.new.tolist() == [0, 0] and (seen.after.epsilon_euclidean > 1.0).all()
    assert not seen.over(1.0).any()


def test_one_id_with_two_texts_in_one_run_is_two_releases():
    seen = outlook(joined([]), released(ids=("a", "a"), texts=("one", "another")))
    assert seen.new.tolist() == [2] and seen.after.epsilon_euclidean == pytest.approx([6.0])


def test_a_limit_of_exactly_two_releases_allows_two():
    assert not outlook(released(), released(key=OTHER_KEY)).over(6.0).any()
