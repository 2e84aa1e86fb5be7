"""The manifest of an output: what lies there, under which promise, and whether it still does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import storage
from jobs.config import OutputConfig
from jobs.outputs.parts import FileRecord
from jobs.outputs.precision import COLUMN, as_float32
from jobs.outputs.tables import fitting, folder_of, listed, reach
from sparse_core.errors import SparseError
from sparse_core.policy import Policy

NAME = "manifest.json"
_READ_BYTES = 1 << 20


def write_manifest(
    output: str,
    config: OutputConfig,
    files: Sequence[FileRecord],
    *,
    schema: pa.Schema | None,
    policy: Policy,
    scale: float | None,
    source_fingerprint: str,
    **more,
) -> None:
    """Write ``manifest.json``, the last file of an output: its presence says that all others are there.

    Parameters
    ----------
    output : str
    config : OutputConfig
    files : sequence of FileRecord
        Of the dataset, in the order of the input.
    schema : pyarrow.Schema or None
        Of the tables that were written; None if no row was published.
    policy : Policy
    scale : float or None
        Of int8.
    source_fingerprint : str
    **more
        Counts and whatever else a job has to tell.
    """
    if schema is not None:
        schema = fitting(schema.empty_table(), config.format).schema
    storage.write_json(
        storage.join(output, NAME),
        {
            "policy_hash": policy.hash,
            "guarantee": asdict(policy.guarantee()),
            "source_fingerprint": source_fingerprint,
            "format": config.format,
            "precision": config.precision,
            "scale": scale,
            "dimension": policy.encoder.dimension,
            "epsilon_spent_metric": "euclidean",
            "schema": {} if schema is None else {field.name: str(field.type) for field in schema},
            "rows": sum(file.rows for file in files),
            "bytes": sum(file.bytes for file in files),
            **more,
            "files": [file.listed for file in files],
        },
    )


def read_manifest(output: str) -> dict | None:
    """The manifest; None where a job has not finished, or never ran."""
    return storage.read_json(storage.join(output, NAME))


def verify(output: str, *, checksums: bool = False) -> list[str]:
    """Compare a finished output with its manifest.

    Parameters
    ----------
    output : str
    checksums : bool
        Read every file whole and compare its SHA-256, too; otherwise only names and sizes.

    Returns
    -------
    list of str
        What is wrong, a sentence a file; empty if all is well.
    """
    manifest = _needed(output)
    folder = folder_of(manifest["format"])
    fs, root = storage.filesystem(output)
    place = storage.join(root, folder)
    sizes = fs.find(place, detail=True) if fs.exists(place) else {}
    problems = []
    for file in manifest["files"]:
        path = storage.join(root, file["path"])
        found = sizes.get(path)
        if found is None:
            problems.append(f"{file['path']} is missing.")
        elif found["size"] != file["bytes"]:
            problems.append(f"{file['path']} has {found['size']:,} bytes, not {file['bytes']:,}.")
        elif checksums and _sha256(fs, path) != file["sha256"]:
            problems.append(f"{file['path']} has been changed: its SHA-256 is another.")
    problems += _ledger_problems(fs, root, manifest.get("ledger", []), checksums)
    named = {file["path"] for file in manifest["files"]}
    if manifest["format"] == "parquet":
        # Delta and Lance read what their log names; a folder of Parquet files is read as it lies there.
        present = {path[len(root.rstrip("/")) + 1 :] for path in sizes}
        problems += [
            f"{path} is not in the manifest, and readers of the folder would read it."
            for path in sorted(present - named)
            if not path.rsplit("/", 1)[1].startswith((".", "_"))
        ]
    elif named and listed(output, manifest["format"]) != named:
        problems.append(f"The {manifest['format']} table in {folder} does not consist of the manifest's files.")
    return problems


def _ledger_problems(fs, root: str, files: Sequence[dict], checksums: bool) -> list[str]:
    problems = []
    for file in files:
        path = storage.join(root, file["path"])
        if not fs.exists(path):
            problems.append(f"{file['path']} is missing: what was spent can no longer be told.")
        elif fs.info(path)["size"] != file["bytes"] or (checksums and _sha256(fs, path) != file["sha256"]):
            problems.append(f"{file['path']} has been changed: what was spent can no longer be told.")
    return problems


def read_published(output: str, *, columns: Sequence[str] = ()) -> Iterator[tuple[pa.Table, object]]:
    """Read a finished output, whatever its format and precision.

    Parameters
    ----------
    output : str
    columns : sequence of str
        To read beside the vectors.

    Yields
    ------
    table : pyarrow.Table
        The columns of one file.
    vectors : float32 array, shape (n_records, dimension)
    """
    manifest = _needed(output)
    for file in manifest["files"]:
        table = read_columns(output, file["path"], [*columns, COLUMN])
        yield table.select(list(columns)), as_float32(table[COLUMN], manifest["scale"])


def read_columns(output: str, path: str, columns: Sequence[str], *, rows: int | None = None) -> pa.Table:
    """Some columns of one file of an output, or of its first rows."""
    if path.endswith(".lance"):
        from lance.file import LanceFileReader

        url, options = reach(storage.join(output, path))
        reader = LanceFileReader(url, columns=list(columns), storage_options=options)
        return reader.read_range(0, min(rows or reader.num_rows(), reader.num_rows())).to_table()
    fs, root = storage.filesystem(output)
    try:
        with fs.open(storage.join(root, path), "rb") as file:
            parquet = pq.ParquetFile(file)
            if missing := [name for name in columns if name not in parquet.schema_arrow.names]:
                raise SparseError(
                    f"{output} has no column {missing[0]!r}; it has {', '.join(map(repr, parquet.schema_arrow.names))}."
                )
            if rows is None:
                return parquet.read(columns=list(columns))
            batch = next(parquet.iter_batches(rows, columns=list(columns)), None)
            return pa.table({name: [] for name in columns}) if batch is None else pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise SparseError(
            f"{output}/{path} cannot be read ({error}). 'sparse inspect {output} --verify' tells what is damaged; run "
            "the job that wrote it again to mend it."
        ) from None


def _needed(output: str) -> dict:
    manifest = read_manifest(output)
    if manifest is None:
        raise SparseError(
            f"{output} is not a finished release: it has no {NAME}. Name the output directory of a privatize job, and "
            "run that job again if it was interrupted."
        )
    return manifest


def _sha256(fs, path: str) -> str:
    digest = hashlib.sha256()
    with fs.open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
