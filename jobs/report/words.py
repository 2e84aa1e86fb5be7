"""What a protection promises, and how far figures can be trusted, in words."""

from __future__ import annotations

import math

from jobs.config import Compared
from jobs.summary import ProtectionRow
from sparse_core.mechanisms import Guarantee
from sparse_core.policy import Policy

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
