"""Parquet files: their footers, and ranges of their rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.sources.files import File
from jobs.sources.opening import SMALL, is_damage, open_file
from jobs.sources.rows import BATCH_BYTES, BATCH_ROWS, Piece, Raw, Rejected
from jobs.sources.schema import Header

_READ_AHEAD = 4 << 20


def header(file: File) -> Header:
    """Schema and rows of each row group."""
    with open_file(file, in_order=False) as opened:
        parquet = pq.ParquetFile(opened)
        metadata = parquet.metadata
        groups = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        return Header(parquet.schema_arrow, groups, sum(groups))


def read(piece: Piece, schema: pa.Schema) -> Iterator[Raw]:
    """Read a range of rows; those of a damaged part of the file are set apart, and the next row group is tried."""
    with open_file(piece, in_order=(piece.size or SMALL) < SMALL) as opened:
        parquet = _opened(opened)
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        first = 0
        for group in range(parquet.num_row_groups):
            last = first + parquet.metadata.row_group(group).num_rows
            start, stop = max(piece.start, first), min(piece.stop, last)
            if start < stop:
                for rows, columns in _read_group(opened, parquet, group, names, range(start - first, stop - first)):
                    places = range(first + rows.start, first + rows.stop)
                    yield Raw(piece, columns, "row", places) if columns is not None else _lost(piece, places)
            first = last


def _opened(file: BinaryIO, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    # Streams pages instead of holding a whole row group, and believes checksums where there are some.
    return pq.ParquetFile(
        file, metadata=metadata, pre_buffer=False, buffer_size=_READ_AHEAD, page_checksum_verification=True
    )


def _read_group(
    file: BinaryIO, parquet: pq.ParquetFile, group: int, names: list[str], wanted: range
) -> Iterator[tuple[range, dict[str, pa.Array] | None]]:
    """Columns of some rows of a row group; None for rows that cannot be read."""
    metadata = parquet.metadata.row_group(group)
    batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1)))
    done = wanted.start
    for reader in (parquet, None):
        at = 0
        try:
            reader = reader or _of_plain_lists(file, parquet)
            for batch in reader.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=False):
                low, high = max(done - at, 0), min(wanted.stop - at, len(batch))
                if low < high:
                    part = batch.slice(low, high - low)
                    done = at + high
                    yield range(at + low, done), dict(zip(part.schema.names, part.columns, strict=True))
                at += len(batch)
                if at >= wanted.stop:
                    return
        except Exception as error:
            if not is_damage(error):
                raise
            if not any(_is_fixed_list(parquet.schema_arrow.field(name).type) for name in names):
                break
    for low in range(done, wanted.stop, BATCH_ROWS):
        yield range(low, min(low + BATCH_ROWS, wanted.stop)), None


def _is_fixed_list(kind: pa.DataType) -> bool:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return pa.types.is_fixed_size_list(kind)


def _of_plain_lists(file: BinaryIO, parquet: pq.ParquetFile) -> pq.ParquetFile:
    """The file read by Parquet's own types: Arrow's reader knows no null among lists of fixed size."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, parquet.schema_arrow, store_schema=False):
        pass
    metadata = pq.read_metadata(sink)
    try:
        metadata.append_row_groups(parquet.metadata)
    except RuntimeError as error:
        # Another writer names the parts of a list otherwise.
        raise pa.ArrowInvalid(str(error)) from None
    return _opened(file, metadata)


def _lost(piece: Piece, places: range) -> Raw:
    rejected = [Rejected(None, "unreadable_rows", f"{piece.url}: row {row}") for row in places]
    return Raw(piece, {}, "row", range(0), rejected)
