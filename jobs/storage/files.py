"""Reading and writing whole files: what is written appears in one step, or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from botocore.exceptions import BotoCoreError
from fsspec.implementations.local import LocalFileSystem

from jobs.storage.errors import code_of, explained
from jobs.storage.options import filesystem
from sparse_core.errors import SparseError

_SECONDS_FOR_A_RIVAL = 2.0


def read_json(url: str) -> dict | None:
    """A JSON file; None if there is none."""
    fs, path = filesystem(url)
    with explained(url):
        try:
            content = fs.cat_file(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if code_of(error) == "NoSuchBucket":
                raise
            return None
    try:
        return json.loads(content)
    except ValueError:
        raise SparseError(f"{url} is damaged: it is not valid JSON.") from None


def write_json(url: str, value: dict, *, private: bool = False) -> None:
    """Write a JSON file in one step: a reader sees the old file or the new one, never half."""
    content = json.dumps(_finite(value), indent=2, default=str, allow_nan=False) + "\n"
    write_bytes(url, content.encode(), private=private)


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_bytes(url: str, content: bytes, *, private: bool = False) -> None:
    """Write a file in one step: rename after fsync where local, a put elsewhere; see `writing`."""
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        with _renamed_into_place(path, private=private) as file:
            file.write(content)
        return
    with explained(url, write=True):
        fs.pipe_file(path, content)


@contextmanager
def writing(url: str, *, private: bool = False) -> Iterator[BinaryIO]:
    """A binary file to fill, which appears at the URL when the block ends, and not at all if it raises.

    Locally that is a rename after fsync; on object storage one put, or one upload in parts where the file is large.

    Parameters
    ----------
    url : str
    private : bool
        For texts and unprotected vectors: queries, caches of embeddings, and pages and summaries with examples of text.
        Locally only the owner may read the file, from its first byte on and whatever the umask. All else, protected
        vectors, policies, ledgers and figures, is open to whom the umask allows; on object storage the bucket decides.
    """
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        with _renamed_into_place(path, private=private) as file:
            yield _Explaining(file, url)
        return
    with explained(url, write=True):
        file = fs.open(path, "wb")
    try:
        yield _Explaining(file, url)
        with explained(url, write=True):
            size = file.tell()
            try:
                file.close()
            except FileNotFoundError as error:
                # The answer to the last request was lost, and the server no longer knows the upload it completed.
                if code_of(error) != "NoSuchUpload" or fs.info(path)["size"] != size:
                    raise
    except BaseException:
        # Closing the file, as leaving a `with fs.open(...)` does, would publish the half of it.
        file.closed = True
        with suppress(OSError, AttributeError, BotoCoreError):
            file.discard()
        raise


class _Explaining:
    """A file whose writing is `explained`: a part goes up, or a disk is full, in the middle of it."""

    def __init__(self, file: BinaryIO, url: str):
        self._file, self._url = file, url

    def write(self, content) -> int:
        with explained(self._url, write=True):
            return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def _renamed_into_place(path: str, *, private: bool) -> Iterator[BinaryIO]:
    make_local_directory(os.path.dirname(path))
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not private:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    # A power cut must not take the name back: what is written later says that this is there.
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def create_exclusive(url: str, content: bytes) -> bool:
    """Write a file unless there is one.

    Parameters
    ----------
    url : str
    content : bytes
        Must hold something no other writer writes, such as a random token: it tells whose the file is where an answer
        is lost, and where the storage knows no conditional writes.

    Returns
    -------
    bool
        Whether the file is now this writer's. Of several writers at once, one is told so.
    """
    fs, path = filesystem(url)
    if isinstance(fs, LocalFileSystem):
        return _linked_into_place(path, content)
    with explained(url, write=True):
        if fs.exists(path):
            return False
        try:
            # Storage that puts it twice knows no conditions: there, the last of several writers wins.
            conditional = not (_put_if_absent(fs, path, content) and _put_if_absent(fs, path, content))
        except NotImplementedError:
            fs.pipe_file(path, content)
            conditional = False
        if not conditional:
            time.sleep(_SECONDS_FOR_A_RIVAL)
        # Also where the put was refused: it may have been this writer's own, sent again after its answer was lost.
        try:
            return fs.cat_file(path) == content
        except FileNotFoundError:
            return False


def _put_if_absent(fs: fsspec.AbstractFileSystem, path: str, content: bytes) -> bool:
    try:
        fs.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except OSError as error:
        if (code := code_of(error)) in {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}:
            return False
        if code in {"NotImplemented", "501"}:
            raise NotImplementedError from None
        raise
    return True


def _linked_into_place(path: str, content: bytes) -> bool:
    """A link, because a file that is created and then filled is empty in between, or for ever after a kill."""
    make_local_directory(os.path.dirname(path))
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return False
        except OSError:
            return _created(path, content)
    return True


def _created(path: str, content: bytes) -> bool:
    """For filesystems without links."""
    try:
        with open(path, "xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def remove(url: str) -> None:
    """Remove a file; nothing happens if there is none."""
    fs, path = filesystem(url)
    with explained(url, write=True):
        try:
            fs.rm_file(path)
        except FileNotFoundError as error:
            if code_of(error) == "NoSuchBucket":
                raise


def make_local_directory(path: str | os.PathLike, *, private: bool = False) -> None:
    """Make a directory that can be written to; a private one, if it is new, is for its owner only.

    Raises
    ------
    SparseError
        If a file is in the way, or the place may not be written to.
    """
    try:
        os.makedirs(path, mode=0o700 if private else 0o777, exist_ok=True)
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
        with explained(url):
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
        with explained(url, write=True):
            fs.put(temporary + "/", path.rstrip("/") + "/", recursive=True)
