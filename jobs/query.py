"""Turn trusted queries into vectors to search a release with.

Whoever asks is trusted with the question, so that queries carry no noise: they are encoded as the records were, and put
through `Policy.query_transform`. For what that is, and why a query must not be shrunk as records are, see
`sparse_core.mechanisms.readout`. The vectors written here reveal what was asked; a query that others may see has to be
released like a record, with ``sparse privatize``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs import outputs, sources, storage
from jobs.cli import job_main
from jobs.config import QueryConfig
from jobs.progress import console, steps
from jobs.stages import check_output, load_configured, usable_vectors
from jobs.summary import Summary
from jobs.tracking import tracked
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.policy import Policy

CONFIG = QueryConfig
FILE, QUARANTINE = "queries.parquet", "quarantine.parquet"


@dataclass(frozen=True)
class Plan:
    """What a run will read, do and write."""

    source: sources.Source
    policy: Policy
    lines: tuple[str, ...]


def plan(config: QueryConfig) -> Plan:
    """Check the release, the queries and the output."""
    storage.configure(config.storage)
    check_output("query", config)
    policy = _policy(config)
    if outputs.read_manifest(config.release) is None:
        raise SparseError(
            f"release: {config.release} is not a finished release; run the job that writes it to its end first."
        )
    source = sources.plan(config.input, columns=config.passthrough)
    for column in (config.input.id, *config.passthrough):
        if column == outputs.COLUMN or (column == "id" and config.input.id is None):
            raise SparseError(f"The output has a column {column!r} of its own; rename the input's.")
    _refuse_other_vectors(config, source, policy)
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    asked = "as they are" if config.encoder == "none" else f"through {config.encoder.model}"
    return Plan(
        source,
        policy,
        (
            f"read        {rows} queries of {config.input.shown_path}, {asked}",
            f"release     {config.release}, policy {policy.hash[:16]}",
            f"write       {config.output}/{FILE}, {config.output}/summary.json",
        ),
    )


def run(config: QueryConfig, *, verbose: bool = False) -> Summary:
    """Write ``<output>/queries.parquet``.

    Parameters
    ----------
    config : QueryConfig
    verbose : bool
        Has no effect; every job takes it.
    """
    planned = plan(config)
    summary = Summary("query", policy_hash=planned.policy.hash)
    with tracked(config, summary):
        encoder = None
        if config.encoder != "none":
            with summary.timed("load"), steps("Loading the encoder"):
                encoder = load_configured(config.encoder)
            _policy(config, encoder.spec)
        rejected: list[sources.Rejected] = []
        with summary.timed("encode"), steps("Encoding the queries") as advance, ExitStack() as stack:
            writer = None
            for table in _tables(planned, encoder, rejected):
                if writer is None:
                    file = stack.enter_context(storage.writing(storage.join(config.output, FILE), private=True))
                    writer = stack.enter_context(pq.ParquetWriter(file, table.schema, compression="zstd"))
                writer.write_table(table)
                summary.rows_out += len(table)
                advance(summary.rows_out, max(planned.source.n_rows or 0, summary.rows_out))
        summary.quarantined = dict(Counter(row.reason for row in rejected))
        summary.rows_in = summary.rows_out + len(rejected)
        if rejected:
            with storage.writing(storage.join(config.output, QUARANTINE)) as file:
                pq.write_table(pa.Table.from_pylist([asdict(row) for row in rejected]), file)
        if not summary.rows_out:
            raise SparseError(
                f"input.path: {config.input.shown_path} holds no usable query; see {config.output}/{QUARANTINE}."
            )
        summary.details |= {"release": config.release, "fingerprints": {"data": planned.source.fingerprint}}
        summary.write(config.output)
    console.print(
        f"{summary.rows_out:,} queries, {len(rejected):,} quarantined: {config.output}/{FILE}. They are not protected: "
        "whoever reads these vectors learns what was asked.",
        highlight=False,
        soft_wrap=True,
    )
    return summary


def _tables(planned: Plan, encoder, rejected: list[sources.Rejected]) -> Iterator[pa.Table]:
    config = planned.source.input
    id_name = config.id or "id"
    id_type = pa.string() if config.id is None else planned.source.schema.field(id_name).type
    for unit in planned.source.units:
        for rows in sources.read(planned.source, unit):
            rejected += rows.rejected
            vectors = rows.vectors if encoder is None else encoder.encode(rows.texts)
            usable = usable_vectors(vectors)
            for row in np.flatnonzero(~usable):
                rejected.append(sources.Rejected(str(rows.ids[row]), "unusable_vector", rows.positions[row]))
            rows, vectors = rows.take(np.flatnonzero(usable)), vectors[usable]
            if len(rows):
                transformed = planned.policy.query_transform(vectors).astype(np.float32)
                columns = {
                    id_name: pa.array(rows.ids, id_type),
                    outputs.COLUMN: outputs.vector_array(transformed, "float32"),
                } | {name: rows.columns[name] for name in rows.columns.schema.names}
                yield pa.table(columns)


def _policy(config: QueryConfig, spec: EncoderSpec | None = None) -> Policy:
    """The release's policy. Queries may have a prompt of their own, as models for search want, and another backend."""
    url = storage.join(config.release, "policy")
    if storage.read_json(storage.join(url, "policy.json")) is None:
        raise SparseError(
            f"release: {config.release} has no policy (policy/policy.json is not there). Name the output directory of "
            "a privatize job."
        )
    with storage.local_directory(url) as local:
        policy = Policy.load(local)
        if spec is None:
            return policy
        return Policy.load(local, encoder=replace(spec, prompt=policy.encoder.prompt), exact=False)


def _refuse_other_vectors(config: QueryConfig, source: sources.Source, policy: Policy) -> None:
    expected = policy.encoder.dimension
    if source.dimension is not None and source.dimension != expected:
        raise SparseError(
            f"input.embedding: the queries have {source.dimension} dimensions, the records of {config.release} "
            f"{expected}. Take vectors of the encoder that the records were made with."
        )
    if source.dimension is None and not policy.encoder.weights_sha256:
        raise SparseError(
            f"release: the records of {config.release} are vectors that were computed elsewhere. Encode the queries "
            "with the same model and give their vectors in input.embedding."
        )


if __name__ == "__main__":
    job_main("query")
