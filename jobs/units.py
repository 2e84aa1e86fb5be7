"""What an actor does with a unit of work: read, validate, encode, protect, write."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs import ledger, sources, storage
from jobs.config import EncoderConfig
from jobs.stages import load_configured, usable_vectors
from sparse_core.budget import Charge, record_numbers
from sparse_core.noise import Key
from sparse_core.policy import Policy

RESERVED_COLUMNS = ("embedding", "policy", "releases", "epsilon_spent")
QUARANTINE_SCHEMA = pa.schema([("id", pa.string()), ("reason", pa.string()), ("position", pa.string())])


@dataclass(frozen=True)
class UnitWork:
    """What an actor needs to know; travels to it over Ray's own transport, key included.

    The policy does not: actors read it from the output directory, where the driver has written it.
    """

    source: sources.Source
    key: Key
    encoder: EncoderConfig
    output: str
    passthrough: tuple[str, ...]


class UnitActor:
    """Ray Data actor: loads the encoder once, then reads, encodes, protects and writes units.

    `repeated` is a Ray reference to a `Spent`: the records for which this run's release is not the only one.
    """

    def __init__(self, work: UnitWork, repeated=None):
        import ray
        import torch

        torch.set_num_threads(1)
        self._work = work
        self._encoder = load_configured(work.encoder, threads=1)
        with storage.local_directory(storage.join(work.output, "policy")) as local:
            self._policy = Policy.load(local, encoder=self._encoder.spec)
        self._charge = Charge.of(self._policy, work.key)
        self._repeated = None if repeated is None else ray.get(repeated)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        return {"record": [self._do(unit) for unit in batch["unit"]]}

    def _do(self, unit: sources.Unit) -> dict:
        work = self._work
        rejected: list[sources.Rejected] = []
        tables: list[pa.Table] = []
        entries: list[pa.Table] = []
        truncated = 0
        for rows in sources.read(work.source, unit):
            vectors = self._encoder.encode(rows.texts)
            truncated += self._encoder.count_truncated(rows.texts)
            usable = usable_vectors(vectors)
            rejected += rows.rejected
            rejected += [
                sources.Rejected(str(rows.ids[row]), "unusable_vector", f"{unit.url}: id {rows.ids[row]}")
                for row in np.flatnonzero(~usable)
            ]
            keep = np.flatnonzero(usable)
            if len(keep):
                tables.append(self._protected(rows, vectors, keep))
                ids, texts = [rows.ids[row] for row in keep], [rows.texts[row] for row in keep]
                entries.append(ledger.part(ids, texts, self._charge, work.key))
        if tables:
            # First, so that no vector is ever published that the ledger does not name.
            self._write(ledger.FOLDER, unit, pa.concat_tables(entries))
            self._write("embeddings", unit, pa.concat_tables(tables))
        if rejected:
            quarantine = pa.Table.from_pylist([asdict(row) for row in rejected], QUARANTINE_SCHEMA)
            self._write("quarantine", unit, quarantine)
        rows_out = sum(len(table) for table in tables)
        record = {
            "unit": unit.name,
            "rows_in": rows_out + len(rejected),
            "rows_out": rows_out,
            "truncated": truncated,
            "quarantined": dict(Counter(row.reason for row in rejected)),
        }
        storage.write_json(storage.join(work.output, "_units", f"{unit.name}.json"), record)
        return record

    def _protected(self, rows: sources.Rows, vectors: np.ndarray, keep: np.ndarray) -> pa.Table:
        work = self._work
        ids = [rows.ids[row] for row in keep]
        released = self._policy.release(
            vectors[keep], ids=ids, contents=[rows.texts[row] for row in keep], key=work.key
        )
        id_name = work.source.input.id or "id"
        id_type = pa.string() if work.source.input.id is None else work.source.schema.field(id_name).type
        columns = {
            id_name: pa.array(ids, id_type),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(released.ravel()), released.shape[1]),
        }
        for name in work.passthrough:
            values = [rows.columns[name][row] for row in keep]
            columns[name] = pa.array(values, work.source.schema.field(name).type)
        columns["policy"] = pa.array([self._policy.hash[:16]] * len(ids)).dictionary_encode()
        releases, spent = self._composed(ids)
        columns["releases"] = pa.array(releases, pa.int32())
        columns["epsilon_spent"] = pa.array(spent, pa.float64())
        return pa.table(columns)

    def _composed(self, ids: list) -> tuple[np.ndarray, np.ndarray]:
        releases, spent = np.ones(len(ids), np.int32), np.full(len(ids), self._charge.epsilon_euclidean)
        if self._repeated:
            found = self._repeated.positions(record_numbers(ids))
            releases[found >= 0] = self._repeated.releases[found[found >= 0]]
            spent[found >= 0] = self._repeated.epsilon_euclidean[found[found >= 0]]
        return releases, spent

    def _write(self, folder: str, unit: sources.Unit, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        storage.write_bytes(storage.join(self._work.output, folder, f"part-{unit.name}.parquet"), buffer.getvalue())
