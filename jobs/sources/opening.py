"""Opening files: decompressed, in order, and telling damage from trouble on the way."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from jobs import storage
from jobs.sources.rows import Piece
from sparse_core.errors import SparseError

if TYPE_CHECKING:
    from jobs.sources.files import File

# Smaller files are read by one request or two, instead of one a column.
SMALL = 1 << 20
_BLOCK = 8 << 20
_BUFFER = 1 << 18
COMPRESSED = (".gz", ".zst")
# What a file raises that is not what its name says, or whose end is missing.
_DAMAGE = (pa.ArrowException, EOFError, zlib.error, gzip.BadGzipFile, csv.Error)
_NO_DAMAGE = (MemoryError, pa.ArrowCancelled)


def open_file(file: File | Piece, *, in_order: bool = True) -> BinaryIO:
    """A file as it is, to be read in order or here and there.

    Raises
    ------
    SparseError
        If it is not the one that was planned. Where storage tells of that only later, reading raises an OSError with
        the number `errno.EBUSY`.
    """
    fs, path = storage.filesystem(file.url)
    known = {} if file.size is None else {"size": file.size}
    opened = fs.open(path, "rb", block_size=_BLOCK, cache_type="readahead" if in_order else "none", **known)
    if file.size is not None and isinstance(opened, AbstractBufferedFile):
        # Known from the listing, so that storage is not asked once more.
        opened.details = {"name": path, "size": file.size}
        if file.version and hasattr(opened, "read_kw"):
            # What s3fs does itself where it asks for the details.
            opened.read_kw = opened.read_kw | {"IfMatch": file.version}
    elif file.version and isinstance(fs, LocalFileSystem) and file.version != version_of(fs.info(path)):
        opened.close()
        raise changed(file.url)
    return opened


def version_of(info: dict) -> str:
    """What changes when a file does: the time of a local file's change, or an object's entity tag."""
    if "mtime" in info:
        return f"{info['mtime']:.9f}"
    return str(next((info[name] for name in ("ETag", "etag", "LastModified", "last_modified") if info.get(name)), ""))


def changed(url: str) -> SparseError:
    """The error for a file that is not the one that was planned."""
    return SparseError(f"input.path: {url} has changed since the run began. Run the same command again.")


def open_decompressed(file: File | Piece) -> BinaryIO:
    """A text file's bytes, decompressed where its name says that it is compressed."""
    raw, url = open_file(file), file.url
    if url.lower().endswith(".gz"):
        # Not buffered once more: that would swallow the good lines before a damaged place.
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if url.lower().endswith(".zst"):
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"), _BUFFER)
    # fsspec's own readline copies a block for each line.
    return io.BufferedReader(raw, _BUFFER)


def is_damage(error: BaseException) -> bool:
    """Whether a file is at fault, and not storage or the network: Arrow's own OSErrors have no number."""
    if isinstance(error, _NO_DAMAGE):
        return False
    return isinstance(error, _DAMAGE) or (type(error) is OSError and error.errno is None)
