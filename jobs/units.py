"""What an actor does with a unit of work: read, validate, encode, protect, write."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from jobs import ledger, outputs, resume, sources, storage
from jobs.config import ChunkConfig, EncoderConfig, OutputConfig, StorageConfig
from jobs.outputs import PartWriter
from jobs.spending import Notes
from jobs.stages import chunker_of, load_configured, usable_vectors
from sparse_core.budget import Charge, releases_under, subject_numbers
from sparse_core.errors import SparseError
from sparse_core.noise import Key, release_fingerprints

RESERVED_COLUMNS = (outputs.COLUMN, "parent", "chunk", "policy", "releases", "epsilon_spent")
QUARANTINE_SCHEMA = pa.schema([("id", pa.string()), ("reason", pa.string()), ("position", pa.string())])
UNIT_NORM_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class UnitWork:
    """What an actor needs to know; travels to it over Ray's own transport, key included.

    The policy does not: actors read it from the output directory, where the driver has written it.

    Attributes
    ----------
    source : sources.Source
    key : Key
    encoder : EncoderConfig or None
        None where the source holds vectors.
    output : str
    dataset : OutputConfig
    storage : StorageConfig
    passthrough : tuple of str
    chunk : ChunkConfig or None
    noted : frozenset of str
        Units with `Notes`.
    policy_hash : str
        Of the policy that the driver has built; any other that lies there is refused.
    """

    source: sources.Source
    key: Key
    encoder: EncoderConfig | None
    output: str
    dataset: OutputConfig
    storage: StorageConfig
    passthrough: tuple[str, ...]
    chunk: ChunkConfig | None
    noted: frozenset[str]
    policy_hash: str


class UnitActor:
    """Ray Data actor: loads the encoder once, then reads, encodes, protects and writes units."""

    def __init__(self, work: UnitWork):
        self._work = work
        storage.configure(work.storage)
        self._encoder = None if work.encoder is None else load_configured(work.encoder, threads=1)
        self._prepare = (lambda rows: rows) if work.chunk is None else chunker_of(work.chunk, self._encoder)
        self._refusal = None
        try:
            self._policy = resume.policy_claimed(
                work.output, work.policy_hash, encoder=self._encoder and self._encoder.spec
            )
        except SparseError as error:
            # Ray would start an actor that cannot be made again and again.
            self._refusal = str(error)
            return
        self._charge = Charge.of(self._policy, work.key)
        self._scale = outputs.public_scale(self._policy, work.dataset.precision)
        self._schema = published_schema(
            work.source,
            work.dataset,
            work.passthrough,
            chunked=work.chunk is not None,
            dimension=self._policy.encoder.dimension,
            scale=self._scale,
        )

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        return {"record": [self._done_or_refused(unit) for unit in batch["unit"]]}

    def _done_or_refused(self, unit: sources.Unit) -> dict:
        if self._refusal is not None:
            return {"refused": self._refusal}
        try:
            return self._do(unit)
        except SparseError as error:
            # As a value, because Ray keeps nothing but the text of an exception's cause.
            return {"refused": str(error)}

    def _do(self, unit: sources.Unit) -> dict:
        work, clock = self._work, Clock()
        rejected: list[sources.Rejected] = []
        truncated = clipped = 0
        notes = Notes(work.output, unit.name, self._charge) if unit.name in work.noted else None
        started, protected = time.time(), None
        written: set[bytes] = set()
        # The ledger's part ends first: no vector can be seen before the ledger names it.
        with self._part(unit) as published, self._part(unit, ledger.FOLDER) as entries:
            batches = clock.ticking("read", map(self._prepare, sources.read(work.source, unit, key=work.key)))
            for rows, vectors, cut in clock.ticking("encode", self._encoded(batches)):
                rejected += rows.rejected
                truncated += cut
                keep = self._kept(rows, vectors, notes, rejected)
                with clock.timed("protect"):
                    keep, entry = self._within_budget(rows, vectors, keep, notes, rejected)
                    if not len(keep):
                        continue
                    kept = rows.take(keep)
                    released = self._policy.release(
                        vectors[keep],
                        ids=kept.ids,
                        subjects=kept.subjects,
                        contents=kept.contents_on(self._policy.law.grid),
                        key=work.key,
                    )
                protected = protected or time.time()
                with clock.timed("write"):
                    clipped += outputs.count_clipped(released, work.dataset.precision, self._scale)
                    entries.write(entry)
                    written.update(entry["vector"].to_pylist())
                    published.write(self._table(kept, released, entry["record"].to_numpy(), notes))
            if (seen := ledger.kept_of(work.output, unit.name, written)) is not None:
                entries.write(seen)
        with clock.timed("write"), self._part(unit, "quarantine") as quarantine:
            quarantine.write(pa.Table.from_pylist([asdict(row) for row in rejected], QUARANTINE_SCHEMA))
        rows_out = 0 if published.file is None else published.file.rows
        record = {
            "unit": unit.name,
            "rows_in": rows_out + len(rejected),
            "rows_out": rows_out,
            "truncated": truncated,
            "clipped": clipped,
            "unforeseen": 0 if notes is None else notes.unforeseen,
            "policy_hash": self._policy.hash,
            "quarantined": dict(Counter(row.reason for row in rejected)),
            "file": None if published.file is None else asdict(published.file),
            "ledger": None if entries.file is None else entries.file.listed,
        }
        storage.write_json(storage.join(work.output, resume.UNITS, f"{unit.name}.json"), record)
        # Batches are read while others are encoded.
        clock.seconds["encode"] -= clock.seconds["read"]
        return record | {"seconds": clock.seconds, "started": started, "protected": protected}

    def _part(self, unit: sources.Unit, folder: str | None = None) -> PartWriter:
        return PartWriter(self._work.output, self._work.dataset, name=unit.name, folder=folder)

    def _encoded(self, batches: Iterator[sources.Rows]) -> Iterator[tuple[sources.Rows, np.ndarray, int]]:
        """Batches with the vectors to protect, and how many texts were longer than the encoder reads."""
        if self._encoder is None:
            yield from ((rows, rows.vectors, 0) for rows in batches)
            return
        waiting: deque[sources.Rows] = deque()

        def texts() -> Iterator[list[str]]:
            for rows in batches:
                waiting.append(rows)
                yield rows.texts

        for vectors in self._encoder.encode_stream(texts()):
            rows = waiting.popleft()
            yield rows, vectors, self._encoder.count_truncated(rows.texts)

    def _kept(
        self, rows: sources.Rows, vectors: np.ndarray, notes: Notes | None, rejected: list[sources.Rejected]
    ) -> np.ndarray:
        """Positions of the rows to publish; the others are set apart."""
        fit = {"unusable_vector": usable_vectors(vectors)}
        if self._encoder is None and self._policy.encoder.normalize:
            fit["not_unit_norm"] = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_NORM_TOLERANCE
        if notes is not None:
            fit["duplicate_id"] = ~notes.repeated(rows.ids)
        keep = np.ones(len(rows), bool)
        for reason, good in fit.items():
            bad = np.flatnonzero(keep & ~good)
            rejected += [sources.Rejected(str(rows.ids[row]), reason, rows.positions[row]) for row in bad]
            keep &= good
        return np.flatnonzero(keep)

    def _within_budget(
        self,
        rows: sources.Rows,
        vectors: np.ndarray,
        keep: np.ndarray,
        notes: Notes | None,
        rejected: list[sources.Rejected],
    ) -> tuple[np.ndarray, pa.Table]:
        """Positions of the rows to publish, of those kept, and what the ledger says of them; others are set apart."""
        kept = rows.take(keep)
        named = {"subjects": kept.subjects, "contents": kept.contents_on(self._policy.law.grid), "key": self._work.key}
        subjects, vectors = subject_numbers(kept.subjects), self._policy.fingerprints(vectors[keep], **named)
        contents = release_fingerprints(policy_hash=self._policy.hash, **named)
        within = np.ones(len(keep), bool)
        if notes is not None:
            within = ~notes.over_budget(releases_under(self._charge, subjects, contents, vectors))
            over = keep[~within]
            rejected += [sources.Rejected(str(rows.ids[row]), "over_budget", rows.positions[row]) for row in over]
        return keep[within], ledger.part(self._charge, subjects[within], contents[within], vectors[within])

    def _table(self, rows: sources.Rows, released: np.ndarray, subjects: np.ndarray, notes: Notes | None) -> pa.Table:
        n_rows = len(rows)
        releases, spent = np.ones(n_rows, np.int32), np.full(n_rows, self._charge.epsilon_euclidean)
        if notes is not None:
            notes.fill(subjects, releases, spent)
        columns = [
            rows.ids,
            *((rows.parents, rows.chunks) if self._work.chunk is not None else ()),
            outputs.vector_array(released, self._work.dataset.precision, self._scale),
            *(rows.columns[name] for name in self._work.passthrough),
            pa.array([self._policy.hash[:16]] * n_rows).dictionary_encode(),
            releases,
            spent,
        ]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.table(arrays, schema=self._schema)


def published_schema(
    source: sources.Source,
    dataset: OutputConfig,
    passthrough: tuple[str, ...],
    *,
    chunked: bool,
    dimension: int,
    scale: float | None,
) -> pa.Schema:
    """The columns of a published dataset.

    Parameters
    ----------
    source : sources.Source
    dataset : OutputConfig
    passthrough : tuple of str
    chunked : bool
        Whether records are chunks of the source's.
    dimension : int
        Of the vectors.
    scale : float or None
        Of int8.
    """
    identity = pa.field("id", pa.string()) if source.input.id is None else source.schema.field(source.input.id)
    of_chunks = [identity.with_name("parent"), pa.field("chunk", pa.int32())]
    return pa.schema(
        [
            *([identity.with_type(pa.string()), *of_chunks] if chunked else [identity]),
            outputs.vector_field(dimension, dataset.precision, scale),
            *(source.schema.field(name) for name in passthrough),
            pa.field("policy", pa.dictionary(pa.int32(), pa.string())),
            pa.field("releases", pa.int32()),
            pa.field("epsilon_spent", pa.float64()),
        ]
    )


class Clock:
    """Seconds spent in each stage."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add what the block takes to a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    def ticking(self, stage: str, items: Iterator) -> Iterator:
        """Add what an iterator takes to give its items to a stage."""
        while True:
            with self.timed(stage):
                item = next(items, None)
            if item is None:
                return
            yield item
