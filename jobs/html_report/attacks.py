"""What each attack got, beside its positive control and its floor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from jobs.html_report.content import Absent, Chart, Section, Table, cut, number, spread
from jobs.html_report.drawing import INK, canvas, legend_below, looks, shown, style, whiskers
from jobs.html_report.points import noteworthy
from jobs.html_report.reading import Findings
from jobs.html_report.shapes import Attack, Attacks

_MOST_BARS, _MOST_SHOWN, _MOST_ROWS = 21, 12, 150
_ATTACKERS = (
    "Every attacker knows the policy: noise law, mask, mean and read-out. `unprotected` is the positive control: what "
    "the same attacker gets of vectors without noise. `floor` is what it gets after learning from shuffled texts, "
    "which is guessing. An attack whose control does not beat its floor has failed: it says nothing about a "
    "protection, and is not counted."
)


def bars(findings: Findings) -> Section | Absent:
    """Attack by attack, with control and floor."""
    title = "Attack by attack"
    attacks = findings.results.attacks
    if not attacks:
        return Absent(title, "no attack was run here; an audit or a study attacks.")
    names = [name for name in noteworthy(findings, _MOST_SHOWN) if name in attacks]
    kinds = sorted({attack for found in attacks.values() for attack in found})
    at_once = max(1, _MOST_BARS // len(kinds))
    at_once = math.ceil(len(names) / math.ceil(len(names) / at_once))
    charts = [
        _bars({name: attacks[name] for name in names[start : start + at_once]}, kinds, number)
        for number, start in enumerate(range(0, len(names), at_once), start=1)
    ]
    left = len(attacks) - len(names)
    told = (
        f" Drawn are protections on the front of their mechanism; {left:,} more are in the run's files." if left else ""
    )
    return Section(title, (_ATTACKERS + told,), charts=tuple(charts))


def _bars(attacks: Attacks, kinds: Sequence[str], at: int) -> Chart:
    drawn = looks(kinds)
    place, ticks = 0.0, []
    with style():
        figure, (axes,) = canvas(1.3 + 0.26 * sum(map(len, attacks.values())) + 0.34 * len(attacks))
        for name, found in attacks.items():
            axes.text(0.006, place - 0.1, shown(name), fontweight="bold", va="center", fontsize=9.5)
            for kind in [kind for kind in kinds if kind in found]:
                place += 1
                _bar(axes, place, found[kind], drawn[kind])
                ticks.append((place, kind))
            place += 1.5
        axes.set_yticks([where for where, _ in ticks], [shown(kind) for _, kind in ticks], fontsize=8.5)
        axes.set_ylim(place - 0.7, -0.8)
        axes.set_xlim(0, max(1.0, axes.get_xlim()[1]))
        axes.grid(False, axis="y")
        axes.set_xlabel("leakage: share of true concept tokens recovered")
        handles = [Patch(facecolor="#d9d9d9", edgecolor=INK, label="protected, 95% interval")]
        handles.append(
            Line2D([], [], color=INK, marker="D", markerfacecolor="white", linestyle="", label="unprotected")
        )
        handles.append(Line2D([], [], color="black", marker="|", markersize=12, mew=2.2, linestyle="", label="floor"))
        legend_below(figure, handles, [handle.get_label() for handle in handles])
    failed = any(one.verdict != "ok" for found in attacks.values() for one in found.values())
    told = [
        f"{name}: {', '.join(f'{kind} {spread(one.protected)}' for kind, one in sorted(found.items()))}."
        for name, found in attacks.items()
    ]
    return Chart(
        f"attacks-{at}",
        alt="Bars of leakage by attack, with the figure on unprotected vectors and the floor. " + " ".join(told),
        caption="Paler bars without an outline are of attacks that failed on unprotected vectors." if failed else "",
        figure=figure,
        table=_attack_table(attacks),
    )


def _bar(axes, place: float, found: Attack, look) -> None:
    failed = found.verdict != "ok"
    value = found.protected.value
    if value is not None:
        axes.barh(
            place,
            value,
            height=0.78,
            color=look.colour,
            alpha=0.25 if failed else 0.75,
            hatch=look.hatch,
            edgecolor="none" if failed else INK,
            linewidth=0.8,
            xerr=whiskers(value, found.protected.low, found.protected.high),
            error_kw={"elinewidth": 1.1, "capsize": 2.5, "ecolor": "black"},
        )
    if found.unprotected.value is not None:
        axes.plot(found.unprotected.value, place, marker="D", markersize=5.5, color=INK, markerfacecolor="white")
    if found.floor.value is not None:
        axes.plot(found.floor.value, place, marker="|", markersize=11, markeredgewidth=2.2, color="black")
    if failed:
        ends = (found.protected.high, found.unprotected.high, found.unprotected.value, found.floor.value, 0.0)
        beyond = max(end for end in ends if end is not None)
        axes.text(beyond + 0.02, place, "failed", fontsize=8.5, va="center", color="black")


def _attack_table(attacks: Attacks) -> Table:
    return cut(
        ("name", "attack", "verdict", "protected", "unprotected", "floor", "normalized", "confidence"),
        [
            (
                name,
                kind,
                one.verdict,
                *(spread(getattr(one, figure)) for figure in ("protected", "unprotected", "floor")),
                spread(one.leakage_normalized),
                number(one.confidence),
            )
            for name, found in attacks.items()
            for kind, one in sorted(found.items())
        ],
        most=_MOST_ROWS,
        rest="summary.json",
    )
