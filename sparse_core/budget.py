"""What each subject has been released under, and what that adds up to.

A *subject* is whom a budget is about: a person or document, with one or many records. A *release* is one vector of one
subject, named by all that its noise is drawn from (`sparse_core.noise`): key, policy, subject, content, and the
embedding on its grid. The same five give the same vector: whoever sees it again learns nothing new, so it is charged
once, and so are copies of a text under one subject. Anything else draws independent noise and is another release.

Before a text is encoded only the first four are known, and the same encoder gives one text one embedding. So a
forecast (`outlook`) takes releases that agree in these for one release; what was released is counted by vectors.

Composition. Let the releases y_1..y_k of a subject come from mechanisms with privacy maps e_i * d_i. Their noise is
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
release without noise costs infinitely much. And that a text is the same as another of the subject's under the same
policy and key, or as it was in an earlier release, is not hidden.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.noise import Key
from sparse_core.policy import Policy
from sparse_core.positions import by_position

ROUNDING = 1e-9
_FORESEEN = ("subjects", "contents")


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
        As in `sparse_core.mechanisms.Guarantee`; infinite where there is no noise.
    """

    policy: str
    key: str
    metric: str
    epsilon: float
    epsilon_euclidean: float
    delta: float

    def __post_init__(self):
        # Not a number is none of these either.
        if not (self.epsilon > 0 and self.epsilon_euclidean > 0 and 0 <= self.delta < 1):
            raise SparseError(
                f"A release costs epsilon {self.epsilon:g}, epsilon_euclidean {self.epsilon_euclidean:g} and delta "
                f"{self.delta:g}; epsilons are positive and delta is in [0, 1)."
            )

    @classmethod
    def of(cls, policy: Policy, key: Key | str) -> Charge:
        """The price of a release under a policy and a key, or the key of an identifier."""
        return cls(
            policy=policy.hash,
            key=key if isinstance(key, str) else key.identifier,
            metric=_metric(policy),
            epsilon=float(policy.law.epsilon),
            epsilon_euclidean=float(policy.law.epsilon_euclidean),
            delta=float(policy.law.delta),
        )


@dataclass(frozen=True)
class Releases:
    """Releases, in any order and with repetitions.

    Attributes
    ----------
    subjects : uint64 array, shape (n,)
        See `subject_numbers`.
    contents : uint64 array, shape (n,)
        First eight bytes of `sparse_core.noise.release_fingerprints`: equal for one content of one subject under one
        policy and key.
    vectors : uint64 array, shape (n,)
        First eight bytes of `Policy.fingerprints`: equal for one vector. Where the vector is not known, `contents`.
    charges : int32 array, shape (n,)
        Positions in `table`.
    table : tuple of Charge
    """

    subjects: np.ndarray
    contents: np.ndarray
    vectors: np.ndarray
    charges: np.ndarray
    table: tuple[Charge, ...]

    def __len__(self) -> int:
        return len(self.subjects)

    def take(self, rows: np.ndarray) -> Releases:
        """Some of them, by position or by a boolean mask."""
        return Releases(self.subjects[rows], self.contents[rows], self.vectors[rows], self.charges[rows], self.table)


