"""Several concepts in one policy: the union of their masks."""

from collections.abc import Sequence

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import complete_basis
from sparse_core.positions import by_position

_NOISED = 1e-9


def unite_masks(masks: Sequence[Mask], *, weights: Sequence[float] | None = None) -> Mask:
    """Unite masks learned for one encoder.

    With U_i diag(m_i) U_i^T the noise shape of mask i, scaled to trace 1, the union has the noise shape
    sum_i w_i U_i diag(m_i) U_i^T: every direction that one of the concepts needs is noised, in proportion to the
    concept's weight, and one guarantee, that of the united Sigma, covers them all.

    Parameters
    ----------
    masks : sequence of Mask
        At least one, all for the same encoder.
    weights : sequence of float, optional
        Positive, one per mask; equal by default. Only their ratios matter.

    Returns
    -------
    Mask
        Its mean and covariance are the average of those of the masks, and its basis is named ``union``.

    Raises
    ------
    SparseError
        For no masks, weights that do not fit, or masks of different encoders.
    """
    masks = by_position(masks, "masks")
    if not masks:
        raise SparseError("There is no mask to unite.")
    weights = np.ones(len(masks)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights.shape != (len(masks),) or not np.isfinite(weights).all() or (weights <= 0).any():
        raise SparseError(f"Weights must be {len(masks)} finite numbers above 0, one per mask.")
    if len(masks) == 1:
        return masks[0]
    first = masks[0].info.encoder
    for mask in masks[1:]:
        if mask.info.encoder.space != first.space:
            raise SparseError(
                f"The masks are for different encoders, {first.model} ({first.dimension} dimensions) and "
                f"{mask.info.encoder.model} ({mask.info.encoder.dimension}); train them with the same one."
            )
    weights = weights / weights.sum()
    shape = sum(w * (m.basis * (m.values / m.values.sum())) @ m.basis.T for w, m in zip(weights, masks, strict=True))
    covariance = sum(m.basis @ m.covariance @ m.basis.T for m in masks) / len(masks)
    variances, columns = np.linalg.eigh(shape)
    noised = variances > _NOISED * variances[-1]
    basis = complete_basis(columns[:, noised][:, ::-1], covariance)
    values = np.zeros(len(basis))
    values[: noised.sum()] = variances[noised][::-1] / variances[-1]
    origins = {mask.info.learned_from for mask in masks}
    info = MaskInfo(
        concepts=tuple(dict.fromkeys(name for mask in masks for name in mask.info.concepts)),
        concept_fingerprint="+".join(mask.info.concept_fingerprint for mask in masks),
        salt="+".join(mask.info.salt for mask in masks),
        encoder=first,
        basis="union",
        penalty=float(np.mean([mask.info.penalty for mask in masks])),
        seed=masks[0].info.seed,
        learned_from=origins.pop() if len(origins) == 1 else None,
        metrics={},
    )
    return Mask(values, basis, np.mean([m.mean for m in masks], axis=0), basis.T @ covariance @ basis, info)
