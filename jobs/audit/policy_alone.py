"""What somebody gets who has a row's policy and none of its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from jobs import sources
from jobs.audit.records import Found
from jobs.closed_sets import ClosedSet, choose
from jobs.compared import Protected
from jobs.config import AuditConfig
from jobs.progress import steps
from jobs.stages import RememberingEncoder, Roles
from sparse_core.attacks import (
    MembershipResult,
    PublishedStatistics,
    ValueResult,
    made_of,
    membership_attack,
    substituted_candidates,
    value_attack,
)
from sparse_core.errors import SparseError
from sparse_core.masks import Mask

_ALONE = 11
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PolicyAlone:
    """What mean and covariance of a policy tell of the records they were estimated on.

    Attributes
    ----------
    kind : str
        Of the statistics: ``public``, ``private`` or ``unprotected``.
    records : int
        Private records they were estimated on; where that is unknown, those that the split gives the mask.
    membership : tuple of MembershipResult
        Empty where the records could not be told.
    values : tuple of ValueResult
        The same of values in known sentences.
    why_not, why_no_values : str or None
        Why `membership` or `values` is empty.
    """

    kind: str
    records: int
    membership: tuple[MembershipResult, ...] = ()
    values: tuple[ValueResult, ...] = ()
    why_not: str | None = None
    why_no_values: str | None = None

    def figures(self) -> dict[str, float | str | None]:
        """The strongest of each adversary, under the names of `ProtectionRow`."""
        population, informed = (_strongest(self.membership, "auc", who) for who in ("population", "informed"))
        reading, knowing = (_strongest(self.values, "top1", who) for who in ("population", "informed"))
        return {
            "statistics": self.kind,
            "policy_membership": population and population.auc.value,
            "policy_membership_low": population and population.auc.low,
            "policy_membership_high": population and population.auc.high,
            "policy_membership_informed": informed and informed.auc.value,
            "policy_values": reading and reading.top1.value,
            "policy_values_low": reading and reading.top1.low,
            "policy_values_high": reading and reading.top1.high,
            "policy_values_informed": knowing and knowing.top1.value,
            "policy_values_floor": reading and reading.outside.value,
        }

    def as_record(self) -> dict:
        """As ``summary.json`` holds it."""
        return asdict(self)


def _strongest(
    results: Sequence[MembershipResult | ValueResult], figure: str, adversary: str
) -> MembershipResult | ValueResult | None:
    usable = [one for one in results if one.adversary == adversary and one.verdict == "ok"]
    return max(usable, key=lambda one: getattr(one, figure).value, default=None)


def attack_policies(
    config: AuditConfig,
    protected: Sequence[Protected],
    corpus: sources.Corpus,
    found: Found,
    roles: Roles,
    vectors: np.ndarray,
    *,
    usable: np.ndarray,
    rows: np.ndarray,
    closed: ClosedSet | None,
    encoder: RememberingEncoder | None,
) -> dict[str, PolicyAlone]:
    """Attack the statistics of every row's mask; rows of one mask at once.

    Parameters
    ----------
    config : AuditConfig
    protected : sequence of Protected
    corpus : Corpus
    found : Found
    roles : Roles
        The mask's records are those of the statistics, if anything here is; those of the test are others, and the
        attackers' are what an adversary knows of the population.
    vectors : float array, shape (n_texts, n)
        The corpus, encoded.
    usable : bool array, shape (n_texts,)
        Texts that have a usable vector.
    rows : int array
        Texts whose vectors are compared.
    closed : ClosedSet or None
        Of the test records; the values of a dictionary are tried where there is one.
    encoder : RememberingEncoder or None

    Returns
    -------
    dict
        By row; rows without a mask publish no statistics.
    """
    members = np.sort(roles.mask[usable[roles.mask]])
    outsiders, reference = (rows[np.isin(rows, role)] for role in (roles.test, roles.attack))

    def attack_mask(mask: Mask) -> PolicyAlone:
        kind, published = _kind(mask), _published(mask, len(members))
        told = PolicyAlone(kind, published.records)
        if kind != "public" and not made_of(published, vectors[members]):
            return replace(told, why_not=_why_not(published, vectors[usable]))
        seeded = {"generator": np.random.default_rng([config.seed, _ALONE]), "reference": vectors[reference]}
        try:
            membership = membership_attack(published, members=vectors[members], outsiders=vectors[outsiders], **seeded)
        except SparseError as error:
            return replace(told, why_not=str(error))
        told = replace(told, membership=membership)
        if kind == "public":
            return replace(told, why_no_values="no private record is in public statistics")
        if closed is None:
            return replace(told, why_no_values="no dictionary of values was asked for (`dictionary`)")
        try:
            candidates, truth = _candidates(config, corpus, found, reference, members, encoder)
        except SparseError as error:
            return replace(told, why_no_values=str(error))
        values = value_attack(
            published,
            candidates=candidates,
            truth=truth,
            outside_candidates=closed.candidates,
            outside_truth=closed.truth,
            members=vectors[members],
            **seeded,
        )
        return replace(told, values=values)

    found_of: dict[str, PolicyAlone] = {}
    attacked: list[tuple[Mask, PolicyAlone]] = []
    masks = {row.name: row.policy.mask for row in protected if row.policy is not None and row.policy.mask is not None}
    with steps("Attacking policies without vectors") as advance:
        for name, mask in masks.items():
            known = next((result for other, result in attacked if _same_statistics(mask, other)), None)
            if known is None:
                known = attack_mask(mask)
                attacked.append((mask, known))
            found_of[name] = known
            advance(len(found_of), len(masks))
    return found_of


def _same_statistics(mask: Mask, other: Mask) -> bool:
    """Whether two masks, whatever their bases, are of the same mean and covariance."""
    one, two = (PublishedStatistics.of_mask(each, records=1) for each in (mask, other))
    return (
        _kind(mask) == _kind(other)
        and np.allclose(one.mean, two.mean, rtol=0, atol=_ROUNDING)
        and np.allclose(one.covariance, two.covariance, rtol=0, atol=_ROUNDING)
    )


def _kind(mask: Mask) -> str:
    """A mask that does not say what its statistics are of has exact ones of private records."""
    statistics = getattr(mask.info, "statistics", None)
    return "unprotected" if statistics is None else statistics.kind


def _published(mask: Mask, members: int) -> PublishedStatistics:
    """What attackers see; of public statistics as if they were of the split's records, which they are not."""
    if _kind(mask) != "private":
        return PublishedStatistics.of_mask(mask, records=members)
    stated = mask.info.statistics
    return PublishedStatistics.of_mask(
        mask,
        records=stated.records,
        mean_noise=stated.mean_noise,
        second_moment_noise=stated.second_moment_noise,
    )


