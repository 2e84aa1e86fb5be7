"""Delta Lake tables: the active files of the current version, read as the Parquet files that they are."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa

from jobs import storage
from jobs.sources.files import File
from sparse_core.errors import SparseError

_HANDLED = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}


def active_files(url: str, name: str) -> Iterator[File]:
    """The files of a table's current version, with their partitions' values.

    Raises
    ------
    SparseError
        If the library is missing, the table cannot be read, or it has deletion vectors or mapped columns.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise SparseError(
            f"input.path: {url} is a Delta Lake table; reading it needs the extra 'delta' "
            "(pip install 'sparse-embeddings[delta]')."
        ) from None
    options = storage.object_store_options() if "://" in url else None
    try:
        with storage.explained(url, field="input.path"):
            table = DeltaTable(url, storage_options=options)
            _refuse_what_plain_files_do_not_tell(table, url)
            schema = pa.schema(table.schema().to_arrow())
            added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    except DeltaError as error:
        raise SparseError(
            f"input.path: the Delta Lake table {url} cannot be read ({str(error).splitlines()[0]})."
        ) from None
    partition_columns = table.metadata().partition_columns
    for action in sorted(added, key=lambda action: action["path"]):
        path = unquote(action["path"])
        yield File(
            url=path if "://" in path else storage.join(url, path),
            format="parquet",
            name=storage.join(name, path),
            size=action["size_bytes"],
            # Such files never change; they are replaced by files of other names.
            version="",
            partition=tuple((column, action[f"partition.{column}"]) for column in partition_columns),
            table_schema=schema,
        )


def _refuse_what_plain_files_do_not_tell(table, url: str) -> None:
    settings = table.metadata().configuration
    if settings.get("delta.columnMapping.mode", "none") != "none":
        raise SparseError(
            f"input.path: the Delta Lake table {url} maps its columns to other names, which is not supported; "
            "rewrite it without delta.columnMapping.mode."
        )
    features = set(table.protocol().reader_features or ())
    if unknown := features - _HANDLED:
        raise SparseError(
            f"input.path: the Delta Lake table {url} uses {', '.join(sorted(unknown))}, which is not supported; "
            "write a copy without it."
        )
    if "deletionVectors" in features and pa.table(table.deletion_vectors()).num_rows:
        raise SparseError(
            f"input.path: the Delta Lake table {url} has deletion vectors, so its files hold rows that were deleted. "
            "Rewrite these files first (REORG TABLE ... APPLY (PURGE)), or write a copy."
        )
