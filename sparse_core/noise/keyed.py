"""Uniform numbers for each record, derived from the key, the policy, the record and its embedding.

The stream of a record is ``SHAKE-256(version, key, policy hash, subject, content digest, embedding digest)`` with
every field length-prefixed. It depends on nothing else: not on the batch, the worker, the order or the time.

Why each of them. Two vectors under one noise give away their exact difference, so whatever may change a vector must
change the stream: the policy's hash covers the encoder, content is what it read. The embedding, rounded to the
release's grid, is the second wall: should ever anything unforeseen change the encoder under an unchanged hash, the
noise changes with it. And one vector twice under fresh noise can be averaged, so whatever does not change the vector
must not change the stream: a retry and a nightly re-run publish the same bytes, and so do copies of a text under one
subject.

The price of the second wall, which we pay: where a re-run computes an embedding whose last bits round to another
grid point (another kind of processor), it publishes another vector *with independent noise*. That is another release
and is charged as one; under one noise it would have been the exact difference of two embeddings. `vector_fingerprints`
tells such releases apart, `release_fingerprints` does not.

What is promised. Streams are those of a pseudorandom function under a key of at least 256 bits (`Key`). Guarantees of
`sparse_core.mechanisms` are proven for ideal noise and therefore hold against anybody who has not got the key and
cannot search 2**256 of them: a computational promise, not an information-theoretic one, and none to who has the key.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.noise.keys import Key, length_prefixed
from sparse_core.positions import by_position

_PURPOSE = b"record-uniforms.v2"
_RELEASE_PURPOSE = b"release-fingerprint.v1"
_VECTOR_PURPOSE = b"vector-fingerprint.v1"
FINGERPRINT_BYTES = 16
_BYTES_PER_UNIFORM = 8
_BLOCK = 256
_HEX = re.compile(r"[0-9a-fA-F]+")


def record_uniforms(
    key: Key,
    *,
    subjects: Sequence[str | int],
    contents: Sequence[str | bytes],
    embeddings: np.ndarray,
    policy_hash: str,
    count: int,
) -> np.ndarray:
    """Derive each record's uniform numbers.

    Each number is an odd multiple of 2**-53, so it lies strictly between 0 and 1 and ``1 - u`` is exact.

    Parameters
    ----------
    key : Key
        The secret key.
    subjects : list-like of str or int, length n_records
        Whose each record is; the record's id where it is its own subject. ``1`` and ``"1"`` are different.
    contents : list-like of str or bytes, length n_records
        What the record says. Text counts as its UTF-8 bytes.
    embeddings : float64 array, shape (n_records, dimension)
        What the noise will be added to: on the release's grid (`Mechanism.on_grid`), or last bits that the release
        rounds away would draw other noise.
    policy_hash : str
        Hexadecimal hash of the policy.
    count : int
        How many numbers each record needs.

    Returns
    -------
    float64 array, shape (n_records, count)

    Raises
    ------
    SparseError
        If the lengths differ, a subject or a content has another type, embeddings are not float64 rows, or the
        policy hash is not hexadecimal.
    """
    if count < 0:
        raise SparseError(f"count is {count}; it must not be negative.")
    states = _states(key, _PURPOSE, subjects, contents, policy_hash, embeddings)
    uniforms = np.empty((len(embeddings), count))
    for start in range(0, len(uniforms), _BLOCK):
        block = uniforms[start : start + _BLOCK]
        digests = b"".join(next(states).digest(count * _BYTES_PER_UNIFORM) for _ in range(len(block)))
        words = np.frombuffer(digests, dtype="<u8").reshape(block.shape)
        np.multiply(words >> np.uint64(12), 2.0**-52, out=block)
        block += 2.0**-53
    return uniforms


def release_fingerprints(
    key: Key,
    *,
    subjects: Sequence[str | int],
    contents: Sequence[str | bytes],
    policy_hash: str,
) -> np.ndarray:
    """Name each release as far as it can be told without encoding: by key, policy, subject and content.

    Without the key a fingerprint tells nothing of the content, not even to somebody who guesses it: a plain
    hash would confirm every guess.

    Parameters
    ----------
    key, subjects, contents, policy_hash
        As for `record_uniforms`.

    Returns
    -------
    uint8 array, shape (n_records, 16)

    Raises
    ------
    SparseError
        As `record_uniforms`.
    """
    return _digests(_states(key, _RELEASE_PURPOSE, subjects, contents, policy_hash))


def vector_fingerprints(
    key: Key,
    *,
    subjects: Sequence[str | int],
    contents: Sequence[str | bytes],
    embeddings: np.ndarray,
    policy_hash: str,
) -> np.ndarray:
    """Name each vector: two fingerprints agree if and only if the noise of `record_uniforms` does.

    Parameters
    ----------
    key, subjects, contents, embeddings, policy_hash
        As for `record_uniforms`.

    Returns
    -------
    uint8 array, shape (n_records, 16)

    Raises
    ------
    SparseError
        As `record_uniforms`.
    """
    return _digests(_states(key, _VECTOR_PURPOSE, subjects, contents, policy_hash, embeddings))


def _digests(states: Iterable) -> np.ndarray:
    digests = b"".join(state.digest(FINGERPRINT_BYTES) for state in states)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, FINGERPRINT_BYTES)


def _states(
    key: Key,
    purpose: bytes,
    subjects: Sequence[str | int],
    contents: Sequence[str | bytes],
    policy_hash: str,
    embeddings: np.ndarray | None = None,
) -> Iterator:
    """Check what is given; yield for each record a SHAKE-256 state that has absorbed all that its stream is made of."""
    if not isinstance(key, Key):
        raise SparseError("Keyed randomness needs a Key; read one with Key.from_file or Key.from_environment.")
    if not isinstance(policy_hash, str) or not _HEX.fullmatch(policy_hash):
        raise SparseError("policy_hash must be a string of hexadecimal digits, such as Policy.hash gives.")
    subjects, contents = by_position(subjects, "subjects"), by_position(contents, "contents")
    if len(subjects) != len(contents):
        raise SparseError(
            f"There are {len(subjects)} subjects but {len(contents)} contents; pass one of each for every record."
        )
    if embeddings is not None:
        embeddings = np.asarray(embeddings)
        if embeddings.dtype != np.float64 or embeddings.ndim != 2 or len(embeddings) != len(subjects):
            raise SparseError(
                f"The embeddings are {embeddings.dtype} of shape {embeddings.shape}; noise for {len(subjects)} "
                "subjects is drawn from float64 rows on the release's grid, one for each."
            )
    root = key.hasher(purpose)
    root.update(length_prefixed(policy_hash.lower().encode("ascii")))
    return _absorbed(root, subjects, contents, embeddings)


def _absorbed(root, subjects: list, contents: list, embeddings: np.ndarray | None) -> Iterator:
    for start in range(0, len(subjects), _BLOCK):
        rows = range(start, min(start + _BLOCK, len(subjects)))
        if embeddings is not None:
            # Adding 0.0 turns -0.0, which is the same number, into 0.0.
            numbers = np.ascontiguousarray(embeddings[rows.start : rows.stop] + 0.0, dtype="<f8")
        for row in rows:
            state = root.copy()
            fields = _subject_field(subjects[row], row) + _content_field(contents[row], row)
            if embeddings is not None:
                fields += length_prefixed(hashlib.sha256(numbers[row - start]).digest())
            state.update(fields)
            yield state


def _subject_field(subject: str | int, row: int) -> bytes:
    if isinstance(subject, str):
        return length_prefixed(b"s" + subject.encode("utf-8", "surrogatepass"))
    if isinstance(subject, int | np.integer) and not isinstance(subject, bool):
        return length_prefixed(b"i%d" % int(subject))
    raise SparseError(
        f"The subject at position {row} is a {type(subject).__name__}; ids and subjects must be strings or integers."
    )


def _content_field(content: str | bytes, row: int) -> bytes:
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    elif not isinstance(content, bytes):
        raise SparseError(
            f"The content at position {row} is a {type(content).__name__}; contents must be text or bytes."
        )
    return length_prefixed(hashlib.sha256(content).digest())
