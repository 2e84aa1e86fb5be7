"""What an attack recovered, and the strongest of several."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval, interval_of, resample_ratios, widen_at_bounds

FAILED = "attack failed"


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What one attack recovered.

    Parameters
    ----------
    attack : str
        Its name.
    unprotected : Interval
        Leakage of unprotected vectors: the positive control.
    protected : Interval
        Leakage of protected vectors.
    floor : Interval
        Leakage of protected vectors to an attacker whose training texts were shuffled: what token
        frequencies alone give away.
    leakage_normalized : Interval
        (protected - floor) / (unprotected - floor); nan if the attack failed.
    confidence, confidence_unprotected : float
        Mean probability given to the true tokens.
    verdict : str
        "ok", or "attack failed" if the lower end of the positive control is not above the upper end
        of the floor. A failed attack says nothing about the protection.
    records : int array, shape (n_test,)
        Rows of the test records that hold a token: those that were attacked.
    true : bool array, shape (n_test, n_tokens)
        Their tokens.
    hits_unprotected, hits_protected : bool array, shape (n_test, n_tokens)
        The true tokens that were guessed; columns pool by concept, rows resample by record.
    hits_floor : float array, shape (n_test, n_tokens)
        Share of the shuffled trainings that guessed each true token.
    """

    attack: str
    unprotected: Interval
    protected: Interval
    floor: Interval
    leakage_normalized: Interval
    confidence: float
    confidence_unprotected: float
    verdict: str
    records: np.ndarray
    true: np.ndarray
    hits_unprotected: np.ndarray
    hits_protected: np.ndarray
    hits_floor: np.ndarray

    def __repr__(self) -> str:
        return (
            f"AttackResult({self.attack}: {self.verdict}, unprotected {self.unprotected}, "
            f"protected {self.protected}, floor {self.floor}, n_test={len(self.records)})"
        )


def leakage_intervals(
    hits_unprotected: np.ndarray,
    hits_protected: np.ndarray,
    hits_floor: np.ndarray,
    true: np.ndarray,
    *,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> tuple[Interval, Interval, Interval, Interval]:
    """Leakage of control, protected and floor, and normalised leakage, on the same resamples.

    Parameters
    ----------
    hits_unprotected, hits_protected, hits_floor, true : array, shape (n_records, n_tokens)
        Fields of an `AttackResult`; give some of the columns for one concept or token group.
    n_bootstrap : int
    generator : numpy.random.Generator

    Returns
    -------
    unprotected, protected, floor, normalized : Interval

    Raises
    ------
    SparseError
        If no record holds a token.
    """
    hits = np.column_stack([h.sum(axis=1) for h in (hits_unprotected, hits_protected, hits_floor)])
    tokens = true.sum(axis=1)
    if tokens.sum() == 0:
        raise SparseError("no record holds a token of this group, so there is no leakage to measure")
    replicates = resample_ratios(hits, tokens, n_resamples=n_bootstrap, generator=generator)
    values = hits.sum(axis=0) / tokens.sum()
    n_bearing = int(np.count_nonzero(tokens))
    plain = [
        widen_at_bounds(interval_of(value, column), n_bearing)
        for value, column in zip(values, replicates.T, strict=True)
    ]
    normalized = interval_of(_normalize(values[None])[0], _normalize(replicates))
    return *plain, normalized


def judged_result(
    attack: str,
    records: np.ndarray,
    true: np.ndarray,
    hits: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    confidences: tuple[float, float],
    n_bootstrap: int,
    seed: int,
) -> AttackResult:
    """What an attack hit, with intervals on the same resamples and the verdict.

    Parameters
    ----------
    attack : str
        Its name.
    records : int array, shape (n_test,)
    true : bool array, shape (n_test, n_tokens)
    hits : tuple of array, each of shape (n_test, n_tokens)
        Unprotected, protected and floor.
    confidences : tuple of float
        Protected and unprotected.
    n_bootstrap, seed : int

    Returns
    -------
    AttackResult

    Raises
    ------
    SparseError
        If no record holds a token.
    """
    generator = np.random.default_rng([seed, 1])
    ceiling, leaked, floor, normalized = leakage_intervals(*hits, true, n_bootstrap=n_bootstrap, generator=generator)
    verdict = "ok" if ceiling.low > floor.high else FAILED
    if verdict == FAILED:
        normalized = Interval(float("nan"), float("nan"), float("nan"))
    return AttackResult(attack, ceiling, leaked, floor, normalized, *confidences, verdict, records, true, *hits)


def headline(results: Iterable[AttackResult]) -> AttackResult | None:
    """The strongest attack, whose protected leakage is the headline.

    Parameters
    ----------
    results : iterable of AttackResult
        On the same records.

    Returns
    -------
    AttackResult or None
        The highest protected leakage among attacks with verdict "ok"; None if every attack failed,
        in which case nothing can be said about the protection.
    """
    sound = [result for result in results if result.verdict == "ok"]
    return max(sound, key=lambda result: result.protected.value, default=None)


def _normalize(leakages: np.ndarray) -> np.ndarray:
    unprotected, protected, floor = leakages.T
    reach = np.where(unprotected > floor, unprotected - floor, np.nan)
    return (protected - floor) / reach
