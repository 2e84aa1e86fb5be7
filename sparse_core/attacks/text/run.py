"""One attack that writes texts, measured: positive control, protected figure and floor on the same test records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.attacks.result import judged_result
from sparse_core.attacks.run import check_enough_records, refuse_other_control
from sparse_core.attacks.text.base import Encode, LogLikelihood, Reconstructions, TextAttack, TrainingLog
from sparse_core.attacks.text.result import SIDES, TextAttackResult, Texts
from sparse_core.attacks.text.scores import SCORES, check_score_libraries, reconstruction_scores, word_labels
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import interval_of, resample_ratios
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.tokens import row_mask
from sparse_core.positions import by_position

FLOOR_SHARE = 0.5
"""Passes over the data of the shuffled training, which has word frequencies and grammar to learn and nothing else, as a
share of the others'."""

Advance = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class _Side:
    """What one training of the attack came to."""

    texts: list[str]
    hits: np.ndarray
    confidence: float
    log: TrainingLog


def run_text_attack(
    attack: TextAttack,
    *,
    unprotected: np.ndarray,
    protected: np.ndarray,
    texts: Sequence[str],
    labels: np.ndarray,
    vocabulary: Sequence[str],
    train: np.ndarray,
    test: np.ndarray,
    public: PublicKnowledge,
    encode: Encode,
    seed: int,
    max_test_records: int | None = 200,
    draws: Sequence[np.ndarray] = (),
    log_likelihood: LogLikelihood | None = None,
    control: TextAttackResult | None = None,
    n_bootstrap: int = 1000,
    progress: Advance | None = None,
) -> TextAttackResult:
    """Train an attack on known records and let it write the texts of others, with its control and its floor.

    The floor is an attack trained on the same protected vectors with their texts shuffled, for half as many passes,
    whose answers are ranked for another record's vector than the one they are scored on: candidates are encoded by the
    victim's encoder, and ranking them for the record's own vector would recover some of it without any training.

    Parameters
    ----------
    attack : TextAttack
        Unfitted; it is copied and stays so.
    unprotected, protected : float array, shape (n_records, n)
        The same records before and after protection, a read-out undone.
    texts : sequence of str, length n_records
    labels : bool array, shape (n_records, n_tokens)
        Their concept tokens.
    vocabulary : sequence of str, length n_tokens
        The case-folded words the columns of `labels` stand for.
    train, test : int or bool array
        Records the attacker knows, and records it attacks; see `split_records`.
    public : PublicKnowledge
        About the protected vectors. The positive control gets it without noise.
    encode : callable
        The victim's encoder, texts to float array, shape (n_texts, n).
    seed : int
        Of training, writing, shuffling, the choice of test records and resampling.
    max_test_records : int, optional
        Attack so many test records that hold a token, drawn at random; None attacks all.
    draws : sequence of float array, each of shape (n_train, n)
        The training records, in rising order, protected again with other noise.
    log_likelihood : callable, optional
        The noise law, `Policy.law.log_likelihood` for example: from protected vectors and embeddings, shape
        (n_rows, n), to log-densities, shape (n_rows,). Without it candidates are ranked by the distance that the public
        noise variances define, or, where these are unknown, what the training records show of them
        (`estimate_knowledge`).
    control : TextAttackResult, optional
        This attack on the same records under another protection, whose positive control is taken over.
    n_bootstrap : int
        Resamples of test records, the same for all figures.
    progress : callable, optional
        Called as ``progress(side, epoch, epochs)``.

    Returns
    -------
    TextAttackResult

    Raises
    ------
    SparseError
        Before anything is trained: for a missing package, unusable or mismatched input, records on both sides, an empty
        vocabulary, fewer than 20 test records that hold a token, or another attack's control.
    """
    check_score_libraries()
    attack.check()
    unprotected = check_vectors(unprotected, "unprotected")
    protected = check_vectors(protected, "protected", dimension=unprotected.shape[1])
    labels = np.asarray(labels, dtype=bool)
    texts, vocabulary = by_position(texts, "texts"), by_position(vocabulary, "vocabulary")
    n_records = check_same_length(unprotected=unprotected, protected=protected, labels=labels, texts=texts)
    if labels.ndim != 2 or labels.shape[1] != len(vocabulary) or not len(vocabulary):
        raise SparseError(f"labels have shape {labels.shape} for {len(vocabulary)} tokens; give one column per token")
    in_train, in_test = row_mask(train, n_records, "train"), row_mask(test, n_records, "test")
    if (in_train & in_test).any():
        raise SparseError(
            f"{(in_train & in_test).sum()} records are both in train and in test; attack only unseen ones"
        )
    known, records = np.flatnonzero(in_train), np.flatnonzero(in_test & labels.any(axis=1))
    check_enough_records(len(records))
    generator = np.random.default_rng([seed, 4])
    if max_test_records is not None and len(records) > max_test_records:
        check_enough_records(max_test_records)
        records = np.sort(generator.choice(records, max_test_records, replace=False))
    true = labels[records]
    if control is not None:
        refuse_other_control(control.leakage, attack, records, true)
    known_texts, originals = [texts[row] for row in known], [texts[row] for row in records]
    shuffled = [known_texts[place] for place in generator.permutation(len(known))]
    others = _everyone_elses(len(records), generator)

    def measure(side: str, some: TextAttack, vectors, paired, attacked, public, **simulated) -> _Side:
        fitted = deepcopy(some).fit(
            vectors[known],
            paired,
            unprotected=unprotected[known],
            public=public,
            encode=encode,
            seed=seed,
            progress=None if progress is None else lambda done, total: progress(side, done, total),
            **simulated,
        )
        return _measured(fitted.reconstruct(attacked, seed=seed), true, vocabulary, fitted.log)

    simulated = {"draws": draws, "log_likelihood": log_likelihood}
    sides: dict[str, _Side] = {}
    if control is None:
        sides["unprotected"] = measure(
            "unprotected", attack, unprotected, known_texts, unprotected[records], public.without_noise()
        )
    else:
        taken, log = control.leakage, control.training["unprotected"]
        sides["unprotected"] = _Side(
            control.reconstructions.unprotected, taken.hits_unprotected, taken.confidence_unprotected, log
        )
    sides["protected"] = measure("protected", attack, protected, known_texts, protected[records], public, **simulated)
    sides["floor"] = measure(
        "floor", attack.shortened(FLOOR_SHARE), protected, shuffled, protected[records][others], public, **simulated
    )
    leakage = judged_result(
        attack.name,
        records,
        true,
        tuple(sides[side].hits for side in SIDES),
        confidences=(sides["protected"].confidence, sides["unprotected"].confidence),
        n_bootstrap=n_bootstrap,
        seed=seed,
    )
    compared = {"vectors": unprotected[records], "encode": encode}
    scores = [reconstruction_scores(originals, sides[side].texts, **compared) for side in SIDES]
    return TextAttackResult(
        leakage=leakage,
        scores=_intervals(np.stack(scores, axis=2), n_bootstrap, seed),
        reconstructions=Texts(records, originals, *(sides[side].texts for side in SIDES)),
        training={side: sides[side].log for side in SIDES},
    )


