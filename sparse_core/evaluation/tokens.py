"""Which tokens an attack is to recover."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.positions import by_position


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """What an attack is to recover.

    Parameters
    ----------
    vocabulary : tuple of str
        Tokens attacked, most frequent in the training records first. Not part of the repr.
    labels : bool array, shape (n_records, n_tokens)
        True where a record holds a token of the vocabulary.
    coverage : float
        Share of the true tokens of the other (test) records that are in the vocabulary; nan if they
        hold none. Leakage says nothing about the rest.
    """

    vocabulary: tuple[str, ...]
    labels: np.ndarray
    coverage: float

    def __repr__(self) -> str:
        return f"TokenLabels(n_tokens={len(self.vocabulary)}, coverage={self.coverage:.3f})"


def token_labels(
    tokens_per_record: Sequence[Iterable[str]],
    *,
    train: np.ndarray,
    min_count: int = 5,
    max_tokens: int | None = None,
) -> TokenLabels:
    """The vocabulary an attack can learn, and which record holds which token.

    Parameters
    ----------
    tokens_per_record : sequence of iterable of str
        Concept tokens of each record, for example from `sparse_core.concepts.concept_tokens`.
        Repeats within a record count once.
    train : int or bool array
        Training records. Only these decide the vocabulary.
    min_count : int
        Training records that must hold a token for it to be attacked.
    max_tokens : int, optional
        Keep only so many, the most frequent first (ties in alphabetical order).

    Returns
    -------
    TokenLabels

    Raises
    ------
    SparseError
        If `train` is not a set of rows, or no token is frequent enough.
    """
    rows = by_position(tokens_per_record, "tokens_per_record")
    if any(isinstance(tokens, str) for tokens in rows):
        raise SparseError("tokens_per_record holds a text; give the list of each record's tokens.")
    sets = [frozenset(tokens) for tokens in rows]
    in_train = row_mask(train, len(sets), "train")
    counts = Counter(token for row in np.flatnonzero(in_train) for token in sets[row])
    ranked = sorted((token for token, count in counts.items() if count >= min_count), key=lambda t: (-counts[t], t))
    vocabulary = tuple(ranked[:max_tokens])
    if not vocabulary:
        most = max(counts.values(), default=0)
        raise SparseError(
            f"no concept token occurs in {min_count} training records (the most frequent in {most}); "
            "give more records or a smaller min_count"
        )
    column = {token: position for position, token in enumerate(vocabulary)}
    labels = np.zeros((len(sets), len(vocabulary)), dtype=bool)
    for row, tokens in enumerate(sets):
        labels[row, [column[token] for token in tokens if token in column]] = True
    n_test_tokens = sum(len(sets[row]) for row in np.flatnonzero(~in_train))
    coverage = labels[~in_train].sum() / n_test_tokens if n_test_tokens else float("nan")
    return TokenLabels(vocabulary, labels, float(coverage))


def row_mask(rows: np.ndarray, n_records: int, name: str) -> np.ndarray:
    """Row numbers or a boolean mask, as a boolean mask.

    Parameters
    ----------
    rows : int or bool array
        Rows meant.
    n_records : int
        Number of records.
    name : str
        What to call them in a message.

    Returns
    -------
    bool array, shape (n_records,)

    Raises
    ------
    SparseError
        For a mask of another length, row numbers out of range, or no row at all.
    """
    rows = np.asarray(rows)
    if rows.dtype == bool:
        if rows.shape != (n_records,):
            raise SparseError(f"{name} is a mask of {len(rows)} rows for {n_records} records; give one per record")
        mask = rows
    else:
        if rows.size and (rows.min() < 0 or rows.max() >= n_records):
            raise SparseError(f"{name} names row {rows.max()} but there are {n_records} records")
        mask = np.zeros(n_records, dtype=bool)
        mask[rows.astype(int)] = True
    if not mask.any():
        raise SparseError(f"{name} names no record; give at least one")
    return mask
