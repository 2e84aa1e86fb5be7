"""What a table format knows of its files: Delta Lake's log and Lance's manifest, written in one transaction."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from jobs import storage
from jobs.config import OutputConfig
from sparse_core.errors import SparseError

if TYPE_CHECKING:
    from jobs.outputs.parts import FileRecord

_PACKAGES = {"delta": "deltalake", "lance": "lance"}
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def folder_of(format: str) -> str:
    """The folder of the dataset inside an output; LanceDB finds tables by the ending."""
    return "embeddings.lance" if format == "lance" else "embeddings"


def check_format(config: OutputConfig, schema: pa.Schema) -> None:
    """Refuse, before anything is computed, a format that is not installed or cannot hold a column.

    Parameters
    ----------
    config : OutputConfig
    schema : pyarrow.Schema
        Of the columns that are copied from the input, the id among them.
    """
    package = _PACKAGES.get(config.format)
    if package is not None and importlib.util.find_spec(package) is None:
        raise SparseError(
            f"dataset.format: {config.format!r} needs the package {package!r}; install "
            f"'sparse-embeddings[{config.format}]'."
        )
    fitting(schema.empty_table(), config.format)


def fitting(table: pa.Table, format: str) -> pa.Table:
    """The table with column types that the format has.

    Delta Lake knows no lists of fixed size, categories, unsigned numbers, times of day or nanoseconds. Its readers
    compare what a file says of its columns with what the log says, so that files get the log's types.

    Raises
    ------
    SparseError
        If a column, or a value in it, has no place there.
    """
    if format != "delta":
        return table
    for position, field in enumerate(table.schema):
        wanted = _delta_type(field)
        if wanted != field.type:
            try:
                column = table.column(position).cast(wanted)
            except pa.ArrowInvalid:
                raise _no_place(field, f"some of its values do not fit into {wanted}") from None
            table = table.set_column(position, field.with_type(wanted), column)
    return table


def _delta_type(field: pa.Field) -> pa.DataType:
    kind = field.type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if kind in _WIDER:
        return _WIDER[kind]
    if any(pa.types.is_unsigned_integer(leaf) or pa.types.is_timestamp(leaf) for leaf in _leaves(kind)):
        raise _no_place(field, "Delta Lake has no such type inside a list or struct")
    from deltalake import Schema

    if pa.types.is_null(kind):
        raise _no_place(field, "a column without any value has no type")
    try:
        return pa.schema(Schema.from_arrow(pa.schema([field])).to_arrow()).field(0).type
    except Exception:
        raise _no_place(field, "Delta Lake has no such type") from None


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind):
        return []
    children = [kind.field(number).type for number in range(kind.num_fields)]
    return [leaf for child in children for leaf in _leaves(child)] if children else [kind]


def _no_place(field: pa.Field, why: str) -> SparseError:
    return SparseError(
        f"dataset.format: the column {field.name!r} of type {field.type} cannot be kept in a Delta table: {why}. Cast "
        "it in the input, leave it out of passthrough, or take format parquet."
    )


def commit(output: str, config: OutputConfig, files: Sequence[FileRecord]) -> None:
    """Make the dataset consist of exactly these files, in one transaction; Parquet needs none.

    Stray files beside them, of killed runs, are not in the table. A table that lists these files already is left as it
    is, so that a run killed after its commit commits nothing a second time. For one writer at a time: the job's lease
    sees to that.

    Raises
    ------
    SparseError
        If there is a table of other files.
    """
    if config.format == "parquet" or not files:
        return
    url = storage.join(output, folder_of(config.format))
    target, options = reach(url)
    with storage.explained(url, field="output", write=True):
        found = listed(output, config.format)
        if found is None:
            (_commit_delta if config.format == "delta" else _commit_lance)(output, target, options, files)
        elif found != {file.path for file in files}:
            raise SparseError(
                f"output: {url} is already a table, and of other files than this job's. Choose another output."
            )


def listed(output: str, format: str) -> set[str] | None:
    """The files that the table consists of, relative to the output; None if there is no table."""
    folder = folder_of(format)
    target, options = reach(storage.join(output, folder))
    if format == "delta":
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(target, storage_options=options):
            return None
        actions = pa.table(DeltaTable(target, storage_options=options).get_add_actions())
        return {f"{folder}/{path}" for path in actions["path"].to_pylist()}
    import lance

    if not storage.exists(storage.join(output, folder, "_versions")):
        return None
    dataset = lance.dataset(target, storage_options=options)
    return {f"{folder}/data/{file.path}" for part in dataset.get_fragments() for file in part.metadata.files}


def _commit_delta(output: str, target: str, options: dict | None, files: Sequence[FileRecord]) -> None:
    from deltalake import Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions

    fs, path = storage.filesystem(storage.join(output, files[0].path))
    with fs.open(path, "rb") as file:
        schema = pq.read_schema(file)
    now = int(time.time() * 1000)
    actions = [
        AddAction(
            path=file.path.split("/", 1)[1],
            size=file.bytes,
            partition_values={},
            modification_time=now,
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in files
    ]
    create_table_with_add_actions(target, Schema.from_arrow(schema), actions, mode="error", storage_options=options)


def _commit_lance(output: str, target: str, options: dict | None, files: Sequence[FileRecord]) -> None:
    import lance
    from lance.file import LanceFileReader

    fragments = [lance.FragmentMetadata.from_json(json.dumps(file.fragment)) for file in files]
    first = f"{target}/data/{fragments[0].files[0].path}"
    schema = LanceFileReader(first, storage_options=options).metadata().schema
    lance.LanceDataset.commit(target, lance.LanceOperation.Overwrite(schema, fragments), storage_options=options)


def as_fragment(written, url: str) -> tuple[dict, str]:
    """A fragment that Lance has written, as it is once its file has the name in `url`; and the name it has yet."""
    fragment = written.to_json()
    (file,) = fragment["files"]
    made, file["path"] = file["path"], url.rsplit("/", 1)[1]
    return fragment, made


def reach(url: str) -> tuple[str, dict | None]:
    """A table's place and the options to reach it, as deltalake and lance want them."""
    fs, path = storage.filesystem(url)
    if isinstance(fs, LocalFileSystem):
        return path, None
    return fs.unstrip_protocol(path), storage.object_store_options()
