"""The ledger beside each output dataset: what was released, and at what price.

``ledger/part-<unit>.parquet`` names every release of a unit: the subject's number (``record``), keyed fingerprints of
the release as far as it can be foreseen (``release``) and of the vector itself (``vector``), policy, key and price. It
is written before the vectors it speaks of, so that whatever was published is in it; a unit done twice is the same file
twice, unless its vectors have changed. It holds no text and nothing that confirms a guess of one. A subject's number
does confirm a guess of the subject.

Ledgers written before there were subjects have ``id`` in place of ``record``, and no ``vector``: they count by
``release``, each record, or the parent of each chunk, a subject of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from jobs import resume, storage
from sparse_core.budget import Charge, Releases, distinct, joined, releases_under, subject_numbers
from sparse_core.errors import SparseError

FOLDER = resume.LEDGER
_NAME = pa.dictionary(pa.int32(), pa.string())
_CHARGE = pa.schema([(f.name, _NAME if f.type == "str" else pa.float64()) for f in fields(Charge)])
_RELEASE = pa.field("release", pa.binary(16))
SCHEMA = pa.schema([("record", pa.uint64()), _RELEASE, ("vector", pa.binary(16)), *_CHARGE])
_BEFORE_SUBJECTS = pa.schema([("id", pa.string()), _RELEASE, *_CHARGE])
_ROWS_AT_ONCE = 1 << 16


def part(charge: Charge, subjects: np.ndarray, contents: np.ndarray, vectors: np.ndarray) -> pa.Table:
    """The ledger's rows for releases under one policy and key; arguments as for `releases_under`."""
    columns = [pa.array(subjects, pa.uint64())]
    columns += [pa.array(map(bytes, names), pa.binary(16)) for names in (contents, vectors)]
    columns += [pa.array([getattr(charge, field.name)] * len(subjects), field.type) for field in _CHARGE]
    return pa.table(columns, schema=SCHEMA)


def kept_of(output: str, unit: str, written: set[bytes]) -> pa.Table | None:
    """What a part holds that was written of a unit before, but for the vectors that are written again.

    A unit that is done twice comes to the same vectors but where the embeddings have changed; what was seen of it stays
    spent.
    """
    fs, path = storage.filesystem(storage.join(output, FOLDER, f"part-{unit}.parquet"))
    if not fs.exists(path):
        return None
    table = _table(fs.cat_file(path), path)
    return table.filter(pa.array([vector not in written for vector in table["vector"].to_pylist()], pa.bool_()))


def with_included(datasets: Sequence[str]) -> list[str]:
    """Output directories, those that they counted when they were written, those that these counted, and so on."""
    found, waiting = [], [located(url) for url in datasets]
    while waiting:
        url = waiting.pop(0)
        if url not in found:
            found.append(url)
            waiting += claim(url).get("counted", [])
    return found


def claim(dataset: str) -> dict:
    """What a dataset was bound to when it was written."""
    return storage.read_json(storage.join(dataset, "claim.json")) or {}


def located(url: str) -> str:
    """A URL that means the same wherever it is read."""
    fs, path = storage.filesystem(url)
    return path if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(path)


def read(datasets: Sequence[str]) -> Releases:
    """The releases that the ledgers of some output directories name, each once.

    Takes 28 bytes of memory per release once read, and about four times that while reading.

    Raises
    ------
    SparseError
        If one of them has no ledger, or a part of it is lost, damaged or not the one that was written.
    """
    everything = joined(list(scan(datasets)))
    return everything.take(distinct(everything))