def _measured(found: Reconstructions, true: np.ndarray, vocabulary: Sequence[str], log: TrainingLog) -> _Side:
    shares = np.stack([word_labels(drawn, vocabulary).mean(axis=0) for drawn in found.drawn])
    return _Side(found.texts, word_labels(found.texts, vocabulary) & true, float(shares[true].mean()), log)


def _everyone_elses(n_records: int, generator: np.random.Generator) -> np.ndarray:
    """A random permutation without fixed points: one cycle through all records."""
    order = generator.permutation(n_records)
    others = np.empty(n_records, dtype=int)
    others[order] = np.roll(order, 1)
    return others


def _intervals(scores: np.ndarray, n_bootstrap: int, seed: int) -> dict:
    """Means over records with intervals from the same resamples, for scores of shape (n_test, n_scores, n_sides)."""
    n_test, n_scores, n_sides = scores.shape
    columns = scores.reshape(n_test, -1)
    generator = np.random.default_rng([seed, 1])
    replicates = resample_ratios(columns, np.ones(n_test), n_resamples=n_bootstrap, generator=generator)
    found = [interval_of(*pair) for pair in zip(columns.mean(axis=0), replicates.T, strict=True)]
    return {
        name: dict(zip(SIDES, found[place * n_sides : (place + 1) * n_sides], strict=True))
        for place, name in enumerate(SCORES[:n_scores])
    }
