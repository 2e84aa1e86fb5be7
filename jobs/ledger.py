"""The ledger beside each output dataset, and what a run may still spend.

``ledger/part-<unit>.parquet`` names every release of a unit: record id, keyed fingerprint of the release, policy, key
and price. It is written before the vectors it speaks of, so that whatever was published is in it; a unit done twice is
the same file twice. It holds no text and nothing that confirms a guess of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from jobs import sources, storage
from jobs.config import BudgetConfig
from jobs.progress import steps
from sparse_core.budget import (
    Charge,
    Outlook,
    Releases,
    Spent,
    distinct,
    joined,
    outlook,
    releases_under,
)
from sparse_core.errors import SparseError
from sparse_core.noise import Key, release_fingerprints
from sparse_core.policy import Policy

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


def part(ids: Sequence[str | int], texts: Sequence[str], charge: Charge, key: Key) -> pa.Table:
    """The ledger's rows for records released under one policy and key."""
    fingerprints = release_fingerprints(key, record_ids=ids, contents=texts, policy_hash=charge.policy)
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
    parts = []
    for dataset in datasets:
        fs, path = storage.filesystem(storage.join(dataset, FOLDER))
        files = sorted(name for name in fs.find(path) if name.endswith(".parquet")) if fs.exists(path) else []
        # A claim that tells what was counted promises a ledger that is written before any vector.
        if not files and "counted" not in claim(dataset):
            raise SparseError(
                f"{dataset} has no ledger. It should lie in the folder {FOLDER!r} of the output directory of a "
                "privatize job; keep it even where the vectors are withdrawn, because what was seen stays spent."
            )
        parts += [piece for name in files for piece in _read_part(fs, name)]
    everything = joined(parts)
    return everything.take(distinct(everything))


def _read_part(fs, path: str) -> list[Releases]:
    pieces = []
    try:
        with fs.open(path, "rb") as file:
            for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE, columns=SCHEMA.names):
                rows = pa.Table.from_batches([batch]).cast(SCHEMA).combine_chunks()
                if any(len(rows[name].unique()) != 1 for name in SCHEMA.names[2:]):
                    raise SparseError(f"The ledger {path} is damaged: one file speaks of one policy and one key.")
                charge = Charge(**{name: rows[name][0].as_py() for name in SCHEMA.names[2:]})
                fingerprints = np.frombuffer(b"".join(rows["release"].to_pylist()), np.uint8).reshape(-1, 16)
                pieces.append(releases_under(charge, rows["id"].to_pylist(), fingerprints))
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if isinstance(error, SparseError):
            raise
        raise SparseError(f"The ledger {path} is damaged ({type(error).__name__}).") from None
    return pieces


@dataclass(frozen=True)
class Spending:
    """What a run would spend.

    Attributes
    ----------
    charge : Charge
        Of each release.
    outlook : Outlook
    limit : float or None
        In epsilon_euclidean.
    """

    charge: Charge
    outlook: Outlook
    limit: float | None

    @property
    def line(self) -> str:
        """For people, in one line."""
        after = self.outlook.after
        limit = "no limit" if self.limit is None else f"limit {self.limit:.6g}"
        return (
            f"{np.count_nonzero(self.outlook.new):,} of {len(after):,} records released anew at epsilon_euclidean "
            f"{shown(self.charge.epsilon_euclidean)}; spent then: {shown(median(after.epsilon_euclidean))} at the "
            f"median, {shown(after.epsilon_euclidean.max(initial=0))} at most; {limit}"
        )

    @property
    def figures(self) -> dict[str, float | None]:
        """For ``summary.json``."""
        after = self.outlook.after
        return {
            "records": len(after),
            "records_released_anew": int(np.count_nonzero(self.outlook.new)),
            "epsilon_spent_median": median(after.epsilon_euclidean),
            "epsilon_spent_max": float(after.epsilon_euclidean.max(initial=0)),
            "delta_spent_max": float(after.delta.max(initial=0)),
            "max_epsilon_per_record": self.limit,
        }

    @property
    def repeated(self) -> Spent:
        """Records with more than one release; the others have spent one charge."""
        return self.outlook.after.take(self.outlook.after.releases > 1)

    def refuse_overspending(self) -> None:
        """Refuse a run that would push records over the limit.

        Raises
        ------
        SparseError
            Saying how many, and by how much.
        """
        if self.limit is None or not (over := self.outlook.over(self.limit)).any():
            return
        spent = self.outlook.after.epsilon_euclidean[over]
        delta = f" and delta {self.outlook.after.delta[over].max():.3g}" if self.charge.delta else ""
        raise SparseError(
            f"budget.max_epsilon_per_record: {len(spent):,} of {len(over):,} records would go over the limit of "
            f"{self.limit:.6g}. This run adds epsilon_euclidean {shown(self.charge.epsilon_euclidean)} per release; "
            f"they would then have spent {shown(median(spent))} at the median and {shown(spent.max())} at most{delta}, "
            f"{shown(median(spent) - self.limit)} and {shown(spent.max() - self.limit)} too much. Nothing was written. "
            "Give more protection (higher protection.rho or protection.floor, lower protection.epsilon), take these "
            "records out of the input, or raise the limit. To repeat an earlier release under its own policy, text and "
            "key costs nothing."
        )


def plan(budget: BudgetConfig, source: sources.Source, policy: Policy, key: Key, *, output: str) -> Spending:
    """Work out what a run would spend, from the ids and texts of its input and the ledgers that count.

    Takes about 160 bytes of memory per record at its peak, and 100 more per earlier release; texts are not kept.

    Parameters
    ----------
    budget : BudgetConfig
    source : sources.Source
    policy : Policy
    key : Key
    output : str
        Where the run writes: what a killed run has released there is not released anew.
    """
    charge = Charge.of(policy, key)
    datasets = with_included(budget.include)
    if claim(output):
        datasets.append(located(output))
    earlier = read(list(dict.fromkeys(datasets)))
    return Spending(charge, outlook(earlier, _to_come(source, charge, key)), budget.max_epsilon_per_record)


def _to_come(source: sources.Source, charge: Charge, key: Key) -> Releases:
    kept = [name for name in (source.input.id, source.input.text) if name is not None]
    source = replace(source, schema=pa.schema([source.schema.field(name) for name in kept]))
    coming, seen = [], 0
    with steps("Planning the budget") as advance:
        for unit in source.units:
            for rows in sources.read(source, unit):
                fingerprints = release_fingerprints(
                    key, record_ids=rows.ids, contents=rows.texts, policy_hash=charge.policy
                )
                coming.append(releases_under(charge, rows.ids, fingerprints))
                seen += len(rows.ids)
                advance(seen, source.n_rows or seen)
    return joined(coming)


def median(values: np.ndarray) -> float:
    """The median; 0 for no values."""
    return float(np.median(values)) if len(values) else 0.0


def shown(value: float) -> str:
    """A figure for people."""
    return "infinite" if np.isinf(value) else f"{value:.6g}"
