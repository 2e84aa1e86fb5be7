"""Reading what was planned."""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from jobs import storage
from jobs.sources import csv_file, jsonl, parquet
from jobs.sources.checks import sorted_out
from jobs.sources.opening import SMALL, changed
from jobs.sources.rows import BATCH_ROWS, Piece, Raw, Rejected, Rows, Source, Unit
from sparse_core.errors import SparseError
from sparse_core.noise import Key

_FILES_AHEAD = 16


def read(source: Source, unit: Unit, *, key: Key | None = None) -> Iterator[Rows]:
    """Read a unit in batches of at most `BATCH_ROWS` rows, bad rows set apart.

    Parameters
    ----------
    source : Source
    unit : Unit
        One of its units.
    key : Key, optional
        Where ids are generated, makes them keyed hashes of place and content; without it they are the places.
    """
    if len(unit.pieces) > 1 and all("://" in piece.url and (piece.size or SMALL) < SMALL for piece in unit.pieces):
        found = _read_ahead(source, unit.pieces)
    else:
        found = (raw for piece in unit.pieces for raw in read_raw(source, piece))
    return _gathered(sorted_out(source, raw, key) for raw in found)


def _read_ahead(source: Source, pieces: Iterable[Piece]) -> Iterator[Raw]:
    """As `read_raw` of each, while the next small files are on their way: each takes a request or two."""
    with ThreadPoolExecutor(_FILES_AHEAD) as pool:
        waiting: deque[Future[list[Raw]]] = deque()
        for piece in pieces:
            waiting.append(pool.submit(lambda piece: list(read_raw(source, piece)), piece))
            if len(waiting) == _FILES_AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def read_raw(source: Source, piece: Piece) -> Iterator[Raw]:
    """Rows of a piece as they stand in the file."""
    with storage.explained(piece.url), _still_the_same(piece):
        if piece.format == "parquet":
            yield from parquet.read(piece, source.schema)
        elif piece.format == "csv":
            yield from csv_file.read(piece, source.schema, source.input)
        elif piece.format == "jsonl":
            yield from jsonl.read(piece, source.schema, source.input)
        elif piece.format == "lance":
            from jobs.sources import lance_table

            yield from lance_table.read(piece, source.schema)
        else:
            yield Raw(piece, {}, "row", range(0), [Rejected(None, piece.format, piece.url)])


@contextmanager
def _still_the_same(piece: Piece) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise changed(piece.url) from None
        raise


def _gathered(batches: Iterable[Rows]) -> Iterator[Rows]:
    """Small batches, of small files, put together."""
    waiting: list[Rows] = []
    size = 0
    for rows in batches:
        more = len(rows) + len(rows.rejected)
        if waiting and size + more > BATCH_ROWS:
            yield Rows.joined(waiting)
            waiting, size = [], 0
        if more:
            waiting.append(rows)
            size += more
    if waiting:
        yield Rows.joined(waiting)


@dataclass
class Corpus:
    """All good rows of a source in memory, for jobs that learn from a corpus or attack it."""

    ids: list
    texts: list[str]
    columns: dict[str, list]
    quarantined: Counter


def read_all(source: Source) -> Corpus:
    """Read a whole source; rows whose id was seen before are set apart too.

    Raises
    ------
    SparseError
        If no row can be used, or the source has vectors and no texts.
    """
    if source.input.embedding is not None:
        raise SparseError("input.embedding: this job needs texts; name their column in input.text, or a template.")
    corpus, seen = Corpus([], [], {name: [] for name in source.kept}, Counter()), set()
    for unit in source.units:
        for rows in read(source, unit):
            corpus.quarantined.update(rejected.reason for rejected in rows.rejected)
            fresh = []
            for row, record in enumerate(rows.ids):
                if record in seen:
                    corpus.quarantined["duplicate_id"] += 1
                else:
                    seen.add(record)
                    fresh.append(row)
            chosen = rows.take(fresh)
            corpus.ids += chosen.ids
            corpus.texts += chosen.texts
            for name, values in corpus.columns.items():
                values += chosen.columns[name].to_pylist()
    if not corpus.texts:
        raise SparseError(
            f"input.path: none of the rows of {source.input.shown_path} can be used: "
            + ", ".join(f"{count} {reason}" for reason, count in corpus.quarantined.items())
        )
    return corpus
