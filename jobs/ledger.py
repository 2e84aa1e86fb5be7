"""The ledger beside each output dataset: what was released, and at what price.

``ledger/part-<unit>.parquet`` names every release of a unit: record id, keyed fingerprint of the release, policy, key
and price. It is written before the vectors it speaks of, so that whatever was published is in it; a unit done twice is
the same file twice. It holds no text and nothing that confirms a guess of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from jobs import resume, storage
from sparse_core.budget import Charge, Releases, distinct, joined, releases_under
from sparse_core.errors import SparseError
from sparse_core.noise import Key, release_fingerprints

FOLDER = "ledger"
_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("release", pa.binary(16)),
        *((f.name, pa.float64() if "epsilon" in f.name or f.name == "delta" else _NAME) for f in fields(Charge)),
    ]
)
_ROWS_AT_ONCE = 1 << 16


def part(ids: Sequence[str | int], contents: Sequence[str | bytes], charge: Charge, key: Key) -> pa.Table:
    """The ledger's rows for records released under one policy and key."""
    fingerprints = release_fingerprints(key, subjects=ids, contents=contents, policy_hash=charge.policy)
    columns = [pa.array(map(str, ids), pa.string()), pa.array(map(bytes, fingerprints), pa.binary(16))]
    for field in list(SCHEMA)[2:]:
        columns.append(pa.array([getattr(charge, field.name)] * len(ids), field.type))
    return pa.table(columns, schema=SCHEMA)


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

    Takes 20 bytes of memory per release once read, and about four times that while reading.

    Raises
    ------
    SparseError
        If one of them has no ledger, or a damaged one.
    """
    everything = joined(list(scan(datasets)))
    return everything.take(distinct(everything))


def scan(datasets: Sequence[str]) -> Iterator[Releases]:
    """As `read`, a piece at a time, in which releases may be named more than once."""
    for dataset in datasets:
        fs, path = storage.filesystem(storage.join(dataset, FOLDER))
        files = sorted(name for name in fs.find(path) if name.endswith(".parquet")) if fs.exists(path) else []
        promised = _promised(dataset)
        if (not files and promised is None) or (promised or set()) - {name.rsplit("/", 1)[1] for name in files}:
            what = "no ledger" if not files else "lost part of its ledger"
            raise SparseError(
                f"{dataset} has {what}. It should lie in the folder {FOLDER!r} of the output directory of a "
                "privatize job; keep it even where the vectors are withdrawn, because what was seen stays spent. "
                "Bring it back from a backup, or run the job that wrote it again."
            )
        for name in files:
            yield from _read_part(fs, name)


def _promised(dataset: str) -> set[str] | None:
    """The parts that a dataset's ledger must have; None where nothing tells."""
    manifest = storage.read_json(storage.join(dataset, "manifest.json"))
    if manifest is not None and "ledger" in manifest:
        return {file["path"].rsplit("/", 1)[1] for file in manifest["ledger"]}
    records = resume.unit_records(dataset)
    if not records:
        return set() if "counted" in claim(dataset) else None
    return {record["ledger"]["path"].rsplit("/", 1)[1] for record in records if record.get("ledger")}


def _read_part(fs, path: str) -> Iterator[Releases]:
    try:
        with fs.open(path, "rb") as file:
            for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE, columns=SCHEMA.names):
                rows = pa.Table.from_batches([batch]).cast(SCHEMA).combine_chunks()
                if any(len(rows[name].unique()) != 1 for name in SCHEMA.names[2:]):
                    raise SparseError(f"The ledger {path} is damaged: one file speaks of one policy and one key.")
                charge = Charge(**{name: rows[name][0].as_py() for name in SCHEMA.names[2:]})
                fingerprints = np.frombuffer(b"".join(rows["release"].to_pylist()), np.uint8).reshape(-1, 16)
                yield releases_under(charge, rows["id"].to_pylist(), fingerprints)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if isinstance(error, SparseError):
            raise
        raise SparseError(f"The ledger {path} is damaged ({type(error).__name__}).") from None


def median(values: np.ndarray) -> float:
    """The median; 0 for no values."""
    return float(np.median(values)) if len(values) else 0.0


def shown(value: float) -> str:
    """A figure for people."""
    return "infinite" if np.isinf(value) else f"{value:.6g}"
