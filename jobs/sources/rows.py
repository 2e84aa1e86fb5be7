"""What a corpus is cut into, and what is read of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.config import InputConfig
from sparse_core.mechanisms import DEFAULT_GRID

BATCH_ROWS = 2048
BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a Parquet file or Lance table, bytes [start, stop) of JSON lines, or a whole file.

    Attributes
    ----------
    url : str
    format : str
        'parquet', 'csv', 'jsonl' or 'lance'; for a file with nothing to read the reason why.
    start : int
    stop : int or None
        None: up to the end.
    name : str
        The file within the input, wherever the input lies: what generated ids are made from.
    size : int or None
        Bytes, which saves asking storage again.
    partition : tuple of (str, value)
        Columns that the file does not hold, because its folder or its table tells them.
    version : str
        Of a Lance table, or the file's when it was planned; empty where it is not checked.
    """

    url: str
    format: str
    start: int = 0
    stop: int | None = None
    name: str = ""
    size: int | None = None
    partition: tuple[tuple[str, Any], ...] = ()
    version: str = ""


@dataclass(frozen=True)
class Unit:
    """What one worker reads, protects and writes at a time: a piece of a large file, or several small files.

    `name` is a hash of the files' names, sizes and versions and of the ranges: it names the unit's output.
    """

    pieces: tuple[Piece, ...]
    name: str


@dataclass(frozen=True)
class Rejected:
    """A row that cannot be used: its id if it has one, why, and where it stands. Never its text."""

    id: str | None
    reason: str
    position: str


@dataclass
class Rows:
    """A batch of good rows, and the bad ones beside them.

    Attributes
    ----------
    ids : list of str or list of int
    texts : list of str or None
        None where vectors take their place.
    vectors : float64 array, shape (n_rows, dimension), or None
        As stored.
    columns : pyarrow.RecordBatch
        Annotations and further columns asked for.
    positions : list of str
        Where each row stands.
    subjects : list of str
        Whose each row is.
    rejected : list of Rejected
    """

    ids: list
    texts: list[str] | None
    vectors: np.ndarray | None
    columns: pa.RecordBatch
    positions: list[str]
    subjects: list[str]
    rejected: list[Rejected] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def contents(self) -> list[str] | list[bytes]:
        """What records say: the texts, or the vectors in whole steps of the finest grid."""
        return self.contents_on(DEFAULT_GRID)

    def contents_on(self, grid: float) -> list[str] | list[bytes]:
        """What keyed noise is drawn from: the texts, or the vectors in whole steps of the release's grid."""
        return self.texts if self.vectors is None else vector_contents(self.vectors, grid)

    def take(self, rows: np.ndarray) -> Rows:
        """Some of the good rows, without the bad ones."""
        chosen = [int(row) for row in rows]
        return Rows(
            ids=[self.ids[row] for row in chosen],
            texts=None if self.texts is None else [self.texts[row] for row in chosen],
            vectors=None if self.vectors is None else self.vectors[chosen],
            columns=self.columns.take(pa.array(chosen, pa.int64())),
            positions=[self.positions[row] for row in chosen],
            subjects=[self.subjects[row] for row in chosen],
        )

    @classmethod
    def joined(cls, batches: list[Rows]) -> Rows:
        """Several batches as one."""
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        return cls(
            ids=[record for rows in batches for record in rows.ids],
            texts=None if first.texts is None else [text for rows in batches for text in rows.texts],
            vectors=None if first.vectors is None else np.concatenate([rows.vectors for rows in batches]),
            columns=pa.concat_batches([rows.columns for rows in batches])
            if first.columns.num_columns
            else without_columns(sum(map(len, batches))),
            positions=[position for rows in batches for position in rows.positions],
            subjects=[subject for rows in batches for subject in rows.subjects],
            rejected=[rejected for rows in batches for rejected in rows.rejected],
        )


def vector_contents(vectors: np.ndarray, grid: float) -> list[bytes]:
    """Vectors in whole steps of a grid, as little-endian 64-bit integers."""
    steps = np.rint(vectors / grid).astype("<i8")
    data, width = steps.tobytes(), steps.shape[1] * steps.itemsize
    return [data[start : start + width] for start in range(0, len(data), width)]


@dataclass(frozen=True)
class Source:
    """A planned corpus.

    Attributes
    ----------
    units : tuple of Unit
    schema : pyarrow.Schema
        Of the columns in use.
    kept : tuple of str
        Those of them that come along in `Rows.columns`.
    n_rows : int or None
        Rows, where the format tells without reading.
    fingerprint : str
        Hash of the units and of the columns that records are made from: changes when a file does.
    input : InputConfig
    dimension : int or None
        Of the vectors, where they are stored.
    subject : str or None
        Column that says whose each row is; None where each row is a subject of its own.
    """

    units: tuple[Unit, ...]
    schema: pa.Schema
    kept: tuple[str, ...]
    n_rows: int | None
    fingerprint: str
    input: InputConfig
    dimension: int | None = None
    subject: str | None = None

    def bare(self) -> Source:
        """The same corpus without subjects, annotations and further columns: quicker to read.

        Rows that are set apart because of these columns are good here, so it does not tell what a run will read.
        """
        needed = {self.input.id, self.input.embedding, *self.input.text_columns}
        schema = pa.schema([column for column in self.schema if column.name in needed])
        return replace(self, schema=schema, kept=(), subject=None)


@dataclass
class Raw:
    """Rows as a reader finds them in a file, before good and bad ones are told apart.

    `columns` has an array for each column of the source; row i stands at ``"{piece.url}: {word} {places[i]}"``.
    """

    piece: Piece
    columns: dict[str, pa.Array]
    word: str
    places: list[int] | range
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def positions(self) -> list[str]:
        return [f"{self.piece.url}: {self.word} {place}" for place in self.places]


def without_columns(n_rows: int) -> pa.RecordBatch:
    """A batch of rows that have no columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * n_rows, pa.struct([])))
