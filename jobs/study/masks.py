"""The masks of trials."""

from __future__ import annotations

import numpy as np

from jobs.study.material import Prepared
from jobs.study.space import Parameters
from sparse_core.masks import Mask, MaskInfo, learn_mask

_LEARNING = ("directions", "epochs", "learning_rate", "gate_learning_rate")


def learn(prepared: Prepared, parameters: Parameters) -> Mask:
    """The mask that these parameters ask for.

    Raises
    ------
    SparseError
        If no gate or every gate stays open, or training diverges.
    """
    settings = {name: getattr(prepared.training, name) for name in _LEARNING}
    if parameters.directions is not None:
        settings["directions"] = parameters.directions
    return learn_mask(
        embeddings=prepared.material.vectors[prepared.mask_rows],
        **prepared.mask_inputs[parameters.basis, parameters.removal],
        **prepared.named,
        basis=parameters.basis,
        penalty=parameters.penalty,
        seed=parameters.seed,
        **settings,
    )


def without_directions(prepared: Prepared) -> Mask:
    """Mean and covariance of the records masks are learned from, for the read-out of noise that no mask shapes."""
    from sklearn.covariance import ledoit_wolf

    vectors = prepared.material.vectors[prepared.mask_rows].astype(np.float64)
    dimension = vectors.shape[1]
    info = MaskInfo(**prepared.named, basis="none", penalty=0.0, seed=0, metrics={})
    covariance, _ = ledoit_wolf(vectors)
    return Mask(np.zeros(dimension), np.eye(dimension), vectors.mean(axis=0), covariance, info)


def described(mask: Mask) -> dict:
    """A mask in a trial's record."""
    closed = float(np.mean(mask.values == 0))
    return {"values": mask.values.tolist(), "sparsity": closed, **mask.info.metrics}
