"""Figures as text: the table on the terminal, and tables of a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.escaping import for_markdown
from jobs.summary import ProtectionRow

_COLUMNS = ("protection", "basis", "epsilon", "epsilon_euclidean", "rho", "leakage", "utility", "reidentification")
_LEARNED = "learned"


def render_table(rows: Sequence[ProtectionRow]) -> str:
    """Protections compared, as text with aligned columns."""
    table = [("name", *columns(rows)), *((row.name, *cells(row, rows)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    tasks = sorted({row.utility_task for row in rows if row.utility_task})
    lines.append(f"leakage: lower is better, strongest attack named; utility ({', '.join(tasks) or 'none'}): higher.")
    return "\n".join(lines)


def columns(rows: Sequence[ProtectionRow]) -> tuple[str, ...]:
    """The table's columns; what attacks got without a dictionary is one where that got more."""
    if all(row.leakage == row.leakage_learned for row in rows):
        return _COLUMNS
    at = _COLUMNS.index("leakage") + 1
    return (*_COLUMNS[:at], _LEARNED, *_COLUMNS[at:])


def cells(row: ProtectionRow, rows: Sequence[ProtectionRow]) -> list[str]:
    """A row's figures as text, in the order of the table's columns."""
    learned = []
    if _LEARNED in columns(rows):
        learned = ["-" if row.leakage_learned is None else f"{row.leakage_learned:.3f}"]
    return [
        row.protection,
        row.basis,
        *(
            "unknown" if row.protection == "unknown" else number(value)
            for value in (row.epsilon, row.epsilon_euclidean)
        ),
        f"{row.rho:.2f}",
        interval(row.leakage, row.leakage_low, row.leakage_high)
        + (f" {row.leakage_attack}" if row.leakage_attack else ""),
        *learned,
        interval(row.utility, row.utility_low, row.utility_high),
        f"{row.reidentification:.2f}",
    ]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as the lines of a Markdown page; cells are shown as they are."""
    return [
        "| " + " | ".join(map(for_markdown, header)) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(map(for_markdown, row)) + " |" for row in rows),
    ]


def number(value: float | None) -> str:
    """Four significant digits; a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """A figure with its interval; a dash for none."""
    return "-" if value is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
