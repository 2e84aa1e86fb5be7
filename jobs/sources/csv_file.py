"""CSV files: their header line, and their rows in order."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from jobs.config import InputConfig
from jobs.sources.files import File
from jobs.sources.opening import is_damage, open_decompressed
from jobs.sources.records import Collector, is_utf8
from jobs.sources.rows import Piece, Raw
from jobs.sources.schema import Header, estimated_rows
from sparse_core.errors import SparseError

_SAMPLE_LINES = 100
_LONGEST_FIELD = 64 << 20


def header(file: File) -> Header:
    """Names of the columns; all are text."""
    with _opened(file, "replace") as opened:
        names = next(csv.reader(opened), None)
        sample, ended = [], False
        try:
            while len(sample) < _SAMPLE_LINES and not ended:
                line = opened.readline(_LONGEST_FIELD)
                ended = not line
                if line.strip():
                    sample.append(len(line))
        except Exception as error:
            if not sample or not is_damage(error):
                raise
    if not names or not sample:
        return Header(None, ())
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SparseError(f"input.path: {file.url} has column {repeated[0]!r} twice.")
    estimate = estimated_rows(file, lines=len(sample), size=sum(sample), ended=ended)
    return Header(pa.schema([(name, pa.string()) for name in names]), estimate=estimate)


def read(piece: Piece, schema: pa.Schema, config: InputConfig) -> Iterator[Raw]:
    """Read a file from start to end."""
    collector = Collector(piece, schema, config, "line")
    csv.field_size_limit(_LONGEST_FIELD)
    with _opened(piece, "surrogateescape") as opened:
        # Strict, because a quote that is never closed would make the rest of the file one long text.
        reader = csv.reader(opened, strict=True)
        names = next(reader)
        while True:
            line = reader.line_num + 1
            try:
                values = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                collector.reject("text_too_long" if "field limit" in str(error) else "malformed_csv", line)
                continue
            except Exception as error:
                if not is_damage(error):
                    raise
                collector.reject("unreadable_rest", line)
                break
            if not values:
                continue
            if len(values) != len(names):
                collector.reject("ragged_row", line)
            elif any(not is_utf8(value) for value in values):
                collector.reject("invalid_utf8", line)
            else:
                collector.add(dict(zip(names, values, strict=True)), line, sum(map(len, values)))
            if collector.full:
                yield collector.taken()
    yield collector.taken()


def _opened(file: File | Piece, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_decompressed(file), encoding="utf-8-sig", errors=errors, newline="")
