"""Masks from an attacker's own attributions, for an adversary whose model is known (SPARSE-WB, arXiv 2602.07090)."""

import numpy as np

from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks.artifact import Mask, MaskInfo


def whitebox_mask(
    attacker,
    *,
    embeddings: np.ndarray,
    token_labels: np.ndarray,
    concepts: tuple[str, ...],
    concept_fingerprint: str,
    salt: str,
    encoder: EncoderSpec,
    basis: np.ndarray | None = None,
    share: float = 0.9,
    steps: int = 32,
    seed: int = 0,
    device: str = "cpu",
) -> Mask:
    """Mask the directions that a given attacker reads the concept from.

    Integrated Gradients (Sundararajan et al., ICML 2017; Captum's implementation) attribute the attacker's score
    of each true token to the coordinates of its record, starting from the mean embedding. The mask takes the
    fewest directions that hold ``share`` of the mean absolute attribution.

    Such a mask is as good as the attacker is typical: one who is trained on the protected vectors reads what is
    left. Prefer `learn_mask` where the adversary is not known.

    Parameters
    ----------
    attacker : torch.nn.Module
        Maps float32 embeddings (rows, n) to scores (rows, n_tokens).
    embeddings : float array, shape (n_records, n)
    token_labels : bool array, shape (n_records, n_tokens)
    concepts, concept_fingerprint, salt, encoder
        Recorded in the mask, see `MaskInfo`.
    basis : float array, shape (n, n), optional
        Orthogonal; columns are directions. The encoder's own axes if not given.
    share : float
        In (0, 1).
    steps : int
        Points of the path integral.
    seed : int
        Recorded; the mask itself draws nothing.
    device : str

    Raises
    ------
    SparseError
        If Captum is not installed, no record has a token, or the attacker ignores its input.
    """
    if not 0 < share < 1:
        raise SparseError(f"share is {share}: it must lie between 0 and 1")
    embeddings = np.asarray(embeddings, dtype=np.float64)
    token_labels = np.asarray(token_labels, dtype=bool)
    dimension = embeddings.shape[1]
    directions = np.eye(dimension) if basis is None else np.asarray(basis, dtype=np.float64)
    attribution = _mean_attribution(attacker, embeddings, token_labels, directions, steps, device)
    if not np.isfinite(attribution).all() or not attribution.sum() > 0:
        raise SparseError("the attacker's scores do not depend on the embeddings: train it first")
    order = np.argsort(-attribution)
    held = np.cumsum(attribution[order]) / attribution.sum()
    values = np.zeros(dimension)
    values[order[: int(np.searchsorted(held, share)) + 1]] = 1.0
    info = MaskInfo(
        concepts=tuple(concepts),
        concept_fingerprint=concept_fingerprint,
        salt=salt,
        encoder=encoder,
        basis="whitebox-coordinate" if basis is None else "whitebox",
        penalty=0.0,
        seed=int(seed),
        metrics={
            "directions_open": float(values.sum()),
            "attribution_open": float(attribution @ values / attribution.sum()),
        },
    )
    covariance = directions.T @ np.cov(embeddings, rowvar=False, bias=True) @ directions
    return Mask(values, directions, embeddings.mean(axis=0), covariance, info)


def _mean_attribution(attacker, embeddings, token_labels, directions, steps, device) -> np.ndarray:
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        raise SparseError("white-box masks need Captum: pip install captum") from None
    import torch

    records, tokens = np.nonzero(token_labels)
    if not len(records):
        raise SparseError("token_labels are all false: no record has a token to attribute")
    mean = embeddings.mean(axis=0)
    as_tensor = {"dtype": torch.float32, "device": device}
    axes, centre = torch.tensor(directions, **as_tensor), torch.tensor(mean, **as_tensor)
    coordinates = (embeddings - mean) @ directions
    attacker = attacker.to(device).eval()
    gradients = IntegratedGradients(lambda rows: attacker(rows @ axes.T + centre))
    total = np.zeros(len(mean))
    for start in range(0, len(records), 512):
        batch = slice(start, start + 512)
        attributed = gradients.attribute(
            torch.tensor(coordinates[records[batch]], **as_tensor),
            target=torch.tensor(tokens[batch], device=device),
            n_steps=steps,
        )
        total += attributed.abs().sum(dim=0).double().cpu().numpy()
    return total / len(records)
