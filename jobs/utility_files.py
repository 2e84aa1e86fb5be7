"""What the files of utility tasks have in common: messages about them, ids of records, numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from jobs.config import RetrievalUtility, StsUtility
from sparse_core.errors import SparseError

_CORPUS_NAMES = ("input.path: ", "input.id: ", "input.text: ", "input.embedding: ", "passthrough or label: ")


@contextmanager
def named(task: RetrievalUtility | StsUtility) -> Iterator[None]:
    """Errors of reading a task's file name the task, instead of the settings that a corpus would have."""
    try:
        yield
    except SparseError as error:
        told = str(error)
        for name in _CORPUS_NAMES:
            told = told.replace(name, "")
        raise SparseError(f"utility {task.title!r}: {told}") from None


def refuse_strangers(n_rows: int, missing: int, *, what: str, whom: str) -> None:
    """Refuse a file of which most rows are about something else than what is audited.

    Parameters
    ----------
    n_rows, missing : int
        Rows there are, and those of them that name what is not there.
    what, whom : str
        What the rows are, and what they should name.

    Raises
    ------
    SparseError
        If there is no row, or more than half of them are missing.
    """
    if not n_rows:
        raise SparseError(f"the file holds no {what}.")
    if 2 * missing > n_rows:
        raise SparseError(
            f"{missing:,} of {n_rows:,} {what} name {whom} that is not there, or cannot be read. Are they of another "
            "corpus? Ids are compared as text: 7 and '7' are the same, 7 and '007' are not."
        )


def numbers(values: Sequence, column: str) -> np.ndarray:
    """A column as finite numbers, float64 array, shape (n_rows,).

    Raises
    ------
    SparseError
        If some are not, with how many.
    """
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        try:
            found[row] = value
        except (TypeError, ValueError):
            continue
    unfit = int((~np.isfinite(found)).sum())
    if unfit:
        raise SparseError(f"column {column!r}: {unfit:,} of {len(values):,} values are not finite numbers.")
    return found
