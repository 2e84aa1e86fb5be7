"""Leakage concept by concept, and what attackers that write texts wrote."""

from __future__ import annotations

from matplotlib.lines import Line2D

from jobs.html_report.content import Absent, Chart, Section, cut, plural, share, spread
from jobs.html_report.drawing import canvas, legend_below, looks, shown, style, whiskers
from jobs.html_report.points import noteworthy
from jobs.html_report.reading import Findings
from jobs.html_report.shapes import Attack, Interval

_MOST_SHOWN, _MOST_ROWS, _MOST_EXAMPLES = 12, 150, 6
_SCORES = {"bleu": "BLEU", "rouge_l": "ROUGE-L", "token_f1": "token F1", "cosine": "cosine"}


def concepts(findings: Findings) -> Section | Absent:
    """Leakage of further concepts, among them those that no mask was told to hide."""
    title = "Concept by concept"
    found = findings.results.concepts
    if len(found) < 2:
        return Absent(title, "leakage was measured for one concept only, so that nothing is known of unlisted ones.")
    names = noteworthy(findings, _MOST_SHOWN)
    drawn = looks(list(found))
    rows = []
    with style():
        figure, (axes,) = canvas(1.6 + 0.3 * len(names) * max(1.0, len(found) / 2.5))
        for place, name in enumerate(names):
            for at, (concept, one) in enumerate(found.items()):
                strongest = _strongest(one.attacks.get(name, {}))
                if strongest is None:
                    rows.append((name, concept, _listed(one.listed), "every attack failed", "-", "-"))
                    continue
                attack, result = strongest
                where = place + 0.7 * ((at + 0.5) / len(found) - 0.5)
                look = drawn[concept]
                axes.errorbar(
                    result.protected.value,
                    where,
                    xerr=whiskers(result.protected.value, result.protected.low, result.protected.high),
                    fmt=look.marker,
                    color=look.colour,
                    markerfacecolor=look.colour if one.listed else "white",
                    capsize=2,
                )
                rows.append(
                    (name, concept, _listed(one.listed), spread(result.protected), spread(result.unprotected), attack)
                )
        axes.set_yticks(range(len(names)), [shown(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xlabel("leakage of the strongest attack")
        handles = [
            Line2D(
                [],
                [],
                color=drawn[concept].colour,
                marker=drawn[concept].marker,
                markerfacecolor=drawn[concept].colour if one.listed else "white",
                linestyle="",
            )
            for concept, one in found.items()
        ]
        labels = [f"{concept} ({_listed(one.listed)})" for concept, one in found.items()]
        legend_below(figure, handles, labels)
    chart = Chart(
        "concepts",
        alt=f"Leakage of the strongest attack for {plural(len(found), 'concept')} under "
        f"{plural(len(names), 'protection')}. " + " ".join(f"{row[0]}, {row[1]} ({row[2]}): {row[3]}." for row in rows),
        caption="Full marks are concepts the protection was told of; hollow ones it never saw.",
        figure=figure,
        table=cut(
            ("name", "concept", "listed", "leakage", "unprotected", "attack"),
            rows,
            most=_MOST_ROWS,
            rest="summary.json",
        ),
    )
    attacked = cut(
        ("concept", "listed", "tokens attacked", "of all its tokens", "test records"),
        [
            (
                concept,
                _listed(one.listed),
                "-" if one.tokens_attacked is None else f"{one.tokens_attacked:,}",
                share(one.tokens_coverage),
                "-" if one.concept_test_records is None else f"{one.concept_test_records:,}",
            )
            for concept, one in found.items()
        ],
        most=60,
        rest="summary.json",
    )
    return Section(
        title,
        (
            "A mask hides the concept it was told of. Terms of the same kind that it never saw are protected only as "
            "far as they resemble those, and this shows how far.",
        ),
        charts=(chart,),
        tables=(("What was attacked", attacked),),
    )


def _listed(listed: bool) -> str:
    return "listed" if listed else "not listed"


def _strongest(attacks: dict[str, Attack]) -> tuple[str, Attack] | None:
    working = {k: one for k, one in attacks.items() if one.verdict == "ok" and one.protected.value is not None}
    return max(working.items(), key=lambda pair: pair[1].protected.value, default=None)


def reconstructions(findings: Findings) -> Section | Absent:
    """Texts that an attacker wrote from vectors, before and after."""
    title = "What attackers wrote"
    found = findings.results.reconstruction
    if not found:
        return Absent(title, "no attack that writes texts (inversion, vec2text) was run here.")
    scores = [
        (
            name,
            attack,
            label,
            *(spread(getattr(one, score).get(side, Interval())) for side in ("unprotected", "protected", "floor")),
        )
        for name, attacks in found.items()
        for attack, one in attacks.items()
        for score, label in _SCORES.items()
    ]
    columns = ("name", "attack", "score", "unprotected", "protected", "floor")
    caption = "How near reconstructions are to the texts: the same text has a BLEU of 100, and 1 in all else"
    tables = [(caption, cut(columns, scores, most=_MOST_ROWS, rest="summary.json"))]
    examples = False
    for name, attacks in found.items():
        for attack, one in attacks.items():
            if one.examples:
                examples = True
                rows = [
                    (str(at), example.original, example.unprotected, example.protected)
                    for at, example in enumerate(one.examples, start=1)
                ]
                columns = ("", "text", "written from its vector", "written from its protected vector")
                caption = f"{name}, {attack}"
                tables.append((caption, cut(columns, rows, most=_MOST_EXAMPLES, rest="summary.json")))
    told = (
        "Concept terms are masked in all three columns; the rest is your text: keep this page as you keep that."
        if examples
        else "No texts are shown: an audit keeps a few only if asked for, and they never go to MLflow."
    )
    return Section(
        title, (f"Texts rebuilt from nothing but a vector, by a model trained for it. {told}",), tables=tuple(tables)
    )
