"""Token transfer from the nearest records whose text the attacker knows.

The attacker holds protected vectors with their texts (earlier releases, or its own records run
through the public mechanism) and lets the records nearest to the victim vote on the tokens.
Distances are taken after the Wiener read-out, which is what a careful attacker would denoise with.
"""

import numpy as np

from sparse_core.attacks.base import check_training, register, validation_rows
from sparse_core.attacks.coordinates import PublicKnowledge, fit_coordinates
from sparse_core.evaluation.checks import check_vectors
from sparse_core.evaluation.leakage import micro_leakage
from sparse_core.evaluation.metrics import top_columns, unit_rows

_RECORDS_PER_BLOCK = 512


@register
class NeighbourAttack:
    """Votes of the k nearest training records by cosine, weighted by similarity.

    Parameters
    ----------
    neighbours : sequence of int
        Candidates for k.
    sharpness : sequence of float
        Candidates for the exponent: a neighbour's vote is exp(sharpness * standardised similarity).
    scales : sequence of str
        Candidates among `Coordinates.scales`.
    prior_weight : float
        Weight of the training frequencies among the votes, in neighbours; orders tokens nobody names.
    """

    name = "neighbour"

    def __init__(
        self,
        *,
        neighbours: tuple[int, ...] = (5, 10, 20, 30, 50, 100),
        sharpness: tuple[float, ...] = (0.0, 1.0, 3.0),
        scales: tuple[str, ...] = ("readout", "faithful", "plain"),
        prior_weight: float = 0.5,
    ):
        self.neighbours = tuple(sorted(neighbours))
        self.sharpness = sharpness
        self.scales = scales
        self.prior_weight = prior_weight

    def fit(self, vectors: np.ndarray, labels: np.ndarray, *, public: PublicKnowledge, seed: int) -> "NeighbourAttack":
        """See `Attack.fit`. Scale, k and sharpness are those that guess best on held-out training records.

        Raises
        ------
        SparseError
            For unusable vectors, an empty vocabulary or fewer than 10 records.
        """
        vectors, labels = check_training(vectors, labels)
        self._public = public
        vectors = public.undo_readout(vectors)
        self._coordinates = fit_coordinates(vectors, public)
        whitened = self._coordinates.whitened(vectors)
        fit, validation = validation_rows(labels, seed=seed)
        judged = validation[labels[validation].any(axis=1)]
        best = (-1.0, self.scales[0], self.neighbours[0], self.sharpness[0])
        for scale in self.scales if len(judged) else ():
            units = unit_rows(whitened * self._coordinates.scales()[scale]).astype(np.float32)
            near, similarity = _nearest(units[judged], units[fit], self.neighbours[-1])
            for k in self.neighbours:
                for sharpness in self.sharpness:
                    votes = self._vote(near, similarity, labels[fit], k, sharpness)
                    best = max(best, (micro_leakage(votes, labels[judged]), scale, k, sharpness), key=lambda b: b[0])
        _, self.scale, self.k, self.chosen_sharpness = best
        self._units = unit_rows(whitened * self._coordinates.scales()[self.scale]).astype(np.float32)
        self._labels = labels
        return self

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """See `Attack.scores`. Probabilities are the weighted share of neighbours that hold a token.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        whitened = self._coordinates.whitened(self._public.undo_readout(vectors))
        units = unit_rows(whitened * self._coordinates.scales()[self.scale]).astype(np.float32)
        near, similarity = _nearest(units, self._units, self.k)
        return self._vote(near, similarity, self._labels, self.k, self.chosen_sharpness)

    def _vote(
        self, near: np.ndarray, similarity: np.ndarray, labels: np.ndarray, k: int, sharpness: float
    ) -> np.ndarray:
        from scipy.sparse import csr_array

        near, similarity = near[:, :k], similarity[:, :k]
        spread = similarity.std() or 1.0
        weights = np.exp(sharpness * (similarity - similarity.max(axis=1, keepdims=True)) / spread)
        starts = np.arange(0, near.size + 1, near.shape[1])
        votes = csr_array((weights.ravel(), near.ravel(), starts), shape=(len(near), len(labels)))
        counted = (votes @ csr_array(labels.astype(float))).toarray()
        prior = labels.mean(axis=0)
        return (counted + self.prior_weight * prior) / (weights.sum(axis=1, keepdims=True) + self.prior_weight)


def _nearest(units: np.ndarray, references: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    near, similar = [], []
    for start in range(0, len(units), _RECORDS_PER_BLOCK):
        similarity = units[start : start + _RECORDS_PER_BLOCK] @ references.T
        near.append(top_columns(similarity, k))
        similar.append(np.take_along_axis(similarity, near[-1], axis=1))
    return np.concatenate(near), np.concatenate(similar)
