"""The pass over a corpus before a run: which ids stand there twice, and what the run would spend.

Ids and contents are read once, and earlier ledgers too. What is kept of them, 24 bytes a row, is spread over files by
record number and worked off file by file, so that memory does not grow with the corpus.
"""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jobs import ledger, sources, storage
from jobs.config import BudgetConfig
from jobs.ledger import shown
from jobs.progress import steps
from sparse_core.budget import ROUNDING, Charge, Releases, outlook, record_numbers, releases_under
from sparse_core.errors import SparseError
from sparse_core.noise import Key, release_fingerprints
from sparse_core.policy import Policy

FOLDER = "_plan"
_PARTITIONS = 128
_BUFFER_BYTES = 1 << 16
_COMING = np.dtype([("record", "<u8"), ("release", "<u8"), ("unit", "<u4"), ("row", "<u4")])
_EARLIER = np.dtype([("record", "<u8"), ("release", "<u8"), ("charge", "<i4")])
_NOTE = np.dtype([("record", "<u8"), ("unit", "<u4"), ("releases", "<i4"), ("spent", "<f8"), ("first_here", "?")])


@dataclass
class Spending:
    """What a run would spend, and what its units must know of their records. Use as a context manager.

    Attributes
    ----------
    charge : Charge
        Of each release.
    limit : float or None
        In epsilon_euclidean.
    new : int
        Records that would be released anew.
    duplicates : int
        Rows whose id stands in an earlier row too.
    spent, over : Counter
        How many records would then have spent how much epsilon_euclidean: all, and those over the limit.
    releases : Counter
        How many records would then have been released how often.
    delta : float
        The most a record would then have spent.
    """

    charge: Charge
    limit: float | None
    new: int = 0
    duplicates: int = 0
    spent: Counter = field(default_factory=Counter)
    over: Counter = field(default_factory=Counter)
    releases: Counter = field(default_factory=Counter)
    delta: float = 0.0
    _files: ExitStack = field(default_factory=ExitStack)
    _notes: _Spread | None = None

    def __enter__(self) -> Spending:
        return self

    def __exit__(self, *_) -> None:
        self._files.close()

    @property
    def line(self) -> str:
        """For people, in one line."""
        limit = "no limit" if self.limit is None else f"limit {self.limit:.6g}"
        twice = f"; {self.duplicates:,} rows repeat an id" if self.duplicates else ""
        return (
            f"{self.new:,} of {self.spent.total():,} records released anew at epsilon_euclidean "
            f"{shown(self.charge.epsilon_euclidean)}; spent then: {shown(_median(self.spent))} at the median, "
            f"{shown(max(self.spent, default=0.0))} at most; {limit}{twice}"
        )

    @property
    def figures(self) -> dict[str, float | None]:
        """For ``summary.json``."""
        return {
            "records": self.spent.total(),
            "records_released_anew": self.new,
            "releases_max": max(self.releases, default=0),
            "epsilon_spent_median": _median(self.spent),
            "epsilon_spent_max": max(self.spent, default=0.0),
            "delta_spent_max": self.delta,
            "max_epsilon_per_record": self.limit,
        }

    def refuse_overspending(self) -> None:
        """Refuse a run that would push records over the limit.

        Raises
        ------
        SparseError
            Saying how many, and by how much.
        """
        if not self.over:
            return
        median, most = _median(self.over), max(self.over)
        delta = f" and delta {self.delta:.3g}" if self.charge.delta else ""
        raise SparseError(
            f"budget.max_epsilon_per_record: {self.over.total():,} of {self.spent.total():,} records would go over the "
            f"limit of {self.limit:.6g}. This run adds epsilon_euclidean {shown(self.charge.epsilon_euclidean)} per "
            f"release; they would then have spent {shown(median)} at the median and {shown(most)} at most{delta}, "
            f"{shown(median - self.limit)} and {shown(most - self.limit)} too much. Nothing was written. "
            "Give more protection (higher protection.rho or protection.floor, lower protection.epsilon), take these "
            "records out of the input, or raise the limit. To repeat an earlier release under its own policy, text and "
            "key costs nothing."
        )

    def refuse_duplicates(self) -> None:
        """Refuse a corpus in which an id stands twice.

        Raises
        ------
        SparseError
        """
        if self.duplicates:
            raise SparseError(
                f"limits.duplicate_ids: {self.duplicates:,} rows have an id that stands in an earlier row. Make ids "
                "unique, or set limits.duplicate_ids=quarantine to publish the first row of each and list the others "
                "in the quarantine. Nothing was written."
            )

    def write_notes(self, output: str, units: Sequence[sources.Unit]) -> frozenset[str]:
        """Write what units must know of their records beside the output, where actors find it.

        Returns
        -------
        frozenset of str
            Names of the units with notes.
        """
        noted = set()
        for notes in self._notes.parts() if self._notes else ():
            notes = notes[np.lexsort((notes["record"], notes["unit"]))]
            for rows in np.split(notes, np.flatnonzero(np.diff(notes["unit"])) + 1):
                if len(rows):
                    name = units[rows["unit"][0]].name
                    buffer = io.BytesIO()
                    np.save(buffer, rows)
                    storage.write_bytes(storage.join(output, FOLDER, f"{name}.npy"), buffer.getvalue())
                    noted.add(name)
        return frozenset(noted)


