"""What privacy costs: leakage against utility, and the best of each mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from jobs.html_report.content import Absent, Chart, Section, cut, number, plural
from jobs.html_report.drawing import FAINT, INK, Look, canvas, legend_below, shown, style, whiskers
from jobs.html_report.points import (
    MOST_GROUPS,
    UNPROTECTED,
    Point,
    by_series,
    front,
    grouped,
    leakage_of,
    left_out,
    series_looks,
    task_of,
    utility_of,
)
from jobs.html_report.reading import Findings

_MOST_ROWS, _APART = 150, 15.0
_COLUMNS = ("name", "series", "rho", "epsilon", "epsilon_euclidean", "leakage", "utility")


def pareto(findings: Findings) -> Section | Absent:
    """Leakage against utility, and the front of each mechanism."""
    title = "Privacy against utility"
    groups = {name: points for name, points in grouped(findings).items() if any(p.measured for p in points)}
    if not groups:
        return Absent(title, _unmeasured(findings))
    drawn = series_looks(findings)
    drawable = list(groups.items())[:MOST_GROUPS]
    charts = [_pareto(name, points, drawn, at) for at, (name, points) in enumerate(drawable, start=1)]
    return Section(
        title,
        (
            "Each mark is a protection: the further left, the less of the concept the strongest attack recovers; the "
            "higher, the more the vectors are still good for. Full marks are on the front of their mechanism: no other "
            "setting of it that was tried leaks less and is worth more. Bars are 95% intervals, where they overlap "
            "the difference may be chance.",
            *_seeds(findings),
            *left_out(groups),
        ),
        charts=tuple(charts),
    )


def _pareto(name: str, points: list[Point], drawn: dict[str, Look], at: int) -> Chart:
    measured = [point for point in points if point.measured]
    best = {series: front(found) for series, found in by_series(measured).items()}
    crowded = len(measured) > 24
    with style():
        figure, (axes,) = canvas(4.3)
        handles = []
        for series, found in by_series(measured).items():
            look = drawn[series]
            for point in found:
                full = point in best[series]
                _mark(axes, point, look, full=full, whiskers_too=full or not crowded)
            steps = best[series]
            axes.plot(
                [p.row.leakage for p in steps],
                [p.row.utility for p in steps],
                color=look.colour,
                linestyle=look.line,
                zorder=2,
            )
            size = 11 if series == UNPROTECTED else 6
            line = look.line if len(steps) > 1 else ""
            handles.append(Line2D([], [], color=look.colour, marker=look.marker, linestyle=line, markersize=size))
        labels = list(best)
        floor = _floor(measured)
        if floor is not None:
            handles.append(axes.axvline(floor, color=FAINT, linewidth=1.2, linestyle=(0, (1, 1))))
            labels.append("attack floor (guessing)")
        axes.set_xlabel("leakage of the strongest attack (lower is better)")
        axes.set_ylabel(f"utility: {task_of(measured)}")
        axes.margins(0.06)
        _label_rho(axes, [p for steps in best.values() for p in steps if p.row.rho], measured)
        if name:
            axes.set_title(shown(name), loc="left")
        legend_below(figure, handles, labels)
    least = min(measured, key=lambda p: p.row.leakage)
    return Chart(
        f"pareto-{at}",
        alt=f"Scatter of leakage against utility{f' for {name}' if name else ''}: "
        f"{plural(len(measured), 'protection')} of {plural(len(best), 'kind')}. Least leakage: "
        f"{least.row.leakage:.3f} ({least.row.name}), at utility {least.row.utility:.3f}. "
        + " ".join(f"Front of {series}: {_told(steps)}." for series, steps in best.items() if steps),
        caption="Numbers beside marks are rho, the noise-to-signal ratio."
        + (" Intervals are drawn for marks on a front; the table has all." if crowded else ""),
        figure=figure,
        table=cut(
            (*_COLUMNS, "on the front"),
            [
                (*_cells(point), "yes" if point in best[series] else "no")
                for series, found in by_series(measured).items()
                for point in sorted(found, key=_by_leakage)
            ],
            most=_MOST_ROWS,
            rest=_rest(points),
        ),
    )


def _told(steps: Sequence[Point]) -> str:
    shown_steps = [steps[0], steps[-1]] if len(steps) > 1 else steps
    return " to ".join(f"leakage {p.row.leakage:.3f} at utility {p.row.utility:.3f}" for p in shown_steps)


def _mark(axes: Axes, point: Point, look: Look, *, full: bool, whiskers_too: bool) -> None:
    row, options = point.row, {}
    if whiskers_too:
        options = {
            "xerr": whiskers(row.leakage, row.leakage_low, row.leakage_high),
            "yerr": whiskers(row.utility, row.utility_low, row.utility_high),
        }
    axes.errorbar(
        row.leakage,
        row.utility,
        fmt=look.marker,
        color=look.colour,
        markerfacecolor=look.colour if full else "white",
        markersize=11 if point.series == UNPROTECTED else 6.5,
        alpha=1 if full else 0.75,
        ecolor=(look.colour, 0.55),
        elinewidth=0.8,
        capsize=2,
        zorder=3 if full else 2.5,
        **options,
    )


def _label_rho(axes: Axes, points: Sequence[Point], others: Sequence[Point]) -> None:
    """rho beside marks, at the first corner where it hides neither a mark nor another label; none where it would."""
    axes.autoscale_view()
    taken = [tuple(axes.transData.transform((p.row.leakage, p.row.utility))) for p in others]
    for point in points:
        x, y = axes.transData.transform((point.row.leakage, point.row.utility))
        for right, up in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
            place = (x + right * _APART, y + up * _APART)
            if all(abs(place[0] - u) > _APART * 0.9 or abs(place[1] - v) > _APART * 0.8 for u, v in taken):
                taken.append(place)
                axes.annotate(
                    f"{point.row.rho:.3g}",
                    (point.row.leakage, point.row.utility),
                    textcoords="offset points",
                    xytext=(right * 5, up * 5),
                    ha="left" if right > 0 else "right",
                    va="bottom" if up > 0 else "top",
                    fontsize=8.5,
                    color=INK,
                )
                break


def _floor(points: Sequence[Point]) -> float | None:
    floors = [p.row.leakage_floor for p in points if p.row.leakage_floor is not None]
    return median(floors) if floors else None


def _cells(point: Point) -> tuple[str, ...]:
    row = point.row
    return (
        row.name,
        point.series,
        number(row.rho),
        number(row.epsilon),
        number(row.epsilon_euclidean),
        leakage_of(row),
        utility_of(row),
    )


def _by_leakage(point: Point) -> tuple[float, str]:
    return (point.row.leakage, point.row.name)


def _rest(points: Sequence[Point]) -> str:
    return "the study's trials" if any(p.parameters for p in points) else "summary.json"


def _seeds(findings: Findings) -> tuple[str, ...]:
    most = max((len(policy.trials) for policy in findings.policies.values()), default=1)
    if most == 1:
        return ()
    return (f"Figures are means over up to {most} seeds, and so are the ends of intervals: no seed wins by luck.",)


def _unmeasured(findings: Findings) -> str:
    if not findings.results.protections:
        return "no protections were compared in this run; an audit or a study compares them."
    if all(row.leakage is None for row in findings.results.protections):
        return "every attack failed on unprotected vectors, so that leakage is unknown."
    return "no utility task was measured beside leakage; name one in the field utility."
