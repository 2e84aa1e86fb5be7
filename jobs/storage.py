"""Files on any filesystem that fsspec knows: local paths and ``s3://`` URLs alike."""

from __future__ import annotations

import glob
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError, ClientError
from fsspec.implementations.local import LocalFileSystem

from sparse_core.errors import SparseError


def filesystem(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a URL and the path on it."""
    try:
        return fsspec.core.url_to_fs(str(url))
    except (ValueError, ImportError) as error:
        raise SparseError(f"{url}: this kind of storage is not supported ({error}).") from None


def join(url: str, *parts: str) -> str:
    """A URL below another."""
    return "/".join([str(url).rstrip("/"), *parts])


def list_files(url: str) -> list[str]:
    """Data files that a path, folder or glob names, sorted; hidden files and ``_``-files are left out.

    Raises
    ------
    SparseError
        If there is none.
    """
    fs, path = filesystem(url)
    try:
        if glob.has_magic(path):
            found = [p for p in fs.glob(path) if fs.isfile(p)]
        elif fs.isdir(path):
            found = fs.find(path)
            found = [p for p in found if not _hidden(p[len(path) :])]
        else:
            found = [path] if fs.exists(path) else []
    except (OSError, BotoCoreError, ClientError) as error:
        raise SparseError(f"input.path: {url} cannot be listed ({type(error).__name__}: {error}).") from None
    if not found:
        raise SparseError(f"input.path: there is no file at {url}.")
    return sorted(fs.unstrip_protocol(p) if not isinstance(fs, LocalFileSystem) else p for p in found)


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/") if part)


def exists(url: str) -> bool:
    """Whether there is a file or folder."""
    fs, path = filesystem(url)
    return fs.exists(path)


def read_json(url: str) -> dict | None:
    """A JSON file; None if there is none."""
    fs, path = filesystem(url)
    try:
        return json.loads(fs.cat_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (BotoCoreError, ClientError, PermissionError) as error:
        raise SparseError(f"{url} cannot be read ({type(error).__name__}: {error}).") from None
    except ValueError:
        raise SparseError(f"{url} is damaged: it is not valid JSON.") from None


def write_json(url: str, value: dict) -> None:
    """Write a JSON file in one step: a reader sees the old file or the new one, never half."""
    write_bytes(url, (json.dumps(_finite(value), indent=2, default=str, allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_bytes(url: str, content: bytes) -> None:
    """Write a file in one step: rename after fsync where local, a single put elsewhere."""
    fs, path = filesystem(url)
    if not isinstance(fs, LocalFileSystem):
        fs.pipe_file(path, content)
        return
    make_local_directory(os.path.dirname(path))
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def make_local_directory(path: str | os.PathLike) -> None:
    """Make a directory that can be written to.

    Raises
    ------
    SparseError
        If a file is in the way, or the place may not be written to.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise SparseError(f"{path} cannot be made a directory to write to ({error.strerror}).") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise SparseError(f"{path} is a directory that this user may not write to.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def local_directory(url: str) -> Iterator[Path]:
    """A directory as a local one: itself where local, a temporary copy elsewhere."""
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory() as temporary:
        if fs.exists(path):
            fs.get(path.rstrip("/") + "/", temporary + "/", recursive=True)
        yield Path(temporary)


@contextmanager
def upload_directory(url: str) -> Iterator[Path]:
    """A local directory to fill, which becomes the directory at the URL when the block ends."""
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        make_local_directory(path)
        yield Path(path)
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)
        fs.put(temporary + "/", path.rstrip("/") + "/", recursive=True)
