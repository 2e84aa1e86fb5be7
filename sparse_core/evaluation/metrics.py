"""The arithmetic of the utility scores, without resampling or checks."""

from collections.abc import Mapping

import numpy as np


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows scaled to norm 1; zero rows stay zero.

    Parameters
    ----------
    vectors : float array, shape (n_records, dimension)

    Returns
    -------
    float array of the same shape and dtype
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def top_columns(similarity: np.ndarray, k: int) -> np.ndarray:
    """The k highest columns of each row, best first; of equal ones the later first.

    Parameters
    ----------
    similarity : float array, shape (n_rows, n_columns)
    k : int
        At least 1; all columns are ranked if there are fewer.

    Returns
    -------
    int array, shape (n_rows, min(k, n_columns))
    """
    n_columns = similarity.shape[1]
    k = min(k, n_columns)
    least = np.partition(similarity, n_columns - k, axis=1)[:, n_columns - k]
    best = np.empty((len(similarity), k), dtype=int)
    for row, values in enumerate(similarity):
        candidates = np.flatnonzero(values >= least[row])
        best[row] = candidates[np.lexsort((-candidates, -values[candidates]))][:k]
    return best


def ndcg(ranking: np.ndarray, relevance: Mapping[int, float], k: int) -> float:
    """Normalised discounted cumulative gain of one query (Järvelin & Kekäläinen 2002).

    Parameters
    ----------
    ranking : int array, shape (n_ranked,)
        Document rows, best first.
    relevance : mapping from document row to relevance
        Unjudged documents and negative relevance count 0.
    k : int
        Depth of the ranking and of the ideal one.

    Returns
    -------
    float
        Gain is the relevance itself, discount 1 / log2(rank + 1); 0 if nothing is relevant.
    """
    discount = 1 / np.log2(np.arange(2, k + 2))
    gains = np.array([max(0.0, relevance.get(int(document), 0.0)) for document in ranking[:k]])
    ideal = np.sort([max(0.0, value) for value in relevance.values()])[::-1][:k]
    best = ideal @ discount[: len(ideal)]
    return float(gains @ discount[: len(gains)] / best) if best > 0 else 0.0


def spearman(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman correlations of resamples, without building or sorting any of them.

    Parameters
    ----------
    x, y : float array, shape (n_records,)
    counts : int array, shape (n_resamples, n_records)
        How often each record is in each resample; a row of ones is the sample itself.

    Returns
    -------
    float array, shape (n_resamples,)
        With average ranks for ties, as if each resample had been ranked anew; nan where constant.
    """
    total = counts.sum(axis=1, keepdims=True)
    centred = [resampled_ranks(column, counts) - (total + 1) / 2 for column in (x, y)]
    covariance, var_x, var_y = (
        np.einsum("ij,ij,ij->i", counts, centred[a], centred[b]) for a, b in ((0, 1), (0, 0), (1, 1))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return covariance / np.sqrt(var_x * var_y)


def resampled_ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Average rank of each record's value within each resample.

    A value's average rank is the number of drawn smaller values plus half of one more than the
    number of drawn equal ones; both come from one cumulative sum over the fixed sorted order.

    Parameters
    ----------
    values : float array, shape (n_records,)
    counts : int array, shape (n_resamples, n_records)

    Returns
    -------
    float array, shape (n_resamples, n_records)
        From 1; also defined for records that were not drawn.
    """
    levels, level_of = np.unique(values, return_inverse=True)
    order = np.argsort(level_of, kind="stable")
    starts = np.searchsorted(level_of[order], np.arange(len(levels)))
    drawn = np.add.reduceat(counts[:, order], starts, axis=1)
    rank = np.cumsum(drawn, axis=1) - drawn + (drawn + 1) / 2
    return rank[:, level_of]


def few_per_label(targets: np.ndarray, samples_per_label: int, n_experiments: int, *, seed: int) -> list[np.ndarray]:
    """MTEB's draws of training records.

    Each experiment shuffles the previous experiment's order with the same seed, so that all draws
    follow from one permutation, and takes the first records of every label.

    Parameters
    ----------
    targets : int array, shape (n_records,)
        Class numbers.
    samples_per_label, n_experiments : int
        Records drawn per label (fewer where a label has fewer) and number of draws.
    seed : int
        Of numpy's legacy generator, which MTEB uses.

    Returns
    -------
    list of int array
        Rows of each experiment, in the order MTEB fits them.
    """
    permutation = np.arange(len(targets))
    np.random.RandomState(seed).shuffle(permutation)
    order, draws = np.arange(len(targets)), []
    for _ in range(n_experiments):
        order = order[permutation]
        by_label = np.argsort(targets[order], kind="stable")
        _, first, counts = np.unique(targets[order][by_label], return_index=True, return_counts=True)
        position_within = np.arange(len(order)) - np.repeat(first, counts)
        draws.append(order[np.sort(by_label[position_within < samples_per_label])])
    return draws


def v_measure(classes: np.ndarray, clusters: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """V-measures of resamples (Rosenberg & Hirschberg 2007).

    Parameters
    ----------
    classes, clusters : int array, shape (n_records,)
        Numbers from 0.
    counts : int array, shape (n_resamples, n_records)
        How often each record is in each resample; a row of ones is the sample itself.

    Returns
    -------
    float array, shape (n_resamples,)
        2 I(class; cluster) / (H(class) + H(cluster)); 1 where both entropies are 0.
    """
    # Cells without a record stay empty in every resample.
    _, cells = np.unique(classes * (clusters.max() + 1) + clusters, return_inverse=True)
    of_classes, of_clusters, of_cells = (entropy(totals(groups, counts)) for groups in (classes, clusters, cells))
    separate = of_classes + of_clusters
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(separate > 0, 2 * (separate - of_cells) / separate, 1.0)


def totals(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Records of each group in each resample.

    Parameters
    ----------
    groups : int array, shape (n_records,)
    counts : int array, shape (n_resamples, n_records)

    Returns
    -------
    int array, shape (n_resamples, n_groups)
        Groups that hold a record, in order of their numbers.
    """
    order = np.argsort(groups, kind="stable")
    starts = np.unique(groups[order], return_index=True)[1]
    return np.add.reduceat(counts[:, order], starts, axis=1)


def entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy in nats of each row of counts.

    Parameters
    ----------
    counts : float array, shape (n_rows, n_cells)

    Returns
    -------
    float array, shape (n_rows,)
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    return -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
