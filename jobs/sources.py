"""Reading a corpus: planning units of work, reading one, and telling good rows from bad.

A unit is a piece of one file that one worker reads, protects and writes. Units are planned from file sizes and
Parquet footers alone, never from the number of workers, so that a re-run plans the same ones.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import storage
from jobs.config import InputConfig
from sparse_core.errors import SparseError

BATCH_ROWS = 2048
_SMALLEST_UNIT, _LARGEST_UNIT, _UNITS_WANTED = 256, 8192, 16
_BYTES_PER_UNIT = 4 << 20
_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_SAMPLE_LINES = 1000
_LARGEST_CSV_FIELD = 16 << 20


@dataclass(frozen=True)
class Unit:
    """Rows [start, stop) of a Parquet file, bytes [start, stop) of a JSON-lines file, or a whole file.

    `name` is a hash of the file's name, size and version and of the range: it names the unit's output.
    """

    url: str
    format: str
    start: int
    stop: int | None
    name: str


@dataclass
class Rows:
    """A batch of good rows, and the bad ones beside them."""

    ids: list
    texts: list[str]
    columns: dict[str, list]
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(frozen=True)
class Rejected:
    """A row that cannot be used: its id if it has one, why, and where it stands. Never its text."""

    id: str | None
    reason: str
    position: str


@dataclass(frozen=True)
class Source:
    """A planned corpus.

    Attributes
    ----------
    units : tuple of Unit
    schema : pyarrow.Schema
        Of the columns in use.
    n_rows : int or None
        Rows, where the format tells without reading.
    fingerprint : str
        Hash of the units: changes when a file does.
    """

    units: tuple[Unit, ...]
    schema: pa.Schema
    n_rows: int | None
    fingerprint: str
    input: InputConfig


def plan(config: InputConfig, *, columns: tuple[str, ...] = ()) -> Source:
    """Plan the units of a corpus and check its columns, before anything expensive is done.

    Parameters
    ----------
    config : InputConfig
    columns : tuple of str
        Further columns to read.

    Raises
    ------
    SparseError
        If there is no file, no row, an unknown format, or a column is absent or of an unfit type.
    """
    files = storage.list_files(config.path)
    formats = {url: _format(url) for url in files}
    readers = {"parquet": _parquet_header, "csv": _csv_header, "jsonl": _jsonl_header}
    headers = {url: _header(readers[kind], url) for url, kind in formats.items()}
    headers = {url: header for url, header in headers.items() if header[1] != 0}
    if not headers:
        raise SparseError(f"input.path: {config.path} holds no rows in {len(files)} file(s).")
    if all(schema is None for schema, _ in headers.values()):
        raise SparseError(f"input.path: {next(iter(headers))} has no JSON object in its first {_SAMPLE_LINES} lines.")
    wanted = [c for c in dict.fromkeys((config.id, config.text, config.annotations, *columns)) if c is not None]
    schemas = {url: _chosen(schema, wanted, url, config) for url, (schema, _) in headers.items() if schema is not None}
    (first_url, schema), *others = schemas.items()
    for url, other in others:
        for column in wanted:
            if not _same_kind(schema.field(column).type, other.field(column).type):
                raise SparseError(
                    f"Column {column!r} is {schema.field(column).type} in {first_url} and "
                    f"{other.field(column).type} in {url}; files read together need one type."
                )
    counts = [header[1] for header in headers.values()]
    n_rows = None if None in counts else sum(counts)
    rows_per_unit = min(max((n_rows or 0) // _UNITS_WANTED, _SMALLEST_UNIT), _LARGEST_UNIT)
    units = tuple(
        unit for url, header in headers.items() for unit in _units(url, formats[url], header[1], rows_per_unit)
    )
    fingerprint = hashlib.sha256("".join(u.name for u in units).encode()).hexdigest()
    return Source(units, schema, n_rows, fingerprint, config)


def read(source: Source, unit: Unit) -> Iterator[Rows]:
    """Read a unit in batches of at most `BATCH_ROWS` rows, bad rows set apart.

    Parameters
    ----------
    source : Source
    unit : Unit
        One of its units.
    """
    readers = {"parquet": _read_parquet, "csv": _read_csv, "jsonl": _read_jsonl}
    yield from (_sorted_out(source, *batch) for batch in readers[unit.format](source, unit))


@dataclass
class Corpus:
    """All good rows of a source in memory, for jobs that learn from a corpus or attack it."""

    ids: list
    texts: list[str]
    columns: dict[str, list]
    quarantined: Counter


def read_all(source: Source) -> Corpus:
    """Read a whole source; rows whose id was seen before are set apart too."""
    corpus, seen = Corpus([], [], {name: [] for name in source.schema.names}, Counter()), set()
    for unit in source.units:
        for rows in read(source, unit):
            corpus.quarantined.update(rejected.reason for rejected in rows.rejected)
            for position, record in enumerate(rows.ids):
                if record in seen:
                    corpus.quarantined["duplicate_id"] += 1
                    continue
                seen.add(record)
                corpus.ids.append(record)
                corpus.texts.append(rows.texts[position])
                for name, values in rows.columns.items():
                    corpus.columns[name].append(values[position])
    if not corpus.texts:
        raise SparseError(
            f"input.path: none of the rows of {source.input.path} can be used: "
            + ", ".join(f"{count} {reason}" for reason, count in corpus.quarantined.items())
        )
    return corpus


def _sorted_out(source: Source, columns: dict[str, list], positions: list[str], rejected: list[Rejected]) -> Rows:
    config = source.input
    texts = columns[config.text]
    ids = columns[config.id] if config.id is not None else [None] * len(texts)
    unfit = _rows_of_another_type(source.schema, columns)
    good = []
    for row, (record, text) in enumerate(zip(ids, texts, strict=True)):
        reason = _unfit_text(text) or (_unfit_id(record) if config.id is not None else None) or unfit.get(row)
        if reason is None:
            good.append(row)
        else:
            named = isinstance(record, int | str) and _unfit_id(record) is None
            rejected.append(Rejected(str(record) if named else None, reason, positions[row]))
    if config.id is None:
        ids = [hashlib.sha256(position.encode()).hexdigest()[:32] for position in positions]
    return Rows(
        ids=[ids[row] for row in good],
        texts=[texts[row] for row in good],
        columns={name: [values[row] for row in good] for name, values in columns.items()},
        rejected=rejected,
    )


def _unfit_text(text: Any) -> str | None:
    if text is None:
        return "null_text"
    if not isinstance(text, str):
        return "text_not_a_string"
    if not text:
        return "empty_text"
    if not text.strip():
        return "blank_text"
    return None if _is_utf8(text) else "invalid_utf8"


def _unfit_id(record: Any) -> str | None:
    if record is None or (isinstance(record, str) and not record.strip()):
        return "null_id"
    if isinstance(record, bool) or not isinstance(record, int | str):
        return "unfit_value"
    return None if isinstance(record, int) or _is_utf8(record) else "invalid_utf8"


def _rows_of_another_type(schema: pa.Schema, columns: dict[str, list]) -> dict[int, str]:
    """Rows with a value that its column cannot hold: JSON lines promise no types."""
    unfit = {}
    for name, values in columns.items():
        kind = schema.field(name).type
        if not _fits(values, kind):
            unfit |= {row: "unfit_value" for row, value in enumerate(values) if not _fits([value], kind)}
    return unfit


def _fits(values: list, kind: pa.DataType) -> bool:
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return False
    return True


def _format(url: str) -> str:
    name = url.lower().removesuffix(".gz")
    for ending, kind in _FORMATS.items():
        if name.endswith(ending):
            return kind
    raise SparseError(f"input.path: {url} has none of the endings {', '.join(_FORMATS)} (with .gz for text formats).")


def _units(url: str, kind: str, n_rows: int | None, rows_per_unit: int) -> Iterator[Unit]:
    fs, path = storage.filesystem(url)
    info = fs.info(path)
    version = info.get("ETag") or info.get("mtime") or ""
    if kind == "parquet":
        ranges = [(start, min(start + rows_per_unit, n_rows)) for start in range(0, n_rows, rows_per_unit)]
    elif kind == "jsonl" and not url.endswith(".gz"):
        ranges = [
            (start, min(start + _BYTES_PER_UNIT, info["size"])) for start in range(0, info["size"], _BYTES_PER_UNIT)
        ]
    else:
        ranges = [(0, None)]
    for start, stop in ranges:
        identity = f"{path}|{info['size']}|{version}|{start}|{stop}"
        yield Unit(url, kind, start, stop, hashlib.sha256(identity.encode()).hexdigest()[:24])


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    strings = (pa.string(), pa.large_string())
    return one == other or (one in strings and other in strings)


def _chosen(schema: pa.Schema, wanted: list[str], url: str, config: InputConfig) -> pa.Schema:
    for column in wanted:
        if column not in schema.names:
            role = {config.text: "input.text", config.id: "input.id", config.annotations: "input.annotations"}
            raise SparseError(
                f"{role.get(column, 'passthrough or label')}: {url} has no column {column!r}; it has "
                f"{', '.join(map(repr, schema.names))}."
            )
    kind = schema.field(config.text).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise SparseError(f"input.text: column {config.text!r} of {url} is {kind}, not text.")
    if config.id is not None:
        kind = schema.field(config.id).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise SparseError(f"input.id: column {config.id!r} of {url} is {kind}; ids are strings or integers.")
    return pa.schema([schema.field(column) for column in wanted])


def _open(url: str):
    fs, path = storage.filesystem(url)
    return fs.open(path, "rb")


def _open_text_bytes(url: str):
    raw = _open(url)
    return gzip.open(raw, "rb") if url.endswith(".gz") else raw


def _header(reader, url: str) -> tuple[pa.Schema | None, int | None]:
    try:
        return reader(url)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise SparseError(f"input.path: {url} cannot be read ({error}).") from None


def _parquet_header(url: str) -> tuple[pa.Schema, int]:
    try:
        with _open(url) as file:
            footer = pq.ParquetFile(file)
            return footer.schema_arrow, footer.metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise SparseError(f"input.path: {url} is not a readable Parquet file ({error}).") from None


def _read_parquet(source: Source, unit: Unit):
    with _open(unit.url) as file:
        parquet = pq.ParquetFile(file)
        groups, first = [], None
        position = 0
        for group in range(parquet.num_row_groups):
            size = parquet.metadata.row_group(group).num_rows
            if position < unit.stop and position + size > unit.start:
                first = position if first is None else first
                groups.append(group)
            position += size
        at = first
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups, columns=source.schema.names):
            low, high = max(unit.start - at, 0), min(unit.stop - at, len(batch))
            if low < high:
                part = batch.slice(low, high - low)
                positions = [f"{unit.url}: row {at + low + i}" for i in range(len(part))]
                yield _decoded(part, positions)
            at += len(batch)


def _decoded(part: pa.RecordBatch, positions: list[str]) -> tuple[dict[str, list], list[str], list[Rejected]]:
    try:
        return part.to_pydict(), positions, []
    except UnicodeDecodeError:
        good, rejected = [], []
        for row, position in enumerate(positions):
            try:
                part.slice(row, 1).to_pydict()
                good.append(row)
            except UnicodeDecodeError:
                rejected.append(Rejected(None, "invalid_utf8", position))
        return part.take(pa.array(good, pa.int64())).to_pydict(), [positions[row] for row in good], rejected


def _csv_header(url: str) -> tuple[pa.Schema, int | None]:
    with io.TextIOWrapper(_open_text_bytes(url), encoding="utf-8-sig", errors="replace", newline="") as file:
        names = next(csv.reader(file), None)
        if not names or not any(line.strip() for line in file):
            return pa.schema([]), 0
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SparseError(f"input.path: {url} has column {repeated[0]!r} twice.")
    return pa.schema([(name, pa.string()) for name in names]), None


def _read_csv(source: Source, unit: Unit):
    with io.TextIOWrapper(
        _open_text_bytes(unit.url), encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as file:
        csv.field_size_limit(_LARGEST_CSV_FIELD)
        # Strict, because a quote that is never closed would make the rest of the file one long text.
        reader = csv.reader(file, strict=True)
        names = next(reader)
        batch = _Batch(source.schema)
        while True:
            where = f"{unit.url}: line {reader.line_num + 1}"
            try:
                values = next(reader)
            except StopIteration:
                break
            except csv.Error:
                batch.reject(None, "malformed_csv", where)
                continue
            if not values:
                continue
            if len(values) != len(names):
                batch.reject(None, "ragged_row", where)
            elif any(not _is_utf8(value) for value in values):
                batch.reject(None, "invalid_utf8", where)
            else:
                batch.add(dict(zip(names, values, strict=True)), where)
            if batch.full:
                yield batch.taken()
        yield batch.taken()


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _jsonl_header(url: str) -> tuple[pa.Schema | None, int | None]:
    with _open_text_bytes(url) as file:
        lines = list(islice((line for line in file if line.strip()), _SAMPLE_LINES))
    records = [record for record, _ in map(_parsed, lines) if record is not None]
    if not records:
        return None, None if lines else 0
    names = list(dict.fromkeys(name for record in records for name in record))
    fields = []
    for name in names:
        values = [record.get(name) for record in records]
        try:
            kind = pa.array(values).type
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            kind = pa.string()
        fields.append((name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(fields), None


def _read_jsonl(source: Source, unit: Unit):
    batch = _Batch(source.schema)
    with _open_text_bytes(unit.url) as file:
        at = unit.start
        if at > 0:
            file.seek(at - 1)
            at += len(file.readline()) - 1
        while unit.stop is None or at < unit.stop:
            line = file.readline()
            if not line:
                break
            where = f"{unit.url}: byte {at}"
            at += len(line)
            if not line.strip():
                continue
            record, reason = _parsed(line)
            if reason is not None:
                batch.reject(None, reason, where)
            else:
                batch.add(record, where)
            if batch.full:
                yield batch.taken()
    yield batch.taken()


def _parsed(line: bytes) -> tuple[dict | None, str | None]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None, "invalid_utf8"
    except (ValueError, RecursionError):
        return None, "malformed_json"
    return (record, None) if isinstance(record, dict) else (None, "malformed_json")


class _Batch:
    """Rows of a text format, collected until there are enough."""

    def __init__(self, schema: pa.Schema):
        self._schema = schema
        self._start()

    def _start(self) -> None:
        self._columns: dict[str, list] = {name: [] for name in self._schema.names}
        self._positions: list[str] = []
        self._rejected: list[Rejected] = []

    @property
    def full(self) -> bool:
        return len(self._positions) + len(self._rejected) >= BATCH_ROWS

    def add(self, record: dict, position: str) -> None:
        for name, values in self._columns.items():
            values.append(record.get(name))
        self._positions.append(position)

    def reject(self, record_id: str | None, reason: str, position: str) -> None:
        self._rejected.append(Rejected(record_id, reason, position))

    def taken(self) -> tuple[dict[str, list], list[str], list[Rejected]]:
        batch = self._columns, self._positions, self._rejected
        self._start()
        return batch
