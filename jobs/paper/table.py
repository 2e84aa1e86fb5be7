"""The paper's figures beside ours: what is compared with what, and the table that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.config.reproduce import Experiment, ExperimentRow, PaperFigure
from sparse_core.attacks.result import FAILED

ABSENT = "n/a"
RELATIVE = {"leakage": "left", "utility": "kept"}
_LEGEND = (
    "All figures in percent. `left`: leakage as a share of that of unprotected vectors; `kept`: the same for utility. "
    f"Ours with 95% intervals, by bootstrap. `{ABSENT}`: as far as we know in the paper, but its figure could not be "
    "read. `-`: not in the paper, or not measured. A number in `notes` points at the explanation below, given where "
    "the paper's figure lies outside our interval."
)


@dataclass(frozen=True)
class Planned:
    """A row of the experiment at one budget.

    Attributes
    ----------
    row : ExperimentRow
    budget : float or None
        The paper's epsilon; None without noise.
    rho : float or None
    """

    row: ExperimentRow
    budget: float | None = None
    rho: float | None = None

    @property
    def name(self) -> str:
        """As the audit calls it."""
        return self.row.name if self.budget is None else f"{self.row.name} at {self.budget:g}"


def compared(experiment: Experiment, planned: Sequence[Planned], audits: dict[str, dict]) -> list[dict]:
    """One entry per line of the table.

    Parameters
    ----------
    experiment : Experiment
    planned : sequence of Planned
    audits : dict
        The ``summary.json`` of each concept's audit, by the concept's name.

    Returns
    -------
    list of dict
        Shares between 0 and 1, the paper's as well; None for what is absent.
    """
    lines = []
    bare = next((one for one in planned if one.row.mechanism == "none"), None)
    for concept, summary in audits.items():
        for one in planned:
            for attack in experiment.attacks if experiment.each_attack else (None,):
                ours, unprotected = (row and _ours(summary, row, attack) for row in (one, bare))
                line = {
                    "protection": one.row.name,
                    "paper_name": one.row.paper,
                    "concept": concept,
                    "budget": one.budget,
                    **ours,
                }
                figures = (row and _figure(experiment, row, concept, attack) for row in (one, bare))
                lines.append(line | _beside(experiment, one, ours, unprotected, *figures))
    return lines


def _ours(summary: dict, one: Planned, attack: str | None) -> dict:
    """What was measured of a row: by one attack, or by the strongest that passed its positive control."""
    row = next(row for row in summary["protections"] if row["name"] == one.name)
    leakage = {"ours": row["leakage"], "low": row["leakage_low"], "high": row["leakage_high"]}
    if attack is not None:
        found = summary["attacks"][one.name][attack]
        failed = found["verdict"] == FAILED
        leakage = {
            name: None if failed else found["protected"][figure]
            for name, figure in (("ours", "value"), ("low", "low"), ("high", "high"))
        }
    return {
        "attack": attack or row["leakage_attack"],
        "leakage": leakage,
        "utility": {"ours": row["utility"], "low": row["utility_low"], "high": row["utility_high"]},
        **{name: row[name] for name in ("rho", "epsilon", "epsilon_euclidean", "reidentification")},
    }


def _beside(
    experiment: Experiment,
    one: Planned,
    ours: dict,
    unprotected: dict | None,
    figure: PaperFigure | None,
    reference: PaperFigure | None,
) -> dict:
    """The paper's figures beside ours, both relative to unprotected vectors too, and why they may differ."""
    found = {}
    for measure, relative in RELATIVE.items():
        paper = _share(figure, measure)
        found[measure] = ours[measure] | {
            "paper": paper,
            f"paper_{relative}": _share(figure, relative) or _ratio(paper, _share(reference, measure)),
            f"ours_{relative}": _ratio(ours[measure]["ours"], unprotected and unprotected[measure]["ours"]),
        }
    explained = {name: experiment.explanation(name, one.row.name) for name in RELATIVE if _outside(found[name])}
    rate = trade_off_rate(found["leakage"]["ours_left"], found["utility"]["ours_kept"])
    return found | {"trade_off_rate": rate, "differs": explained}


def trade_off_rate(left: float | None, kept: float | None) -> float | None:
    """Share of leakage taken away per share of utility lost; None where nothing was lost or measured."""
    if left is None or kept is None or kept >= 1:
        return None
    return (1 - left) / (1 - kept)


