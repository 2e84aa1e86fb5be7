"""One attack, measured: positive control, protected figure and floor on the same test records."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from sparse_core.attacks.base import Attack
from sparse_core.attacks.coordinates import PublicKnowledge
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval, interval_of, resample_ratios, widen_at_bounds
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.leakage import confidence, guess_hits
from sparse_core.evaluation.splits import row_mask

MIN_TEST_RECORDS = 20
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
    hits_unprotected, hits_protected, hits_floor : bool array, shape (n_test, n_tokens)
        The true tokens that were guessed; columns pool by concept, rows resample by record.
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


def run_attack(
    attack: Attack,
    *,
    unprotected: np.ndarray,
    protected: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    public: PublicKnowledge,
    seed: int,
    n_bootstrap: int = 1000,
) -> AttackResult:
    """Train an attack on known records and measure it on others, with its control and its floor.

    Parameters
    ----------
    attack : Attack
        Unfitted; it is copied and stays so.
    unprotected, protected : float array, shape (n_records, n)
        The same records before and after protection.
    labels : bool array, shape (n_records, n_tokens)
        Their concept tokens.
    train, test : int or bool array
        Records the attacker knows, and records it attacks; see `split_records`.
    public : PublicKnowledge
        About the protected vectors. The positive control gets it without noise and read-out.
    seed : int
        Of training, shuffling and resampling.
    n_bootstrap : int
        Resamples of test records, the same for all figures.

    Returns
    -------
    AttackResult

    Raises
    ------
    SparseError
        For unusable or mismatched input, records on both sides, an empty vocabulary, or fewer than
        20 test records that hold a token.
    """
    unprotected = check_vectors(unprotected, "unprotected")
    protected = check_vectors(protected, "protected", dimension=unprotected.shape[1])
    labels = np.asarray(labels, dtype=bool)
    n_records = check_same_length(unprotected=unprotected, protected=protected, labels=labels)
    in_train, in_test = row_mask(train, n_records, "train"), row_mask(test, n_records, "test")
    if (in_train & in_test).any():
        raise SparseError(f"{(in_train & in_test).sum()} records are both in train and in test; attack only unseen ones")
    known, records = np.flatnonzero(in_train), np.flatnonzero(in_test & labels.any(axis=1))
    true = labels[records]
    _refuse_few(len(records))
    shuffled = np.random.default_rng([seed, 0]).permutation(known)

    def measure(vectors: np.ndarray, sources: np.ndarray, knowledge: PublicKnowledge) -> tuple[np.ndarray, float]:
        fitted = deepcopy(attack).fit(vectors[known], labels[sources], public=knowledge, seed=seed)
        scores = fitted.scores(vectors[records])
        return guess_hits(scores, true), confidence(scores, true)

    hits_unprotected, confidence_unprotected = measure(unprotected, known, public.without_noise())
    hits_protected, confidence_protected = measure(protected, known, public)
    hits_floor, _ = measure(protected, shuffled, public)
    hits = (hits_unprotected, hits_protected, hits_floor)
    generator = np.random.default_rng([seed, 1])
    control, leaked, floor, normalized = leakage_intervals(*hits, true, n_bootstrap=n_bootstrap, generator=generator)
    verdict = "ok" if control.low > floor.high else FAILED
    if verdict == FAILED:
        normalized = Interval(float("nan"), float("nan"), float("nan"))
    return AttackResult(
        attack.name,
        control,
        leaked,
        floor,
        normalized,
        confidence_protected,
        confidence_unprotected,
        verdict,
        records,
        true,
        *hits,
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
    hits_unprotected, hits_protected, hits_floor, true : bool array, shape (n_records, n_tokens)
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


def _refuse_few(n_records: int) -> None:
    if n_records < MIN_TEST_RECORDS:
        width = "undefined" if n_records == 0 else f"about ±{0.98 / np.sqrt(n_records):.2f} wide"
        raise SparseError(
            f"only {n_records} test records hold a token of the vocabulary: a 95% interval of leakage would be "
            f"{width}; give records until at least {MIN_TEST_RECORDS} do, better 200 (±0.07)"
        )
