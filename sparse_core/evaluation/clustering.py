"""Whether records of one class still lie together: clustering, the task of MTEB that is drawn anew for each run."""

import random
from collections.abc import Sequence

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import interval_of, resample_counts
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.metrics import v_measure
from sparse_core.evaluation.utility import MTEB_SEED, UtilityResult


def clustering(
    vectors: np.ndarray,
    labels: Sequence,
    *,
    n_experiments: int = 10,
    draws_per_experiment: int = 16384,
    seed: int = MTEB_SEED,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> UtilityResult:
    """V-measure of mini-batch k-means with as many clusters as labels, as MTEB defines it.

    MTEB clusters records drawn with replacement, ten times, and reports the mean v-measure; its defaults (16384 draws,
    10 experiments, seed 42) are this function's. Where a task of MTEB clusters a sample of its records, give that
    sample.

    Parameters
    ----------
    vectors : float array, shape (n_records, dimension)
    labels : sequence, length n_records
    n_experiments, draws_per_experiment : int
        Runs of k-means, and records drawn for each.
    seed : int
        Of the draws and of k-means.
    n_bootstrap : int
        Resamples of records, each with the clusters that the runs put it in, and of the runs. V-measure grows slightly
        on resamples of records, since repeats look like agreement; that shift is taken out.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    UtilityResult
        metric "v_measure".

    Raises
    ------
    SparseError
        For unusable vectors, unequal lengths, or a single label.
    """
    from sklearn.cluster import MiniBatchKMeans

    vectors = check_vectors(vectors, "vectors")
    n_records = check_same_length(vectors=vectors, labels=labels)
    classes, targets = np.unique(np.asarray(labels), return_inverse=True)
    if len(classes) < 2:
        raise SparseError(f"{len(classes)} distinct labels; clustering needs two at least")
    drawing = random.Random(seed)
    clusters, scores = [], []
    for _ in range(n_experiments):
        drawn = drawing.choices(range(n_records), k=draws_per_experiment)
        model = MiniBatchKMeans(n_clusters=len(classes), batch_size=512, n_init=1, random_state=seed)
        clusters.append(model.fit(vectors[drawn]).predict(vectors))
        times = np.bincount(drawn, minlength=n_records)[None]
        scores.append(v_measure(targets, clusters[-1], times)[0])
    blocks = resample_counts(n_records, n_bootstrap, generator=generator)
    by_run = np.hstack([[v_measure(targets, found, counts) for found in clusters] for counts in blocks])
    runs = generator.integers(0, n_experiments, size=by_run.shape)
    replicates = np.take_along_axis(by_run, runs, axis=0).mean(axis=0)
    score = float(np.mean(scores))
    interval = interval_of(score, np.clip(score + replicates.mean() - replicates, 0, 1))
    return UtilityResult("clustering", "v_measure", score, interval.low, interval.high, n_records)
