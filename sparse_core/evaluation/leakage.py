"""Leakage: the share of true concept tokens that an attack recovers.

An attack scores every token of a vocabulary for every record. For a record with t true tokens its
t highest-scored tokens are its guesses; leakage is the number of hits over all records divided by
the number of true tokens over all records (micro average), so records with more to hide weigh more.
"""

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length


def guess_hits(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which true tokens an attack guesses when it may guess as many as there are.

    Parameters
    ----------
    scores : float array, shape (n_records, n_tokens)
        Higher means more likely present. Only the order within a record matters. Tokens with equal
        scores are ordered by their position in the vocabulary, not by the labels.
    labels : bool array, shape (n_records, n_tokens)
        True where the record holds the token.

    Returns
    -------
    bool array, shape (n_records, n_tokens)
        True where a true token is among the record's guesses.

    Raises
    ------
    SparseError
        If the shapes differ or a score is nan.
    """
    labels = np.asarray(labels, dtype=bool)
    if scores.shape != labels.shape:
        raise SparseError(f"scores have shape {scores.shape} but labels {labels.shape}; give one score per label")
    if np.isnan(scores).any():
        raise SparseError(f"the attack's scores are nan, first in row {np.isnan(scores).any(axis=1).argmax()}")
    order = np.argsort(-scores, axis=1, kind="stable")
    guessed_in_order = np.arange(labels.shape[1]) < labels.sum(axis=1, keepdims=True)
    guessed = np.zeros_like(labels)
    np.put_along_axis(guessed, order, guessed_in_order, axis=1)
    return guessed & labels


def micro_leakage(scores: np.ndarray, labels: np.ndarray) -> float:
    """Leakage of a score matrix (see the module's definition).

    Parameters
    ----------
    scores : float array, shape (n_records, n_tokens)
        An attack's scores.
    labels : bool array, shape (n_records, n_tokens)
        The truth, with at least one true entry.

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    SparseError
        If the shapes differ, a score is nan, or no record holds a token.
    """
    total = np.count_nonzero(labels)
    if total == 0:
        raise SparseError("no record holds a token of the vocabulary, so there is no leakage to measure")
    return np.count_nonzero(guess_hits(scores, labels)) / total


def confidence(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean probability that an attack gives to the true tokens.

    Parameters
    ----------
    probabilities : float array, shape (n_records, n_tokens)
        In [0, 1].
    labels : bool array, shape (n_records, n_tokens)
        The truth.

    Returns
    -------
    float
        nan if no record holds a token.

    Raises
    ------
    SparseError
        If the lengths differ.
    """
    check_same_length(probabilities=probabilities, labels=labels)
    true = np.asarray(labels, dtype=bool)
    return float(probabilities[true].mean()) if true.any() else float("nan")