def _why_not(published: PublishedStatistics, vectors: np.ndarray) -> str:
    if made_of(replace(published, records=len(vectors)), vectors):
        return (
            "they were made of all records of `input`, those of the test among them, and no others are left to compare"
        )
    return (
        "they were not made of the records that `split` gives the mask here; audit with the `input`, `split` and "
        "encoder that the mask was learned with to see what its policy tells of them"
    )


def _candidates(
    config: AuditConfig,
    corpus: sources.Corpus,
    found: Found,
    known: np.ndarray,
    members: np.ndarray,
    encoder: RememberingEncoder,
) -> tuple[np.ndarray, np.ndarray]:
    """Members' texts with each value of the dictionary, encoded, and their own values."""
    chosen = choose(
        config.dictionary, corpus.texts, found.spans[config.concept.name], train=known, test=members, seed=config.seed
    )
    number = {value.casefold(): at for at, value in enumerate(chosen.values)}
    texts, places = ([one[row] for row in chosen.attacked] for one in (corpus.texts, chosen.place))
    truth = [number[text[span.start : span.end].casefold()] for text, span in zip(texts, places, strict=True)]
    make = substituted_candidates(
        texts,
        places,
        chosen.values,
        encode=lambda filled: encoder.encode(filled, title="Encoding the mask's texts with each value"),
    )
    return make(slice(0, len(texts))).astype(np.float32), np.array(truth)
