"""The table on the terminal and the page that goes with it."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.summary import ProtectionRow, Summary
from sparse_core.mechanisms import Guarantee
from sparse_core.policy import Policy

_COLUMNS = ("protection", "basis", "epsilon", "epsilon_euclidean", "rho", "leakage", "utility", "reidentification")


def render_table(rows: Sequence[ProtectionRow]) -> str:
    """Protections compared, as text with aligned columns."""
    table = [("name", *_COLUMNS), *((row.name, *cells(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    tasks = sorted({row.utility_task for row in rows if row.utility_task})
    lines.append(f"leakage: lower is better, strongest attack named; utility ({', '.join(tasks) or 'none'}): higher.")
    return "\n".join(lines)


def cells(row: ProtectionRow) -> list[str]:
    """A row's figures as text, in the order of the table's columns."""
    return [
        row.protection,
        row.basis,
        _number(row.epsilon),
        _number(row.epsilon_euclidean),
        f"{row.rho:.2f}",
        _interval(row.leakage, row.leakage_low, row.leakage_high)
        + (f" {row.leakage_attack}" if row.leakage_attack else ""),
        _interval(row.utility, row.utility_low, row.utility_high),
        f"{row.reidentification:.2f}",
    ]


def render_report(summary: Summary, concept: str, policies: Sequence[Policy]) -> str:
    """The audit as a Markdown page: the table, the attacks behind it, the guarantee in plain words and its limits."""
    details = summary.details
    lines = [
        f"# Audit of the concept “{concept}”",
        "",
        f"{summary.rows_out:,} records: attackers were trained on {details['train_records']:,} and tested on "
        f"{details['test_records']:,} others. They tried to recover {details['tokens_attacked']} concept tokens, which "
        f"are {details['tokens_coverage']:.0%} of the concept tokens in the test records; nobody could learn the rarer "
        "ones. Leakage is the share of true tokens recovered with as many guesses as there are true tokens, by the "
        "strongest attack. Intervals are 95%, by bootstrap over records.",
        "",
        *_markdown(("name", *_COLUMNS), [[row.name, *cells(row)] for row in summary.protections]),
        "",
        "## Attacks",
        "",
        "Every attacker knows the policy: noise law, mask, mean and read-out. `unprotected` is the positive control, "
        "`floor` the same attacker trained on shuffled texts. An attack that does not beat its floor on unprotected "
        "vectors has failed, and says nothing about a protection.",
        "",
        *_markdown(
            ("name", "attack", "verdict", "unprotected", "protected", "floor", "confidence"),
            [
                [
                    name,
                    attack,
                    found["verdict"],
                    *(_interval(**found[figure]) for figure in ("unprotected", "protected", "floor")),
                    f"{found['confidence']:.2f}",
                ]
                for name, results in details["attacks"].items()
                for attack, found in results.items()
            ],
        ),
        "",
        "## What is guaranteed",
        "",
    ]
    for row, policy in zip(summary.protections, policies, strict=True):
        lines.append(f"- **{row.name}**: {in_words(row, policy)}")
    lines += [
        "",
        "## What is not",
        "",
        "- A small floor hides the concept, not the record: `reidentification` is the share of test records that "
        "whoever holds the original vectors finds again.",
        "- Leakage is measured for the tokens attacked here. Terms that neither the concept nor the mask knew are "
        "protected only as far as they resemble those, and attacks not run here may do better.",
        "- That a record is in the data set at all is not hidden.",
        "",
    ]
    return "\n".join(lines)


def in_words(figures: ProtectionRow | Guarantee, policy: Policy) -> str:
    """What is guaranteed, as the end of a sentence."""
    if policy.mechanism == "none":
        return "nothing; the vectors are published as they are."
    if policy.law.delta:
        words = (
            f"for any two texts whose vectors are at most a {policy.law.metric} distance of 1 apart, whatever may be "
            f"published is at most exp({figures.epsilon:.4g}) times as probable under one as under the other, plus a "
            f"probability of {policy.law.delta:g}. Texts farther apart have no such bound in proportion."
        )
    else:
        words = (
            f"for any two texts whose vectors are a distance d apart in the {policy.law.metric} norm, no published "
            f"vector is more than exp({figures.epsilon:.4g} d) times likelier under one than under the other. Per unit "
            f"of Euclidean distance in the least protected direction that is exp({figures.epsilon_euclidean:.4g})."
        )
    return words + f" The median noise is {figures.rho:.2f} times as long as the median vector."


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return "-" if value is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
