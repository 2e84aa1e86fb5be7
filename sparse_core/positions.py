"""List-like arguments, whatever they come in, taken by position.

``series[0]`` of a pandas Series is the row *labelled* 0, which after a filter or a shuffle is another one than the
first. Noise of one record on another's vector gives both away, so every public function reads its list-like
arguments through `by_position`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from sparse_core.errors import SparseError


def by_position(values: Iterable, name: str, *, length: int | None = None) -> list:
    """The values as a list, in the order in which they stand.

    Parameters
    ----------
    values : list-like
        A sequence, NumPy array, pandas Series or Index, Arrow array or column, or iterator.
    name : str
        What the caller calls them.
    length : int, optional
        How many there must be.

    Raises
    ------
    SparseError
        For a single text, for what has no order (dict, set), for a table, and for another length.

    Examples
    --------
    >>> by_position(("a", "b"), "texts")
    ['a', 'b']
    """
    if isinstance(values, str | bytes | bytearray):
        raise SparseError(f"{name} is a single {type(values).__name__}; give a list of them.")
    if isinstance(values, Mapping | Set):
        raise SparseError(f"{name} is a {type(values).__name__}, which goes by keys and not by position; give a list.")
    if getattr(values, "ndim", 1) != 1:
        raise SparseError(f"{name} has {values.ndim} dimensions; give one row of values, such as a single column.")
    if hasattr(values, "to_pylist"):
        values = values.to_pylist()
    try:
        listed = list(values)
    except TypeError:
        raise SparseError(f"{name} is a {type(values).__name__}; give a list.") from None
    if length is not None and len(listed) != length:
        raise SparseError(f"{name} has {len(listed)} entries for {length} records; give one for each, in their order.")
    return listed