def render(experiment: Experiment, lines: Sequence[dict], about: dict) -> str:
    """The table as a Markdown page.

    Parameters
    ----------
    experiment : Experiment
    lines : sequence of dict
        From `compared`.
    about : dict
        ``name``, ``encoder``, ``reduced``, ``seconds``, ``records``, ``left_out`` and ``masks``, see `jobs.reproduce`.
    """
    notes = list(dict.fromkeys(text for line in lines for text in line["differs"].values() if text))
    several = len({line["concept"] for line in lines}) > 1
    measured = any(line["utility"]["ours"] is not None or line["utility"]["paper"] is not None for line in lines)
    header = ["protection", *(["concept"] if several else []), "budget", "rho", "epsilon", "attack"]
    header += ["leakage: paper", "ours", "left: paper", "ours"]
    header += ["utility: paper", "ours", "kept: paper", "ours"] if measured else []
    header += ["trade-off rate"] if experiment.trade_off_rate else []
    header += ["re-identified", "notes"]
    rows = []
    for line in lines:
        cells = [line["protection"], *([line["concept"]] if several else [])]
        cells += [_number(line["budget"]), _number(line["rho"], ".2f"), _number(line["epsilon"], ".4g")]
        failed = ", failed" if line["leakage"]["ours"] is None else ""
        cells += [(line["attack"] or "all") + failed, *_pair(experiment, line, "leakage", "left")]
        cells += _pair(experiment, line, "utility", "kept") if measured else []
        cells += [_number(line["trade_off_rate"], ".2f")] if experiment.trade_off_rate else []
        numbers = sorted({notes.index(text) + 1 for text in line["differs"].values() if text})
        rows.append([*cells, _percent(line["reidentification"]), ", ".join(map(str, numbers))])
    return "\n".join(
        [
            f"# {about['name']}: {experiment.title}",
            "",
            *(
                ["**Reduced: too little data for these figures to mean more than that the experiment works.**", ""]
                if about["reduced"]
                else []
            ),
            f"Ours: {about['encoder']}, {about['records']:,} records, {about['seconds']:.0f} s. "
            f"The paper's figures: {experiment.source}",
            "",
            *aligned([header, *rows]),
            "",
            _LEGEND,
            "",
            *(f"- Left out: {text}" for text in about["left_out"]),
            *(f"- {_mask(mask)}" for mask in about["masks"]),
            *([""] if about["left_out"] or about["masks"] else []),
            *(f"{number}. {text}" for number, text in enumerate(notes, start=1)),
            *([""] if notes else []),
        ]
    )


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns also line up on a terminal; the first row is the header."""
    table = [[cell.replace("|", "\\|") for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines


def _figure(experiment: Experiment, one: Planned, concept: str, attack: str | None) -> PaperFigure | None:
    for figure in experiment.figures:
        if (
            figure.row == one.row.name
            and figure.budget == one.budget
            and figure.concept in (None, concept)
            and (attack is None or figure.attack == attack)
        ):
            return figure
    return None


def _share(figure: PaperFigure | None, measure: str) -> float | None:
    value = getattr(figure, measure, None)
    return None if value is None else value / 100


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _outside(found: dict) -> bool:
    known = found["paper"] is not None and found["low"] is not None
    return known and not found["low"] <= found["paper"] <= found["high"]


def _pair(experiment: Experiment, line: dict, measure: str, relative: str) -> list[str]:
    """Paper and ours, then the same relative to unprotected vectors."""
    found = line[measure]
    absent = ABSENT if line["paper_name"] and measure in experiment.reports else "-"
    ours = "-"
    if found["ours"] is not None:
        ours = f"{_percent(found['ours'])} [{_percent(found['low'])}, {_percent(found['high'])}]"
    paper = found["paper"]
    return [
        absent if paper is None else f"{100 * paper:.2f}",
        ours,
        absent if found[f"paper_{relative}"] is None else _percent(found[f"paper_{relative}"]),
        _percent(found[f"ours_{relative}"]),
    ]


def _mask(mask: dict) -> str:
    quality = f", held-out accuracy {mask['accuracy']:.2f}" if mask["accuracy"] is not None else ""
    return (
        f"Mask {mask['name']} ({mask['basis']} basis, {mask['concept']}): opens {mask['open']} of "
        f"{mask['dimension']} directions{quality}; learned in {mask['seconds']:.0f} s."
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str = "g") -> str:
    return "-" if value is None else format(value, form)
