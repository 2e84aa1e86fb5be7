"""Which value of a closed set does a record hold? Try them all, under the exact noise law.

Names, diseases, drugs: where the values can be listed, an attacker need not learn anything. It knows or guesses
the rest of a record's text, puts each value c in its place, encodes the text with the public encoder into x_c,
and asks the public law how likely the vector y would be. By Bayes' rule with prior probabilities p(c)

    p(c | y_1 .. y_k) = p(c) prod_j f(y_j | x_c) / sum_c' p(c') prod_j f(y_j | x_c')

is all that k releases with independent noise say about c, and no attacker who knows no more than this guesses
right more often than the one who takes the largest (the Bayes classifier: Devroye, Gyorfi & Lugosi, "A
Probabilistic Theory of Pattern Recognition", 1996, chapter 2). The guarantee of metric privacy is a bound on
exactly this posterior: y moves log p(c) / p(c') by at most epsilon * d(x_c, x_c') (Chatzikokolakis et al., "Broadening
the scope of differential privacy using metrics", PETS 2013).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse_core.attacks.candidates import (
    Candidates,
    candidate_blocks,
    candidate_log_likelihoods,
    candidate_posterior,
    candidate_ranks,
    checked_releases,
    checked_truth,
    top1_hits,
)
from sparse_core.attacks.result import FAILED
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval, interval_of, resample_ratios, widen_at_bounds
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.metrics import unit_rows
from sparse_core.mechanisms import Mechanism


@dataclass(frozen=True)
class DictionaryResult:
    """What an attacker gets by trying every candidate.

    Parameters
    ----------
    top1 : Interval
        Share of records whose likeliest candidate is the true one. One of m equally likely ones counts 1 / m.
    mrr : Interval
        Mean reciprocal rank of the true candidate.
    confidence : Interval
        Mean posterior probability of the true candidate.
    claimed : Interval
        Mean posterior probability of the guess: what the attacker expects `top1` to be. The two agree where
        law, prior and the rest of the texts are what the attacker takes them for.
    top1_cosine : Interval
        `top1` of an attacker who does not know the law and takes the nearest candidate by cosine.
    unprotected : Interval
        `top1` on unprotected vectors, by distance: the positive control.
    floor : float
        What guessing gets without a vector: 1 / n_candidates, or the share of the likeliest value of a prior.
    verdict : str
        "ok", or "attack failed" if the lower end of the control is not above the floor: then the candidates
        resemble the records too little to say anything about the protection.
    n_records, n_candidates : int
    """

    top1: Interval
    mrr: Interval
    confidence: Interval
    claimed: Interval
    top1_cosine: Interval
    unprotected: Interval
    floor: float
    verdict: str
    n_records: int
    n_candidates: int


def dictionary_attack(
    noised: np.ndarray,
    candidates: Candidates,
    truth: np.ndarray,
    *,
    law: Mechanism,
    unprotected: np.ndarray | None = None,
    published: np.ndarray | None = None,
    prior: np.ndarray | None = None,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> DictionaryResult:
    """Guess each record's value from a closed set, with the exact likelihood of every candidate.

    Parameters
    ----------
    noised : float array, shape (n_records, n) or (n_records, n_releases, n)
        Protected vectors, a published read-out undone (`Policy.undo_read_out`). Several releases of a record
        must have independent noise: their likelihoods multiply.
    candidates : float array or callable
        Embeddings of the text with each value in its place: an array of shape (n_records, n_candidates, n),
        or (n_candidates, n) where all records share a template, or a callable that takes a slice of records
        and returns theirs (`substituted_candidates`), called once for every 64 records.
    truth : int array, shape (n_records,)
        Index of the true candidate.
    law : Mechanism
        `Policy.law`. Where the norm was set to 1 (``unit_norm``) the law of what is left is only
        approximately this one, and `claimed` shows by how much.
    unprotected : float array, shape (n_records, n), optional
        The records' own vectors, for the control. By default those of the true candidates: right where the
        attacker knows the rest of the text, and then the control is 1 but for equal candidates.
    published : float array, shape (n_records, n), optional
        The vectors with their read-out, for cosine, which they suit better. By default `noised`.
    prior : float array, shape (n_candidates,), optional
        How frequent each value is, as far as the attacker knows; all equally by default.
    n_bootstrap : int
        Resamples of records, the same for all figures.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    DictionaryResult

    Raises
    ------
    SparseError
        For unusable or mismatched vectors, fewer than 2 candidates, a truth that is none of them, or a prior that
        is not one positive number for each.
    """
    noised = checked_releases(noised)
    truth = np.asarray(truth)
    check_same_length(noised=noised, truth=truth)
    shown = {"unprotected": unprotected, "published": noised.mean(axis=1) if published is None else published}
    for name, vectors in shown.items():
        if vectors is not None:
            shown[name] = check_vectors(vectors, name, dimension=noised.shape[-1])
            check_same_length(noised=noised, **{name: vectors})
    columns = []
    for rows, block in candidate_blocks(candidates, len(noised), dimension=noised.shape[-1]):
        true = checked_truth(truth[rows], block.shape[1])
        own = block[np.arange(len(block)), true] if unprotected is None else shown["unprotected"][rows]
        log_prior = np.zeros(block.shape[1]) if prior is None else _log_prior(prior, block.shape[1])
        scores = candidate_log_likelihoods(noised[rows], block, law=law) + log_prior
        posterior = candidate_posterior(scores)
        columns.append(
            np.column_stack(
                [
                    top1_hits(scores, true),
                    1 / candidate_ranks(scores, true),
                    posterior[np.arange(len(true)), true],
                    posterior.max(axis=1),
                    top1_hits(_cosines(shown["published"][rows], block), true),
                    top1_hits(-np.linalg.norm(block - own[:, None], axis=2), true),
                ]
            )
        )
    figures = np.concatenate(columns)
    replicates = resample_ratios(figures, np.ones(len(figures)), n_resamples=n_bootstrap, generator=generator)
    intervals = [
        widen_at_bounds(interval_of(figure.mean(), replicate), len(figures))
        for figure, replicate in zip(figures.T, replicates.T, strict=True)
    ]
    n_candidates = len(log_prior)
    floor = 1 / n_candidates if prior is None else float(np.mean(truth == log_prior.argmax()))
    verdict = "ok" if intervals[-1].low > floor else FAILED
    return DictionaryResult(*intervals, floor, verdict, len(figures), n_candidates)


def _log_prior(prior: np.ndarray, n_candidates: int) -> np.ndarray:
    prior = np.asarray(prior, dtype=np.float64)
    if prior.shape != (n_candidates,) or not (np.isfinite(prior).all() and (prior > 0).all()):
        raise SparseError(f"the prior must be {n_candidates} positive numbers, one for each candidate")
    return np.log(prior / prior.sum())


def _cosines(vectors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(candidates, axis=2)
    products = np.einsum("ij,ikj->ik", unit_rows(vectors), candidates)
    return products / np.where(lengths > 0, lengths, 1)
