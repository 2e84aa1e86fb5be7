"""The pass over a corpus before a run: which ids stand there twice, which texts, and what the run would spend.

Ids, subjects and contents are read once, and earlier ledgers too. What is kept of them, 40 bytes a row, is spread over
files by number of record, then by subject and by content, and worked off file by file, so that memory does not grow
with the corpus.

What is spent is foreseen: a text that a subject released before under this policy and key is the same vector under the
same encoder, and costs nothing. An actor that comes to another vector (on another kind of processor) charges it as
another release, as far as its share of the subject's limit goes, and sets the row apart beyond that. Actors of one run
are taken to agree with each other.
"""

from __future__ import annotations

import io
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from jobs import ledger, sources, storage
from jobs.config import BudgetConfig
from jobs.ledger import shown
from jobs.progress import steps
from sparse_core.budget import (
    ROUNDING,
    Charge,
    Releases,
    distinct,
    foreseen,
    outlook,
    releases_under,
    subject_numbers,
)
from sparse_core.errors import SparseError
from sparse_core.noise import Key, release_fingerprints
from sparse_core.policy import Policy

FOLDER = "_plan"
_PARTITIONS = 128
_BUFFER_BYTES = 1 << 16
_NO_LIMIT = np.iinfo(np.int32).max
_RECORD, _SUBJECT, _UNIT = ("record", "<u8"), ("subject", "<u8"), ("unit", "<u4")
_CONTENT, _RELEASE, _VECTOR = ("content", "<u8"), ("release", "<u8"), ("vector", "<u8")
_COMING = np.dtype([_RECORD, _SUBJECT, _RELEASE, _CONTENT, _UNIT, ("row", "<u4")])
_EARLIER = np.dtype([_SUBJECT, _RELEASE, _VECTOR, ("charge", "<i4")])
_FIRST = np.dtype([_SUBJECT, _RELEASE, _UNIT])
_COPY = np.dtype([_CONTENT, _SUBJECT])
_NOTED = {
    "repeated": np.dtype([_UNIT, _RECORD, ("first_here", "?")]),
    "spent": np.dtype([_UNIT, _SUBJECT, ("releases", "<i4"), ("spent", "<f8"), ("spare", "<i4")]),
    "known": np.dtype([_UNIT, _RELEASE, _VECTOR]),
}


@dataclass
class Copies:
    """Texts, or vectors, that stand in a corpus under several subjects.

    Attributes
    ----------
    texts : int
        How many there are.
    most : int
        Under how many subjects the most frequent of all stands. Each copy has noise of its own, so whoever recognises
        them can average it.
    """

    texts: int = 0
    most: int = 0

    def add(self, copies: np.ndarray) -> None:
        """Count rows with the columns content and subject, all there are of these contents."""
        copies = _sorted(copies, "content", "subject")
        once = copies[_starts(copies, "content", "subject")]
        subjects = np.diff(np.r_[np.flatnonzero(_starts(once, "content")), len(once)])
        self.texts += int(np.count_nonzero(subjects > 1))
        self.most = max(self.most, int(subjects.max(initial=0)))

    @property
    def warning(self) -> str:
        """For people; empty where there are none."""
        if not self.texts:
            return ""
        return (
            f"{self.texts:,} texts stand under several subjects, one of them under {self.most:,}: each copy has noise "
            "of its own, which whoever recognises the copies can average."
        )


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
        Subjects that would be released anew.
    duplicates : int
        Rows whose id stands in an earlier row too.
    copies : Copies
    spent, over : Counter
        How many subjects would then have spent how much epsilon_euclidean: all, and those over the limit.
    releases : Counter
        How many subjects would then have been released how often.
    delta : float
        The most a subject would then have spent.
    """

    charge: Charge
    limit: float | None
    new: int = 0
    duplicates: int = 0
    copies: Copies = field(default_factory=Copies)
    spent: Counter = field(default_factory=Counter)
    over: Counter = field(default_factory=Counter)
    releases: Counter = field(default_factory=Counter)
    delta: float = 0.0
    _files: ExitStack = field(default_factory=ExitStack)
    _notes: dict[str, _Spread] = field(default_factory=dict)

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
            f"{self.new:,} of {self.spent.total():,} subjects released anew at epsilon_euclidean "
            f"{shown(self.charge.epsilon_euclidean)}; spent then: {shown(_median(self.spent))} at the median, "
            f"{shown(max(self.spent, default=0.0))} at most; {limit}{twice}"
        )

    @property
    def figures(self) -> dict[str, float | None]:
        """For ``summary.json``."""
        return {
            "subjects": self.spent.total(),
            "subjects_released_anew": self.new,
            "releases_max": max(self.releases, default=0),
            "epsilon_spent_median": _median(self.spent),
            "epsilon_spent_max": max(self.spent, default=0.0),
            "delta_spent_max": self.delta,
            "max_epsilon_per_subject": self.limit,
        }

    def refuse_overspending(self) -> None:
        """Refuse a run that would push subjects over the limit.

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
            f"budget.max_epsilon_per_subject: {self.over.total():,} of {self.spent.total():,} subjects would go over "
            f"the limit of {self.limit:.6g}. This run adds epsilon_euclidean {shown(self.charge.epsilon_euclidean)} "
            f"per release; they would then have spent {shown(median)} at the median and {shown(most)} at most{delta}, "
            f"{shown(median - self.limit)} and {shown(most - self.limit)} too much. Nothing was written. "
            "Give more protection (higher protection.rho or protection.floor, lower protection.epsilon), take these "
            "subjects out of the input, or raise the limit. To repeat an earlier release under its own policy, text "
            "and key costs nothing."
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

    def write_notes(self, output: str, units: Sequence[sources.Unit], *, done: Container[str] = ()) -> frozenset[str]:
        """Write what units must know of their rows beside the output, where actors find it.

        Returns
        -------
        frozenset of str
            Names of the units with notes; none of those that are done.
        """
        noted = set()
        for parts in zip(*(spread.parts() for spread in self._notes.values()), strict=True):
            for number in np.unique(np.concatenate([part["unit"] for part in parts])):
                name = units[number].name
                if name in done:
                    continue
                own = {kind: part[part["unit"] == number] for kind, part in zip(self._notes, parts, strict=True)}
                buffer = io.BytesIO()
                np.savez(buffer, **own)
                storage.write_bytes(storage.join(output, FOLDER, f"{name}.npz"), buffer.getvalue())
                noted.add(name)
        return frozenset(noted)


