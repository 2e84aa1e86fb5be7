"""Candidate values of a record, and what a release says about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from sparse_core.concepts import Span
from sparse_core.concepts.surrogates import SurrogatePool
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.mechanisms import Mahalanobis, Mechanism
from sparse_core.positions import by_position

if TYPE_CHECKING:
    from sparse_core.policy import Policy

Candidates = np.ndarray | Callable[[slice], np.ndarray]
_RECORDS = 64
_CELLS = 4_000_000
_RIDGE = 1e-6


def substituted_candidates(
    texts: Sequence[str],
    spans: Sequence[Span],
    values: Sequence[str],
    *,
    encode: Callable[[list[str]], np.ndarray],
) -> Callable[[slice], np.ndarray]:
    """The records' own texts, or guesses of them, with every value in turn, encoded block by block.

    Parameters
    ----------
    texts : sequence of str, length n_records
    spans : sequence of Span, length n_records
        Where each text's value stands.
    values : sequence of str
        The closed set. Each takes on the letter case of what it replaces, and the value that stands there stays
        exactly as it is.
    encode : callable
        Texts to float array, shape (n_texts, n); `Encoder.encode` of the policy's encoder.

    Returns
    -------
    callable
        Candidates for `dictionary_attack`.
    """
    texts, values = by_position(texts, "texts"), by_position(values, "values")
    spans = by_position(spans, "spans", length=len(texts))

    def embeddings(rows: slice) -> np.ndarray:
        filled = []
        for text, span in zip(texts[rows], spans[rows], strict=True):
            surface = text[span.start : span.end]
            for value in values:
                same = value.casefold() == surface.casefold()
                put = surface if same else SurrogatePool.styled(value, surface)
                filled.append(text[: span.start] + put + text[span.end :])
        vectors = np.asarray(encode(filled))
        return vectors.reshape(-1, len(values), vectors.shape[-1])

    return embeddings


def unknown_context(policy: Policy, contexts: np.ndarray) -> tuple[np.ndarray, Mechanism]:
    """What an attacker assumes who does not know the rest of the texts.

    The exact law takes the difference of a template and the record's own sentence for noise, and where a mask
    leaves directions almost silent nothing is more unlikely: it is sure, and wrong. Such an attacker uses what
    is public of embeddings in general, their mean and covariance C, and the noise's covariance N: a vector of
    value c is spread around mean + shift_c as C + N says (Fisher's discriminant, 1936).

    Parameters
    ----------
    policy : Policy
        With a mask, which carries mean and covariance.
    contexts : float array, shape (n_contexts, n_candidates, n) or (n_candidates, n)
        Embeddings of some sentences with each value in turn, `Substitutions.shaped` for example. shift_c is
        what c moves a vector by against the average of all values, averaged over sentences.

    Returns
    -------
    candidates : float64 array, shape (n_candidates, n)
    law : Mechanism
        Both for `dictionary_attack`. An approximation, so that the attacker may be too sure of itself.

    Raises
    ------
    SparseError
        Without a mask, or for contexts of another shape.
    """
    if policy.mask is None:
        raise SparseError("the policy has no mask, so nothing is known of embeddings in general; give a guessed text")
    contexts = np.asarray(contexts, dtype=np.float64)
    contexts = contexts[None] if contexts.ndim == 2 else contexts
    if contexts.ndim != 3 or contexts.shape[2] != policy.mask.dimension:
        raise SparseError(
            f"contexts have shape {contexts.shape}; give (n_contexts, n_candidates, {policy.mask.dimension})"
        )
    shifts = (contexts - contexts.mean(axis=1, keepdims=True)).mean(axis=0)
    noise = policy.law.noise_variance() / policy.law.signal_gain**2
    covariance = policy.mask.covariance + np.diag(noise)
    covariance += np.eye(len(covariance)) * np.trace(covariance) * _RIDGE / len(covariance)
    covariance = policy.mask.basis @ covariance @ policy.mask.basis.T
    # At this epsilon the covariance of the law's noise is the sigma it is given.
    law = Mahalanobis.from_sigma((covariance + covariance.T) / 2, epsilon=np.sqrt(len(covariance) + 1))
    return policy.mask.mean + shifts, law


def candidate_log_likelihoods(noised: np.ndarray, candidates: np.ndarray, *, law: Mechanism) -> np.ndarray:
    """Log-density of each record's vector, or of all its releases together, under each candidate.

    Parameters
    ----------
    noised : float array, shape (n_records, n) or (n_records, n_releases, n)
    candidates : float array, shape (n_records, n_candidates, n)
    law : Mechanism
        Without noise all mass is in one point, which rounding misses; then a distance of one step of the
        grid divides the likelihood by e.

    Returns
    -------
    float64 array, shape (n_records, n_candidates)
    """
    if noised.ndim == 2:
        noised = noised[:, None]
    n_records, n_candidates, dimension = candidates.shape
    total = np.zeros((n_records, n_candidates))
    block = max(1, _CELLS // max(1, n_candidates * dimension))
    for start in range(0, n_records, block):
        rows = slice(start, start + block)
        embeddings = candidates[rows].reshape(-1, dimension)
        for release in range(noised.shape[1]):
            outputs = np.repeat(noised[rows, release], n_candidates, axis=0)
            if np.isinf(law.epsilon):
                values = -law.distance(outputs, embeddings) / law.grid
            else:
                values = law.log_likelihood(outputs, embeddings)
            total[rows] += values.reshape(-1, n_candidates)
    return total


def candidate_posterior(scores: np.ndarray) -> np.ndarray:
    """Posterior probability of each candidate.

    Parameters
    ----------
    scores : float array, shape (n_records, n_candidates)
        Log-likelihoods, plus the logarithm of the prior where values are not equally likely beforehand.

    Returns
    -------
    float64 array, shape (n_records, n_candidates)
        Rows sum to 1.
    """
    return np.exp(scores - logsumexp(scores, axis=1, keepdims=True))


def candidate_ranks(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Rank of the true candidate, the highest score first.

    Parameters
    ----------
    scores : float array, shape (n_records, n_candidates)
    truth : int array, shape (n_records,)

    Returns
    -------
    float array, shape (n_records,)
        From 1; the middle of the ranks that equal scores share.
    """
    own = scores[np.arange(len(truth)), truth][:, None]
    return 1 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2


def top1_hits(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Chance that the true candidate is the guess: 1 if it alone scores highest, 1 / m if m do.

    Parameters
    ----------
    scores : float array, shape (n_records, n_candidates)
    truth : int array, shape (n_records,)

    Returns
    -------
    float array, shape (n_records,)
    """
    highest = scores == scores.max(axis=1, keepdims=True)
    return highest[np.arange(len(truth)), truth] / highest.sum(axis=1)


def candidate_blocks(candidates: Candidates, n_records: int, *, dimension: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Candidates of some records at a time, checked.

    Parameters
    ----------
    candidates : float array or callable
        As `dictionary_attack` takes them.
    n_records, dimension : int

    Yields
    ------
    slice of records, and float array, shape (n_block, n_candidates, dimension)

    Raises
    ------
    SparseError
        For another shape or number of candidates, fewer than 2, or an entry that is not finite.
    """
    if not callable(candidates):
        candidates = np.asarray(candidates)
        if candidates.ndim == 2:
            candidates = np.broadcast_to(candidates, (n_records, *candidates.shape))
        check_same_length(noised=range(n_records), candidates=candidates)
    count = None
    for start in range(0, n_records, _RECORDS):
        rows = slice(start, min(start + _RECORDS, n_records))
        block = np.asarray(candidates(rows) if callable(candidates) else candidates[rows])
        count = block.shape[1] if count is None and block.ndim == 3 else count
        expected = (rows.stop - rows.start, count, dimension)
        if block.shape != expected:
            raise SparseError(
                f"candidates of records {rows.start} to {rows.stop - 1} have shape {block.shape}; give the same number "
                f"of candidates for every record, shape ({expected[0]}, n_candidates, {dimension})"
            )
        if count < 2:
            raise SparseError(f"there is {count} candidate; give at least 2 to choose from")
        check_vectors(block.reshape(-1, dimension), "candidates")
        yield rows, block


def checked_truth(truth: np.ndarray, n_candidates: int) -> np.ndarray:
    """Indices of true candidates, or SparseError where one is none of them."""
    if truth.dtype.kind not in "iu" or truth.min() < 0 or truth.max() >= n_candidates:
        raise SparseError(f"truth must be the index of one of the {n_candidates} candidates for each record")
    return truth


def checked_releases(noised: np.ndarray) -> np.ndarray:
    noised = np.asarray(noised)
    if noised.ndim == 3 and noised.shape[1]:
        check_vectors(noised.reshape(-1, noised.shape[-1]), "noised")
    else:
        noised = check_vectors(noised, "noised")[:, None]
    if len(noised) == 0:
        raise SparseError("there is no record to attack; give at least one")
    return noised.astype(np.float64, copy=False)
