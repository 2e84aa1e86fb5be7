"""One writer per output directory: the second job is refused.

On a local filesystem the lease is a lock that the operating system takes back when its holder dies, however it dies.
Elsewhere it is an object with a sign of life that its holder renews; after a kill it lapses on its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fsspec.implementations.local import LocalFileSystem

from jobs import storage
from sparse_core.errors import SparseError

NAME = "_lease.json"
LAPSE_SECONDS = 60.0
_BEATS_PER_LAPSE = 6


@contextmanager
def held(output: str, *, lapse_seconds: float = LAPSE_SECONDS) -> Iterator[Callable[[], None]]:
    """Hold the output directory for the time of a job.

    Parameters
    ----------
    output : str
    lapse_seconds : float
        On remote storage, how long after its last sign of life a job counts as dead.

    Yields
    ------
    callable
        Raises if the lease was lost, because this process was suspended for longer than the lapse; call it before
        anything is committed.

    Raises
    ------
    SparseError
        If another job holds it, telling who.
    """
    fs, path = storage.filesystem(output)
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8)}
    if isinstance(fs, LocalFileSystem):
        with _locked(path, output, holder):
            yield lambda: None
    else:
        with _renewed(storage.join(output, NAME), output, holder, lapse_seconds) as check:
            yield check


@contextmanager
def _locked(folder: str, output: str, holder: dict) -> Iterator[None]:
    storage.make_local_directory(folder)
    path = os.path.join(folder, NAME)
    # Not inherited by Ray's processes, which outlive a killed driver for a while.
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SparseError(_refusal(output, _read(file.read()))) from None
        if not (os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(file.fileno()))):
            raise SparseError(_refusal(output, {}))
        file.truncate()
        json.dump(holder, file)
        file.flush()
        try:
            yield
        finally:
            os.unlink(path)
            # A refused run leaves nothing behind.
            with suppress(OSError):
                os.rmdir(folder)


@contextmanager
def _renewed(url: str, output: str, holder: dict, lapse: float) -> Iterator[Callable[[], None]]:
    if not storage.create_exclusive(url, _beat(holder)):
        found = storage.read_json(url) or {}
        left = lapse - (time.time() - found.get("beat", 0))
        if left > 0:
            raise SparseError(
                f"{_refusal(output, found)} If it was killed, its lease lapses in {left:.0f} s: run the same command "
                "again then."
            )
        storage.remove(url)
        if not storage.create_exclusive(url, _beat(holder)):
            raise SparseError(_refusal(output, storage.read_json(url) or {}))
    stopped, lost = threading.Event(), threading.Event()

    def beat() -> None:
        renewed = time.monotonic()
        while not stopped.wait(lapse / _BEATS_PER_LAPSE):
            try:
                found = storage.read_json(url) or {}
                if found.get("token") != holder["token"]:
                    lost.set()
                    return
                storage.write_bytes(url, _beat(holder))
                renewed = time.monotonic()
            except (SparseError, OSError):
                # Storage that cannot be reached now may be reached at the next beat.
                if time.monotonic() - renewed > lapse:
                    lost.set()
                    return

    def check() -> None:
        if lost.is_set():
            raise SparseError(
                f"output: {output} was taken over by another job while this one gave no sign of life for "
                f"{lapse:.0f} s. Nothing is lost: the same command continues once the other has ended."
            )

    thread = threading.Thread(target=beat, daemon=True, name="lease")
    thread.start()
    try:
        yield check
    finally:
        stopped.set()
        thread.join()
        if not lost.is_set():
            # Storage that fails now must not hide why the job ended; the lease lapses.
            with suppress(SparseError):
                storage.remove(url)


def _beat(holder: dict) -> bytes:
    return json.dumps(holder | {"beat": time.time()}).encode()


def _read(text: str) -> dict:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _refusal(output: str, holder: dict) -> str:
    who = f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "another process"
    return f"output: {who} is writing to {output}. Wait until it has ended, or choose another output directory."
