"""What mean and covariance tell of the records they were estimated on, to whoever has no vector at all.

A policy's read-out and mask come with a mean m and a covariance C. Two adversaries ask them about a record x:

``informed``
    knows all other records, as differential privacy assumes (Dwork & Roth, "The Algorithmic Foundations of
    Differential Privacy", 2014, section 2.3). Exact statistics are sums: n m less the sum of the others *is* x.
    Under Gaussian noise of known scale the likelihood ratio of two candidates is the most powerful test (Neyman and
    Pearson, 1933).
``population``
    knows other records of the same population, as anybody may. ``mean`` is the likelihood ratio for a mean that x
    has moved (Homer et al., PLoS Genetics 2008, with the population's covariance as in Sankararaman et al., Nature
    Genetics 2009), ``moments`` that for mean and covariance together, both under Gaussian noise of known scale.
    ``leverage`` is the strongest for few records: (x - m)^T C^-1 (x - m) is at most n for one of the n records and
    without bound off the span of those; on average it is l / (1 + l / n) where an outsider would have l (the hat
    matrix: Hoaglin & Welsch, 1978). ``contrast`` takes from it what a record's leverage in the population predicts,
    ``half contrast`` half of that: where candidates are compared, how usual a text is beforehand counts, too.

Shrinkage of the covariance hides none of this, see `undo_shrinkage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.stats import beta

from sparse_core.attacks.candidates import checked_truth, top1_hits
from sparse_core.attacks.result import FAILED
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval, interval_of, ratio_interval, resample_counts
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.masks import Mask

FALSE_POSITIVE_RATE = 0.01
CONTROL_RECORDS = 78
_FOLDS = 5
_LEAST_VARIANCE = 1e-5  # of the mean variance: float64 resolves no smaller eigenvalue of a shrunk covariance
_ROUNDING = 1e-12
_SAME = 0.05
_THRESHOLDS = 20


@dataclass(frozen=True)
class PublishedStatistics:
    """What is public of some records.

    Parameters
    ----------
    mean : float64 array, shape (n,)
    covariance : float64 array, shape (n, n)
        In the encoder's coordinates, divided by the number of records, shrunk towards a multiple of the identity or
        not.
    records : int
        How many records they were estimated on. Attackers know it.
    mean_noise, second_moment_noise : float
        Scales of Gaussian noise: every entry of the mean got noise of standard deviation ``mean_noise``, and the
        second moment E with density proportional to exp(-|E|_F^2 / (2 second_moment_noise^2)) on symmetric matrices
        (standard deviation ``second_moment_noise`` on the diagonal, 1 / sqrt(2) of it elsewhere). 0 where exact.
    """

    mean: np.ndarray
    covariance: np.ndarray
    records: int
    mean_noise: float = 0.0
    second_moment_noise: float = 0.0

    def __post_init__(self):
        mean, covariance = np.asarray(self.mean, np.float64), np.asarray(self.covariance, np.float64)
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise SparseError(
                f"the mean has shape {mean.shape} and the covariance {covariance.shape}; give (n,) and (n, n)"
            )
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise SparseError("mean or covariance has entries that are not finite")
        if self.records < 1:
            raise SparseError(f"statistics of {self.records} records tell of none; give how many there were")
        if not (self.mean_noise >= 0 and self.second_moment_noise >= 0):
            raise SparseError("scales of noise must be 0 or more")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @classmethod
    def of(cls, records: np.ndarray) -> PublishedStatistics:
        """Exact statistics of some records, shape (n_records, n), without shrinkage."""
        records = check_vectors(records, "records").astype(np.float64)
        if len(records) == 0:
            raise SparseError("there are no records to take statistics of")
        centred = records - records.mean(axis=0)
        return cls(records.mean(axis=0), centred.T @ centred / len(records), len(records))

    @classmethod
    def of_mask(
        cls, mask: Mask, *, records: int, mean_noise: float = 0.0, second_moment_noise: float = 0.0
    ) -> PublishedStatistics:
        """What a mask publishes of the records it was learned from, in the encoder's coordinates."""
        covariance = mask.basis @ mask.covariance @ mask.basis.T
        return cls(mask.mean, (covariance + covariance.T) / 2, records, mean_noise, second_moment_noise)

    @property
    def exact(self) -> bool:
        """Whether anything was published without noise."""
        return self.mean_noise == 0 or self.second_moment_noise == 0


