"""Who trains the attack and who is attacked."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.positions import by_position

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

    folded = [fold_text(text) for text in by_position(texts, "texts")]
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
    texts_or_groups = by_position(texts_or_groups, "texts_or_groups")
    n_records = len(texts_or_groups)
    is_text = n_records > 0 and isinstance(texts_or_groups[0], str)
    keys = near_duplicate_groups(texts_or_groups) if is_text else np.asarray(texts_or_groups)
    groups = np.unique(keys, return_inverse=True)[1]
    sizes = np.bincount(groups)
    if len(sizes) < 2:
        raise SparseError(
            f"{n_records} records form {len(sizes)} group(s) of near-duplicates; a split needs two at least"
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
