"""Finding out what is there, and early that storage will not serve."""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from pathlib import Path

import botocore.exceptions as boto
import fsspec
from fsspec.implementations.local import LocalFileSystem

from jobs.storage.errors import code_of, explained, is_transient
from jobs.storage.options import configured, filesystem, join, s3_options
from sparse_core.errors import SparseError

_MAGIC = re.compile(r"[*?\[]")
_PROBE_ATTEMPTS, _PROBE_SECONDS = 3, 5.0


def exists(url: str) -> bool:
    """Whether there is a file or folder."""
    fs, path = filesystem(url)
    with explained(url):
        return fs.exists(path)


def check(url: str, *, field: str | None = None, write: bool = False) -> None:
    """Find out within seconds whether object storage will serve; a job that plans need not wait for many attempts.

    Parameters
    ----------
    url : str
    field : str, optional
        Name of the setting that holds it.
    write : bool
        Also prove that objects may be written, by an upload that is begun and given up: it leaves nothing.

    Raises
    ------
    SparseError
        If there is no such bucket, no permission, no credentials or no connection. Not for a passing failure, which
        the attempts of later requests get over; of local paths only for one that cannot be written.
    """
    fs, path = filesystem(url)
    if not _is_s3(fs):
        if write and isinstance(fs, LocalFileSystem):
            _refuse_unwritable(path, field)
        return
    config = configured()
    timeouts = {
        "connect_timeout": min(config.connect_timeout, _PROBE_SECONDS),
        "read_timeout": min(config.read_timeout, 2 * _PROBE_SECONDS),
        "retries": {"mode": "standard", "total_max_attempts": min(config.attempts, _PROBE_ATTEMPTS)},
    }
    probe = fsspec.filesystem("s3", **s3_options(config, **timeouts))
    # s3fs would repeat what botocore has repeated.
    probe.retries = 1
    with explained(url, field=field, write=write):
        try:
            _try_to_list(probe, path, alone=write)
            if write:
                _try_to_write(probe, path)
        except (OSError, boto.BotoCoreError, boto.ClientError) as error:
            # Silence through all attempts is no passing failure; waiting as long as later requests do takes minutes.
            if not is_transient(error) or isinstance(error, boto.ReadTimeoutError):
                raise


def _refuse_unwritable(path: str, field: str | None) -> None:
    """Refuse a local path that could not be made a directory to write to; make nothing."""
    place = Path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    named = f"{field}: " if field else ""
    if not place.is_dir():
        raise SparseError(f"{named}{path} cannot be made a directory to write to, because {place} is a file.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SparseError(
            f"{named}{path} cannot be written, because {place} is a directory this user may not write to."
        )


def _is_s3(fs: fsspec.AbstractFileSystem) -> bool:
    return "s3" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _try_to_list(fs: fsspec.AbstractFileSystem, path: str, *, alone: bool) -> None:
    """List one object; who may not list may still read a named object, or write one (`alone`)."""
    bucket, key, _ = fs.split_path(path)
    folder = _MAGIC.split(key)[0].rpartition("/")[0] if glob.has_magic(key) else key.rstrip("/")
    try:
        fs.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1, Prefix=folder and folder + "/")
    except PermissionError as error:
        if code_of(error) != "AccessDenied":
            raise
        if not alone:
            if not key or glob.has_magic(key):
                raise
            fs.call_s3("head_object", Bucket=bucket, Key=key)


def _try_to_write(fs: fsspec.AbstractFileSystem, path: str) -> None:
    bucket, key, _ = fs.split_path(join(path, ".write-test"))
    upload = fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    with suppress(OSError, boto.BotoCoreError, boto.ClientError):
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload["UploadId"])
