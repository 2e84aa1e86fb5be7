"""The audit as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.escaping import for_markdown
from jobs.report.attackers import attack_sections, token_group_section, told_sections
from jobs.report.table import cells, columns, interval, markdown
from jobs.report.words import few_records, policy_alone
from jobs.summary import Summary


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
        f"# Audit of the concept “{for_markdown(concept)}”",
        "",
        f"{summary.rows_out:,} records: attackers were trained on {details['train_records']:,} and tested on "
        f"{details['test_records']:,} others. They tried to recover {details['tokens_attacked']} concept tokens, which "
        f"are {details['tokens_coverage']:.0%} of the concept tokens in the test records; nobody could learn the rarer "
        "ones. Leakage is the share of true tokens recovered with as many guesses as there are true tokens, by the "
        "strongest attack. Intervals are 95%, by bootstrap over records.",
        *_headline_with_dictionary(summary),
        "",
        *([f"**{warning}**", ""] if warning else []),
        *_may_have_seen(details["masks_learned_elsewhere"]),
        *markdown(
            ("name", *columns(summary.protections)),
            [[row.name, *cells(row, summary.protections)] for row in summary.protections],
        ),
        "",
        *(line for told in policy_alone(summary.protections) for line in (f"**{for_markdown(told)}**", "")),
        *attack_sections(details["concepts"], concept),
        *told_sections(details),
        *token_group_section(details["token_groups"]),
        *_utilities(details["utilities"]),
        "## What is guaranteed",
        "",
    ]
    for row, promise in zip(summary.protections, promises, strict=True):
        lines.append(f"- **{for_markdown(row.name)}**: {promise}")
    lines += [
        "",
        "## What is not",
        "",
        "- A small floor hides the concept, not the record: `reidentification` is the share of test records that "
        "whoever holds the original vectors finds again.",
        "- Leakage is measured for the tokens attacked here. Terms that neither the concept nor the mask knew are "
        "protected only as far as they resemble those, and attacks not run here may do better.",
        "- Epsilon is of one vector. Further vectors of the same person, and releases of the same record under another "
        "key, policy or text, add theirs; what mask, mean and covariance in the policy tell of the records they were "
        "estimated on is not in it.",
        "- It speaks of distances of vectors, not of texts or people, and holds against whoever lacks the key.",
        "- That a record is in the data set at all is not hidden.",
        "",
    ]
    return "\n".join(lines)


def _may_have_seen(rows: Sequence[str]) -> list[str]:
    """A warning about masks that were not learned with this audit's corpus and split; nothing where all were."""
    if not rows:
        return []
    return [
        f"**Masks of {', '.join(map(for_markdown, rows))}: as far as is known not learned with the input and `split` "
        "of this audit. They may have been learned from the test records; what is read of records that a mask never "
        "saw may differ.**",
        "",
    ]


def _headline_with_dictionary(summary: Summary) -> list[str]:
    if not summary.details["dictionary"]:
        return []
    return [
        "",
        "`leakage` is the most that any attack recovered, the dictionary among them, which is told the set of values "
        "and, where it says `known`, the rest of each text. `learned` is the most that attacks recovered which see "
        "the vector alone.",
    ]


def _utilities(utilities: dict[str, list[dict]]) -> list[str]:
    """All tasks, where there are several or one was skipped."""
    tasks = next(iter(utilities.values()), [])
    skipped = {
        (name, one["name"]): one["skipped"] for name, found in utilities.items() for one in found if one["skipped"]
    }
    if len(tasks) < 2 and not skipped:
        return []
    return [
        "## Utility",
        "",
        "Main scores as MTEB defines them, on the vectors that were attacked; higher is better.",
        "",
        *markdown(
            ("name", *(f"{task['name']} ({task['metric'] or '-'}, n = {task['n_records'] or 0:,})" for task in tasks)),
            [
                [name, *(interval(one["score"], one["low"], one["high"]) for one in found)]
                for name, found in utilities.items()
            ],
        ),
        "",
        *(f"- {for_markdown(f'{name}, {task}: not measured, {why}')}" for (name, task), why in skipped.items()),
        *([""] if skipped else []),
    ]
