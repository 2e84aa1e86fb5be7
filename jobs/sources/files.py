"""Finding the files of a corpus: paths, folders, globs, Hive partitions, and the tables among them."""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from jobs import storage
from jobs.config import InputConfig
from jobs.sources.opening import COMPRESSED, version_of
from sparse_core.errors import SparseError

THREADS = 32
_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_HIVE_FOLDER = re.compile(r"([^/=]+)=([^/]*)/")
_NUMBER = re.compile(r"-?\d{1,18}")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class File:
    """A file of the corpus, or a Lance table.

    Attributes
    ----------
    url, format, name, size, partition
        As in `Piece`.
    version : str
        Changes when the file does.
    table_schema : pyarrow.Schema or None
        Of the Delta table that the file belongs to.
    """

    url: str
    format: str
    name: str
    size: int | None
    version: str
    partition: tuple[tuple[str, Any], ...] = ()
    table_schema: pa.Schema | None = field(default=None, compare=False)


def list_input(config: InputConfig) -> list[File]:
    """The files of a corpus, sorted within each of its paths; hidden files and ``_``-files are left out.

    Raises
    ------
    SparseError
        If a path names no file, storage does not serve, or a file is of no known format.
    """
    for url in {url.split("/")[2] if "://" in url else "": url for url in reversed(config.paths)}.values():
        # Once for each bucket: answers within seconds whether it can be read at all.
        storage.check(url, field="input.path")
    with ThreadPoolExecutor(min(THREADS, len(config.paths))) as pool:
        listings = list(pool.map(lambda url: list(_found(url)), config.paths))
    files: dict[str, File] = {}
    for url, found in zip(config.paths, listings, strict=True):
        if not found:
            raise SparseError(f"input.path: there is no file at {url}.")
        for file in found:
            files.setdefault(file.url, file)
    return _partitioned(_named_apart(files.values()))


def _found(url: str) -> Iterator[File]:
    fs, path = storage.filesystem(url)
    path = path.rstrip("/")
    with storage.explained(url, field="input.path"):
        if glob.has_magic(path) and not fs.exists(path):
            root = path[: re.search(r"[*?\[]", path).start()].rpartition("/")[0]
            hidden_too = any(part.startswith((".", "_")) for part in path[len(root) :].split("/"))
            found = {}
            for name, info in fs.glob(path, detail=True).items():
                found |= {name: info} if info["type"] != "directory" else fs.find(name, detail=True)
        else:
            root, hidden_too = path, False
            found = {} if path.endswith(".lance") and fs.isdir(path) else fs.find(path, detail=True)
            if list(found) == [path]:
                # A local file comes without its size.
                found = {path: found[path] or fs.info(path)}
                root, hidden_too = path.rpartition("/")[0], True
    tables = {path: "lance"} if not found and path.endswith(".lance") and fs.exists(path) else _tables(found)
    for name, kind in sorted(tables.items()):
        yield from _table_files(_address(fs, name), kind, name[len(root) :].strip("/") or name.rpartition("/")[2])
    inside = tuple(f"{name}/" for name in tables)
    for name, info in sorted(found.items()):
        relative = name[len(root) :].lstrip("/")
        hidden = any(part.startswith((".", "_")) for part in relative.split("/"))
        if info["type"] == "directory" or name.endswith("/") or name.startswith(inside) or (hidden and not hidden_too):
            continue
        yield File(_address(fs, name), format_of(name), relative, info["size"], version_of(info))


def _address(fs, path: str) -> str:
    return path if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(path)


def _tables(paths: Iterable[str]) -> dict[str, str]:
    """Folders that are tables of their own, whose files mean nothing without their log."""
    tables = {}
    for path in paths:
        if "/_delta_log/" in path:
            tables[path.partition("/_delta_log/")[0]] = "delta"
        elif ".lance/" in path:
            tables[path.partition(".lance/")[0] + ".lance"] = "lance"
    return tables


def _table_files(url: str, kind: str, name: str) -> Iterator[File]:
    if kind == "lance":
        from jobs.sources import lance_table

        yield File(url, "lance", name, None, lance_table.current_version(url))
    else:
        from jobs.sources import delta_table

        yield from delta_table.active_files(url, name)


def format_of(name: str) -> str:
    """The format that a file's name tells."""
    lowered = name.lower()
    for ending in COMPRESSED:
        lowered = lowered.removesuffix(ending)
    for ending, kind in _FORMATS.items():
        if lowered.endswith(ending) and (kind != "parquet" or lowered == name.lower()):
            return kind
    raise SparseError(
        f"input.path: {name} has none of the endings {', '.join(_FORMATS)} "
        f"(with {' or '.join(COMPRESSED)} for text formats)."
    )


def _named_apart(files: Iterable[File]) -> list[File]:
    """Names that two paths of the input have in common would give two records one id."""
    files, count = list(files), defaultdict(int)
    for file in files:
        count[file.name] += 1
    return [file if count[file.name] == 1 else replace(file, name=file.url) for file in files]


def _partitioned(files: list[File]) -> list[File]:
    """Columns that folders named key=value tell, typed as Arrow's data sets type them: numbers where all are."""
    told = {file.url: {} if file.partition else dict(_HIVE_FOLDER.findall(file.url)) for file in files}
    values = defaultdict(set)
    for folders in told.values():
        for key, value in folders.items():
            values[key].add(value)
    numbers = {key for key, found in values.items() if all(map(_NUMBER.fullmatch, found - {_HIVE_NULL}))}

    def value(key: str, text: str) -> str | int | None:
        if text == _HIVE_NULL:
            return None
        return int(text) if key in numbers else unquote(text)

    return [
        replace(file, partition=tuple((key, value(key, text)) for key, text in told[file.url].items()))
        if told[file.url]
        else file
        for file in files
    ]


def partition_type(value: Any) -> pa.DataType:
    """The type of a partition's column."""
    return pa.scalar(value).type