class Notes:
    """What was noted of a unit's rows: ids that stand in the corpus more than once, and subjects released before or
    more than once.

    Parameters
    ----------
    output : str
    unit : str
        Its name.
    charge : Charge
        Of each release.

    Attributes
    ----------
    unforeseen : int
        Releases so far of texts that were published before and now came to another vector.
    """

    def __init__(self, output: str, unit: str, charge: Charge):
        fs, path = storage.filesystem(storage.join(output, FOLDER, f"{unit}.npz"))
        with np.load(io.BytesIO(fs.cat_file(path))) as noted:
            repeated, spent, self._known = (noted[kind] for kind in _NOTED)
        self._elsewhere = set(repeated["record"][~repeated["first_here"]].tolist())
        self._repeatable = set(repeated["record"].tolist())
        self._seen: set[int] = set()
        self._spent = np.sort(spent, order="subject")
        self._charge = charge
        self._anew: set[int] = set()
        self.unforeseen = 0

    def repeated(self, ids: Sequence[str | int]) -> np.ndarray:
        """Rows whose id stood in an earlier row of the corpus; bool, shape (n_rows,). Ask once per row, in order."""
        again = np.zeros(len(ids), bool)
        for row, record in enumerate(subject_numbers(ids).tolist()):
            if record in self._repeatable:
                again[row] = record in self._elsewhere or record in self._seen
                self._seen.add(record)
        return again

    def over_budget(self, releases: Releases) -> np.ndarray:
        """Rows that must not be published; bool, shape (n_rows,). Ask once per row, in order.

        Their text was published before, now came to another vector, and one more release would exceed the subject's
        limit. Those that do not are charged.
        """
        over = np.zeros(len(releases), bool)
        known = np.isin(releases.contents, self._known["release"])
        for row in np.flatnonzero(known & ~np.isin(releases.vectors, self._known["vector"])):
            vector = int(releases.vectors[row])
            if vector in self._anew:
                continue
            at = np.searchsorted(self._spent["subject"], releases.subjects[row])
            if self._spent["spare"][at] <= 0:
                over[row] = True
                continue
            self._anew.add(vector)
            self.unforeseen += 1
            self._spent["spare"][at] -= 1
            self._spent["releases"][at] += 1
            self._spent["spent"][at] += self._charge.epsilon_euclidean
        return over

    def fill(self, subjects: np.ndarray, releases: np.ndarray, spent: np.ndarray) -> None:
        """Put in how often the noted subjects are released and what they spend, this run included."""
        noted = self._spent["subject"]
        if not len(noted):
            return
        at = np.minimum(np.searchsorted(noted, subjects), len(noted) - 1)
        found = noted[at] == subjects
        releases[found] = self._spent["releases"][at[found]]
        spent[found] = self._spent["spent"][at[found]]


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

    Raises
    ------
    SparseError
        If a ledger that counts is incomplete, damaged, still growing, or about subjects of another kind.
    """
    charge, own = Charge.of(policy, key), ledger.located(output)
    datasets = [url for url in ledger.with_included(budget.include) if url != own]
    _refuse_unfit(datasets, source)
    if ledger.claim(output):
        datasets.append(own)
    spending = Spending(charge, budget.max_epsilon_per_subject)
    folder = Path(spending._files.enter_context(tempfile.TemporaryDirectory(prefix="sparse-plan-")))
    spending._notes = {kind: _Spread(folder / kind, dtype, "unit") for kind, dtype in _NOTED.items()}
    firsts, copies = _Spread(folder / "firsts", _FIRST, "subject"), _Spread(folder / "copies", _COPY, "content")
    coming, past = _Spread(folder / "coming", _COMING, "record"), _Spread(folder / "past", _EARLIER, "subject")
    with coming, past:
        table = _spread_earlier(past, datasets)
        _spread_coming(coming, source, policy, key, prepare)
    with firsts, copies, spending._notes["repeated"] as repeated:
        for rows in coming.parts():
            spending.duplicates += _tell_apart(rows, firsts, copies, repeated)
    for rows in copies.parts():
        spending.copies.add(rows)
    with spending._notes["spent"], spending._notes["known"]:
        for rows, earlier in zip(firsts.parts(), past.parts(), strict=True):
            named = (earlier[name] for name in ("subject", "release", "vector", "charge"))
            _work_off(spending, rows, Releases(*named, table))
    return spending


def _refuse_unfit(datasets: Sequence[str], source: sources.Source) -> None:
    """Refuse datasets whose ledgers may still grow, or speak of other subjects than this run."""
    for url in datasets:
        if ledger.unfinished(url):
            raise SparseError(
                f"budget.include: {url} is claimed by a run that has not finished, so that nobody can tell what its "
                "subjects will have spent. Let it finish, or run the command that began it again. If it never will be, "
                f"name a directory with nothing but a copy of its folder {ledger.FOLDER!r}."
            )
        if (bound := ledger.claim(url)) and not _same_subjects(bound, source):
            theirs, ours = (name or "the id of each row" for name in (bound.get("subject"), source.subject))
            raise SparseError(
                f"budget.include: {url} was counted by {theirs}, this run by {ours}, so that nothing would add up. "
                "Name the column of the same subjects in budget.subject."
            )


def _same_subjects(bound: dict, source: sources.Source) -> bool:
    if bound.get("subject") == source.subject:
        return True
    theirs = bound.get("subject") or bound.get("id")
    return theirs is not None and theirs == (source.subject or source.input.id)


def _spread_earlier(past: _Spread, datasets: list[str]) -> tuple[Charge, ...]:
    table: dict[Charge, int] = {}
    for piece in ledger.scan(datasets):
        numbers = np.array([table.setdefault(charge, len(table)) for charge in piece.table], np.int32)
        past.add(subject=piece.subjects, release=piece.contents, vector=piece.vectors, charge=numbers[piece.charges])
    return tuple(table)


def _spread_coming(coming: _Spread, source: sources.Source, policy: Policy, key: Key, prepare) -> None:
    # Nobody needs the names of contents after this pass, so nobody can confirm a guess by them.
    seen, secret, charge = 0, secrets.token_bytes(32), Charge.of(policy, key)
    with steps("Planning") as advance:
        for number, unit in enumerate(source.units):
            row = 0
            for rows in map(prepare, sources.read(source, unit, key=key)):
                contents, subjects = rows.contents_on(policy.law.grid), subject_numbers(rows.subjects)
                named = releases_under(
                    charge,
                    subjects,
                    release_fingerprints(key, subjects=rows.subjects, contents=contents, policy_hash=policy.hash),
                )
                coming.add(
                    record=subjects if rows.subjects == rows.ids else subject_numbers(rows.ids),
                    subject=subjects,
                    release=named.contents,
                    content=_content_numbers(contents, secret),
                    unit=np.full(len(rows), number),
                    row=np.arange(row, row + len(rows)),
                )
                row += len(rows)
                seen += len(rows)
                advance(seen, max(source.n_rows or 0, seen))


def _content_numbers(contents: Sequence[str | bytes], secret: bytes) -> np.ndarray:
    digests = (
        blake2b(
            content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"),
            digest_size=8,
            key=secret,
        ).digest()
        for content in contents
    )
    return np.frombuffer(b"".join(digests), "<u8")


def _tell_apart(rows: np.ndarray, firsts: _Spread, copies: _Spread, repeated: _Spread) -> int:
    """Hand on the first row of each id in one part, and note the ids that stand there more often; how many rows do."""
    if not len(rows):
        return 0
    rows = _sorted(rows, "record", "unit", "row")
    starts = _starts(rows, "record")
    published = rows[starts]
    firsts.add(subject=published["subject"], release=published["release"], unit=published["unit"])
    copies.add(content=published["content"], subject=published["subject"])
    group = np.cumsum(starts) - 1
    often = (np.bincount(group) > 1)[group] & _starts(rows, "record", "unit")
    repeated.add(record=rows["record"][often], unit=rows["unit"][often], first_here=starts[often])
    return len(rows) - len(published)


def _work_off(spending: Spending, rows: np.ndarray, earlier: Releases) -> None:
    """Add one part's subjects to the figures, and note those that are not simply new."""
    if not len(rows):
        return
    charge, limit = spending.charge, spending.limit
    rows = _sorted(rows, "subject", "unit", "release")
    rows = rows[_starts(rows, "subject", "unit", "release")]
    coming = Releases(rows["subject"], rows["release"], rows["release"], np.zeros(len(rows), np.int32), (charge,))
    seen, repeats = outlook(earlier, coming), foreseen(coming, earlier)
    after, new = seen.after, seen.new > 0
    spending.new += int(np.count_nonzero(new))
    spending.spent.update(_counted(after.epsilon_euclidean))
    spending.releases.update(_counted(after.releases))
    spending.delta = max(spending.delta, float(after.delta.max(initial=0)))
    if limit is not None:
        spending.over.update(_counted(after.epsilon_euclidean[seen.over(limit)]))
    # A pair is a subject and a unit that it has rows in.
    pairs = np.flatnonzero(_starts(rows, "subject", "unit"))
    repeating = np.add.reduceat(repeats.astype(np.int64), pairs)
    of = after.positions(rows["subject"][pairs])
    noted = (after.releases[of] > 1) | (repeating > 0)
    spending._notes["spent"].add(
        subject=rows["subject"][pairs][noted],
        unit=rows["unit"][pairs][noted],
        releases=after.releases[of][noted],
        spent=after.epsilon_euclidean[of][noted],
        spare=_shared(of, repeating, _spare(after.epsilon_euclidean, charge, limit))[noted],
    )
    _note_known(spending._notes["known"], rows[repeats], earlier)


