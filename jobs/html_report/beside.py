"""What was measured beside leakage by the strongest attack, in tables."""

from __future__ import annotations

from jobs.html_report.content import Absent, Section, cut, interval, number, spread
from jobs.html_report.points import noteworthy
from jobs.html_report.reading import Findings

_MOST_ROWS = 40
_GROUPS = {"target": "concept tokens", "similar": "similar words", "unrelated": "unrelated words"}


def utilities(findings: Findings) -> Section | Absent:
    """Every utility task on every protection."""
    title, found = "Utility, task by task", findings.results.utilities
    if not any(found.values()):
        return Absent(title, "no utility tasks were measured.")
    if all(len(tasks) < 2 for tasks in found.values()):
        return Absent(title, "one task was measured, and it is the utility above.")
    rows = [
        (name, task.name, " ".join((task.task, task.metric)).strip(), interval(task.score, task.low, task.high),
         "-" if task.n_records is None else f"{task.n_records:,}")
        for name in noteworthy(findings, _MOST_ROWS) for task in found.get(name, [])
    ]  # fmt: skip
    table = cut(("name", "task", "metric", "score", "records"), rows, most=120, rest="summary.json")
    return Section(title, tables=(("95% intervals by bootstrap over records", table),))


def words_beside(findings: Findings) -> Section | Absent:
    """Leakage of words beside the concept's."""
    title, groups = "Words beside the concept's", findings.results.token_groups
    if not groups:
        return Absent(title, "similar and unrelated words were not attacked here.")
    present = [key for key in _GROUPS if any(key in found for found in groups.values())]
    first = next(iter(groups.values()))
    counted = [f"{_GROUPS[key]} ({first[key].tokens})" if key in first else _GROUPS[key] for key in present]
    rows = [("unprotected vectors", *(spread(first[key].unprotected) if key in first else "-" for key in present))]
    rows += [
        (name, *(spread(found[key].protected) if key in found else "-" for key in present))
        for name, found in groups.items()
    ]
    return Section(
        title,
        (
            "One ridge attacker learned concept tokens, words nearest to them in meaning, and unrelated words that are "
            "about as frequent. A protection aimed at the concept spares unrelated words; one that spares similar "
            "words too leaves them to hint at it.",
        ),
        tables=(("Leakage within each group", cut(("name", *counted), rows, most=_MOST_ROWS, rest="summary.json")),),
    )


def policy_alone(findings: Findings) -> Section | Absent:
    """What mean and covariance in a policy tell without any vector."""
    title, found = "The policy alone", findings.results.policy_alone
    if not found:
        return Absent(title, "no policy with statistics was attacked without its vectors.")
    tables = []
    if any(told.membership for told in found.values()):
        rows = [
            (name, told.kind, one.adversary, one.score, one.verdict, spread(one.auc), spread(one.true_positive_rate),
             spread(one.control))
            for name, told in found.items() for one in told.membership
        ]  # fmt: skip
        columns = (
            "name",
            "statistics",
            "adversary",
            "score",
            "verdict",
            "AUC",
            "true positives at 1% false",
            "control",
        )
        caption = "Telling records of the statistics from others; guessing gets an AUC of 0.5"
        tables.append((caption, cut(columns, rows, most=_MOST_ROWS, rest="summary.json")))
    if any(told.values for told in found.values()):
        rows = [
            (name, one.adversary, one.score, one.verdict, spread(one.top1), spread(one.outside), spread(one.control))
            for name, told in found.items() for one in told.values
        ]  # fmt: skip
        columns = ("name", "adversary", "score", "verdict", "values read", "in other records", "control")
        caption = "Reading the value in a known sentence of a record of the statistics"
        tables.append((caption, cut(columns, rows, most=_MOST_ROWS, rest="summary.json")))
    return Section(
        title,
        (
            "Mean and covariance in a policy are public, and tell of the records they were estimated on to whoever has "
            "no vector at all. `informed` knows all of these records but one, `population` other records of the same "
            "kind. `control` is the same for exact statistics of a few of the records. Public statistics hold no "
            "private record.",
        ),
        points=tuple(
            f"{name}, {told.kind} statistics: not attacked: {told.why_not}."
            for name, told in found.items()
            if told.why_not
        ),
        tables=tuple(tables),
    )


def other_risks(findings: Findings) -> Section | Absent:
    """Re-identification, the dictionary attack and averaging, in tables."""
    title, results, tables = "Other risks", findings.results, []
    if results.reidentification:
        rows = [
            (name, spread(one.top1), number(one.mrr), "-" if one.n_candidates is None else f"{one.n_candidates:,}")
            for name, one in results.reidentification.items()
        ]
        columns = ("name", "records found again", "mean reciprocal rank", "candidates")
        tables.append(("Re-identification", cut(columns, rows, most=_MOST_ROWS, rest="summary.json")))
    if results.dictionary:
        rows = [
            (name, told, one.verdict, spread(one.top1), spread(one.unprotected), number(one.floor))
            for name, found in results.dictionary.items()
            for told, one in found.items()
        ]
        columns = ("name", "rest of the text", "verdict", "values found", "unprotected", "guessing")
        caption = "Dictionary attack: who knows which values the concept can have tries each"
        tables.append((caption, cut(columns, rows, most=_MOST_ROWS, rest="summary.json")))
    if results.averaging:
        rows = [
            (name, one.noise, str(one.releases), spread(one.error), spread(one.reidentification))
            for name, found in results.averaging.items()
            for one in found
        ]
        columns = ("name", "noise", "releases", "relative error of their mean", "records found again")
        caption = "Averaging: what several releases of every record give away"
        tables.append((caption, cut(columns, rows, most=_MOST_ROWS, rest="summary.json")))
    if not tables:
        return Absent(title, "neither the dictionary attack nor averaging was run.")
    return Section(title, tables=tuple(tables))
