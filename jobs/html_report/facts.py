"""The run itself: what it came to in short, what was published, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from jobs.html_report.content import Absent, Section, Table, cut, interval, number, plural, share
from jobs.html_report.points import UNPROTECTED, Point, grouped, leakage_of, noteworthy, utility_of
from jobs.html_report.reading import Findings
from jobs.html_report.shapes import Row
from jobs.report import few_records
from jobs.spending import Copies

_MOST_ROWS = 24


def overview(findings: Findings) -> Section:
    """What a reader in a hurry should know."""
    results = findings.results
    points = list(_gist(findings))
    rows = results.protections
    names = set(noteworthy(findings, _MOST_ROWS))
    tables = []
    if rows:
        told = any(row.leakage_learned not in (None, row.leakage) for row in rows)
        columns = ("name", "protection", "basis", "rho", "epsilon", "leakage", "attack")
        columns += ("of the vector alone", "utility", "re-id") if told else ("normalized", "utility", "re-id")
        compared = cut(
            columns,
            [
                (
                    row.name,
                    row.protection,
                    row.basis,
                    number(row.rho),
                    number(row.epsilon),
                    leakage_of(row),
                    _attack(row),
                    interval(row.leakage_learned) if told else number(row.leakage_normalized),
                    utility_of(row),
                    share(row.reidentification),
                )
                for row in rows
                if row.name in names
            ],
            most=_MOST_ROWS,
            rest="the figures' tables",
        )
        caption = "Protections compared" if len(names) == len(rows) else "Protections on the front of their mechanism"
        tables.append((caption, compared))
    return Section("In short", points=tuple(points), tables=tuple(tables))


def _attack(row: Row) -> str:
    attack = row.leakage_attack or "-"
    return f"{attack}, {row.leakage_concept}" if row.leakage_concept else attack


def _gist(findings: Findings) -> Iterator[str]:
    results = findings.results
    yield from findings.remarks
    if results.reason:
        yield results.reason
    tried = [policy.parameters for policy in findings.policies.values()]
    concepts = sorted({one.concept for one in tried}) or [
        name for name, found in results.concepts.items() if found.listed
    ]
    if concepts:
        encoders = sorted({one.encoder for one in tried})
        yield f"Hidden: {', '.join(concepts)}{'; encoder: ' if encoders else ''}{', '.join(encoders)}."
    for mask in () if results.protections else findings.masks:
        opened = f"{np.count_nonzero(mask.values):,} of {len(mask.values):,} directions open"
        learned = "" if mask.accuracy is None else f"; held-out accuracy {mask.accuracy:.2f}"
        alone = "" if mask.accuracy_length_only is None else f", from length alone {mask.accuracy_length_only:.2f}"
        yield f"Mask {mask.name}: {opened}{learned}{alone}."
    if findings.trials:
        states = Counter(trial.status for trial in findings.trials)
        yield "Trials: " + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())) + "."
    if results.counts.rows_in is not None and (results.counts.rows_in or results.counts.rows_out):
        quarantined = sum(results.counts.quarantined.values())
        yield (
            f"Rows read: {results.counts.rows_in:,}; used: {results.counts.rows_out or 0:,}; "
            f"quarantined: {quarantined:,}."
        )
    if results.test_records is not None:
        yield (
            f"Attackers knew {results.train_records or 0:,} records and were tested on {results.test_records:,} others."
        )
    if results.concept_test_records and (warning := few_records(results.concept_test_records)):
        yield warning
    for name, points in grouped(findings).items():
        yield from _best(name, [point for point in points if point.row.leakage is not None])


def _best(name: str, points: list[Point]) -> Iterator[str]:
    """Where protections came to, in three sentences."""
    of = f" of {name}" if name else ""
    claimed = [point for point in points if point.row.epsilon is not None]
    protected = claimed or [point for point in points if point.series != UNPROTECTED]
    kind = " with a guarantee" if claimed else ""
    for point in points:
        if point.series == UNPROTECTED:
            yield f"Without protection: leakage{of} {leakage_of(point.row)}, utility {utility_of(point.row)}."
    if protected:
        least = min(protected, key=lambda point: (point.row.leakage, point.row.name)).row
        yield f"Least leakage{of}{kind}: {leakage_of(least)} under “{least.name}”, at utility {utility_of(least)}."
    halved = [p for p in protected if p.measured and p.row.leakage_normalized and p.row.leakage_normalized <= 0.5]
    if halved:
        best = max(halved, key=lambda point: (point.row.utility, point.row.name)).row
        yield (
            f"Most useful of the {len(halved):,}{kind} that take half or more of what attackers gain over "
            f"guessing{of}: “{best.name}” with utility {utility_of(best)}, at leakage {leakage_of(best)}."
        )
    elif protected:
        yield f"No protection{kind} takes half of what attackers gain over guessing{of}."


def release(findings: Findings) -> Section | Absent:
    """What was published."""
    title, found = "What was published", findings.release
    if found is None:
        return Absent(title, "this run published nothing; privatize does.")
    policy = found["policy"]
    facts = [
        ("state", "finished" if found["finished"] else f"not finished: {found['units_done']:,} units done"),
        ("rows published", f"{found['rows']:,}"),
        ("rows read", "-" if found["rows_read"] is None else f"{found['rows_read']:,}"),
        ("quarantined", ", ".join(f"{n:,} {why}" for why, n in sorted(found["quarantined"].items())) or "none"),
        ("mechanism", policy["mechanism"]),
        ("concepts", ", ".join(policy["concepts"]) or "none"),
        ("basis", policy["basis"]),
        ("floor", number(policy["floor"])),
        ("read-out", policy["read_out"]),
        ("encoder", f"{policy['encoder']}, {policy['dimension']} dimensions"),
        *((name, number(found["guarantee"][name])) for name in ("epsilon", "epsilon_euclidean", "delta", "rho")),
        ("metric", found["guarantee"]["metric"]),
        ("policy", policy["hash"]),
        ("source", found["source_fingerprint"]),
    ]
    if found["finished"]:
        columns = ", ".join(f"{name} ({kind})" for name, kind in found["schema"].items())
        facts += [
            ("files", f"{found['files']:,} {found['format']} files, {found['bytes']:,} bytes, {found['precision']}"),
            ("columns", columns),
        ]
    spent = found["budget"]
    if spent.get("subjects"):
        facts += [
            ("budget of", f"{spent['subjects']:,} subjects, {plural(spent['releases_max'], 'release')} at most each"),
            ("epsilon_euclidean spent", f"{number(spent['epsilon_spent_median'])} at the median, "
             f"{number(spent['epsilon_spent_max'])} at most"),
            ("limit", number(spent["max_epsilon_per_subject"])),
        ]  # fmt: skip
    if found["copies"] and found["copies"]["texts"]:
        facts.append(("copies", Copies(**found["copies"]).warning))
    return Section(title, tables=(("Release", Table(("what", "value"), tuple(facts))),))


def durations(findings: Findings) -> Section | Absent:
    """Seconds by stage; of a study, summed over its trials."""
    title, tables = "How long it took", []
    if findings.results.durations:
        rows = [(stage, f"{seconds:,.2f}") for stage, seconds in findings.results.durations.items()]
        tables.append(("The run", Table(("stage", "seconds"), tuple(rows))))
    stages: dict[str, list[float]] = {}
    for trial in findings.trials:
        for stage, seconds in (trial.durations or {}).items():
            stages.setdefault(stage, []).append(seconds)
    if stages:
        rows = [(s, f"{sum(v):,.1f}", f"{sum(v) / len(v):,.2f}", f"{len(v):,}") for s, v in stages.items()]
        tables.append(("Trials", Table(("stage", "seconds in all", "a trial", "trials"), tuple(rows))))
    if not tables:
        return Absent(title, "no durations were recorded.")
    return Section(title, tables=tuple(tables))
