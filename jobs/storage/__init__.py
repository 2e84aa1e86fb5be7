"""Files on any filesystem that fsspec knows: local paths and ``s3://`` URLs alike.

`options` says how object storage is reached, `probe` finds out early whether it serves, `files` reads and writes in one
step each, and `errors` turns what goes wrong into sentences.
"""

from jobs.storage.errors import explained
from jobs.storage.files import (
    create_exclusive,
    local_directory,
    make_local_directory,
    read_json,
    remove,
    upload_directory,
    write_bytes,
    write_json,
    writing,
)
from jobs.storage.options import configure, filesystem, join, object_store_options
from jobs.storage.probe import check, exists

__all__ = [
    "check",
    "configure",
    "create_exclusive",
    "exists",
    "explained",
    "filesystem",
    "join",
    "local_directory",
    "make_local_directory",
    "object_store_options",
    "read_json",
    "remove",
    "upload_directory",
    "write_bytes",
    "write_json",
    "writing",
]
