"""The table on the terminal and the page that goes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobs.config import Compared
from jobs.summary import ProtectionRow, Summary
from sparse_core.mechanisms import Guarantee
from sparse_core.policy import Policy

ENOUGH_RECORDS = 200
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
        *(
            "unknown" if row.protection == "unknown" else _number(value)
            for value in (row.epsilon, row.epsilon_euclidean)
        ),
        f"{row.rho:.2f}",
        _interval(row.leakage, row.leakage_low, row.leakage_high)
        + (f" {row.leakage_attack}" if row.leakage_attack else ""),
        _interval(row.utility, row.utility_low, row.utility_high),
        f"{row.reidentification:.2f}",
    ]


def few_records(n_records: int) -> str | None:
    """A warning that intervals are wide, where few test records hold a token that is attacked; None where enough do."""
    if n_records >= ENOUGH_RECORDS:
        return None
    return (
        f"Only {n_records} test records hold a token that is attacked: 95% intervals of leakage are about "
        f"±{0.98 / math.sqrt(n_records):.2f} wide, and smaller differences mean little. Four times the records would "
        "halve that."
    )


def render_report(summary: Summary, concept: str, promises: Sequence[str]) -> str:
    """The audit as a Markdown page: the table, the attacks behind it, what is guaranteed and what is not.

    Parameters
    ----------
    summary : Summary
    concept : str
        Its name.
    promises : sequence of str
        What each protection guarantees, in words.
    """
    details = summary.details
    warning = few_records(details["concept_test_records"])
    lines = [
        f"# Audit of the concept “{concept}”",
        "",
        f"{summary.rows_out:,} records: attackers were trained on {details['train_records']:,} and tested on "
        f"{details['test_records']:,} others. They tried to recover {details['tokens_attacked']} concept tokens, which "
        f"are {details['tokens_coverage']:.0%} of the concept tokens in the test records; nobody could learn the rarer "
        "ones. Leakage is the share of true tokens recovered with as many guesses as there are true tokens, by the "
        "strongest attack. Intervals are 95%, by bootstrap over records.",
        "",
        *([f"**{warning}**", ""] if warning else []),
        *_markdown(("name", *_COLUMNS), [[row.name, *cells(row)] for row in summary.protections]),
        "",
        "## Attacks",
        "",
        "Every attacker knows the policy: noise law, mask, mean and read-out. Where none is known, attackers learn "
        "from the protected vectors of texts that they know. `unprotected` is the positive control, "
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
        *_token_groups(details["token_groups"]),
        "## What is guaranteed",
        "",
    ]
    for row, promise in zip(summary.protections, promises, strict=True):
        lines.append(f"- **{row.name}**: {promise}")
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


def _token_groups(groups: dict[str, dict]) -> list[str]:
    """What became of words beside the concept's, as a section; nothing if that was not measured."""
    if not groups:
        return []
    names = ("target", "similar", "unrelated")
    first = next(iter(groups.values()))

    def figures(found: dict, figure: str) -> list[str]:
        return [_interval(**found[name][figure]) if name in found else "-" for name in names]

    return [
        "## Words beside the concept's",
        "",
        "Leakage of concept tokens (`target`), of words nearest to them in meaning that are not in the concept "
        "(`similar`), and of unrelated words that are about as frequent. One ridge attacker was trained on all, and "
        "guesses within each group. A protection that is aimed at the concept spares unrelated words; one that spares "
        "similar words too leaves them to hint at it.",
        "",
        *_markdown(
            ("name", *(f"{name} ({first[name]['tokens']})" if name in first else name for name in names)),
            [
                ["unprotected vectors", *figures(first, "unprotected")],
                *([name, *figures(found, "protected")] for name, found in groups.items()),
            ],
        ),
        "",
        *(["A dash marks a group that too few test records hold a word of.", ""] if len(first) < len(names) else []),
    ]


def no_claim(compared: Compared) -> str:
    """What a row without a policy guarantees, as the end of a sentence."""
    if compared.baseline is None:
        return (
            "unknown, as no policy is given; `rho` is the median distance from the embeddings. Attackers did without a "
            "noise law, and with one estimated from the records they know; the better of both counts."
        )
    return (
        "nothing; "
        + {
            "redaction": "the concept was taken out of the texts, and what else they say may still tell of it.",
            "rotation": "all vectors were turned alike, and whoever knows some of the texts can turn the others back.",
            "dropping": "the mask's directions are gone, and what others tell of the concept is published as it is.",
        }[compared.baseline]
    )


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
