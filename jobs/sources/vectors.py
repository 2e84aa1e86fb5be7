"""Vectors computed already: finding them in a column, and decoding them without a loop over their numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Steps of the release grid (2**-20) must fit into 64 bits.
_LARGEST = 2.0**42


def vector_type(kind: pa.DataType) -> pa.DataType | None:
    """The list type behind a column's type; None if it holds no vectors."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind) and kind.get_field_index("data") >= 0:
        # Ray's tensors of varying shape: their numbers and their shape.
        kind = kind.field("data").type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inner = kind.value_type
    return kind if pa.types.is_floating(inner) or pa.types.is_integer(inner) else None


def fixed_dimension(kind: pa.DataType) -> int | None:
    """How many numbers a type allows; None if any."""
    found = vector_type(kind)
    return found.list_size if found is not None and pa.types.is_fixed_size_list(found) else None


def most_common_length(column: pa.Array) -> int | None:
    """How many numbers most rows have; None if no row has any."""
    if pa.types.is_null(column.type):
        return None
    counts = Counter(pc.list_value_length(_lists(column)).drop_null().to_pylist())
    counts.pop(0, None)
    return counts.most_common(1)[0][0] if counts else None


def decoded(column: pa.Array, dimension: int) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Decode a column of vectors.

    Parameters
    ----------
    column : pyarrow.Array
        Lists, fixed-size lists or tensors of numbers.
    dimension : int

    Returns
    -------
    vectors : float64 array, shape (n_good, dimension)
    good : int array, shape (n_good,)
        Their rows.
    unfit : dict
        Row to reason, of the others.
    """
    if pa.types.is_null(column.type):
        return np.empty((0, dimension)), np.empty(0, int), dict.fromkeys(range(len(column)), "null_vector")
    lists = _lists(column)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    missing = lists.is_null().to_numpy(zero_copy_only=False)
    wrong = ~missing & (lengths != dimension)
    unfit = _reasons(missing, "null_vector") | _reasons(wrong, "wrong_length_vector")
    rows = np.flatnonzero(~missing & ~wrong)
    if len(rows) < len(lists):
        lists = lists.take(pa.array(rows, pa.int64()))
    # A null among the numbers becomes NaN.
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    vectors = numbers.astype(np.float64).reshape(len(rows), dimension)
    finite = np.isfinite(vectors).all(axis=1)
    zero = finite & ~vectors.any(axis=1)
    large = finite & (np.abs(vectors).max(axis=1, initial=0) >= _LARGEST)
    for chosen, reason in (
        (~finite, "non_finite_vector"),
        (zero, "zero_vector"),
        (large, "out_of_range_vector"),
    ):
        unfit |= dict.fromkeys(rows[chosen].tolist(), reason)
    good = finite & ~zero & ~large
    return (vectors if good.all() else vectors[good]), rows[good], unfit


def _reasons(chosen: np.ndarray, reason: str) -> dict[int, str]:
    return dict.fromkeys(np.flatnonzero(chosen).tolist(), reason)


def _lists(column: pa.Array) -> pa.Array:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_struct(column.type):
        data = column.field("data")
        column = pc.if_else(column.is_valid(), data, pa.scalar(None, data.type)) if column.null_count else data
    return column
