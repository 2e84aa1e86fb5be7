"""Uniform numbers for each record, derived from the key, the record and the policy.

The stream of a record is ``SHAKE-256(version, key, policy hash, record id, content digest)`` with every
field length-prefixed. It depends on nothing else: not on the batch, the worker, the order or the time.
So a retry publishes the same vector again (nothing to average, nothing more to pay), and a changed text
draws fresh noise (two vectors under one noise would give away their exact difference).
"""

import hashlib
import re
from collections.abc import Sequence

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.noise.keys import Key, length_prefixed

_PURPOSE = b"record-uniforms.v1"
_FINGERPRINT_PURPOSE = b"release-fingerprint.v1"
FINGERPRINT_BYTES = 16
_BYTES_PER_UNIFORM = 8
_BLOCK = 256
_HEX = re.compile(r"[0-9a-fA-F]+")


def record_uniforms(
    key: Key,
    *,
    record_ids: Sequence[str | int],
    contents: Sequence[str | bytes],
    policy_hash: str,
    count: int,
) -> np.ndarray:
    """Derive each record's uniform numbers.

    Each number is an odd multiple of 2**-53, so it lies strictly between 0 and 1 and ``1 - u`` is exact.

    Parameters
    ----------
    key : Key
        The secret key.
    record_ids : sequence of str or int, length n_records
        ``1`` and ``"1"`` name different records.
    contents : sequence of str or bytes, length n_records
        What the record says. Text counts as its UTF-8 bytes. Pass the text, never the floats of its
        embedding: their last bits change with the batch size and the device.
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
        If the lengths differ, an id or a content has another type, or the policy hash is not hexadecimal.
    """
    if count < 0:
        raise SparseError(f"count is {count}; it must not be negative.")
    root = _root(key, _PURPOSE, record_ids, contents, policy_hash)
    uniforms = np.empty((len(record_ids), count))
    size = count * _BYTES_PER_UNIFORM
    for start in range(0, len(record_ids), _BLOCK):
        digests = []
        for row in range(start, min(start + _BLOCK, len(record_ids))):
            state = root.copy()
            state.update(_id_field(record_ids[row], row) + _content_field(contents[row], row))
            digests.append(state.digest(size))
        words = np.frombuffer(b"".join(digests), dtype="<u8").reshape(len(digests), count)
        block = uniforms[start : start + len(digests)]
        np.multiply(words >> np.uint64(12), 2.0**-52, out=block)
        block += 2.0**-53
    return uniforms


def release_fingerprints(
    key: Key,
    *,
    record_ids: Sequence[str | int],
    contents: Sequence[str | bytes],
    policy_hash: str,
) -> np.ndarray:
    """Name each release: two fingerprints agree if and only if the noise of `record_uniforms` does.

    Without the key a fingerprint tells nothing of the content, not even to somebody who guesses it: a plain
    hash would confirm every guess.

    Parameters
    ----------
    key, record_ids, contents, policy_hash
        As for `record_uniforms`.

    Returns
    -------
    uint8 array, shape (n_records, 16)

    Raises
    ------
    SparseError
        As `record_uniforms`.
    """
    root = _root(key, _FINGERPRINT_PURPOSE, record_ids, contents, policy_hash)
    digests = bytearray()
    for row in range(len(record_ids)):
        state = root.copy()
        state.update(_id_field(record_ids[row], row) + _content_field(contents[row], row))
        digests += state.digest(FINGERPRINT_BYTES)
    return np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, FINGERPRINT_BYTES)


def _root(key: Key, purpose: bytes, record_ids: Sequence[str | int], contents: Sequence[str | bytes], policy_hash: str):
    """Check what can be checked at once; the SHAKE-256 state that has absorbed key, purpose and policy."""
    if not isinstance(key, Key):
        raise SparseError("Keyed randomness needs a Key; read one with Key.from_file or Key.from_environment.")
    if not isinstance(policy_hash, str) or not _HEX.fullmatch(policy_hash):
        raise SparseError("policy_hash must be a string of hexadecimal digits, such as Policy.hash gives.")
    if len(record_ids) != len(contents):
        raise SparseError(
            f"There are {len(record_ids)} record ids but {len(contents)} contents; pass one of each for every record."
        )
    root = key.hasher(purpose)
    root.update(length_prefixed(policy_hash.lower().encode("ascii")))
    return root


def _id_field(record_id: str | int, row: int) -> bytes:
    if isinstance(record_id, str):
        return length_prefixed(b"s" + record_id.encode("utf-8", "surrogatepass"))
    if isinstance(record_id, int | np.integer) and not isinstance(record_id, bool):
        return length_prefixed(b"i%d" % int(record_id))
    raise SparseError(
        f"The record id at position {row} is a {type(record_id).__name__}; ids must be strings or integers."
    )


def _content_field(content: str | bytes, row: int) -> bytes:
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    elif not isinstance(content, bytes):
        raise SparseError(
            f"The content at position {row} is a {type(content).__name__}; contents must be text or bytes."
        )
    return length_prefixed(hashlib.sha256(content).digest())
