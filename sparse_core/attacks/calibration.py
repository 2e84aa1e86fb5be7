"""Turn scores into probabilities without changing their order."""

import numpy as np
from scipy.special import expit


def fit_logistic(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Slope and offset of a logistic curve through scores (Platt 2000), shared by all tokens.

    Parameters
    ----------
    scores : float array
        Of any shape.
    labels : bool array of the same shape
        Whether the token was there.

    Returns
    -------
    slope, offset : float
        Maximum likelihood by Newton's method with a slight prior; the slope is kept positive, so
        that `expit(slope * scores + offset)` orders tokens as the scores do. (1, 0) without scores.
    """
    x, y = np.ravel(scores).astype(float), np.ravel(labels).astype(float)
    if len(x) == 0:
        return 1.0, 0.0
    center, spread = x.mean(), x.std() or 1.0
    design = np.column_stack([(x - center) / spread, np.ones_like(x)])
    rate = (y.sum() + 0.5) / (len(y) + 1)
    weights = np.array([0.0, np.log(rate / (1 - rate))])
    prior = np.array([1e-2, 1e-6])
    for _ in range(50):
        fitted = expit(design @ weights)
        gradient = design.T @ (y - fitted) - prior * weights
        curvature = design.T @ (design * (fitted * (1 - fitted))[:, None]) + np.diag(prior)
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step / max(1.0, np.abs(step).max() / 2)
        if np.abs(step).max() < 1e-8:
            break
    slope = max(weights[0], 1e-3) / spread
    return float(slope), float(weights[1] - slope * center)