def _spare(spent: np.ndarray, charge: Charge, limit: float | None) -> np.ndarray:
    """How many releases more each subject could pay for; int64, shape (n_subjects,)."""
    if limit is None:
        return np.full(len(spent), _NO_LIMIT, np.int64)
    left = np.maximum(limit * (1 + ROUNDING) - spent, 0.0) // charge.epsilon_euclidean
    return np.minimum(left, _NO_LIMIT).astype(np.int64)


def _shared(of: np.ndarray, wanted: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """Spare releases of subjects, shared out to their units in order, each as many as it may want.

    Parameters
    ----------
    of : int array, shape (n_pairs,)
        The subject of each unit; ascending.
    wanted : int array, shape (n_pairs,)
    spare : int array, shape (n_subjects,)

    Returns
    -------
    int array, shape (n_pairs,)
    """
    before = np.cumsum(wanted) - wanted
    before -= before[np.searchsorted(of, of)]
    return np.clip(spare[of] - before, 0, wanted)


def _note_known(known: _Spread, repeats: np.ndarray, earlier: Releases) -> None:
    """Note the vectors that repeated releases came to before."""
    earlier = earlier.take(distinct(earlier))
    earlier = earlier.take(np.argsort(earlier.contents))
    start, stop = (np.searchsorted(earlier.contents, repeats["release"], side=side) for side in ("left", "right"))
    count = stop - start
    # Positions start[i], start[i] + 1 .. stop[i] - 1 for each i.
    at = np.repeat(start - (np.cumsum(count) - count), count) + np.arange(count.sum())
    known.add(
        unit=np.repeat(repeats["unit"], count), release=np.repeat(repeats["release"], count), vector=earlier.vectors[at]
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


def _sorted(rows: np.ndarray, *names: str) -> np.ndarray:
    return rows[np.lexsort([rows[name] for name in reversed(names)])]


def _starts(rows: np.ndarray, *names: str) -> np.ndarray:
    """Where sorted rows begin another combination of some columns; bool, shape (n_rows,)."""
    starts = np.zeros(len(rows), bool)
    starts[:1] = True
    for name in names:
        starts[1:] |= rows[name][1:] != rows[name][:-1]
    return starts


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
