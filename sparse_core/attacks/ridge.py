"""The Sigma-aware linear probe.

The best linear estimate of a token's indicator from a noised vector (the Bayes linear estimate, or
Wiener filter) is a ridge regression in coordinates that Sigma makes comparable. Which prior on the
regression weights is right is not known beforehand, so several coordinates (`Coordinates.transforms`)
and penalties are tried, and those that guess best on held-out training records win.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit

from sparse_core.attacks.base import check_training, check_transforms, register, validation_folds
from sparse_core.attacks.calibration import fit_logistic
from sparse_core.attacks.coordinates import fit_coordinates
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.evaluation.checks import check_vectors
from sparse_core.evaluation.leakage import guess_hits


@register
class RidgeAttack:
    """Multi-label ridge regression, coordinates and penalty by cross-validation.

    Parameters
    ----------
    penalties : sequence of float
        Candidates, in units of the mean eigenvalue of the features' Gram matrix.
    transforms : sequence of str
        Candidate coordinates, keys of `Coordinates.transforms`.
    n_folds : int
        Of the cross-validation inside the training records.
    """

    name = "ridge"

    def __init__(
        self,
        *,
        penalties: tuple[float, ...] = tuple(10.0 ** np.arange(-5, 3.1, 0.5)),
        transforms: tuple[str, ...] = ("faithful", "whitened", "readout"),
        n_folds: int = 3,
    ):
        self.penalties = tuple(sorted(penalties, reverse=True))
        self.transforms = check_transforms(transforms)
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
    ) -> "RidgeAttack":
        """See `Attack.fit`. Closed form: one eigendecomposition per fold and transform, one to refit.

        All draws of a record are on one side of a fold, and only the first is judged.

        Raises
        ------
        SparseError
            For unusable vectors, an empty vocabulary or fewer than 10 records.
        """
        vectors, labels, draws = check_training(vectors, labels, draws)
        self._coordinates = fit_coordinates(vectors, public)
        folds = validation_folds(labels, n_folds=self.n_folds, seed=seed)
        truth = np.concatenate([labels[judged] for _, judged in folds])
        best_hits, repeats = -1, (len(draws), 1)
        for transform in self.transforms:
            features, *others = (self._coordinates.features(draw, transform) for draw in draws)
            paths = [
                ridge_path(np.concatenate([part[fit] for part in (features, *others)]), np.tile(labels[fit], repeats))
                for fit, _ in folds
            ]
            for penalty in self.penalties:
                models = [solve(penalty) for solve in paths]
                estimates = np.concatenate(
                    [features[judged] @ w + c for (w, c), (_, judged) in zip(models, folds, strict=True)]
                )
                hits = np.count_nonzero(guess_hits(estimates, truth))
                if hits > best_hits:
                    best_hits, self.transform, self.penalty, chosen = hits, transform, penalty, estimates
        self._slope, self._shift = fit_logistic(chosen, truth)
        features = np.concatenate([self._coordinates.features(draw, self.transform) for draw in draws])
        self._weights, self._offset = ridge_path(features, np.tile(labels, repeats))(self.penalty)
        return self

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """See `Attack.scores`. Probabilities are logistic in the linear estimate.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        features = self._coordinates.features(vectors, self.transform)
        return expit(self._slope * (features @ self._weights + self._offset) + self._shift)


def ridge_path(features: np.ndarray, labels: np.ndarray) -> Callable[[float], tuple[np.ndarray, np.ndarray]]:
    """Ridge regressions for any penalty from one eigendecomposition of the smaller Gram matrix.

    Parameters
    ----------
    features : float array, shape (n_records, n_features)
    labels : bool array, shape (n_records, n_tokens)

    Returns
    -------
    callable
        From a penalty, in units of the mean eigenvalue of the centred Gram matrix, to weights of
        shape (n_features, n_tokens) and offsets of shape (n_tokens,).
    """
    center, rate = features.mean(axis=0), labels.mean(axis=0)
    features = features - center
    targets = labels - rate
    n_records, n_features = features.shape
    if n_records < n_features:
        values, left = np.linalg.eigh(features @ features.T)
        keep = values > 1e-10 * values[-1]
        values, right = values[keep], features.T @ (left[:, keep] / np.sqrt(values[keep]))
    else:
        values, right = np.linalg.eigh(features.T @ features)
    projected = right.T @ (features.T @ targets)
    unit = max(values.sum() / n_features, np.finfo(float).tiny)

    def solve(penalty: float) -> tuple[np.ndarray, np.ndarray]:
        weights = right @ (projected / (np.maximum(values, 0) + penalty * unit)[:, None])
        return weights, rate - center @ weights

    return solve
