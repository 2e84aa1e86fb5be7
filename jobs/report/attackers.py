"""Sections of the page on what each attacker got."""

from __future__ import annotations

from jobs.escaping import for_markdown
from jobs.report.table import interval, markdown
from jobs.report.words import few_records


def attack_sections(concepts: dict[str, dict], main: str) -> list[str]:
    """The attacks behind the headline, concept by concept; then those on concepts that no mask was told of."""
    lines = [
        "## Attacks",
        "",
        "Every attacker knows the policy: noise law, mask, mean and read-out, and trains on several draws of its "
        "noise. Where none is known, attackers learn from the protected vectors of texts that they know. "
        "`unprotected` is the positive control, `floor` the same attacker trained on shuffled texts, `normalized` "
        "(protected - floor) / (unprotected - floor). An attack that does not beat its floor on unprotected vectors "
        "has failed, and says nothing about a protection.",
        "",
    ]
    for name, found in concepts.items():
        if len(concepts) > 1:
            lines += [f"### Concept “{for_markdown(name)}”", ""]
        if not found["listed"]:
            lines += [
                "No mask was told of this concept, and it does not count for the headline: what is read here was left "
                "where it was, or moved here.",
                "",
            ]
        if name != main:
            lines += [
                f"{found['tokens_attacked']} tokens ({found['tokens_coverage']:.0%} of those in the test records) in "
                f"{found['concept_test_records']:,} test records.",
                "",
            ]
            if warning := few_records(found["concept_test_records"]):
                lines += [f"**{warning}**", ""]
        lines += [
            *markdown(
                ("name", "attack", "verdict", "unprotected", "protected", "floor", "normalized", "confidence"),
                [
                    [
                        row,
                        attack,
                        figures["verdict"],
                        *(interval(**figures[name]) for name in ("unprotected", "protected", "floor")),
                        interval(**figures["leakage_normalized"]),
                        f"{figures['confidence']:.2f}",
                    ]
                    for row, results in found["attacks"].items()
                    for attack, figures in results.items()
                ],
            ),
            "",
        ]
    return lines


def token_group_section(groups: dict[str, dict]) -> list[str]:
    """What became of words beside the concept's, as a section; nothing if that was not measured."""
    if not groups:
        return []
    names = ("target", "similar", "unrelated")
    first = next(iter(groups.values()))

    def figures(found: dict, figure: str) -> list[str]:
        return [interval(**found[name][figure]) if name in found else "-" for name in names]

    return [
        "## Words beside the concept's",
        "",
        "Leakage of concept tokens (`target`), of words nearest to them in meaning that are not in the concept "
        "(`similar`), and of unrelated words that are about as frequent. One ridge attacker was trained on all, and "
        "guesses within each group. A protection that is aimed at the concept spares unrelated words; one that spares "
        "similar words too leaves them to hint at it.",
        "",
        *markdown(
            ("name", *(f"{name} ({first[name]['tokens']})" if name in first else name for name in names)),
            [
                ["unprotected vectors", *figures(first, "unprotected")],
                *([name, *figures(found, "protected")] for name, found in groups.items()),
            ],
        ),
        "",
        *(["A dash marks a group that too few test records hold a word of.", ""] if len(first) < len(names) else []),
    ]


def told_sections(details: dict) -> list[str]:
    """Attackers who are told more than one vector: closed sets, several releases, the candidates of a record."""
    return [
        *_reconstructions(details["reconstruction"]),
        *_dictionary(details),
        *_averaging(details["averaging"]),
        *_policy_alone(details["policy_alone"]),
        *_reidentification(details["reidentification"]),
    ]


def _reconstructions(found: dict[str, dict[str, dict]]) -> list[str]:
    if not found:
        return []
    shown = [(row, attack, one) for row, each in found.items() for attack, one in each.items()]
    scores = ("bleu", "rouge_l", "token_f1", "cosine")
    lines = [
        "## Written texts",
        "",
        "What attackers that write sentences made of the vectors. In the table of attacks, a concept token counts as "
        "leaked where it stands as a word, case folded, anywhere in what was written. Here: BLEU (0 to 100), ROUGE-L "
        "and token F1 of the two texts, and the cosine of their embeddings; means over records.",
        "",
        *markdown(
            (
                "name",
                "attack",
                "records",
                *(f"{score} ({side})" for score in scores for side in ("protected", "floor")),
            ),
            [
                [
                    row,
                    attack,
                    f"{one['n_records']:,}",
                    *(interval(**one[score][side]) for score in scores for side in ("protected", "floor")),
                ]
                for row, attack, one in shown
            ],
        ),
        "",
    ]
    control = {attack: one for _, attack, one in reversed(shown)}
    for attack, one in control.items():
        figures = ", ".join(f"{score} {interval(**one[score]['unprotected'])}" for score in scores)
        lines += [f"- {attack} on unprotected vectors: {figures}. {one['strength'] or ''}".rstrip()]
    lines += [""]
    for row, attack, one in shown:
        if one["examples"]:
            lines += [f"### {attack} on {for_markdown(row)}", ""]
            lines += markdown(
                ("text", "from the unprotected vector", "from the protected vector"),
                [[each["original"], each["unprotected"], each["protected"]] for each in one["examples"]],
            )
            lines += [""]
    return lines


