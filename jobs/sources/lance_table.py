"""Lance tables: rows of one version, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from jobs import storage
from jobs.sources.files import File
from jobs.sources.rows import BATCH_ROWS, Piece, Raw
from jobs.sources.schema import Header
from sparse_core.errors import SparseError


def current_version(url: str) -> str:
    """The version that a run reads, so that later commits do not change it."""
    return str(_opened(url).version)


def header(file: File) -> Header:
    """Schema and rows of each fragment, deleted rows not counted."""
    table = _opened(file.url, file.version)
    with _told(file.url):
        groups = tuple(fragment.count_rows() for fragment in table.get_fragments())
    return Header(table.schema, groups, sum(groups))


def read(piece: Piece, schema: pa.Schema) -> Iterator[Raw]:
    """Read a range of rows."""
    table = _opened(piece.url, piece.version)
    with _told(piece.url):
        scanner = table.scanner(
            columns=[name for name in schema.names if name in table.schema.names],
            offset=piece.start,
            limit=piece.stop - piece.start,
            batch_size=BATCH_ROWS,
            scan_in_order=True,
        )
        at = piece.start
        for batch in scanner.to_reader():
            for start in range(0, len(batch), BATCH_ROWS):
                part = batch.slice(start, BATCH_ROWS)
                columns = dict(zip(part.schema.names, part.columns, strict=True))
                yield Raw(piece, columns, "row", range(at, at + len(part)))
                at += len(part)


def _opened(url: str, version: str | None = None):
    try:
        import lance
    except ImportError:
        raise SparseError(
            f"input.path: {url} is a Lance table; reading it needs the extra 'lance' "
            "(pip install 'sparse-embeddings[lance]')."
        ) from None
    options = storage.object_store_options() if "://" in url else None
    with _told(url):
        return lance.dataset(url, version=None if version is None else int(version), storage_options=options)


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        with storage.explained(url, field="input.path"):
            yield
    except (ValueError, OSError) as error:
        if isinstance(error, SparseError):
            raise
        reason = str(error).partition(", /")[0].partition("\n")[0]
        raise SparseError(f"input.path: the Lance table {url} cannot be read ({reason}).") from None
