"""Refusals shared by attacks and utility tasks: arrays that cannot be what the caller means."""

from collections.abc import Sequence

import numpy as np

from sparse_core.errors import SparseError


def check_vectors(vectors: Sequence | np.ndarray, name: str, *, dimension: int | None = None) -> np.ndarray:
    """Vectors as a finite two-dimensional float array.

    Parameters
    ----------
    vectors : array-like, shape (n_records, dimension)
        Float32 and float64 arrays are returned as they are, anything else as float64.
    name : str
        What to call them in a message.
    dimension : int, optional
        The dimension they must have.

    Returns
    -------
    float array, shape (n_records, dimension)

    Raises
    ------
    SparseError
        For vectors of several lengths, another dimension, or an entry that is not finite (row named).
    """
    try:
        array = np.asarray(vectors)
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (ValueError, TypeError):
        raise SparseError(_why_ragged(vectors, name)) from None
    if array.ndim != 2:
        raise SparseError(f"{name} has {array.ndim} axes; give one vector per row, shape (records, dimension)")
    if dimension is not None and array.shape[1] != dimension:
        raise SparseError(
            f"{name} has dimension {array.shape[1]} where {dimension} is expected; "
            "give vectors of one encoder throughout"
        )
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        raise SparseError(
            f"{name} has {len(rows)} rows with entries that are not finite, first row {rows[0]}; "
            "leave these records out or encode them again"
        )
    return array


def check_same_length(**columns: Sequence | np.ndarray) -> int:
    """The common length of parallel columns.

    Parameters
    ----------
    **columns
        Columns by the name to use in a message.

    Returns
    -------
    int

    Raises
    ------
    SparseError
        If the lengths differ.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise SparseError(f"rows do not match: {found}; give one row per record in each")
    return next(iter(lengths.values()))


def _why_ragged(vectors: Sequence, name: str) -> str:
    lengths = [len(row) if hasattr(row, "__len__") else -1 for row in vectors]
    odd = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is None:
        return f"{name} is not numeric; give float vectors, shape (records, dimension)"
    return (
        f"{name} mixes dimensions: row 0 has {lengths[0]} entries and row {odd} has {lengths[odd]}; "
        "give vectors of one encoder throughout"
    )
