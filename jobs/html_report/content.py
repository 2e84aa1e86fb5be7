"""What a page is made of, before it is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from jobs.html_report.shapes import Interval


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of (tuple of str)
    note : str
        What is left out, and where it is.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure with its data.

    Attributes
    ----------
    name : str
        Of its file.
    alt : str
        What it shows, for whoever does not see it.
    caption : str
        How to read it.
    figure : Figure
    table : Table
    """

    name: str
    alt: str
    caption: str
    figure: Figure
    table: Table


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, in this order: paragraphs, points, charts, tables under their captions."""

    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Absent:
    """A section that has no data, and why."""

    title: str
    why: str


def cut(columns: Sequence[str], rows: Sequence[Sequence[str]], *, most: int, rest: str) -> Table:
    """A table of at most so many rows; its note tells where the others are."""
    left = len(rows) - most
    note = f"{left:,} more rows are in {rest}." if left > 0 else ""
    return Table(tuple(columns), tuple(tuple(row) for row in rows[:most]), note)


def number(value: float | None) -> str:
    """Four significant digits."""
    return "-" if value is None else f"{value:.4g}"


def interval(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A figure with its interval, which no line break divides, as in the table on the terminal."""
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f},\u00a0{high:.3f}]"


def spread(found: Interval) -> str:
    """An `Interval` as text."""
    return interval(found.value, found.low, found.high)


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{value:.1%}"


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