@dataclass(frozen=True)
class MembershipResult:
    """How well an attacker tells records that statistics were made of from others.

    Parameters
    ----------
    adversary, score : str
        What it knows, and what it goes by.
    auc : Interval
        Probability that a record among them scores higher than one that was not; guessing gets 1/2.
    true_positive_rate : Interval
        Share of the records among them that it names while it names 1% of the others.
    control : Interval
        `auc` for exact statistics of a few of the records: the positive control.
    floor : Interval
        `auc` with records and others shuffled.
    verdict : str
        "ok", or "attack failed" if the lower end of the control is not above 1/2.
    n_members, n_outsiders : int
    """

    adversary: str
    score: str
    auc: Interval
    true_positive_rate: Interval
    control: Interval
    floor: Interval
    verdict: str
    n_members: int
    n_outsiders: int


@dataclass(frozen=True)
class ValueResult:
    """How often an attacker who knows the rest of a record's text reads its value from statistics.

    Parameters
    ----------
    adversary, score : str
    top1 : Interval
        Share of records among them whose best scored candidate is the true one; one of m equal ones counts 1 / m.
    outside : Interval
        The same of records that were not among them, of which statistics tell nothing but what is usual: the floor.
    control : Interval
        `top1` for exact statistics of a few of the records.
    guessing : float
        1 / n_candidates.
    verdict : str
        "ok", or "attack failed" if the lower end of the control is not above the upper end of the floor.
    n_records, n_outsiders, n_candidates : int
    """

    adversary: str
    score: str
    top1: Interval
    outside: Interval
    control: Interval
    guessing: float
    verdict: str
    n_records: int
    n_outsiders: int
    n_candidates: int


