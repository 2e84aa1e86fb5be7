import hashlib
import multiprocessing
import struct
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from sparse_core.errors import SparseError
from sparse_core.noise import Key, record_uniforms, vector_fingerprints

KEY = Key(bytes(range(32)))
OTHER_KEY = Key(bytes(range(1, 33)))
GRID = 2.0**-20
BASE = {
    "key": KEY,
    "subjects": ["r1"],
    "contents": ["some text"],
    "embeddings": np.array([[0.5, -0.25, 0.0]]),
    "policy_hash": "ab12",
}
CHANGES = {
    "key": {"key": OTHER_KEY},
    "subject": {"subjects": ["r2"]},
    "content": {"contents": ["some text."]},
    "embedding": {"embeddings": BASE["embeddings"] + [[0.0, 0.0, GRID]]},
    "policy": {"policy_hash": "ab13"},
}


def stream(count=20_000, **changes):
    arguments = {**BASE, **changes}
    return record_uniforms(arguments.pop("key"), count=count, **arguments)[0]


def test_numbers_are_uniform():
    uniforms = stream(200_000)
    assert kstest(uniforms, "uniform").pvalue > 1e-3
    assert kstest((uniforms * 2**20) % 1.0, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(uniforms[1:], uniforms[:-1])[0, 1]) < 5 / np.sqrt(200_000)


def test_numbers_are_odd_multiples_of_two_to_the_minus_53():
    scaled = stream(10_000) * 2.0**53
    assert np.array_equal(scaled, np.rint(scaled))
    assert (scaled % 2 == 1).all()
    assert scaled.min() >= 1 and scaled.max() <= 2**53 - 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_key_subject_content_embedding_or_policy_draws_independent_noise(change):
    first, second = stream(), stream(**CHANGES[change])
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))
    assert kstest((first - second) % 1.0, "uniform").pvalue > 1e-3
    assert not np.isin(first, second).any()


def test_the_same_inputs_give_the_same_numbers():
    assert np.array_equal(stream(), stream())


def test_the_stream_is_shake_256_of_the_length_prefixed_fields():
    fields = [b"sparse.key.v1", bytes(range(32)), b"record-uniforms.v2", b"ab12", b"sr1"]
    fields.append(hashlib.sha256(b"some text").digest())
    fields.append(hashlib.sha256(struct.pack("<3d", 0.5, -0.25, 0.0)).digest())
    digest = hashlib.shake_256(b"".join(len(f).to_bytes(8, "big") + f for f in fields)).digest(16)
    words = [int.from_bytes(digest[i : i + 8], "little") >> 12 for i in (0, 8)]
    assert stream(2).tolist() == [(2 * word + 1) / 2**53 for word in words]


def test_streams_stay_as_they_were_released():
    """Changing these values re-draws the noise of every dataset ever published."""
    assert stream(2).tolist() == [0.37287577024084817, 0.17810344815255108]


def test_noise_does_not_depend_on_the_sign_of_zero_or_on_how_an_array_lies_in_memory():
    assert np.array_equal(stream(8), stream(8, embeddings=np.array([[0.5, -0.25, -0.0]])))
    wide = np.asfortranarray(np.repeat(BASE["embeddings"], 2, axis=0))
    again = stream(8, subjects=["r1"] * 2, contents=["some text"] * 2, embeddings=wide)
    assert np.array_equal(stream(8), again)


@pytest.mark.parametrize("change", CHANGES)
def test_vectors_are_named_alike_exactly_where_their_noise_is(change):
    def named(**changes):
        arguments = {**BASE, **changes}
        return vector_fingerprints(arguments.pop("key"), **arguments)[0].tobytes()

    assert named() == named()
    assert named() != named(**CHANGES[change])


def test_a_longer_stream_extends_a_shorter_one():
    assert np.array_equal(stream(385)[:10], stream(10))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"subjects": [1]}, {"subjects": ["1"]}),
        ({"subjects": [12], "contents": ["3"]}, {"subjects": [1], "contents": ["23"]}),
        ({"subjects": ["ab"], "contents": ["c"]}, {"subjects": ["a"], "contents": ["bc"]}),
        ({"subjects": [""], "contents": [""]}, {"subjects": ["i0"], "contents": [""]}),
        ({"subjects": [-1]}, {"subjects": [1]}),
    ],
)
def test_fields_cannot_run_into_each_other(left, right):
    assert not np.array_equal(stream(8, **left), stream(8, **right))


def test_equal_content_counts_as_equal_whatever_its_type():
    assert np.array_equal(stream(8, contents=["naïve"]), stream(8, contents=["naïve".encode()]))
    assert np.array_equal(stream(8, subjects=[7]), stream(8, subjects=np.array([7])))
    assert np.array_equal(stream(8, policy_hash="AB12"), stream(8, policy_hash="ab12"))


def many(count=300):
    return {
        "subjects": list(range(count)),
        "contents": [f"text {i}" for i in range(count)],
        "embeddings": GRID * np.arange(5.0 * count).reshape(count, 5),
    }


def draw(rows):
    records = many()
    return record_uniforms(
        KEY,
        subjects=[records["subjects"][row] for row in rows],
        contents=[records["contents"][row] for row in rows],
        embeddings=records["embeddings"][list(rows)],
        policy_hash="ab12",
        count=17,
    )


@pytest.mark.parametrize("batch", [1, 7, 64, 256, 300])
def test_numbers_do_not_depend_on_the_batch(batch):
    whole = draw(range(300))
    parts = [draw(range(start, min(start + batch, 300))) for start in range(0, 300, batch)]
    assert np.array_equal(whole, np.concatenate(parts))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(40)))
def test_numbers_do_not_depend_on_the_order(order):
    assert np.array_equal(draw(order), draw(range(300))[list(order)])


def test_numbers_do_not_depend_on_the_process():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        halves = list(pool.map(draw, [range(150), range(150, 300)]))
    assert np.array_equal(np.concatenate(halves), draw(range(300)))


def test_lone_surrogates_and_empty_texts_are_contents_too():
    assert not np.array_equal(stream(4, contents=["\ud800"]), stream(4, contents=[""]))


def test_no_records_and_no_numbers_are_allowed():
    assert draw([]).shape == (0, 17)
    assert stream(0).shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subjects": ["a", "b"]}, "2 subjects but 1 contents"),
        ({"subjects": [None]}, "position 0 is a NoneType"),
        ({"subjects": [1.5]}, "strings or integers"),
        ({"subjects": [True]}, "position 0 is a bool"),
        ({"contents": [None]}, "text or bytes"),
        ({"embeddings": np.ones((2, 3))}, "shape \\(2, 3\\); noise for 1 subjects"),
        ({"embeddings": np.ones((1, 3), np.float32)}, "are float32"),
        ({"subjects": "r"}, "subjects is a single str"),
        ({"policy_hash": ""}, "hexadecimal"),
        ({"policy_hash": "xyz"}, "hexadecimal"),
        ({"policy_hash": b"ab"}, "hexadecimal"),
        ({"key": b"0" * 32}, "needs a Key"),
        ({"count": -1}, "negative"),
    ],
)
def test_bad_inputs_are_refused_by_name(changes, message):
    with pytest.raises(SparseError, match=message):
        stream(**{"count": 4, **changes})


def test_refusals_do_not_show_the_text():
    with pytest.raises(SparseError) as caught:
        stream(4, subjects=["a", "b"], contents=["very private"])
    assert "very private" not in str(caught.value)
