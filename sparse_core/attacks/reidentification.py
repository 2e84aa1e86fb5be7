"""Linking a protected record to itself: whose protected vector is this?

An attacker who holds candidate records (their texts, hence their unprotected vectors) asks which of
them a protected vector belongs to. With the noise law known, the nearest candidate in the noise's
own metric, (y - x)^T N^-1 (y - x), is the maximum-likelihood answer under Gaussian, Laplace and
Mahalanobis noise alike, whose densities all fall with that norm. Cosine is what an attacker without
knowledge of the mechanism would use.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval, ratio_interval
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.metrics import unit_rows

_LEAST_NOISE = 1e-10


@dataclass(frozen=True)
class Reidentification:
    """How often protected records are linked to themselves.

    Parameters
    ----------
    top1 : Interval
        The larger of the two figures below: the headline.
    top1_cosine : Interval
        Share of records whose nearest candidate by cosine is themselves.
    top1_whitened : Interval or None
        The same in the metric of the noise; None where the noise law is unknown.
    mrr : float
        Mean reciprocal rank of the true record, for the better of the two.
    strategy : str
        "cosine" or "whitened": which one that was.
    n_records, n_candidates : int
        Records linked, and unprotected records to choose from.
    """

    top1: Interval
    top1_cosine: Interval
    top1_whitened: Interval | None
    mrr: float
    strategy: str
    n_records: int
    n_candidates: int


def reidentification(
    protected: np.ndarray,
    unprotected: np.ndarray,
    *,
    public: PublicKnowledge | None = None,
    rows: np.ndarray | None = None,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> Reidentification:
    """Link protected records to unprotected candidates, by cosine and in the noise's metric.

    Parameters
    ----------
    protected : float array, shape (n_records, n)
        Protected vectors.
    unprotected : float array, shape (n_candidates, n)
        Candidates.
    public : PublicKnowledge, optional
        Without a noise variance only cosine is tried. Undo a published read-out first.
    rows : int array, shape (n_records,), optional
        Each record's row among the candidates; by default the first record is the first candidate
        and so on.
    n_bootstrap : int
        Resamples of records.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    Reidentification
        Candidates equal to the true one (copies of it) do not count against the attacker.

    Raises
    ------
    SparseError
        For unusable vectors, another dimension, or rows that are not candidates.
    """
    unprotected = check_vectors(unprotected, "unprotected")
    protected = check_vectors(protected, "protected", dimension=unprotected.shape[1])
    if rows is None:
        check_same_length(protected=protected, unprotected=unprotected)
        rows = np.arange(len(protected))
    rows = np.asarray(rows)
    check_same_length(protected=protected, rows=rows)
    if len(rows) == 0 or rows.min() < 0 or rows.max() >= len(unprotected):
        raise SparseError(f"rows must name one of the {len(unprotected)} candidates for each protected record")
    public = public or PublicKnowledge()
    cosine = (unit_rows(vectors).astype(np.float32) for vectors in (protected, unprotected))
    ranks = {"cosine": self_ranks(*cosine, rows)}
    if public.noise_variance is not None and np.max(public.noise_variance) > 0:
        center = unprotected.mean(axis=0, dtype=np.float64)
        whitened = (whiten_noise(vectors - center, public) for vectors in (protected, unprotected))
        ranks["whitened"] = self_ranks(*whitened, rows)
    state = generator.bit_generator.state
    top1 = {}
    for strategy, rank in ranks.items():
        generator.bit_generator.state = state
        top1[strategy] = ratio_interval((rank == 1).astype(float), n_resamples=n_bootstrap, generator=generator)
    strategy = max(ranks, key=lambda name: (top1[name].value, np.mean(1 / ranks[name])))
    return Reidentification(
        top1[strategy],
        top1["cosine"],
        top1.get("whitened"),
        float(np.mean(1 / ranks[strategy])),
        strategy,
        len(protected),
        len(unprotected),
    )


def self_ranks(
    records: np.ndarray, candidates: np.ndarray, rows: np.ndarray, *, block_cells: int = 16_000_000
) -> np.ndarray:
    """Rank of each record's own candidate by Euclidean distance, in blocks of bounded memory.

    Parameters
    ----------
    records : float array, shape (n_records, n)
    candidates : float array, shape (n_candidates, n)
    rows : int array, shape (n_records,)
        Each record's own candidate.
    block_cells : int
        Distances held at once.

    Returns
    -------
    float array, shape (n_records,)
        1 plus the number of nearer candidates plus half the number of equally near ones, copies of
        the own candidate excepted. Equal means up to rounding.
    """
    same = Counter(map(bytes, candidates))
    squared = np.einsum("ij,ij->i", candidates, candidates)
    precision = 8 * np.finfo(np.result_type(records, candidates)).eps
    ranks = np.empty(len(records))
    block = max(1, block_cells // len(candidates))
    for start in range(0, len(records), block):
        part = records[start : start + block]
        closeness = part @ candidates.T
        closeness -= squared / 2
        own_rows = rows[start : start + block]
        own = closeness[np.arange(len(part)), own_rows]
        slack = precision * (np.abs(own) + squared.max() / 2)
        nearer = (closeness > (own + slack)[:, None]).sum(axis=1)
        tied = (closeness >= (own - slack)[:, None]).sum(axis=1) - nearer
        copies = np.array([same[bytes(candidates[row])] for row in own_rows])
        ranks[start : start + block] = 1 + nearer + np.maximum(tied - copies, 0) / 2
    return ranks


def whiten_noise(vectors: np.ndarray, public: PublicKnowledge) -> np.ndarray:
    """Vectors in coordinates where the noise has variance 1 in every direction.

    Parameters
    ----------
    vectors : float array, shape (n_records, n)
    public : PublicKnowledge
        With a noise variance; directions with less than 1e-10 of the largest count as having that.

    Returns
    -------
    float64 array, shape (n_records, n)
        Double precision, since nearly noiseless directions dominate the distances.
    """
    variance = np.asarray(public.noise_variance, dtype=np.float64)
    spread = np.sqrt(np.maximum(variance, _LEAST_NOISE * variance.max()))
    vectors = vectors.astype(np.float64)
    return (vectors if public.basis is None else vectors @ public.basis) / spread
