"""Tables whose rows are no records, such as pairs or judgements: some of their columns, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.config import InputConfig
from jobs.sources.checks import valid_rows
from jobs.sources.plan import plan
from jobs.sources.reading import read_raw
from jobs.sources.rows import Source


@dataclass(frozen=True)
class Columns:
    """Columns as lists of equal length, and why rows could not be read."""

    values: dict[str, list]
    rejected: Counter


def plan_columns(path: str | Sequence[str], names: Sequence[str]) -> Source:
    """Check that a table is there and has the columns.

    Parameters
    ----------
    path : str or sequence of str
        As in ``input.path``.
    names : sequence of str

    Raises
    ------
    SparseError
        As `plan`.
    """
    # Neither ids nor contents, which every corpus must have.
    config = InputConfig.model_construct(path=path if isinstance(path, str) else tuple(path), id=None, text=None)
    return plan(config, columns=tuple(dict.fromkeys(names)))


def read_columns(source: Source) -> Columns:
    """All rows of what `plan_columns` planned that can be read."""
    columns = Columns({name: [] for name in source.schema.names}, Counter())
    for unit in source.units:
        for piece in unit.pieces:
            for raw in read_raw(source, piece):
                rejected = list(raw.rejected)
                found, _ = valid_rows(source, raw, rejected)
                columns.rejected.update(row.reason for row in rejected)
                for name, values in columns.values.items():
                    values += found[name].to_pylist()
    return columns
