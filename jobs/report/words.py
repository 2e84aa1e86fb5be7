"""What a protection promises, and how far figures can be trusted, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.config import Compared
from jobs.summary import ProtectionRow
from sparse_core.mechanisms import Guarantee
from sparse_core.policy import Policy

if TYPE_CHECKING:
    from jobs.html_report.shapes import Row

ENOUGH_RECORDS = 200


def few_records(n_records: int) -> str | None:
    """A warning that intervals are wide, where few test records hold a token that is attacked; None where enough do."""
    if n_records >= ENOUGH_RECORDS:
        return None
    return (
        f"Only {n_records} test records hold a token that is attacked: 95% intervals of leakage are about "
        f"±{0.98 / math.sqrt(n_records):.2f} wide, and smaller differences mean little. Four times the records would "
        "halve that."
    )


def policy_alone(rows: Sequence[ProtectionRow | Row]) -> list[str]:
    """What policies tell of the records behind their statistics, without any vector; rows that tell the same in one."""
    told: dict[str, list[str]] = {}
    for row in rows:
        if row.statistics not in (None, "public") and row.policy_membership is not None:
            told.setdefault(_told_alone(row), []).append(row.name)
    return [f"{', '.join(names)}: {words}" for words, names in told.items()]


def _told_alone(row: ProtectionRow | Row) -> str:
    words = (
        "mean and covariance in the policy, without any vector, tell the records they were made of "
        f"({row.statistics} statistics) from others with an area under the curve of {row.policy_membership:.2f}"
    )
    if row.policy_membership_informed is not None:
        words += f", and {row.policy_membership_informed:.2f} for whoever knows all but one of them"
    if row.policy_values is not None:
        words += (
            f". Of values in known sentences they read {row.policy_values:.0%} ({row.policy_values_floor:.0%} in "
            "records that were not among them)"
        )
        if row.policy_values_informed is not None:
            words += f", or {row.policy_values_informed:.0%}"
        if row.leakage is not None and max(row.policy_values, row.policy_values_informed or 0) > row.leakage:
            words += f". That is more than any attack read from the vectors of other records ({row.leakage:.0%})"
    return words + "."


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
            f"for any two vectors at most a {policy.law.metric} distance of 1 apart, whatever may be "
            f"published is at most exp({figures.epsilon:.4g}) times as probable under one as under the other, plus a "
            f"probability of {policy.law.delta:g}. Vectors farther apart have no such bound in proportion."
        )
    else:
        words = (
            f"for any two vectors a distance d apart in the {policy.law.metric} norm, no published "
            f"vector is more than exp({figures.epsilon:.4g} d) times likelier under one than under the other. Per unit "
            f"of Euclidean distance in the least protected direction that is exp({figures.epsilon_euclidean:.4g})."
        )
    words += f" Rounding may add {policy.law.rounding:.2g} to a distance."
    if figures.rho is None:
        return words + f" The median noise has length {policy.law.median_noise_norm:.4g}."
    return words + f" The median noise is {figures.rho:.2f} times as long as the median vector."
