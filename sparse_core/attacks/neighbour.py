"""Token transfer from the nearest records whose text the attacker knows.

The attacker holds protected vectors with their texts (earlier releases, or its own records run
through the public mechanism) and lets the records nearest to the victim vote on the tokens.
Distances are taken after the Wiener read-out or in jointly whitened coordinates, which is how a
careful attacker would denoise; which of them is chosen on held-out training records.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy.special import expit, logit

from sparse_core.attacks.base import check_training, check_transforms, register, validation_folds
from sparse_core.attacks.calibration import fit_logistic
from sparse_core.attacks.coordinates import fit_coordinates
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.leakage import guess_hits
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
        Candidates for how fast votes fall: exp(sharpness * similarity in standard deviations).
    transforms : sequence of str
        Candidate coordinates, keys of `Coordinates.transforms`.
    prior_weight : float
        Weight of the training frequencies among the votes, in neighbours; orders tokens nobody names.
    n_folds : int
        Of the cross-validation inside the training records.
    """

    name = "neighbour"

    def __init__(
        self,
        *,
        neighbours: tuple[int, ...] = (5, 10, 20, 30, 50, 100),
        sharpness: tuple[float, ...] = (0.0, 1.0, 3.0),
        transforms: tuple[str, ...] = ("readout", "joint", "plain"),
        prior_weight: float = 0.5,
        n_folds: int = 3,
    ):
        self.neighbours = tuple(sorted(neighbours))
        self.sharpness = sharpness
        self.transforms = check_transforms(transforms)
        self.prior_weight = prior_weight
        self.n_folds = n_folds

    def fit(
        self,
        vectors: np.ndarray,
        labels: np.ndarray,
        *,
        public: PublicKnowledge,
        seed: int,
        unprotected: np.ndarray | None = None,
        draws: Sequence[np.ndarray] = (),
    ) -> "NeighbourAttack":
        """See `Attack.fit`. Coordinates, k, sharpness, and whether victims are compared with protected or with
        unprotected records, are those that guess best in cross-validation. Draws are not used: unprotected vectors
        are what their mean tends to.

        Raises
        ------
        SparseError
            For unusable vectors, an empty vocabulary or fewer than 10 records.
        """
        vectors, labels, _ = check_training(vectors, labels)
        references = [vectors] if unprotected is None else [vectors, check_vectors(unprotected, "unprotected")]
        check_same_length(vectors=vectors, reference=references[-1])
        folds = [
            (fit, judged, fit_coordinates(vectors[fit], public))
            for fit, judged in validation_folds(labels, n_folds=self.n_folds, seed=seed)
            if len(judged)
        ]
        best_hits = -1
        for transform, reference in product(self.transforms, references):
            neighbourhoods = []
            for fit, judged, coordinates in folds:
                known = _units(coordinates.features(reference[fit], transform))
                victims = _units(coordinates.features(vectors[judged], transform))
                neighbourhoods.append((*_nearest(victims, known, self.neighbours[-1]), labels[fit]))
            for k, sharpness in product(self.neighbours, self.sharpness):
                votes = [self._vote(*neighbourhood, k, sharpness) for neighbourhood in neighbourhoods]
                hits = sum(np.count_nonzero(guess_hits(v, labels[f[1]])) for v, f in zip(votes, folds, strict=True))
                if hits > best_hits:
                    best_hits, held_out = hits, votes
                    self.transform, self.k, self.chosen_sharpness = transform, k, sharpness
                    compared = reference
        truth = [labels[judged] for _, judged, _ in folds]
        self._slope, self._shift = fit_logistic(logit(_stack(held_out, labels)), _stack(truth, labels))
        self._coordinates = fit_coordinates(vectors, public)
        self._known = _units(self._coordinates.features(compared, self.transform))
        self._labels = labels
        return self

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """See `Attack.scores`. Probabilities are logistic in the log odds of the weighted votes.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        victims = _units(self._coordinates.features(vectors, self.transform))
        near, similarity = _nearest(victims, self._known, self.k)
        votes = self._vote(near, similarity, self._labels, self.k, self.chosen_sharpness)
        return expit(self._slope * logit(votes) + self._shift)

    def _vote(
        self, near: np.ndarray, similarity: np.ndarray, labels: np.ndarray, k: int, sharpness: float
    ) -> np.ndarray:
        from scipy.sparse import csr_array

        near, similarity = near[:, :k], similarity[:, :k]
        spread = similarity.std() or 1.0
        weights = np.exp(sharpness * (similarity - similarity[:, :1]) / spread)
        starts = np.arange(0, near.size + 1, near.shape[1])
        votes = csr_array((weights.ravel(), near.ravel(), starts), shape=(len(near), len(labels)))
        counted = (votes @ csr_array(labels.astype(float))).toarray()
        prior = (labels.sum(axis=0) + 0.5) / (len(labels) + 1)
        return (counted + self.prior_weight * prior) / (weights.sum(axis=1, keepdims=True) + self.prior_weight)


def _stack(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.concatenate([np.empty((0, labels.shape[1])), *parts])


def _units(features: np.ndarray) -> np.ndarray:
    return unit_rows(features).astype(np.float32)


def _nearest(victims: np.ndarray, known: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    near, similar = [], []
    for start in range(0, len(victims), _RECORDS_PER_BLOCK):
        similarity = victims[start : start + _RECORDS_PER_BLOCK] @ known.T
        near.append(top_columns(similarity, k))
        similar.append(np.take_along_axis(similarity, near[-1], axis=1))
    return np.concatenate(near), np.concatenate(similar)