class Notes:
    """What was noted of a unit's records: those that stand in the corpus more than once or were released before.

    Parameters
    ----------
    output : str
    unit : str
        Its name.
    """

    def __init__(self, output: str, unit: str):
        fs, path = storage.filesystem(storage.join(output, FOLDER, f"{unit}.npy"))
        self._notes = np.load(io.BytesIO(fs.cat_file(path)))
        self._elsewhere = set(self._notes["record"][~self._notes["first_here"]].tolist())
        self._repeatable = set(self._notes["record"].tolist())
        self._seen: set[int] = set()

    def repeated(self, ids: Sequence[str | int]) -> np.ndarray:
        """Rows whose id stood in an earlier row of the corpus; bool, shape (n_rows,). Ask once per row, in order."""
        again = np.zeros(len(ids), bool)
        for row, record in enumerate(record_numbers(ids).tolist()):
            if record in self._repeatable:
                again[row] = record in self._elsewhere or record in self._seen
                self._seen.add(record)
        return again

    def fill(self, ids: Sequence[str | int], releases: np.ndarray, spent: np.ndarray) -> None:
        """Put in how often the noted records are released and what they spend, this run included."""
        numbers, noted = record_numbers(ids), self._notes["record"]
        at = np.minimum(np.searchsorted(noted, numbers), len(noted) - 1)
        found = noted[at] == numbers
        releases[found] = self._notes["releases"][at[found]]
        spent[found] = self._notes["spent"][at[found]]


def plan(
    budget: BudgetConfig,
    source: sources.Source,
    policy: Policy,
    key: Key,
    *,
    output: str,
    prepare: Callable[[sources.Rows], sources.Rows] = lambda rows: rows,
) -> Spending:
    """Read what a run would release, and work out what that spends beside the ledgers that count.

    Parameters
    ----------
    budget : BudgetConfig
    source : sources.Source
    policy : Policy
    key : Key
    output : str
        Where the run writes: what a killed run has released there is not released anew.
    prepare : callable
        What is done to the rows that are read before they are encoded, such as chunking.
    """
    charge = Charge.of(policy, key)
    datasets = ledger.with_included(budget.include)
    if ledger.claim(output):
        datasets.append(ledger.located(output))
    spending = Spending(charge, budget.max_epsilon_per_record)
    folder = Path(spending._files.enter_context(tempfile.TemporaryDirectory(prefix="sparse-plan-")))
    with (
        _Spread(folder / "coming", _COMING, "record") as coming,
        _Spread(folder / "earlier", _EARLIER, "record") as past,
    ):
        table = _spread_earlier(past, list(dict.fromkeys(datasets)))
        _spread_coming(coming, source, policy.law.grid, charge, key, prepare)
    spending._notes = _Spread(folder / "notes", _NOTE, "unit")
    with spending._notes as notes:
        for rows, earlier in zip(coming.parts(), past.parts(), strict=True):
            _work_off(spending, notes, rows, earlier, table)
    return spending


def _spread_earlier(past: _Spread, datasets: list[str]) -> tuple[Charge, ...]:
    table: dict[Charge, int] = {}
    for piece in ledger.scan(datasets):
        numbers = np.array([table.setdefault(charge, len(table)) for charge in piece.table], np.int32)
        past.add(record=piece.records, release=piece.fingerprints, charge=numbers[piece.charges])
    return tuple(table)


