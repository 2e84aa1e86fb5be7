"""Protections as points of figures: which series each belongs to, and which are on the Pareto front of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.html_report.content import interval
from jobs.html_report.drawing import Look, looks
from jobs.html_report.reading import Findings
from jobs.html_report.shapes import Parameters, Row

UNPROTECTED = "unprotected"
MOST_GROUPS = 6
"""Concepts and encoders that get figures of their own."""
_SHAPED = ("mahalanobis", "dropping")


@dataclass(frozen=True)
class Point:
    """One protection.

    Attributes
    ----------
    row : Row
    series : str
        Mechanism, and the basis where a mask shapes it.
    parameters : Parameters or None
        Of a trial.
    """

    row: Row
    series: str
    parameters: Parameters | None

    @property
    def measured(self) -> bool:
        """Whether it has both figures of a trade-off."""
        return self.row.leakage is not None and self.row.utility is not None


def series_of(row: Row) -> str:
    """Mechanism, and the basis where a mask shapes it."""
    if row.protection == "none":
        return UNPROTECTED
    return f"{row.protection}, {row.basis}" if row.protection in _SHAPED else row.protection


def grouped(findings: Findings) -> dict[str, list[Point]]:
    """Points that may be compared with each other: of one concept and one encoder. The title is empty for one group."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for row in findings.results.protections:
        tried = findings.parameters(row.name)
        key = (tried.concept, tried.encoder) if tried else ("", "")
        groups.setdefault(key, []).append(Point(row, series_of(row), tried))
    encoders = {encoder for _, encoder in groups}

    def title(key: tuple[str, str]) -> str:
        if len(groups) == 1:
            return ""
        concept, encoder = key
        return f"{concept}, {encoder}" if len(encoders) > 1 else concept

    return {title(key): points for key, points in sorted(groups.items())}


def series_looks(findings: Findings) -> dict[str, Look]:
    """One look a series for the whole page."""
    names = {series_of(row) for row in findings.results.protections} - {UNPROTECTED}
    return looks(sorted(names)) | {UNPROTECTED: Look("#000000", "*", ":", "")}


def front(points: Sequence[Point]) -> list[Point]:
    """Points that no other of them beats in both leakage and utility, from least leakage to most."""
    best, found = float("-inf"), []
    for point in sorted((p for p in points if p.measured), key=lambda p: (p.row.leakage, -p.row.utility, p.row.name)):
        if point.row.utility > best:
            best = point.row.utility
            found.append(point)
    return found


def by_series(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of each series, in the order of names."""
    found: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda p: (p.series, p.row.rho or 0.0, p.row.name)):
        found.setdefault(point.series, []).append(point)
    return found


def noteworthy(findings: Findings, most: int) -> list[str]:
    """Names of the rows to look at closer: all where they are few, else what is on the fronts, least leakage first."""
    rows = findings.results.protections
    if len(rows) <= most:
        return [row.name for row in rows]
    fronts = [front(points) for group in grouped(findings).values() for points in by_series(group).values()]
    chosen = []
    for rank in range(max(map(len, fronts), default=0)):
        chosen += [points[rank].row.name for points in fronts if rank < len(points)]
    if not chosen:
        chosen = [row.name for row in sorted(rows, key=lambda row: 1.0 if row.leakage is None else row.leakage)]
    kept = set(chosen[:most])
    return [row.name for row in rows if row.name in kept]


def task_of(points: Sequence[Point]) -> str:
    """What their utility is of."""
    return ", ".join(sorted({p.row.utility_task for p in points if p.row.utility_task})) or "not measured"


def left_out(groups: dict) -> tuple[str, ...]:
    """Which groups have no figure of their own, as a paragraph."""
    left = list(groups)[MOST_GROUPS:]
    return (f"Not drawn: {', '.join(left)}.",) if left else ()


def leakage_of(row: Row) -> str:
    """Leakage with its interval."""
    return interval(row.leakage, row.leakage_low, row.leakage_high)


def utility_of(row: Row) -> str:
    """Utility with its interval."""
    return interval(row.utility, row.utility_low, row.utility_high)
