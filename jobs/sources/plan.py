"""Planning: which files there are, whether they fit together, and what one worker takes at a time.

Units are planned from sizes, footers and first lines alone, never from the number of workers, so that a re-run plans
the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from jobs import storage
from jobs.config import InputConfig
from jobs.sources import csv_file, jsonl, parquet
from jobs.sources.files import THREADS, File, list_input
from jobs.sources.opening import COMPRESSED, is_damage
from jobs.sources.reading import read_raw
from jobs.sources.rows import Piece, Source, Unit
from jobs.sources.schema import Header, common_schema, wanted_columns
from jobs.sources.vectors import fixed_dimension, most_common_length
from sparse_core.errors import SparseError

_SMALLEST_UNIT, _USUAL_UNIT, _LARGEST_UNIT = 256, 8192, 65536
_UNITS_WANTED, _MOST_UNITS = 16, 4096
# A reader decodes a row group from its start to where it is cut: next to nothing beside encoding texts, much beside
# protecting vectors.
_MOST_CUTS_FOR_TEXTS, _MOST_CUTS_FOR_VECTORS = 32, 4
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 256 << 20
_BATCHES_FOR_DIMENSION = 64


def plan(config: InputConfig, *, columns: tuple[str, ...] = (), subject: str | None = None) -> Source:
    """Plan the units of a corpus and check its columns, before anything expensive is done.

    Parameters
    ----------
    config : InputConfig
    columns : tuple of str
        Further columns to read.
    subject : str, optional
        Column that says whose each row is.

    Raises
    ------
    SparseError
        If there is no file, no row, an unknown format, storage that does not serve, or a column that is absent,
        unfit for its role, or of different types in two files.
    """
    files = list_input(config)
    headers, unusable = _headers(files, config)
    filled = {file: header for file, header in headers.items() if header.groups is None or sum(header.groups)}
    if not filled:
        raise SparseError(f"input.path: {config.shown_path} holds no rows in {len(files)} file(s).")
    if all(header.schema is None for header in filled.values()):
        raise SparseError(f"input.path: {next(iter(filled)).url} has no JSON object in its first lines.")
    wanted, kept = wanted_columns(config, columns, subject)
    schema = common_schema(filled, wanted, config, subject)
    counts = [None if header.groups is None else sum(header.groups) for header in filled.values()]
    n_rows = None if None in counts else sum(counts)
    estimated = sum(header.estimate for header in filled.values())
    usual = _USUAL_UNIT if config.embedding is None else _LARGEST_UNIT
    rows_per_unit = min(max(estimated // _UNITS_WANTED, _SMALLEST_UNIT), usual)
    rows_per_unit = min(max(estimated // _MOST_UNITS, rows_per_unit), _LARGEST_UNIT)
    pieces = [
        piece
        for file in files
        for piece in (
            [(Piece(file.url, unusable[file], name=file.name, size=file.size, version=file.version), 1)]
            if file in unusable
            else _pieces(file, filled[file], rows_per_unit, config)
            if file in filled
            else []
        )
    ]
    units = tuple(_packed(pieces, rows_per_unit))
    made_from = repr((config.id, config.text_columns, config.template, config.embedding))
    fingerprint = hashlib.sha256("".join([*(unit.name for unit in units), made_from]).encode()).hexdigest()
    source = Source(units, schema, kept, n_rows, fingerprint, config, subject=subject)
    return source if config.embedding is None else replace(source, dimension=_dimension(source))


def _headers(files: list[File], config: InputConfig) -> tuple[dict[File, Header], dict[File, str]]:
    """The header of each file; of those that have none, why."""
    with ThreadPoolExecutor(min(THREADS, len(files))) as pool:
        results = list(pool.map(lambda file: _header(file, config), files))
    headers = {file: found for file, found in zip(files, results, strict=True) if isinstance(found, Header)}
    damaged = {file: found for file, found in zip(files, results, strict=True) if isinstance(found, Exception)}
    if damaged and not headers:
        file, error = next(iter(damaged.items()))
        others = f", nor can any of {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise SparseError(f"input.path: {file.url} cannot be read ({error}){others}.")
    empty = [file for file in headers if file.size == 0]
    return headers, dict.fromkeys(damaged, "unreadable_file") | dict.fromkeys(empty, "empty_file")


def _header(file: File, config: InputConfig) -> Header | Exception:
    if file.size == 0:
        return Header(None, ())
    try:
        with storage.explained(file.url, field="input.path"):
            if file.format == "parquet":
                return parquet.header(file)
            if file.format == "csv":
                return csv_file.header(file)
            if file.format == "jsonl":
                return jsonl.header(file, config)
            from jobs.sources import lance_table

            return lance_table.header(file)
    except Exception as error:
        if not is_damage(error):
            raise
        return error


def _pieces(file: File, header: Header, rows_per_unit: int, config: InputConfig) -> Iterator[tuple[Piece, int]]:
    """The pieces of a file, each with its rows."""
    whole = Piece(file.url, file.format, 0, None, file.name, file.size, file.partition, file.version)
    if header.groups is not None:
        most = _MOST_CUTS_FOR_TEXTS if config.embedding is None else _MOST_CUTS_FOR_VECTORS
        for start, stop in _row_ranges(header.groups, rows_per_unit, most):
            yield replace(whole, start=start, stop=stop), stop - start
    elif file.format == "jsonl" and not file.url.lower().endswith(COMPRESSED):
        row_bytes = file.size / header.estimate
        step = min(max(int(rows_per_unit * row_bytes), _LEAST_BYTES), _MOST_BYTES)
        for start in range(0, file.size, step):
            stop = min(start + step, file.size)
            yield replace(whole, start=start, stop=stop), int((stop - start) / row_bytes)
    else:
        yield whole, header.estimate


def _row_ranges(groups: Iterable[int], rows: int, most_cuts: int) -> Iterator[tuple[int, int]]:
    """Ranges of about so many rows: small row groups together, large ones cut evenly."""
    first = start = 0
    for size in groups:
        last = first + size
        if last - start > rows and start < first:
            yield start, first
            start = first
        if size > rows:
            cuts = min(-(-size // rows), most_cuts)
            for cut in range(cuts):
                yield first + size * cut // cuts, first + size * (cut + 1) // cuts
            start = last
        first = last
    if start < first:
        yield start, first


def _packed(pieces: Iterable[tuple[Piece, int]], rows_per_unit: int) -> Iterator[Unit]:
    """Neighbouring pieces together while they are small."""
    together: list[Piece] = []
    size = 0
    for piece, rows in pieces:
        if together and size + rows > rows_per_unit:
            yield _unit(together)
            together, size = [], 0
        together.append(piece)
        # A file that holds next to nothing still costs an opening.
        size += max(rows, 1)
    if together:
        yield _unit(together)


def _unit(pieces: list[Piece]) -> Unit:
    identity = "".join(
        f"{storage.filesystem(piece.url)[1]}|{piece.size}|{piece.version}|{piece.start}|{piece.stop}\n"
        for piece in pieces
    )
    name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return Unit(tuple(pieces), name)


def _dimension(source: Source) -> int:
    """Of the type of the column, or of most of the first rows."""
    column, bare = source.input.embedding, source.bare()
    if (told := fixed_dimension(source.schema.field(column).type)) is not None:
        return told
    batches = (raw for unit in source.units for piece in unit.pieces for raw in read_raw(bare, piece))
    for raw in islice(batches, _BATCHES_FOR_DIMENSION):
        if column in raw.columns and (found := most_common_length(raw.columns[column])):
            return found
    raise SparseError(
        f"input.embedding: column {column!r} of {source.input.shown_path} holds no vectors in its first rows."
    )
