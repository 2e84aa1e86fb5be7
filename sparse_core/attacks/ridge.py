"""The Sigma-aware linear probe.

The best linear estimate of a token's indicator from a noised vector (the Bayes linear estimate, or
Wiener filter) is a ridge regression in coordinates that Sigma makes comparable. Which prior on the
regression weights is right is not known beforehand, so coordinates are scaled in several ways (see
`Coordinates.scales`) and the scale and the penalty that guess best on held-out training records win.
"""

import numpy as np
from scipy.special import expit

from sparse_core.attacks.base import check_training, register, validation_rows
from sparse_core.attacks.calibration import fit_logistic
from sparse_core.attacks.coordinates import PublicKnowledge, fit_coordinates
from sparse_core.evaluation.checks import check_vectors
from sparse_core.evaluation.leakage import micro_leakage


@register
class RidgeAttack:
    """Multi-label ridge regression on whitened coordinates.

    Parameters
    ----------
    penalties : sequence of float
        Candidates, in units of the mean eigenvalue of the scaled coordinates' Gram matrix.
    scales : sequence of str
        Candidates among `Coordinates.scales`.
    """

    name = "ridge"

    def __init__(
        self,
        *,
        penalties: tuple[float, ...] = tuple(10.0 ** np.arange(-3, 3.1, 0.5)),
        scales: tuple[str, ...] = ("faithful", "whitened", "readout"),
    ):
        self.penalties = tuple(sorted(penalties, reverse=True))
        self.scales = scales

    def fit(self, vectors: np.ndarray, labels: np.ndarray, *, public: PublicKnowledge, seed: int) -> "RidgeAttack":
        """See `Attack.fit`. Closed form: one eigendecomposition per scale, and one to refit.

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
        best = (-1.0, "", 0.0)
        for scale in self.scales:
            scaled = whitened * self._coordinates.scales()[scale]
            solve = _ridge_path(scaled[fit], labels[fit])
            for penalty in self.penalties:
                weights, offset = solve(penalty)
                leakage = micro_leakage(scaled[judged] @ weights + offset, labels[judged]) if len(judged) else 0.0
                if leakage > best[0]:
                    best = (leakage, scale, penalty)
                    calibration = fit_logistic(scaled[validation] @ weights + offset, labels[validation])
        _, self.scale, self.penalty = best
        self._slope, self._shift = calibration
        scale = self._coordinates.scales()[self.scale]
        weights, self._offset = _ridge_path(whitened * scale, labels)(self.penalty)
        self._weights = weights * scale[:, None]
        return self

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """See `Attack.scores`. Probabilities are logistic in the linear estimate.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        whitened = self._coordinates.whitened(self._public.undo_readout(vectors))
        return expit(self._slope * (whitened @ self._weights + self._offset) + self._shift)


def _ridge_path(features: np.ndarray, labels: np.ndarray):
    """Solve ridge for any penalty from one eigendecomposition of the smaller Gram matrix."""
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
    unit = max(values.mean(), np.finfo(float).tiny)

    def solve(penalty: float) -> tuple[np.ndarray, np.ndarray]:
        weights = right @ (projected / (np.maximum(values, 0) + penalty * unit)[:, None])
        return weights, rate - center @ weights

    return solve
