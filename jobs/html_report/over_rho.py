"""What more noise buys: leakage, utility and epsilon against the noise-to-signal ratio."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from jobs.html_report.content import Absent, Chart, Section, Table, cut, interval, number
from jobs.html_report.drawing import FAINT, Look, canvas, legend_below, plain_log, shown, style, whiskers
from jobs.html_report.points import (
    MOST_GROUPS,
    UNPROTECTED,
    Point,
    by_series,
    grouped,
    left_out,
    series_looks,
    task_of,
)
from jobs.html_report.reading import Findings

_MOST_ROWS, _MOST_TICKS, _APART = 150, 9, 0.04


def against_rho(findings: Findings) -> Section | Absent:
    """Leakage, utility and epsilon against the noise-to-signal ratio."""
    title = "What more noise buys"
    groups = {}
    for name, points in grouped(findings).items():
        noised = [point for point in points if point.row.rho and point.row.epsilon is not None]
        if len({round(point.row.rho, 3) for point in noised}) > 1:
            groups[name] = (noised, points)
    if not groups:
        return Absent(title, "it takes protections with at least two different rho, and there are none here.")
    drawn = series_looks(findings)
    drawable = list(groups.items())[:MOST_GROUPS]
    charts = [_against_rho(name, *found, drawn, at) for at, (name, found) in enumerate(drawable, start=1)]
    return Section(
        title,
        (
            "rho is the noise-to-signal ratio: how many times as long the median noise is as the median vector. "
            "epsilon stands beside it, since it says little across mechanisms: `epsilon` is per unit of the "
            "mechanism's own metric, `epsilon_euclidean` per unit of ordinary distance in the least protected "
            "direction. Lower means more privacy.",
            *left_out(groups),
        ),
        charts=tuple(charts),
    )


def _against_rho(name: str, noised: list[Point], points: list[Point], drawn: dict[str, Look], at: int) -> Chart:
    several = False
    figures = [name for name in ("leakage", "utility") if any(getattr(p.row, name) is not None for p in noised)]
    figures.append("epsilon")
    with style():
        figure, panels = canvas(0.8 + 2.2 * len(figures), rows=len(figures), sharex=True)
        handles, labels = [], []
        for series, found in by_series(noised).items():
            look = drawn[series]
            several |= len({round(p.row.rho, 3) for p in found}) < len(found)
            for panel, measured in zip(panels, figures, strict=True):
                _line(panel, found, measured, look)
            if any(p.row.epsilon != p.row.epsilon_euclidean for p in found):
                _line(panels[-1], found, "epsilon_euclidean", look, hollow=True)
            line = look.line if len(found) > 1 else ""
            handles.append(Line2D([], [], color=look.colour, marker=look.marker, linestyle=line))
            labels.append(series)
        unprotected = _without(points)
        for panel, measured in zip(panels, figures, strict=True):
            if unprotected.get(measured) is not None:
                line = panel.axhline(unprotected[measured], color="black", linewidth=1.1, linestyle=":")
                if UNPROTECTED not in labels:
                    handles.append(line)
                    labels.append(UNPROTECTED)
        handles.append(Line2D([], [], color=FAINT, marker="o", markerfacecolor="white", linestyle=""))
        labels.append("hollow: epsilon_euclidean")
        for panel, measured in zip(panels, figures, strict=True):
            panel.set_ylabel(f"utility:\n{task_of(points)}" if measured == "utility" else measured)
        panels[-1].set_ylabel("epsilon (log scale)")
        plain_log(panels[-1])
        figure.align_ylabels(panels)
        panels[-1].set_xlabel("rho, noise-to-signal ratio")
        tried = sorted({round(point.row.rho, 3) for point in noised})
        if len(tried) <= _MOST_TICKS and min(b - a for a, b in pairwise(tried)) > _APART * (tried[-1] - tried[0]):
            panels[-1].set_xticks(tried, [f"{rho:g}" for rho in tried])
        if name:
            panels[0].set_title(shown(name), loc="left")
        legend_below(figure, handles, labels)
    return Chart(
        f"rho-{at}",
        alt=f"Panels over rho{f' for {name}' if name else ''}: {', '.join(figures)}. "
        + " ".join(_ends(series, found) for series, found in by_series(noised).items()),
        caption="Marks are medians, and bars run from the least to the most, where several protections share a rho; "
        "bars of single ones are 95% intervals."
        if several
        else "Bars are 95% intervals.",
        figure=figure,
        table=_rho_table(noised, several),
    )


def _rho_table(points: Sequence[Point], several: bool) -> Table:
    """What is drawn: a protection a row, or one row for all of a series that share a rho."""
    rows = []
    for series, found in by_series(points).items():
        for rho, same in _by_rho(found).items():
            figures = [_middle(same, figure) for figure in ("leakage", "utility")]
            epsilons = [_middle(same, name)[0] for name in ("epsilon", "epsilon_euclidean")]
            count = (str(len(same)),) if several else (same[0].row.name,)
            rows.append((series, number(rho), *count, *map(number, epsilons), *(interval(*one) for one in figures)))
    columns = (
        "series",
        "rho",
        "protections" if several else "name",
        "epsilon",
        "epsilon_euclidean",
        "leakage",
        "utility",
    )
    return cut(columns, rows, most=_MOST_ROWS, rest="the files of the run")


def _by_rho(points: Sequence[Point]) -> dict[float, list[Point]]:
    at: dict[float, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.row.rho):
        at.setdefault(round(point.row.rho, 3), []).append(point)
    return at


def _middle(points: Sequence[Point], figure: str) -> tuple[float | None, float | None, float | None]:
    """A figure with its interval; of several protections their median, least and most."""
    values = [value for point in points if (value := getattr(point.row, figure)) is not None]
    if len(points) == 1 and values:
        row = points[0].row
        return values[0], getattr(row, f"{figure}_low", None), getattr(row, f"{figure}_high", None)
    return (median(values), min(values), max(values)) if values else (None, None, None)


def _line(axes: Axes, points: Sequence[Point], figure: str, look: Look, *, hollow: bool = False) -> None:
    found = {rho: _middle(same, figure) for rho, same in _by_rho(points).items()}
    places = [rho for rho, (value, _, _) in found.items() if value is not None]
    if not places:
        return
    middles = [found[rho][0] for rho in places]
    ends = [whiskers(*found[rho]) or [[0.0], [0.0]] for rho in places]
    lows, highs = [end[0][0] for end in ends], [end[1][0] for end in ends]
    axes.errorbar(
        places,
        middles,
        yerr=[lows, highs],
        color=look.colour,
        marker=look.marker,
        markerfacecolor="white" if hollow else look.colour,
        linestyle=look.line,
        linewidth=0.9 if hollow else 1.5,
        elinewidth=0.8,
        capsize=2,
    )


def _ends(series: str, found: Sequence[Point]) -> str:
    ends = [min(found, key=lambda p: p.row.rho), max(found, key=lambda p: p.row.rho)]
    first, last = (f"leakage {interval(p.row.leakage)} at rho {p.row.rho:.3g}" for p in ends)
    return f"{series}: {first}, {last}."


def _without(points: Sequence[Point]) -> dict[str, float | None]:
    """Leakage and utility of unprotected vectors."""
    none = [p.row for p in points if p.series == UNPROTECTED]
    if none:
        return {"leakage": none[0].leakage, "utility": none[0].utility}
    controls = [p.row.leakage_unprotected for p in points if p.row.leakage_unprotected is not None]
    return {"leakage": max(controls, default=None)}