@dataclass(frozen=True)
class Spent:
    """What subjects have spent, by ascending number of the subject.

    Attributes
    ----------
    subjects : uint64 array, shape (n_subjects,)
    releases : int64 array, shape (n_subjects,)
        How many different releases.
    epsilon_euclidean : float64 array, shape (n_subjects,)
        Their sum; infinite after a release without noise.
    epsilon : float64 array, shape (n_subjects,)
        The sum in the mechanisms' own metric; NaN where a subject's releases do not share one.
    delta : float64 array, shape (n_subjects,)
        Their sum.
    """

    subjects: np.ndarray
    releases: np.ndarray
    epsilon_euclidean: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray

    def __len__(self) -> int:
        return len(self.subjects)

    def take(self, rows: np.ndarray) -> Spent:
        """Some of the subjects, by ascending position or by a boolean mask."""
        return Spent(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def positions(self, subjects: np.ndarray) -> np.ndarray:
        """Where subjects stand here; -1 for those that have spent nothing.

        Parameters
        ----------
        subjects : uint64 array, shape (n,)

        Returns
        -------
        int64 array, shape (n,)
        """
        if not len(self):
            return np.full(len(subjects), -1)
        found = np.minimum(np.searchsorted(self.subjects, subjects), len(self) - 1)
        return np.where(self.subjects[found] == subjects, found, -1)


def subject_numbers(subjects: Sequence[str | int]) -> np.ndarray:
    """Name subjects by 64-bit numbers; uint64, shape (n,).

    A subject counts as its text: 1 and "1" are one, because a column may be an integer in one dataset and text in
    another. Should two subjects ever share a number, each is charged for both. The number confirms a guess of the
    subject to anybody, as it must be the same under every key.
    """
    digests = (
        hashlib.blake2b(str(i).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for i in by_position(subjects, "subjects")
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


def shortened(fingerprints: np.ndarray) -> np.ndarray:
    """The first eight bytes of fingerprints as a number; uint64, shape (n,).

    Parameters
    ----------
    fingerprints : uint8 array, shape (n, 16)
    """
    return np.ascontiguousarray(fingerprints[:, :8]).view("<u8").ravel()


def releases_under(
    charge: Charge, subjects: np.ndarray, contents: np.ndarray, vectors: np.ndarray | None = None
) -> Releases:
    """Releases under one policy and key.

    Parameters
    ----------
    charge : Charge
    subjects : uint64 array, shape (n,)
        See `subject_numbers`.
    contents : uint8 array, shape (n, 16)
        See `sparse_core.noise.release_fingerprints`.
    vectors : uint8 array, shape (n, 16), optional
        See `Policy.fingerprints`; left out where the vectors are not known.
    """
    named = shortened(contents)
    exactly = named if vectors is None else shortened(vectors)
    return Releases(subjects, named, exactly, np.zeros(len(named), np.int32), (charge,))


def joined(parts: Sequence[Releases]) -> Releases:
    """Releases from several places as one, in their order."""
    table = {charge: None for part in parts for charge in part.table}
    position = {charge: row for row, charge in enumerate(table)}
    columns = (
        np.concatenate([np.empty(0, np.uint64), *(getattr(part, name) for part in parts)])
        for name in ("subjects", "contents", "vectors")
    )
    charges = (np.array([position[c] for c in part.table], np.int32)[part.charges] for part in parts if len(part))
    return Releases(*columns, np.concatenate([np.empty(0, np.int32), *charges]), tuple(table))


def distinct(releases: Releases) -> np.ndarray:
    """Positions of each different release, the first of its kind, ordered by subject.

    Returns
    -------
    int64 array, shape (n_distinct,)
    """
    order, starts = _grouped(releases.subjects, releases.vectors)
    return order[starts]


def _grouped(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A stable order by some columns, and where in it another combination begins."""
    order = np.lexsort(columns[::-1])
    starts = np.zeros(len(order), bool)
    starts[:1] = True
    for column in columns:
        column = column[order]
        starts[1:] |= column[1:] != column[:-1]
    return order, np.flatnonzero(starts)


def foreseen(coming: Releases, earlier: Releases) -> np.ndarray:
    """Which releases repeat an earlier one, as far as can be told before encoding; bool, shape (n_coming,).

    Parameters
    ----------
    coming, earlier : Releases
    """
    order, starts = _grouped(*(np.concatenate([getattr(earlier, n), getattr(coming, n)]) for n in _FORESEEN))
    repeats = np.empty(len(order), bool)
    # The order is stable, so that an earlier release stands first in its group.
    repeats[order] = np.repeat(order[starts] < len(earlier), np.diff(np.r_[starts, len(order)]))
    return repeats[len(earlier) :]


def compose(releases: Releases) -> Spent:
    """Add up what each subject has spent (see the top of this module).

    Parameters
    ----------
    releases : Releases
        Repetitions of a release are charged once.
    """
    return _composed(releases.take(distinct(releases)))


def _composed(once: Releases) -> Spent:
    """`compose` for releases as `distinct` gives them."""
    starts = np.flatnonzero(np.r_[True, once.subjects[1:] != once.subjects[:-1]][: len(once)])
    metrics = {metric: row for row, metric in enumerate(sorted({charge.metric for charge in once.table}))}
    metric = np.array([metrics[charge.metric] for charge in once.table], np.int32)[once.charges]

    def totals(name: str) -> np.ndarray:
        prices = np.array([getattr(charge, name) for charge in once.table], np.float64)
        return np.add.reduceat(prices[once.charges], starts) if len(once) else np.empty(0)

    shared = np.minimum.reduceat(metric, starts) == np.maximum.reduceat(metric, starts) if len(once) else []
    return Spent(
        subjects=once.subjects[starts],
        releases=np.diff(np.r_[starts, len(once)]),
        epsilon_euclidean=totals("epsilon_euclidean"),
        epsilon=np.where(shared, totals("epsilon"), np.nan),
        delta=totals("delta"),
    )


@dataclass(frozen=True)
class Outlook:
    """What a run would do to the budgets of the subjects it releases.

    Attributes
    ----------
    after : Spent
        What each would have spent once the run is done.
    new : int64 array, shape (n_subjects,)
        How many releases the run would add to each; 0 for one whose vectors were all published before.
    """

    after: Spent
    new: np.ndarray

    def over(self, limit: float) -> np.ndarray:
        """Subjects that the run would push, or push further, over a limit in epsilon_euclidean; bool, (n_subjects,)."""
        return (self.new > 0) & (self.after.epsilon_euclidean > limit * (1 + ROUNDING))


def outlook(earlier: Releases, coming: Releases) -> Outlook:
    """Compose releases that a run is about to make with earlier ones of the same subjects.

    Parameters
    ----------
    earlier : Releases
        Counted by vector.
    coming : Releases
        Counted by content, and for nothing where the subject's content was released before under this policy and key.
    """
    concerned = earlier.take(np.isin(earlier.subjects, coming.subjects))
    new = coming.take(~foreseen(coming, concerned))
    everything = joined([concerned, new])
    rows = distinct(everything)
    after = _composed(everything.take(rows))
    added = everything.subjects[rows[rows >= len(concerned)]]
    return Outlook(after, np.bincount(after.positions(added), minlength=len(after)))


def _metric(policy: Policy) -> str:
    """Name of the metric; the figures after the colon stand for encoder and, where it matters, Sigma."""
    digest = hashlib.sha256(json.dumps(policy.encoder.space, sort_keys=True).encode())
    if policy.mechanism == "mahalanobis":
        digest.update(policy.mask.values.tobytes() + policy.mask.basis.tobytes() + repr(policy.floor).encode())
    return f"{policy.law.metric}:{digest.hexdigest()[:16]}"