def _spread_coming(coming: _Spread, source: sources.Source, grid: float, charge: Charge, key: Key, prepare) -> None:
    seen = 0
    with steps("Planning") as advance:
        for number, unit in enumerate(source.units):
            row = 0
            for rows in map(prepare, sources.read(source, unit, key=key)):
                named = _named(rows, grid, charge, key)
                coming.add(
                    record=named.records,
                    release=named.fingerprints,
                    unit=np.full(len(named), number),
                    row=np.arange(row, row + len(named)),
                )
                row += len(named)
                seen += len(named)
                advance(seen, max(source.n_rows or 0, seen))


def _named(rows: sources.Rows, grid: float, charge: Charge, key: Key) -> Releases:
    prints = release_fingerprints(key, subjects=rows.ids, contents=rows.contents_on(grid), policy_hash=charge.policy)
    return releases_under(charge, rows.ids, prints)


def _work_off(spending: Spending, notes: _Spread, rows: np.ndarray, earlier: np.ndarray, table) -> None:
    """Add one part's records to the figures, and note those that are not simply new."""
    if not len(rows):
        return
    rows = rows[np.lexsort((rows["row"], rows["unit"], rows["record"]))]
    starts = np.r_[True, rows["record"][1:] != rows["record"][:-1]]
    firsts = rows[starts]
    spending.duplicates += len(rows) - len(firsts)
    charge, limit = spending.charge, spending.limit
    seen = outlook(
        Releases(earlier["record"], earlier["release"], earlier["charge"], table),
        Releases(firsts["record"], firsts["release"], np.zeros(len(firsts), np.int32), (charge,)),
    )
    after, new = seen.after, seen.new > 0
    spending.new += int(np.count_nonzero(new))
    spending.spent.update(_counted(after.epsilon_euclidean))
    spending.releases.update(_counted(after.releases))
    spending.delta = max(spending.delta, float(after.delta.max(initial=0)))
    if limit is not None:
        over = new & (after.epsilon_euclidean > limit * (1 + ROUNDING))
        spending.over.update(_counted(after.epsilon_euclidean[over]))
    # `after` is ordered by record, as `firsts` is.
    group = np.cumsum(starts) - 1
    here, at = np.unique(np.column_stack([group, rows["unit"]]), axis=0, return_index=True)
    first_here = starts[at]
    record = here[:, 0]
    repeated = np.bincount(group, minlength=len(firsts)) > 1
    noted = repeated[record] | (after.releases[record] > 1)
    record = record[noted]
    notes.add(
        record=after.records[record],
        unit=here[noted, 1],
        releases=after.releases[record],
        spent=after.epsilon_euclidean[record],
        first_here=first_here[noted],
    )


class _Spread:
    """Rows of one dtype, spread over files by a column of theirs."""

    def __init__(self, folder: Path, dtype: np.dtype, column: str):
        folder.mkdir()
        self._paths = [folder / str(part) for part in range(_PARTITIONS)]
        self._dtype, self._column = dtype, column
        self._open, self._files = ExitStack(), []

    def __enter__(self) -> _Spread:
        with ExitStack() as opening:
            self._files = [opening.enter_context(path.open("wb", buffering=_BUFFER_BYTES)) for path in self._paths]
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._open.close()

    def add(self, **columns: np.ndarray) -> None:
        """Append rows, given by column."""
        rows = np.empty(len(columns[self._column]), self._dtype)
        for name, values in columns.items():
            rows[name] = values
        part = rows[self._column] % _PARTITIONS
        rows = rows[np.argsort(part, kind="stable")]
        edges = np.searchsorted(np.sort(part), np.arange(_PARTITIONS + 1))
        for file, start, stop in zip(self._files, edges, edges[1:], strict=False):
            if stop > start:
                file.write(rows[start:stop].tobytes())

    def parts(self) -> Iterator[np.ndarray]:
        """The rows of each file."""
        for path in self._paths:
            yield np.fromfile(path, self._dtype)


def _counted(values: np.ndarray) -> dict[float, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _median(counter: Counter) -> float:
    """The median of counted values; 0 for none."""
    if not counter:
        return 0.0
    values, counts = zip(*sorted(counter.items()), strict=True)
    below = np.cumsum(counts)
    middle = (below[-1] - 1) // 2, below[-1] // 2
    low, high = (values[int(np.searchsorted(below, place, side="right"))] for place in middle)
    return low if low == high else (low + high) / 2