def membership_attack(
    statistics: PublishedStatistics,
    *,
    members: np.ndarray,
    outsiders: np.ndarray,
    reference: np.ndarray,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> tuple[MembershipResult, ...]:
    """Tell the records of the statistics from others, as each adversary.

    Parameters
    ----------
    statistics : PublishedStatistics
    members : float array, shape (n_members, n)
        Records among those of the statistics. Where they are all of them the ``informed`` adversary is tried, too:
        each is set against an outsider that might have stood in its place.
    outsiders : float array, shape (n_outsiders, n)
        Records of the same population that were not among them.
    reference : float array, shape (n_reference, n)
        Further records of the population: what the adversary ``population`` knows.
    n_bootstrap : int
        Resamples of records for each interval.
    generator : numpy.random.Generator

    Returns
    -------
    tuple of MembershipResult

    Raises
    ------
    SparseError
        Without records, for another dimension, or fewer than two reference records for each fold of five.
    """
    members, outsiders = _checked(statistics, members=members, outsiders=outsiders)
    known = _Population.of(reference, len(statistics.mean))
    controls = members[generator.permutation(len(members))[:CONTROL_RECORDS]]
    few = PublishedStatistics.of(controls)
    worlds = {
        ("population", name): (score(members), score(outsiders), control(controls), control(outsiders))
        for (name, score), control in zip(known.scores(statistics).items(), known.scores(few).values(), strict=True)
    }
    if made_of(statistics, members):
        worlds["informed", "others known"] = (
            *_informed_pairs(statistics, members, outsiders),
            *_informed_pairs(few, controls, outsiders),
        )
    found = []
    for (adversary, name), (inside, outside, few_inside, few_outside) in worlds.items():
        drawn = {"n_bootstrap": n_bootstrap, "generator": generator}
        auc, rate = separation(inside, outside, **drawn)
        shuffled = generator.permutation(np.concatenate([inside, outside]))
        floor, _ = separation(shuffled[: len(inside)], shuffled[len(inside) :], **drawn)
        control, _ = separation(few_inside, few_outside, **drawn)
        verdict = "ok" if control.low > 0.5 else FAILED
        found.append(
            MembershipResult(adversary, name, auc, rate, control, floor, verdict, len(members), len(outsiders))
        )
    return tuple(found)


def value_attack(
    statistics: PublishedStatistics,
    *,
    candidates: np.ndarray,
    truth: np.ndarray,
    outside_candidates: np.ndarray,
    outside_truth: np.ndarray,
    reference: np.ndarray,
    members: np.ndarray | None = None,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> tuple[ValueResult, ...]:
    """Read the value in known sentences from statistics alone, as each adversary.

    Parameters
    ----------
    statistics : PublishedStatistics
    candidates : float array, shape (n_records, n_candidates, n)
        Texts of records among those of the statistics, encoded with each value in turn.
    truth : int array, shape (n_records,)
        Each record's own value.
    outside_candidates, outside_truth
        The same of records that were not among them.
    reference : float array, shape (n_reference, n)
        As in `membership_attack`.
    members : float array, shape (n_members, n), optional
        All records of the statistics, for the ``informed`` adversary.
    n_bootstrap : int
    generator : numpy.random.Generator

    Returns
    -------
    tuple of ValueResult

    Raises
    ------
    SparseError
        For fewer than two values, a truth that is none of them, or vectors that do not fit.
    """
    dimension = len(statistics.mean)
    candidates, truth = _checked_candidates(candidates, truth, dimension, "candidates")
    outside, outside_truth = _checked_candidates(outside_candidates, outside_truth, dimension, "outside_candidates")
    if candidates.shape[1] != outside.shape[1]:
        raise SparseError(
            f"{candidates.shape[1]} candidates inside but {outside.shape[1]} outside; try the same values on both"
        )
    known = _Population.of(reference, dimension)
    few = slice(0, CONTROL_RECORDS)
    own = candidates[np.arange(len(truth)), truth][few]
    control_statistics = PublishedStatistics.of(own)
    worlds = {
        ("population", name): (score(candidates), score(outside), control(candidates[few]))
        for (name, score), control in zip(
            known.scores(statistics).items(), known.scores(control_statistics).values(), strict=True
        )
    }
    if members is not None and made_of(statistics, members):
        (members,) = _checked(statistics, members=members)
        worlds["informed", "others known"] = (
            _informed_candidates(statistics, members, candidates, truth),
            # Nothing is missing from the sums that an outsider's text could fill.
            np.zeros(outside.shape[:2]),
            _informed_candidates(control_statistics, own, candidates[few], truth[few]),
        )
    found = []
    for (adversary, name), (inside, outside_scores, few_inside) in worlds.items():
        top1, floor, control = (
            ratio_interval(top1_hits(scores, true), n_resamples=n_bootstrap, generator=generator)
            for scores, true in ((inside, truth), (outside_scores, outside_truth), (few_inside, truth[few]))
        )
        verdict = "ok" if control.low > floor.high else FAILED
        shape = (len(truth), len(outside_truth), candidates.shape[1])
        found.append(ValueResult(adversary, name, top1, floor, control, 1 / shape[2], verdict, *shape))
    return tuple(found)


def made_of(statistics: PublishedStatistics, records: np.ndarray) -> bool:
    """Whether the statistics are those of exactly these records, as far as their mean tells.

    A record that is missing, added or another moves the sum of all by about the length of a record; encoding on other
    hardware moves it by far less. Behind noise no more is asked than a mean which the noise explains.
    """
    records = check_vectors(records, "records", dimension=len(statistics.mean))
    if len(records) != statistics.records:
        return False
    moved = len(records) * np.linalg.norm(records.mean(axis=0, dtype=np.float64) - statistics.mean)
    typical = np.median(np.linalg.norm(records, axis=1))
    noise = len(records) * statistics.mean_noise * np.sqrt(len(statistics.mean))
    return bool(moved <= _SAME * typical + 2 * noise)


def undo_shrinkage(covariance: np.ndarray, reference: np.ndarray, *, records: int) -> np.ndarray:
    """The sample covariance behind one that was shrunk as by Ledoit and Wolf (2004), as far as anybody can tell.

    (1 - s) S + s mu I with mu = tr(S) / n keeps the trace, so mu is public. S has small eigenvalues, as those of any
    other records of the population show: s is fitted to the lower half of the spectrum. Of no more records than
    dimensions the least eigenvalue of S is 0, and s exact.

    Parameters
    ----------
    covariance : float array, shape (n, n)
    reference : float array, shape (n, n)
        Sample covariance of other records.
    records : int
        How many `covariance` is of.

    Returns
    -------
    float64 array, shape (n, n)
        Positive semidefinite where `covariance` is.
    """
    published, usual = np.linalg.eigvalsh(covariance), np.linalg.eigvalsh(reference)
    scale = published.mean()
    usual = usual * scale / usual.mean()
    half = slice(0, max(1, len(published) // 2))
    reach = (scale - usual)[half]
    fitted = float((published - usual)[half] @ reach / max(reach @ reach, np.finfo(float).tiny))
    least = max(0.0, published[0] / scale) if scale > 0 else 0.0
    share = least if records <= len(published) else min(max(fitted, 0.0), least)
    if share > 1 - _ROUNDING:
        return covariance
    return (covariance - share * scale * np.eye(len(covariance))) / (1 - share)


def separation(
    inside: np.ndarray,
    outside: np.ndarray,
    *,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> tuple[Interval, Interval]:
    """Area under the curve of true against false positives, and the true positives at a rate of false ones.

    Parameters
    ----------
    inside, outside : float array, shapes (n_inside,), (n_outside,)
        Scores; equal ones count half in the area, and are all positive or none in the rate.
    false_positive_rate : float
    n_bootstrap : int
        Resamples of each side.
    generator : numpy.random.Generator

    Returns
    -------
    auc, true_positive_rate : Interval
    """
    if len(inside) == 0 or len(outside) == 0:
        raise SparseError("records of the statistics and others are both needed; one side is empty")
    scores = np.concatenate([inside, outside])
    if np.isnan(scores).any():
        raise SparseError("scores have entries that are not a number")
    levels, at = np.unique(-scores, return_inverse=True)

    def counts(places: np.ndarray) -> np.ndarray:
        grouped = sparse.csr_array(
            (np.ones(len(places)), (np.arange(len(places)), places)), shape=(len(places), len(levels))
        )
        drawn = np.concatenate(list(resample_counts(len(places), n_bootstrap, generator=generator)))
        return np.vstack([np.ones((1, len(places))), drawn]) @ grouped

    hits, alarms = counts(at[: len(inside)]), counts(at[len(inside) :])
    false = np.cumsum(alarms, axis=1)
    areas = np.sum(hits * (len(outside) - false + alarms / 2), axis=1) / (len(inside) * len(outside))
    allowed = false <= false_positive_rate * len(outside)
    rates = np.where(allowed, np.cumsum(hits, axis=1), 0).max(axis=1) / len(inside)
    auc, rate = (interval_of(replicates[0], replicates[1:]) for replicates in (areas, rates))
    return auc, rate


def epsilon_lower_bound(inside: np.ndarray, outside: np.ndarray, *, delta: float = 0.0, level: float = 0.95) -> float:
    """The epsilon that scores of an attack prove to be spent at least.

    (epsilon, delta) differential privacy promises TPR <= exp(epsilon) FPR + delta at every threshold (Wasserman &
    Zhou, JASA 2010; Kairouz, Oh & Viswanath, ICML 2015). Rates are taken at the unfavourable ends of their exact
    intervals (Clopper & Pearson, 1934), for all of 20 thresholds at once by Bonferroni's inequality.

    Parameters
    ----------
    inside, outside : float array, shapes (n_inside,), (n_outside,)
        Scores of independent draws of the statistics with a record, and with another in its place.
    delta : float
    level : float
        Probability that the bound is none too high.

    Returns
    -------
    float
        0 or more.
    """
    thresholds = np.unique(np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, _THRESHOLDS)))
    miss = (1 - level) / (2 * len(thresholds))
    hits = np.count_nonzero(inside[:, None] >= thresholds, axis=0)
    alarms = np.count_nonzero(outside[:, None] >= thresholds, axis=0)
    low = np.where(hits > 0, beta.ppf(miss, np.maximum(hits, 1), len(inside) - hits + 1), 0)
    high = np.where(alarms < len(outside), beta.ppf(1 - miss, alarms + 1, np.maximum(len(outside) - alarms, 1)), 1)
    told = (low - delta) / high
    return float(np.log(max(1.0, told.max())))


def likelihood_ratio(
    statistics: PublishedStatistics, others: np.ndarray, record: np.ndarray, instead: np.ndarray
) -> float:
    """Log of how much likelier statistics are with one record beside the others than with another one.

    Parameters
    ----------
    statistics : PublishedStatistics
        Of the others and one more. What was published exactly decides alone, up to rounding.
    others : float array, shape (n_others, n)
    record, instead : float array, shape (n,)
    """
    others = others.astype(np.float64)
    tried = np.stack([instead, record]).astype(np.float64)
    return float(np.diff(_informed(statistics, others.sum(axis=0), others.T @ others, tried))[0])


def geometry_confirmation(values: np.ndarray, basis: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """How much of each term's direction a mask noises: what its geometry tells of the terms it was made for.

    Anybody with the encoder can put guessed terms into sentences of their own and look where each moves them.

    Parameters
    ----------
    values : float array, shape (n,)
        The mask.
    basis : float array, shape (n, n)
    directions : float array, shape (n_terms, n)
        How each term moves the same sentences, against the average of all terms tried, for instance.

    Returns
    -------
    float64 array, shape (n_terms,), in [0, 1]
        The share of each direction's energy along the columns that get noise.

    Raises
    ------
    SparseError
        For another dimension, or a term that moves nothing.
    """
    directions = check_vectors(directions, "directions", dimension=len(values)).astype(np.float64)
    energy = np.sum(directions**2, axis=1)
    if not (energy > 0).all():
        raise SparseError(f"term {int(np.flatnonzero(energy == 0)[0])} moves no sentence; leave it out")
    return np.sum((directions @ basis)[:, np.asarray(values) > 0] ** 2, axis=1) / energy


@dataclass(frozen=True)
class _Population:
    """What an adversary knows of the population."""

    records: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, reference: np.ndarray, dimension: int) -> _Population:
        reference = check_vectors(reference, "reference", dimension=dimension).astype(np.float64)
        if len(reference) < 2 * _FOLDS:
            raise SparseError(
                f"an attacker who knows {len(reference)} records of the population knows too little; give at least "
                f"{2 * _FOLDS}"
            )
        seen = PublishedStatistics.of(reference)
        return cls(reference, seen.mean, seen.covariance)

    def scores(self, statistics: PublishedStatistics) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        """Functions of records, shape (k, n), or their candidates, shape (k, n_candidates, n); high for what was in."""
        covariance = undo_shrinkage(statistics.covariance, self.covariance, records=statistics.records)
        inside = _leverage(statistics.mean, covariance)
        usual = _leverage(self.mean, self.covariance)
        slope = self._slope(inside)
        likely = self._likelihoods(statistics, covariance)

        def contrast(vectors: np.ndarray, share: float = 1.0) -> np.ndarray:
            own, expected = inside(vectors), usual(vectors)
            return share * (slope if vectors.ndim == 2 else _within(own, expected)) * expected - own

        return {
            "mean": lambda vectors: likely(vectors)[0],
            "moments": lambda vectors: sum(likely(vectors)),
            "leverage": lambda vectors: -inside(vectors),
            "contrast": contrast,
            "half contrast": lambda vectors: contrast(vectors, 0.5),
        }

    def _slope(self, inside: Callable[[np.ndarray], np.ndarray]) -> float:
        """Regression of an outsider's leverage in the statistics on that in a population it is no part of."""
        fold = np.arange(len(self.records)) % _FOLDS
        expected = np.empty(len(self.records))
        for one in range(_FOLDS):
            rest = PublishedStatistics.of(self.records[fold != one])
            expected[fold == one] = _leverage(rest.mean, rest.covariance)(self.records[fold == one])
        return _regression(inside(self.records), expected)

    def _likelihoods(
        self, statistics: PublishedStatistics, covariance: np.ndarray
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Log likelihood ratios of mean and of second moment, under normal laws.

        In the population's principal axes the mean's entries vary by l_i (1/n + 1/r) and the noise, those of the
        second moment around the population's mean by l_i l_j (1/n + 1/r) and the noise, where r records of the
        population are known; a record moves either by 1/n of its deviation.
        """
        variance, axes = np.linalg.eigh(self.covariance)
        variance = np.maximum(variance, _LEAST_VARIANCE * variance.mean())
        share = 1 / statistics.records + 1 / len(self.records)
        moved = (statistics.mean - self.mean) @ axes
        mean_variance = variance * share + statistics.mean_noise**2
        spread = axes.T @ covariance @ axes + np.outer(moved, moved) - np.diag(variance)
        precision = 0.5 / (np.outer(variance, variance) * share + statistics.second_moment_noise**2 / 2)
        weighed = spread * precision

        def likely(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            along = (vectors - self.mean) @ axes
            squares = along**2
            first = along @ (moved / mean_variance) - squares @ (1 / mean_variance) / (2 * statistics.records)
            linear = np.sum(along @ weighed * along, axis=-1) - np.diag(weighed) @ variance
            quadratic = (
                np.sum(squares @ precision * squares, axis=-1)
                - 2 * squares @ (np.diag(precision) * variance)
                + np.diag(precision) @ variance**2
            )
            second = linear - quadratic / (2 * statistics.records)
            return first / statistics.records, second / statistics.records

        return likely


def _leverage(mean: np.ndarray, covariance: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    variance, axes = np.linalg.eigh(covariance)
    scales = 1 / np.sqrt(np.maximum(variance, _LEAST_VARIANCE * max(np.abs(variance).mean(), np.finfo(float).tiny)))
    return lambda vectors: np.sum(((vectors - mean) @ axes * scales) ** 2, axis=-1)


def _regression(values: np.ndarray, on: np.ndarray) -> float:
    centred = on - on.mean()
    return float(values @ centred / max(centred @ centred, np.finfo(float).tiny))


def _within(values: np.ndarray, on: np.ndarray) -> float:
    """The regression among the candidates of a record, nearly all of which are outsiders."""
    return _regression(*((one - one.mean(axis=1, keepdims=True)).ravel() for one in (values, on)))


def _informed(
    statistics: PublishedStatistics, total: np.ndarray, squares: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Log-likelihood of each candidate, shape (n_candidates, n), for the record missing from the others' sums."""
    count = statistics.records
    missing = count * statistics.mean - total
    scale = max(statistics.mean_noise, _ROUNDING) * count
    likely = -np.sum((missing - candidates) ** 2, axis=1) / (2 * scale**2)
    if statistics.second_moment_noise > 0:
        left = count * (statistics.covariance + np.outer(statistics.mean, statistics.mean)) - squares
        # |L - x x^T|^2 less |L|^2, which all candidates share.
        distance = np.sum(candidates**2, axis=1) ** 2 - 2 * np.sum(candidates @ left * candidates, axis=1)
        likely -= distance / (2 * (count * statistics.second_moment_noise) ** 2)
    return likely


def _informed_pairs(
    statistics: PublishedStatistics, members: np.ndarray, outsiders: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the claim that a record is among them: of members, and of outsiders in a member's place."""
    instead = outsiders[np.arange(len(members)) % len(outsiders)]
    pairs = np.stack([members, instead], axis=1)
    likely = _informed_candidates(statistics, members, pairs, np.zeros(len(members), int))
    inside = likely[:, 0] - likely[:, 1]
    return inside, -inside


def _informed_candidates(
    statistics: PublishedStatistics, members: np.ndarray, candidates: np.ndarray, truth: np.ndarray
) -> np.ndarray:
    """Log-likelihood of each candidate where everything but one member is known, member by member."""
    total, squares = members.sum(axis=0), members.T @ members
    own = candidates[np.arange(len(truth)), truth]
    return np.stack(
        [
            _informed(statistics, total - record, squares - np.outer(record, record), tried)
            for record, tried in zip(own, candidates, strict=True)
        ]
    )


def _checked(statistics: PublishedStatistics, **vectors: np.ndarray) -> list[np.ndarray]:
    checked = []
    for name, given in vectors.items():
        given = check_vectors(given, name, dimension=len(statistics.mean)).astype(np.float64)
        if len(given) == 0:
            raise SparseError(f"{name} holds no record; give at least one")
        checked.append(given)
    return checked


def _checked_candidates(
    candidates: np.ndarray, truth: Sequence[int] | np.ndarray, dimension: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    candidates, truth = np.asarray(candidates), np.asarray(truth)
    if candidates.ndim != 3 or candidates.shape[2] != dimension or len(candidates) == 0:
        raise SparseError(f"{name} have shape {candidates.shape}; give (n_records, n_candidates, {dimension})")
    if candidates.shape[1] < 2:
        raise SparseError(f"{name}: there is {candidates.shape[1]} candidate; give at least 2 to choose from")
    check_vectors(candidates.reshape(-1, dimension), name)
    check_same_length(**{name: candidates, "truth": truth})
    return candidates.astype(np.float64), checked_truth(truth, candidates.shape[1])