def _dictionary(details: dict) -> list[str]:
    found = details["dictionary"]
    if not found:
        return []
    results = [(row, told, one) for row, each in found.items() for told, one in each.items()]
    _, _, first = results[0]
    return [
        "## Closed set of values",
        "",
        f"An attacker who knows that a record holds one of {first['n_candidates']} values puts each in its place, "
        "encodes the text, and takes the value that is likeliest under the law of the noise. `known`: it knows the "
        "rest of the text. `unknown`: it knows only what each value does to the vectors of other texts. `top1` is the "
        "share of records whose value it names, `claimed` how often it expects to be right, `cosine` what it gets by "
        f"cosine alone. {first['n_records']:,} test records were attacked; {details['dictionary_share']:.0%} of the "
        "test records with the concept hold one of the values.",
        "",
        *markdown(
            ("name", "rest of the text", "verdict", "top1", "claimed", "MRR", "cosine", "unprotected", "guessing"),
            [
                [
                    row,
                    told,
                    one["verdict"],
                    *(interval(**one[name]) for name in ("top1", "claimed", "mrr", "top1_cosine", "unprotected")),
                    f"{one['floor']:.3f}",
                ]
                for row, told, one in results
            ],
        ),
        "",
    ]


def _averaging(found: dict[str, list[dict]]) -> list[str]:
    if not found:
        return []
    shown = [(name, one) for name, rows in found.items() for one in rows]
    with_values = any(one["dictionary"] is not None for _, one in shown)
    return [
        "## Several releases of one record",
        "",
        "`fresh`: noise under another key each time, as after a lost key, a changed policy, or one text under several "
        "ids. `keyed`: one key, as the jobs publish. `error` is the distance of the mean of all releases from the "
        "embedding, relative to its norm, `shrunk` the same for the best linear estimate.",
        "",
        *markdown(
            ("name", "noise", "releases", "distinct", "error", "shrunk", "re-identified")
            + (("dictionary",) if with_values else ()),
            [
                [
                    name,
                    one["noise"],
                    str(one["releases"]),
                    f"{one['distinct']:.1f}",
                    interval(**one["error"]),
                    interval(**one["error_shrunk"]) if one["error_shrunk"] else "-",
                    interval(**one["reidentification"]),
                    *([interval(**one["dictionary"]) if one["dictionary"] else "-"] if with_values else []),
                ]
                for name, one in shown
            ],
        ),
        "",
    ]


def _policy_alone(found: dict[str, dict]) -> list[str]:
    if not found:
        return []
    lines = [
        "## The policy alone",
        "",
        "Mean and covariance in a policy are public, and tell of the records they were estimated on to whoever has no "
        "vector at all. `informed` knows all of these records but one, `population` other records of the same kind; "
        "`score` is what it goes by. `AUC` is the probability that a record of the statistics scores higher than one "
        "of the test; guessing gets 0.5. `TPR` is the share of them that it names while it names 1% of the others. "
        "`control` is the figure for exact statistics of a few of the records, `floor` for records and others "
        "shuffled. Public statistics hold no private record by construction; their figures show it.",
        "",
    ]
    rows = [(name, told, one) for name, told in found.items() for one in told["membership"]]
    if rows:
        lines += markdown(
            ("name", "statistics", "records", "adversary", "score", "verdict", "AUC", "TPR", "control", "floor"),
            [
                [
                    name,
                    told["kind"],
                    f"{told['records']:,}",
                    *(one[field] for field in ("adversary", "score", "verdict")),
                    *(interval(**one[figure]) for figure in ("auc", "true_positive_rate", "control", "floor")),
                ]
                for name, told, one in rows
            ],
        )
        lines += [""]
    values = [(name, told, one) for name, told in found.items() for one in told["values"]]
    if values:
        lines += [
            "The same adversaries where they know the rest of a record's text: the share of its values that they read. "
            "`others` is that of records that were not in the statistics, of which only what is usual can be guessed.",
            "",
            *markdown(
                ("name", "adversary", "score", "verdict", "read", "others", "control", "guessing"),
                [
                    [
                        name,
                        *(one[field] for field in ("adversary", "score", "verdict")),
                        *(interval(**one[figure]) for figure in ("top1", "outside", "control")),
                        f"{one['guessing']:.3f}",
                    ]
                    for name, told, one in values
                ],
            ),
            "",
        ]
    for what, field in (("its statistics were not attacked", "why_not"), ("no values were read", "why_no_values")):
        reasons = [
            f"- {for_markdown(name)} ({told['kind']} statistics): {what}: {told[field]}."
            for name, told in found.items()
            if told[field]
        ]
        lines += [*reasons, *([""] if reasons else [])]
    return lines


def _reidentification(found: dict[str, dict]) -> list[str]:
    first = next(iter(found.values()))
    return [
        "## Re-identification",
        "",
        f"Whoever holds the {first['n_candidates']:,} original vectors looks for each protected one among them, by "
        "cosine and, where the noise is known, in its own metric (`whitened`). `MRR` is the mean reciprocal rank of "
        "the right one, of the better of the two.",
        "",
        *markdown(
            ("name", "cosine", "whitened", "MRR"),
            [
                [
                    name,
                    interval(**one["top1_cosine"]),
                    interval(**one["top1_whitened"]) if one["top1_whitened"] else "-",
                    f"{one['mrr']:.3f}",
                ]
                for name, one in found.items()
            ],
        ),
        "",
    ]
