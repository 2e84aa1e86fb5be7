"""What is guaranteed, in plain words, and what is not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jobs.html_report.content import Absent, Section, cut, number, plural, spread
from jobs.html_report.points import noteworthy
from jobs.html_report.reading import Findings
from jobs.html_report.shapes import Row
from jobs.report import policy_alone

_MOST_ROWS = 40
_E = "about 2.7"
_PROMISES = {
    "laplace": (
        "Laplace: noise of the same strength in every direction. Take any two vectors a distance d apart. Whatever is "
        "published is at most exp(epsilon × d) times likelier under one than under the other: it moves nobody's odds "
        "between the two by more than that factor. This speaks of distances of vectors: how far one word, or one "
        "person's text, moves a vector is for the encoder to say."
    ),
    "mahalanobis": (
        "Mahalanobis: noise shaped by a mask, strong where the concept is told and down to the floor elsewhere. The "
        "promise is the same as Laplace's, but distance is measured with the mask's own yardstick: epsilon holds in "
        "that, and epsilon_euclidean for ordinary distance in the direction that is protected least."
    ),
    "purkayastha": (
        "Purkayastha: a random direction near the vector's own. The promise is for the angle between two vectors: "
        "whatever is published is at most exp(epsilon × angle) times likelier under one than under the other."
    ),
    "gaussian": (
        "Gaussian: for any two vectors at most 1 apart, whatever is published is at most exp(epsilon) "
        "times likelier under one than under the other, but for a small probability delta that the policy states. "
        "Vectors farther apart have no such bound in proportion."
    ),
    "none": "Unprotected: nothing; the vectors are published as they are.",
    "unknown": "Unknown: vectors without a policy; nothing can be said beyond what attacks found.",
    "redaction": (
        "Redaction: nothing; the concept was taken out of the texts, and what else they say may still tell of it."
    ),
    "rotation": "Rotation: nothing; whoever knows some of the texts can turn all vectors back.",
    "dropping": (
        "Dropping: nothing; the mask's directions are gone, and what others tell of the concept is published as it is."
    ),
}

_ROUNDED = (
    "Vectors are rounded before noise is added, which may bring two of them a little farther apart: the promises count "
    "that, and the policy states the most it can come to (rounding)."
)


def guarantee(findings: Findings) -> Section | Absent:
    """The promise of each mechanism here, its reach in numbers, and its limits."""
    rows, release = list(findings.results.protections), findings.release
    if not rows and release is None:
        return Absent("What is guaranteed", "nothing was protected in this run.")
    if not rows:
        rows.append(_published(release))
    kinds = list(dict.fromkeys(_kind(row.protection) for row in rows))
    claimed = [row for row in rows if row.epsilon_euclidean]
    paragraphs, tables = [_PROMISES[kind] for kind in kinds if kind in _PROMISES], []
    if release is not None:
        paragraphs.append(f"Of one release of this dataset: {release['guarantee_in_words']}")
    if claimed:
        paragraphs += [_reach(claimed), _ROUNDED]
        tables.append(
            (
                "Epsilon and how far it reaches",
                cut(
                    ("name", "mechanism", "rho", "epsilon", "epsilon_euclidean", f"distance for a factor of {_E}"),
                    [_cells(row) for row in _shown(claimed, noteworthy(findings, _MOST_ROWS) or ["this release"])],
                    most=_MOST_ROWS,
                    rest="summary.json",
                ),
            )
        )
    return Section("What is guaranteed", tuple(paragraphs), tables=tuple(tables))


def limits(findings: Findings) -> Section | Absent:
    """What no guarantee here covers, with what was measured of it."""
    if not findings.results.protections and findings.release is None:
        return Absent("What is not guaranteed", "nothing was protected in this run.")
    return Section("What is not guaranteed", points=tuple(_limits(findings)))


def _published(release: dict) -> Row:
    """A release as a row of the table."""
    policy, stated = release["policy"], release["guarantee"]
    figures = {name: stated[name] for name in ("epsilon", "epsilon_euclidean", "rho")}
    return Row(name="this release", protection=policy["mechanism"], basis=policy["basis"], **figures)


def _kind(protection: str) -> str:
    """Mechanism or baseline, without its details in brackets."""
    return protection.split(" (")[0]


def _shown(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return [row for row in rows if row.name in set(names)]


def _reach(rows: Sequence[Row]) -> str:
    epsilons = sorted(row.epsilon_euclidean for row in rows if math.isfinite(row.epsilon_euclidean))
    low, high = epsilons[0], epsilons[-1]
    spans = f"{1 / high:.2g}" if len(epsilons) == 1 else f"between {1 / high:.2g} and {1 / low:.2g}"
    return (
        f"How far that reaches: the factor grows to {_E} over an ordinary distance of {spans} here (1 / "
        "epsilon_euclidean), and multiplies with every further step of that length. Vectors have a length near 1, and "
        "unrelated texts are about 1.4 apart: at such distances the bound alone promises next to nothing, and what "
        "attackers were measured to recover is what counts."
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.protection,
        number(row.rho),
        number(row.epsilon),
        number(row.epsilon_euclidean),
        number(1 / row.epsilon_euclidean),
    )


def _limits(findings: Findings) -> Iterator[str]:
    results = findings.results
    yield f"Re-identification: hiding a concept is not hiding whose record it is. {_reidentified(findings)}"
    yield f"Unlisted concepts: {_unlisted(findings)}"
    yield (
        "Membership: that a text is in the data set at all is not hidden. Whoever holds a text can encode it and look "
        "for a published vector near it."
    )
    yield (
        "Attacks not run here: leakage is what these attacks recovered, with what they knew. A better attack may "
        "recover more; only the guarantee holds against all."
    )
    for told in policy_alone(results.protections):
        yield f"The policy alone: {told}"
    if results.tokens_coverage is not None:
        yield (
            f"Rare terms: attackers tried to recover {plural(results.tokens_attacked or 0, 'token')}, which are "
            f"{results.tokens_coverage:.0%} of the concept tokens in the test records. The rarer ones could not be "
            "learned here; someone with more data might learn them."
        )
    yield (
        "Repeated releases: the guarantee is of one vector. A record published again under another key, policy or "
        "text, and a person of whom there are several records, spend epsilon each time."
    )
    yield (
        "The key: noise is computed from it, so the guarantee holds against whoever does not have it and cannot break "
        "SHAKE-256. With the key the noise can be subtracted."
    )
    yield (
        "Statistics: the guarantee is of each vector. Mask, mean and covariance in the policy are published, too, and "
        "what they tell of the records they were estimated on is not part of epsilon."
    )
    yield "Epsilon is no share or grade: figures of different mechanisms, metrics or encoders do not compare."


def _reidentified(findings: Findings) -> str:
    results = findings.results
    rows = [row for row in results.protections if row.reidentification is not None and row.protection != "none"]
    if not rows:
        return "It was not measured here; an audit measures it."
    most = max(rows, key=lambda row: row.reidentification)
    least = min(rows, key=lambda row: row.reidentification)
    told = (
        f"Whoever holds the original vectors found {most.reidentification:.0%} of the test records again under "
        f"“{most.name}”"
    )
    told += f" and {least.reidentification:.0%} under “{least.name}”." if least is not most else "."
    if (linked := results.reidentification.get(most.name)) and linked.n_candidates:
        told += f" (Among {linked.n_candidates:,} candidates; {spread(linked.top1)}.)"
    return told


def _unlisted(findings: Findings) -> str:
    unlisted = {name: found for name, found in findings.results.concepts.items() if not found.listed}
    general = (
        "terms that neither the concept nor the mask knew are protected only as far as they resemble those that it did."
    )
    figures = []
    for concept, found in unlisted.items():
        for name in noteworthy(findings, 4):
            working = [one for one in found.attacks.get(name, {}).values() if one.verdict == "ok"]
            if working:
                strongest = max(working, key=lambda one: one.protected.value or 0.0)
                figures.append(f"“{concept}” under “{name}” {spread(strongest.protected)}")
    if figures:
        return f"{general} Measured here: leakage of {'; '.join(figures)}."
    return f"{general} How far that is was not measured here."
