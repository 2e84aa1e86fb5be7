"""Who trains the attack and who is attacked, and over which tokens."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length

SHINGLE_WORDS = 5
SHARED_SHINGLES = 0.5
MAX_SHINGLE_RECORDS = 100


@dataclass(frozen=True, eq=False)
class Split:
    """Rows on either side of a split.

    Parameters
    ----------
    train, test : int array
        Sorted row numbers; disjoint, together every row.
    n_groups : int
        Groups of records that had to stay together; equals the number of rows without duplicates.
    """

    train: np.ndarray
    test: np.ndarray
    n_groups: int


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
    sets = [frozenset(tokens) for tokens in tokens_per_record]
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


def fold_text(text: str) -> str:
    """A text without what makes copies look different.

    Compatibility characters unified and case folded, every digit 0, and each run of anything but
    letters and digits a single space.

    Parameters
    ----------
    text : str

    Returns
    -------
    str

    Examples
    --------
    >>> fold_text("Call  Anna, on 555-0172!")
    'call anna on 000 0000'
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    characters = ("0" if c.isdigit() else c if c.isalnum() else " " for c in folded)
    return " ".join("".join(characters).split())


def near_duplicate_groups(texts: Sequence[str]) -> np.ndarray:
    """Group texts that are copies of each other but for details.

    Two texts are joined when they are the same after `fold_text`, or when they share at least half
    of the five-word shingles of the shorter one; groups are the transitive closure. Shingles found
    in more than 100 different texts are boilerplate and do not count. Templates filled with other
    words are not near-duplicates: pass their template numbers to `split_records` as groups if an
    attacker should not know the template.

    Parameters
    ----------
    texts : sequence of str

    Returns
    -------
    int array, shape (n_texts,)
        Group numbers from 0.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    folded = [fold_text(text) for text in texts]
    distinct = {text: position for position, text in enumerate(dict.fromkeys(folded))}
    shingles: dict[tuple[str, ...], int] = {}
    rows, columns = [], []
    for position, text in enumerate(distinct):
        words = text.split()
        found = {tuple(words[i : i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1)}
        for shingle in found:
            rows.append(position)
            columns.append(shingles.setdefault(shingle, len(shingles)))
    n = len(distinct)
    sizes = np.bincount(rows, minlength=n) if rows else np.zeros(n, dtype=int)
    rows, columns = np.array(rows, dtype=int), np.array(columns, dtype=int)
    holders = np.bincount(columns, minlength=len(shingles))
    telling = (holders[columns] > 1) & (holders[columns] <= MAX_SHINGLE_RECORDS)
    incidence = coo_array(
        (np.ones(telling.sum()), (rows[telling], columns[telling])), shape=(n, max(1, len(shingles)))
    ).tocsr()
    shared = (incidence @ incidence.T).tocoo()
    shorter = np.minimum(sizes[shared.row], sizes[shared.col])
    close = shared.data >= SHARED_SHINGLES * shorter
    links = coo_array((np.ones(close.sum()), (shared.row[close], shared.col[close])), shape=(n, n))
    _, group = connected_components(links, directed=False)
    return group[[distinct[text] for text in folded]]


def split_records(texts_or_groups: Sequence[str] | np.ndarray, *, test_share: float = 0.3, seed: int = 0) -> Split:
    """Divide records into training and test records with (near-)duplicates on one side.

    Parameters
    ----------
    texts_or_groups : sequence of str, or int array, shape (n_records,)
        Texts, grouped by `near_duplicate_groups`, or the groups themselves.
    test_share : float
        Share of the records to test on, in (0, 1). Met as nearly as the groups allow.
    seed : int
        The same seed and records give the same split.

    Returns
    -------
    Split

    Raises
    ------
    SparseError
        If the share is out of range, or every record is a copy of every other so that one side
        would be empty.
    """
    if not 0 < test_share < 1:
        raise SparseError(f"test_share is {test_share}; give a share between 0 and 1")
    n_records = check_same_length(records=texts_or_groups)
    is_text = n_records > 0 and isinstance(texts_or_groups[0], str)
    keys = near_duplicate_groups(texts_or_groups) if is_text else np.asarray(texts_or_groups)
    groups = np.unique(keys, return_inverse=True)[1]
    sizes = np.bincount(groups)
    if len(sizes) < 2:
        raise SparseError(
            f"{n_records} records form {len(sizes)} group(s) of near-duplicates; a split needs two groups at least"
        )
    order = np.random.default_rng(seed).permutation(len(sizes))
    wanted = test_share * n_records
    taken, in_test = 0, np.zeros(len(sizes), dtype=bool)
    for group in order:
        if abs(taken + sizes[group] - wanted) < abs(taken - wanted):
            in_test[group] = True
            taken += sizes[group]
    if not in_test.any():
        in_test[np.argmin(sizes)] = True
    if in_test.all():
        in_test[order[np.argmin(sizes[order])]] = False
    test = in_test[groups]
    return Split(np.flatnonzero(~test), np.flatnonzero(test), len(sizes))
