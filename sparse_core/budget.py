"""What each record has been released under, and what that adds up to.

A *release* of a record is named by (record id, content, policy, key), the four things its noise is drawn from
(`sparse_core.noise`). The same four give the same vector: whoever sees it again learns nothing new, so it is charged
once. Any other content, policy or key draws independent noise and is another release of the record.

Composition. Let the releases y_1..y_k of a record come from mechanisms with privacy maps e_i * d_i. Their noise is
independent, so the joint log-density is a sum, and for histories of contents x = (x_1..x_k) and x'

    log p(y | x) - log p(y | x') = sum_i [log p_i(y_i | x_i) - log p_i(y_i | x'_i)] <= sum_i e_i d_i(x_i, x'_i).

(Basic composition; Dwork and Roth, "The algorithmic foundations of differential privacy", 2014, Theorem 3.16. It holds
as well if a policy is chosen after earlier releases were seen: the densities are then conditional.) Where all d_i are
one metric d, this is at most (sum e_i) max_i d(x_i, x'_i): epsilons add in the mechanisms' own metric. Where they
differ, d_i(x, x') <= |x - x'| / s_i with s_i the square root of the least eigenvalue of Sigma (pi/2 |x - x'| for
angles), so ``epsilon_euclidean`` is the common currency, and adds per unit of the largest Euclidean distance among the
contents, under each release's own encoder.

What the sum does not say. Gaussian releases have no finite e per unit of distance: theirs holds for pairs up to
distance 1 and but for a probability ``delta``; deltas add, and a sum with delta > 0 speaks of such pairs only. A
release without noise costs infinitely much. And that a record's text is the same as in an earlier release under the
same policy and key, or has changed, is not hidden.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.noise import Key
from sparse_core.policy import Policy
from sparse_core.positions import by_position

ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one release costs.

    Attributes
    ----------
    policy, key : str
        Hash of the policy, identifier of the key.
    metric : str
        The metric of `epsilon`, down to encoder and Sigma: equal exactly where epsilons may be added.
    epsilon, epsilon_euclidean, delta : float
        As in `sparse_core.mechanisms.Guarantee`.
    """

    policy: str
    key: str
    metric: str
    epsilon: float
    epsilon_euclidean: float
    delta: float

    @classmethod
    def of(cls, policy: Policy, key: Key) -> Charge:
        """The price of a release under a policy and a key."""
        return cls(
            policy=policy.hash,
            key=key.identifier,
            metric=_metric(policy),
            epsilon=float(policy.law.epsilon),
            epsilon_euclidean=float(policy.law.epsilon_euclidean),
            delta=float(policy.law.delta),
        )


@dataclass(frozen=True)
class Releases:
    """Releases of records, in any order and with repetitions.

    Attributes
    ----------
    records : uint64 array, shape (n,)
        See `record_numbers`.
    fingerprints : uint64 array, shape (n,)
        First eight bytes of `sparse_core.noise.release_fingerprints`.
    charges : int32 array, shape (n,)
        Positions in `table`.
    table : tuple of Charge
    """

    records: np.ndarray
    fingerprints: np.ndarray
    charges: np.ndarray
    table: tuple[Charge, ...]

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: np.ndarray) -> Releases:
        """Some of them, by position or by a boolean mask."""
        return Releases(self.records[rows], self.fingerprints[rows], self.charges[rows], self.table)


