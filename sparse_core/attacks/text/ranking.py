"""Which of several candidate texts a vector most likely came from, by encoding them as the victim does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse_core.attacks.knowledge import PublicKnowledge, estimate_knowledge
from sparse_core.attacks.text.base import Encode, LogLikelihood

_LEAST_SHARE = 1e-6
_SURE = 2.0  # standard errors


class Ranking:
    """Scores of candidates under what is known of the noise.

    Three rules compete. `law` is the exact log-likelihood, right for a candidate that is the text itself to the letter.
    `metric` is minus the Mahalanobis distance under the noise and, added to it, what a decoder's candidates are off by
    anyway: where a mask leaves directions almost silent the exact law takes any difference in them for impossible, and
    hears nothing else. The one whose choices share more words with the truth on held-out training records is kept,
    unless the `first` texts, which the decoder holds for likeliest, share clearly more than either's: then what a tool
    did to the vectors is nothing like noise.

    Parameters
    ----------
    public : PublicKnowledge
    log_likelihood : callable, optional
        From outputs and embeddings, float arrays of shape (n_rows, n), to log-densities, shape (n_rows,).

    Attributes
    ----------
    rule : str
        "metric", "law" or "first".
    """

    def __init__(self, public: PublicKnowledge, log_likelihood: LogLikelihood | None):
        self._public = public
        self._law = log_likelihood
        self.rule = "metric"
        self._metric: np.ndarray | None = None

    def fit(
        self,
        vectors: np.ndarray,
        unprotected: np.ndarray,
        candidates: np.ndarray,
        similarities: np.ndarray,
    ) -> Ranking:
        """Learn what candidates are off by, and choose the rule.

        Parameters
        ----------
        vectors, unprotected : float array, shape (n_records, n)
            Held-out training records, protected and not.
        candidates : float array, shape (n_records, n_candidates, n)
            Embeddings of candidate texts.
        similarities : float array, shape (n_records, n_candidates)
            How many words each shares with the truth.

        Returns
        -------
        Ranking
        """
        dimension = vectors.shape[1]
        known = self._public
        if known.noise_variance is None:
            known = estimate_knowledge(unprotected, vectors)
        basis = np.eye(dimension) if known.basis is None else np.asarray(known.basis)
        off = ((candidates - unprotected[:, None]) @ basis) ** 2
        spread = np.asarray(known.noise_variance) + off.mean(axis=(0, 1))
        spread = np.maximum(spread, _LEAST_SHARE * spread.mean() + np.finfo(float).tiny)
        self._metric = basis / np.sqrt(spread)
        rows = np.arange(len(vectors))
        reached = {}
        for rule in ("metric",) if self._law is None else ("metric", "law"):
            self.rule = rule
            reached[rule] = similarities[rows, self.scores(vectors, candidates).argmax(axis=1)]
        self.rule = max(reached, key=lambda rule: reached[rule].mean())
        lost = similarities[:, 0] - reached[self.rule]
        if lost.mean() > _SURE * lost.std() / np.sqrt(len(lost)):
            self.rule = "first"
        return self

    def scores(self, vectors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Higher is more likely.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)
        candidates : float array, shape (n_records, n_candidates, n)

        Returns
        -------
        float array, shape (n_records, n_candidates)
        """
        if self.rule == "law":
            repeated = np.repeat(np.asarray(vectors, dtype=np.float64), candidates.shape[1], axis=0)
            flat = candidates.reshape(len(repeated), -1).astype(np.float64)
            values = np.asarray(self._law(repeated, flat)).reshape(candidates.shape[:2])
            return np.nan_to_num(values, nan=-np.inf, neginf=-np.finfo(float).max)
        if self.rule == "first":
            return np.broadcast_to(-np.arange(candidates.shape[1], dtype=float), candidates.shape[:2])
        return -np.linalg.norm((candidates - vectors[:, None]) @ self._metric, axis=2)


def embedded_candidates(candidates: Sequence[Sequence[str]], encode: Encode) -> np.ndarray:
    """Embeddings of candidate texts, each different text encoded once.

    Parameters
    ----------
    candidates : sequence of (sequence of str)
        Equally many for each record.
    encode : callable
        The victim's encoder.

    Returns
    -------
    float array, shape (n_records, n_candidates, n)
    """
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for options in candidates for text in options))}
    vectors = np.asarray(encode(list(rows)))
    return vectors[[[rows[text] for text in options] for options in candidates]]
