"""What a consumer of the vectors keeps: the main scores of MTEB (Muennighoff et al. 2023).

Each task takes the vectors as they are used, so protecting both sides of a comparison or only one
(a trusted query against a protected warehouse) is the caller's choice of arrays. Vectors compared
by cosine need no unit norm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import interval_of, ratio_interval, resample_counts
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.metrics import few_per_label, ndcg, spearman, top_columns, unit_rows
from sparse_core.positions import by_position

_QUERIES_PER_BLOCK = 256
MTEB_SEED = 42


@dataclass(frozen=True)
class UtilityResult:
    """A task's main score with its bootstrap interval.

    Parameters
    ----------
    task : str
        sts, classification, retrieval or clustering.
    metric : str
        The score's name.
    score, low, high : float
        On all records, and the ends of the 95% interval.
    n_records : int
        Pairs, test records or queries behind the score: the units that were resampled.
    """

    task: str
    metric: str
    score: float
    low: float
    high: float
    n_records: int


def sts(
    left: np.ndarray,
    right: np.ndarray,
    gold: np.ndarray,
    *,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> UtilityResult:
    """Semantic similarity: Spearman correlation of cosine and gold score.

    Parameters
    ----------
    left, right : float array, shape (n_pairs, dimension)
        The two sides of each pair.
    gold : float array, shape (n_pairs,)
        Human scores.
    n_bootstrap : int
        Resamples of pairs.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    UtilityResult
        metric "cosine_spearman".

    Raises
    ------
    SparseError
        For unusable vectors, unequal lengths, fewer than 3 pairs or constant gold scores.
    """
    left = check_vectors(left, "left")
    right = check_vectors(right, "right", dimension=left.shape[1])
    n_pairs = check_same_length(left=left, right=right, gold=gold)
    gold = check_vectors(np.asarray(gold, dtype=float)[:, None], "gold")[:, 0]
    if n_pairs < 3 or np.ptp(gold) == 0:
        raise SparseError(
            f"{n_pairs} pairs with constant or too few gold scores; a rank correlation needs 3 that differ"
        )
    cosine = np.einsum("ij,ij->i", unit_rows(left), unit_rows(right))
    score = spearman(cosine, gold, np.ones((1, n_pairs)))[0]
    replicates = np.concatenate(
        [spearman(cosine, gold, counts) for counts in resample_counts(n_pairs, n_bootstrap, generator=generator)]
    )
    interval = interval_of(float(score), replicates)
    return UtilityResult("sts", "cosine_spearman", interval.value, interval.low, interval.high, n_pairs)


def classification(
    train: np.ndarray,
    train_labels: Sequence,
    test: np.ndarray,
    test_labels: Sequence,
    *,
    samples_per_label: int | None = 8,
    n_experiments: int = 10,
    seed: int = MTEB_SEED,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> UtilityResult:
    """Accuracy of logistic regression on the vectors, as MTEB defines it.

    MTEB trains scikit-learn's LogisticRegression(max_iter=100) on a few records per label, drawn
    anew in each experiment by shuffling the previous order with the same seed, and reports the mean
    accuracy; its defaults (8 samples, 10 experiments, seed 42) are this function's.

    Parameters
    ----------
    train, test : float array, shape (n_records, dimension)
        Vectors to fit on and to score.
    train_labels, test_labels : sequence
        Their classes.
    samples_per_label : int or None
        Training records drawn per label; None for all of them, in a single experiment.
    n_experiments : int
        Draws of training records.
    seed : int
        Of the draws and of the solver.
    n_bootstrap : int
        Resamples of test records; the training draws are not resampled.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    UtilityResult
        metric "accuracy".

    Raises
    ------
    SparseError
        For unusable vectors, unequal lengths, or a single class.
    """
    from sklearn.linear_model import LogisticRegression

    train = check_vectors(train, "train")
    test = check_vectors(test, "test", dimension=train.shape[1])
    train_labels = by_position(train_labels, "train_labels", length=len(train))
    test_labels = by_position(test_labels, "test_labels", length=len(test))
    n_test = len(test)
    classes, targets = np.unique(np.asarray(train_labels), return_inverse=True)
    if len(classes) < 2 or n_test == 0:
        raise SparseError(
            f"{len(classes)} classes and {n_test} test records; give two classes and a test record at least"
        )
    truth = np.asarray(test_labels)
    if samples_per_label is None:
        draws = [np.arange(len(train))]
    else:
        draws = few_per_label(targets, samples_per_label, n_experiments, seed=seed)
    correct = np.zeros(n_test)
    for rows in draws:
        model = LogisticRegression(max_iter=100, random_state=seed).fit(train[rows], targets[rows])
        correct += classes[model.predict(test)] == truth
    interval = ratio_interval(correct / len(draws), n_resamples=n_bootstrap, generator=generator)
    return UtilityResult("classification", "accuracy", interval.value, interval.low, interval.high, n_test)


def retrieval(
    queries: np.ndarray,
    documents: np.ndarray,
    qrels: Sequence[Mapping[int, float]],
    *,
    k: int = 10,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> UtilityResult:
    """nDCG@k of ranking documents by cosine, as trec_eval's ndcg_cut defines it.

    Gain is the relevance itself (negative as 0), discount 1 / log2(rank + 1), and the ideal ranking
    is made of all judged documents; the score is the mean over judged queries. Documents of equal
    cosine are ranked by their row, the later first (trec_eval sorts equal scores by descending id).

    Parameters
    ----------
    queries : float array, shape (n_queries, dimension)
    documents : float array, shape (n_documents, dimension)
    qrels : sequence of mapping from document row to relevance, one per query
        Queries without judgements are left out.
    k : int
        Depth.
    n_bootstrap : int
        Resamples of queries.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    UtilityResult
        metric "ndcg_at_k".

    Raises
    ------
    SparseError
        For unusable vectors, unequal lengths, a judged row that is not a document, or no judgement.
    """
    queries = check_vectors(queries, "queries")
    documents = check_vectors(documents, "documents", dimension=queries.shape[1])
    qrels = by_position(qrels, "qrels", length=len(queries))
    judged = [row for row, relevance in enumerate(qrels) if relevance]
    if not judged:
        raise SparseError("no query has a judged document; give qrels as one mapping per query")
    unknown = next((q for q in judged if not all(0 <= d < len(documents) for d in qrels[q])), None)
    if unknown is not None:
        raise SparseError(f"qrels of query {unknown} name a row outside the {len(documents)} documents")
    unit_documents, unit_queries = unit_rows(documents), unit_rows(queries)
    scores = []
    for start in range(0, len(judged), _QUERIES_PER_BLOCK):
        rows = judged[start : start + _QUERIES_PER_BLOCK]
        rankings = top_columns(unit_queries[rows] @ unit_documents.T, k)
        scores += [ndcg(ranking, qrels[row], k) for row, ranking in zip(rows, rankings, strict=True)]
    interval = ratio_interval(np.array(scores), n_resamples=n_bootstrap, generator=generator)
    return UtilityResult("retrieval", f"ndcg_at_{k}", interval.value, interval.low, interval.high, len(judged))
