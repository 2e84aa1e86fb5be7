"""JSON lines: a sample of their types, and ranges of their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from jobs.config import InputConfig
from jobs.sources.files import File
from jobs.sources.opening import is_damage, open_decompressed
from jobs.sources.records import Collector
from jobs.sources.rows import Piece, Raw
from jobs.sources.schema import Header, estimated_rows

_SAMPLE_LINES, _SAMPLE_BYTES = 1000, 1 << 20
LONGEST_LINE = 64 << 20


def header(file: File, config: InputConfig) -> Header:
    """Types of the columns, from the first lines."""
    lines, size, ended = [], 0, False
    with open_decompressed(file) as opened:
        try:
            while len(lines) < _SAMPLE_LINES and size < _SAMPLE_BYTES and not ended:
                line = opened.readline(LONGEST_LINE)
                size, ended = size + len(line), not line
                if line.strip():
                    lines.append(line)
        except Exception as error:
            # The lines before a damaged place are good.
            if not lines or not is_damage(error):
                raise
    records = [record for record, _ in map(_parsed, lines) if record is not None]
    estimate = estimated_rows(file, lines=len(lines), size=size, ended=ended)
    if not records:
        return Header(None, None if lines else (), estimate, inferred=True)
    names = dict.fromkeys(name for record in records for name in record)
    fields = [(name, _type_of([record.get(name) for record in records], name == config.embedding)) for name in names]
    return Header(pa.schema(fields), estimate=estimate, inferred=True)


def _type_of(values: list, embedding: bool) -> pa.DataType:
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.list_(pa.float64()) if embedding else pa.string()
    return pa.list_(pa.float64()) if embedding and pa.types.is_list(kind) else kind


def read(piece: Piece, schema: pa.Schema, config: InputConfig) -> Iterator[Raw]:
    """Read the lines that start in a range of bytes."""
    collector = Collector(piece, schema, config, "byte")
    with open_decompressed(piece) as opened:
        at = piece.start
        try:
            if at > 0:
                opened.seek(at - 1)
                at += _skip_line(opened) - 1
            while piece.stop is None or at < piece.stop:
                line = opened.readline(LONGEST_LINE)
                if not line:
                    break
                start, size = at, len(line)
                at += size
                if size == LONGEST_LINE and not line.endswith(b"\n"):
                    at += _skip_line(opened)
                    collector.reject("text_too_long", start)
                elif line.strip():
                    record, reason = _parsed(line)
                    if reason is not None:
                        collector.reject(reason, start)
                    else:
                        collector.add(record, start, size)
                if collector.full:
                    yield collector.taken()
        except Exception as error:
            if not is_damage(error):
                raise
            collector.reject("unreadable_rest", at)
    yield collector.taken()


def _skip_line(opened: BinaryIO) -> int:
    """Move to the next line; the bytes passed over."""
    passed = 0
    while line := opened.readline(LONGEST_LINE):
        passed += len(line)
        if line.endswith(b"\n"):
            break
    return passed


def _parsed(line: bytes) -> tuple[dict | None, str | None]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None, "invalid_utf8"
    except (ValueError, RecursionError):
        return None, "malformed_json"
    return (record, None) if isinstance(record, dict) else (None, "malformed_json")
