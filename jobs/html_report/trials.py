"""The trials of a study: each by itself, those without a result, and the settings they share."""

from __future__ import annotations

from jobs.html_report.content import Absent, Section, cut, interval, number, plural, share
from jobs.html_report.points import leakage_of, utility_of
from jobs.html_report.reading import Findings

_MOST_ROWS, _MOST_TRIALS, _LONGEST_REASON = 40, 400, 300
_NOT_GIVEN = ("None", "[]", "")


def trials(findings: Findings) -> Section | Absent:
    """Every finished trial, as its file has it."""
    title = "Every trial"
    rows = [
        (
            trial.trial,
            name,
            str(trial.parameters.seed),
            leakage_of(trial.row),
            trial.row.leakage_attack or "-",
            utility_of(trial.row),
            share(trial.row.reidentification),
        )
        for name, policy in findings.policies.items()
        for trial in policy.trials
    ]
    if not rows:
        return Absent(title, "this run has no finished trials; a study has.")
    columns = ("trial", "policy", "seed", "leakage", "attack", "utility", "re-id")
    table = cut(columns, rows, most=_MOST_TRIALS, rest="the study's trials")
    return Section(title, tables=((f"{plural(len(rows), 'trial')}, seed by seed", table),), folded=True)


def failed_trials(findings: Findings) -> Section | Absent:
    """Trials that came to nothing, and why."""
    title = "Trials without a result"
    if not findings.trials:
        return Absent(title, "this run has no trials; a study has.")
    others = [trial for trial in findings.trials if trial.status != "done" or trial.row is None]
    if not others:
        return Absent(title, "every trial came to an end.")
    rows = []
    for trial in others:
        tried = trial.parameters.model_dump(exclude_none=True, by_alias=True)
        told = ", ".join(f"{name} {_shown(value)}" for name, value in tried.items() if value != "")
        reason = (trial.reason or "no reason was recorded")[:_LONGEST_REASON]
        rows.append((trial.trial, trial.status, told, reason))
    table = cut(("trial", "status", "parameters", "reason"), rows, most=_MOST_ROWS, rest="the study's trials")
    return Section(title, tables=((plural(len(others), "trial"), table),))


def _shown(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def settings(findings: Findings) -> Section | Absent:
    """How a study was configured."""
    title = "Settings"
    if findings.study is None or not findings.study.settings:
        return Absent(title, "they are not kept beside this run's results, but in MLflow.")
    given = {name: str(value) for name, value in sorted(findings.study.settings.items())}
    rows = [(name, value) for name, value in given.items() if value not in _NOT_GIVEN]
    table = cut(("field", "value"), rows, most=200, rest="study.json")
    return Section(title, tables=(("As the study was given them, without terms and secrets", table),), folded=True)


def tried(findings: Findings) -> Section | Absent:
    """What a calibration tried."""
    title, found = "What the search tried", findings.results.tried
    if not found:
        return Absent(title, "this run did not search for a policy; calibrate does.")
    rows = [
        (
            number(one.penalty),
            number(one.directions_open),
            number(one.rho),
            number(one.epsilon),
            interval(one.leakage, one.leakage_low, one.leakage_high),
            interval(one.utility),
            share(one.utility_loss),
        )
        for one in found
    ]
    columns = ("lambda", "directions open", "rho", "epsilon", "leakage", "utility", "utility lost")
    table = cut(columns, rows, most=_MOST_TRIALS, rest="summary.json")
    told = (
        "The figures above are of records that had no part in this choice."
        if findings.results.chosen_on_other_records
        else "There were too few records for that: the figures above are of those it was chosen on, and flatter it."
    )
    return Section(title, (told,), tables=(("In the order of the search", table),))
