"""How many bits a published number has, and why that costs no privacy.

A release is a float32 vector y that a mechanism M has drawn: Pr[M(x) in S] <= exp(epsilon d(x, x')) Pr[M(x') in S] for
every set S. Storing it as float16 or int8 applies one function g to y that looks at nothing but y and public figures,
so Pr[g(M(x)) in T] = Pr[M(x) in g^-1(T)], and the same bound holds with the same epsilon (and delta): post-processing.
It holds for g with clipping, too. Publishing a record at two precisions is no second release either, because the coarse
vector is a function of the fine one; noise is keyed, so that both come from one draw.

For g to be such a function, the scale of int8 must not be taken from the vectors that are stored. It is worked out from
the policy alone: `public_scale`. What rounding does to vectors is measured in tests/benchmarks/test_precision.py.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from sparse_core.errors import SparseError
from sparse_core.policy import Policy

COLUMN = "embedding"
PRECISIONS = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
_LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
_LARGEST_INT8 = 127
_DEVIATIONS = 6.0
_SCALE_BITS = 8


def vector_array(released: np.ndarray, precision: str, scale: float | None = None) -> pa.FixedSizeListArray:
    """Published vectors as an Arrow column.

    Parameters
    ----------
    released : float32 array, shape (n_records, dimension)
        From `Policy.release`.
    precision : {"float32", "float16", "int8"}
    scale : float, optional
        For int8: the size of one step, from `public_scale`. A vector is `scale` times the integers.

    Returns
    -------
    pyarrow.FixedSizeListArray
        Values out of range are clipped; `count_clipped` counts them.
    """
    values = np.ascontiguousarray(_rounded(np.asarray(released, dtype=np.float32), precision, scale))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def vector_field(dimension: int, precision: str, scale: float | None = None) -> pa.Field:
    """The Arrow field of the vectors, which carries precision and scale in its metadata."""
    told = {"sparse.precision": precision} | ({} if scale is None else {"sparse.scale": repr(scale)})
    return pa.field(COLUMN, pa.list_(PRECISIONS[precision], dimension), metadata=told)


def count_clipped(released: np.ndarray, precision: str, scale: float | None = None) -> int:
    """How many numbers are out of the range that the precision can hold."""
    if precision == "float32":
        return 0
    largest = _LARGEST_FLOAT16 if precision == "float16" else (_LARGEST_INT8 + 0.5) * scale
    return int(np.count_nonzero(np.abs(released) > largest))


def as_float32(column: pa.Array | pa.ChunkedArray, scale: float | None = None) -> np.ndarray:
    """Vectors of a published column, whatever their precision; float32, shape (n_records, dimension)."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not len(column):
        return np.zeros((0, getattr(column.type, "list_size", 0)), np.float32)
    values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return values.astype(np.float32) if scale is None else (values * np.float64(scale)).astype(np.float32)


def public_scale(policy: Policy, precision: str) -> float | None:
    """The step of int8 for a policy's releases; None for other precisions.

    It lets the integers reach to six standard deviations of a published number, which is known without looking at one:
    from the noise variance, and from the mean and covariance of the embeddings that a mask carries, put through the
    read-out. Without a mask all that is known of unit vectors is that no coordinate exceeds 1. Rounded up to 8 bits, so
    that machines whose eigenvectors differ in the last bits agree; still, keep it with the dataset.

    Raises
    ------
    SparseError
        If nothing public bounds the vectors: no mask, and an encoder whose vectors have any length.
    """
    if precision != "int8":
        return None
    mantissa, exponent = math.frexp(_limit(policy) / _LARGEST_INT8)
    return math.ldexp(math.ceil(mantissa * 2**_SCALE_BITS), exponent - _SCALE_BITS)


def _rounded(released: np.ndarray, precision: str, scale: float | None) -> np.ndarray:
    if precision == "float16":
        return np.clip(released, -_LARGEST_FLOAT16, _LARGEST_FLOAT16).astype(np.float16)
    if precision == "int8":
        if scale is None:
            raise TypeError("int8 takes a scale")
        steps = np.rint(released / np.float64(scale))
        return np.clip(steps, -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8)
    return released


def _limit(policy: Policy) -> float:
    """What hardly any published number exceeds."""
    noise, gain = policy.law.noise_variance(), policy.law.signal_gain
    if policy.mask is None:
        if not policy.encoder.normalize:
            raise SparseError(
                "dataset.precision: int8 needs a scale that does not come from the vectors themselves. Without a mask, "
                "whose mean and covariance are public, and without encoder.normalize there is none; give a mask, or "
                "take float16."
            )
        limit, length = gain + _DEVIATIONS * math.sqrt(noise.max()), gain
    else:
        mask = policy.mask
        mean, spread = gain * mask.mean, gain**2 * mask.covariance + np.diag(noise)
        if policy.reader is not None:
            mean, spread = mask.mean, policy.reader.gain @ spread @ policy.reader.gain.T
        variance = np.einsum("ij,jk,ik->i", mask.basis, spread, mask.basis, optimize=True)
        limit = float((np.abs(mean) + _DEVIATIONS * np.sqrt(variance)).max())
        length = math.sqrt(mean @ mean + np.trace(spread))
    if policy.unit_norm:
        return min(1.0, limit / length) if policy.mask is not None else 1.0
    return limit