def scan(datasets: Sequence[str]) -> Iterator[Releases]:
    """As `read`, a piece at a time, in which releases may be named more than once."""
    for dataset in datasets:
        fs, path = storage.filesystem(storage.join(dataset, FOLDER))
        files = sorted(name for name in fs.find(path) if name.endswith(".parquet")) if fs.exists(path) else []
        bound, promised = claim(dataset), _promised(dataset)
        missing = sorted((promised or {}).keys() - {name.rsplit("/", 1)[1] for name in files})
        if missing or (not files and promised is None):
            what = f"lost {', '.join(missing)} of its ledger" if files else "no ledger"
            raise SparseError(
                f"{dataset} has {what}. It should lie in the folder {FOLDER!r} of the output directory of a "
                "privatize job; keep it even where the vectors are withdrawn, because what was seen stays spent. "
                "Bring it back from a backup, or run the job that wrote it again."
            )
        for name in files:
            content = fs.cat_file(name)
            table = _table(content, name)
            listed = (promised or {}).get(name.rsplit("/", 1)[1])
            if listed is not None and (
                len(table) != listed["rows"] or hashlib.sha256(content).hexdigest() != listed["sha256"]
            ):
                raise _damaged(name, "it is not the file that was written")
            for start in range(0, len(table), _ROWS_AT_ONCE):
                yield _releases(table.slice(start, _ROWS_AT_ONCE), name, chunked=bool(bound.get("chunk")))


def unfinished(dataset: str) -> bool:
    """Whether a run has claimed a dataset and not ended: its ledger may still grow."""
    return bool(claim(dataset)) and not storage.exists(storage.join(dataset, "manifest.json"))


def charges(output: str) -> set[Charge]:
    """Under what the ledger of one output directory says that it was released."""
    return {charge for piece in scan([output]) for charge in piece.table}


def _promised(dataset: str) -> dict[str, dict] | None:
    """The parts that a dataset's ledger must have, by name; None where nothing tells."""
    manifest = storage.read_json(storage.join(dataset, "manifest.json"))
    if manifest is not None and "ledger" in manifest:
        files = manifest["ledger"]
    else:
        records = resume.unit_records(dataset)
        if not records:
            return {} if "counted" in claim(dataset) else None
        files = [record["ledger"] for record in records if record.get("ledger")]
    return {file["path"].rsplit("/", 1)[1]: file for file in files}


def _table(content: bytes, name: str) -> pa.Table:
    """A part in memory: 40 bytes a row and a file's worth."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        schema = SCHEMA if "record" in file.schema_arrow.names else _BEFORE_SUBJECTS
        table = file.read(columns=schema.names).cast(schema).combine_chunks()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _damaged(name, f"it is no ledger ({type(error).__name__})") from None
    if not len(table) or any(column.null_count for column in table.columns):
        raise _damaged(name, "rows are empty or missing")
    return table


def _releases(rows: pa.Table, name: str, *, chunked: bool) -> Releases:
    if any(len(rows[field.name].unique()) != 1 for field in _CHARGE):
        raise _damaged(name, "one part speaks of one policy and one key")
    try:
        charge = Charge(**{field.name: rows[field.name][0].as_py() for field in _CHARGE})
    except SparseError as error:
        raise _damaged(name, str(error).rstrip(".")) from None
    names = [name for name in ("release", "vector") if name in rows.column_names]
    prints = [np.frombuffer(b"".join(rows[name].to_pylist()), np.uint8).reshape(-1, 16) for name in names]
    if "record" in rows.column_names:
        return releases_under(charge, rows["record"].to_numpy(), *prints)
    ids = rows["id"].to_pylist()
    # Chunks were records of their own, "parent#n".
    return releases_under(charge, subject_numbers([i.rpartition("#")[0] if chunked else i for i in ids]), prints[0])


def _damaged(name: str, why: str) -> SparseError:
    return SparseError(
        f"The ledger {name} is damaged: {why}. What was spent can no longer be told from it: bring it back from a "
        "backup, or remove it and run the job that wrote it again."
    )


def median(values: np.ndarray) -> float:
    """The median; 0 for no values."""
    return float(np.median(values)) if len(values) else 0.0


def shown(value: float) -> str:
    """A figure for people."""
    return "infinite" if np.isinf(value) else f"{value:.6g}"