@dataclass(frozen=True)
class Spent:
    """What records have spent, by ascending record number.

    Attributes
    ----------
    records : uint64 array, shape (n_records,)
    releases : int64 array, shape (n_records,)
        How many different releases.
    epsilon_euclidean : float64 array, shape (n_records,)
        Their sum; infinite after a release without noise.
    epsilon : float64 array, shape (n_records,)
        The sum in the mechanisms' own metric; NaN where a record's releases do not share one.
    delta : float64 array, shape (n_records,)
        Their sum.
    """

    records: np.ndarray
    releases: np.ndarray
    epsilon_euclidean: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: np.ndarray) -> Spent:
        """Some of the records, by ascending position or by a boolean mask."""
        return Spent(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def positions(self, records: np.ndarray) -> np.ndarray:
        """Where each record number stands; -1 for one that is not here."""
        if not len(self):
            return np.full(len(records), -1)
        found = np.minimum(np.searchsorted(self.records, records), len(self) - 1)
        return np.where(self.records[found] == records, found, -1)


def record_numbers(ids: Sequence[str | int]) -> np.ndarray:
    """Name records by 64-bit numbers; uint64, shape (n_records,).

    An id counts as its text: 1 and "1" are one record, because a column may be an integer in one dataset and text in
    another. Should two records ever share a number, each is charged for both.
    """
    digests = (
        hashlib.blake2b(str(i).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for i in by_position(ids, "ids")
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


def releases_under(charge: Charge, ids: Sequence[str | int], fingerprints: np.ndarray) -> Releases:
    """Releases of records under one policy and key.

    Parameters
    ----------
    charge : Charge
    ids : sequence of str or int, length n_records
    fingerprints : uint8 array, shape (n_records, 16)
        See `sparse_core.noise.release_fingerprints`.
    """
    shortened = np.ascontiguousarray(fingerprints[:, :8]).view("<u8").ravel()
    return Releases(record_numbers(ids), shortened, np.zeros(len(shortened), np.int32), (charge,))


def joined(parts: Sequence[Releases]) -> Releases:
    """Releases from several places as one, in their order."""
    table = {charge: None for part in parts for charge in part.table}
    position = {charge: row for row, charge in enumerate(table)}
    return Releases(
        np.concatenate([np.empty(0, np.uint64), *(part.records for part in parts)]),
        np.concatenate([np.empty(0, np.uint64), *(part.fingerprints for part in parts)]),
        np.concatenate(
            [
                np.empty(0, np.int32),
                *(np.array([position[c] for c in part.table], np.int32)[part.charges] for part in parts if len(part)),
            ]
        ),
        tuple(table),
    )


def distinct(releases: Releases) -> np.ndarray:
    """Positions of each different release, the first of its kind, ordered by record.

    Returns
    -------
    int64 array, shape (n_distinct,)
    """
    order = np.lexsort((releases.fingerprints, releases.records))
    records, fingerprints = releases.records[order], releases.fingerprints[order]
    first = np.ones(len(order), bool)
    first[1:] = (records[1:] != records[:-1]) | (fingerprints[1:] != fingerprints[:-1])
    return order[first]


def compose(releases: Releases) -> Spent:
    """Add up what each record has spent (see the top of this module).

    Parameters
    ----------
    releases : Releases
        Repetitions of a release are charged once.
    """
    return _composed(releases.take(distinct(releases)))


def _composed(once: Releases) -> Spent:
    """`compose` for releases as `distinct` gives them."""
    starts = np.flatnonzero(np.r_[True, once.records[1:] != once.records[:-1]][: len(once)])
    metrics = {metric: row for row, metric in enumerate(sorted({charge.metric for charge in once.table}))}
    metric = np.array([metrics[charge.metric] for charge in once.table], np.int32)[once.charges]

    def totals(name: str) -> np.ndarray:
        prices = np.array([getattr(charge, name) for charge in once.table], np.float64)
        return np.add.reduceat(prices[once.charges], starts) if len(once) else np.empty(0)

    shared = np.minimum.reduceat(metric, starts) == np.maximum.reduceat(metric, starts) if len(once) else []
    return Spent(
        records=once.records[starts],
        releases=np.diff(np.r_[starts, len(once)]),
        epsilon_euclidean=totals("epsilon_euclidean"),
        epsilon=np.where(shared, totals("epsilon"), np.nan),
        delta=totals("delta"),
    )


@dataclass(frozen=True)
class Outlook:
    """What a run would do to the budgets of the records it releases.

    Attributes
    ----------
    after : Spent
        What each would have spent once the run is done.
    new : int64 array, shape (n_records,)
        How many releases the run would add to each; 0 for one that was published just so before.
    """

    after: Spent
    new: np.ndarray

    def over(self, limit: float) -> np.ndarray:
        """Records that the run would push, or push further, over a limit in epsilon_euclidean; bool, (n_records,)."""
        return (self.new > 0) & (self.after.epsilon_euclidean > limit * (1 + ROUNDING))


def outlook(earlier: Releases, coming: Releases) -> Outlook:
    """Compose releases that a run is about to make with earlier ones of the same records.

    Parameters
    ----------
    earlier, coming : Releases
    """
    concerned = earlier.take(np.isin(earlier.records, coming.records))
    everything = joined([concerned, coming])
    rows = distinct(everything)
    after = _composed(everything.take(rows))
    added = everything.records[rows[rows >= len(concerned)]]
    return Outlook(after, np.bincount(after.positions(added), minlength=len(after)))


def _metric(policy: Policy) -> str:
    """Name of the metric; the figures after the colon stand for encoder and, where it matters, Sigma."""
    digest = hashlib.sha256(json.dumps(policy.encoder.space, sort_keys=True).encode())
    if policy.mechanism == "mahalanobis":
        digest.update(policy.mask.values.tobytes() + policy.mask.basis.tobytes() + repr(policy.floor).encode())
    return f"{policy.law.metric}:{digest.hexdigest()[:16]}"
