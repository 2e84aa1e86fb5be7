"""Masks from an attacker's own attributions, for an adversary whose model is known (SPARSE-WB, arXiv 2602.07090)."""

import importlib.util

import numpy as np
from scipy import sparse

from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import complete_basis, concept_directions

WHITEBOX_BASES = {"whitebox": 0.9, "whitebox-label": 0.5}
"""Names of white-box bases, each with the share of the attributions that a mask over it covers by default.

A mask over coordinates that covers less leaves most of the concept to a trained attacker; one over label directions
that covers more spreads its noise over directions that the concept hardly shows in."""


def require_captum() -> None:
    """Refuse to go on without Captum.

    Raises
    ------
    SparseError
        Naming the extra that brings it.
    """
    if importlib.util.find_spec("captum") is None:
        raise SparseError(
            "White-box masks need Captum, which is not installed. Install the extra 'whitebox': "
            "pip install 'sparse-embeddings[whitebox]'"
        )


def label_basis(embeddings: np.ndarray, token_labels: np.ndarray | sparse.sparray) -> np.ndarray:
    """The basis of ``whitebox-label``: label directions, strongest first, then principal components of the rest.

    Parameters
    ----------
    embeddings : float array, shape (n_records, n)
    token_labels : bool array, dense or SciPy sparse, shape (n_records, n_tokens)

    Returns
    -------
    float64 array, shape (n, n)
        Orthogonal; columns are directions. See `concept_directions`.
    """
    embeddings = np.asarray(embeddings, dtype=np.float64)
    covariance = np.cov(embeddings, rowvar=False, bias=True)
    found = concept_directions("label", embeddings=embeddings, covariance=covariance, token_labels=token_labels)
    return complete_basis(found.patterns, covariance)


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
    basis_name: str = "subspace",
    share: float = WHITEBOX_BASES["whitebox"],
    steps: int = 32,
    seed: int = 0,
    device: str = "cpu",
) -> Mask:
    """Mask the directions that a given attacker reads the concept from.

    Integrated Gradients (Sundararajan et al., ICML 2017; Captum's implementation) attribute the attacker's score
    of each true token to the coordinates of its record, starting from the mean embedding. The mask takes the
    fewest directions that hold ``share`` of the mean absolute attribution.

    Such a mask is as good as the attacker is typical: one who is trained on the protected vectors reads what is
    left: in our audit of clinical sentences more than under isotropic noise of the same length, where the mask is
    over coordinates. Prefer `learn_mask` where the adversary is not known.

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
    basis_name : str
        What the mask calls that basis: ``whitebox-<basis_name>``. Without one it is ``whitebox``.
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
    from sklearn.covariance import ledoit_wolf

    require_captum()
    if not 0 < share < 1:
        raise SparseError(f"share is {share}: it must lie between 0 and 1")
    embeddings = np.asarray(embeddings, dtype=np.float64)
    token_labels = np.asarray(token_labels, dtype=bool)
    dimension = embeddings.shape[1]
    directions = np.eye(dimension) if basis is None else np.ascontiguousarray(basis, dtype=np.float64)
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
        basis="whitebox" if basis is None else f"whitebox-{basis_name}",
        penalty=0.0,
        seed=int(seed),
        metrics={
            "directions_open": float(values.sum()),
            "attribution_open": float(attribution @ values / attribution.sum()),
        },
    )
    covariance, _ = ledoit_wolf(embeddings)
    return Mask(values, directions, embeddings.mean(axis=0), directions.T @ covariance @ directions, info)


def _mean_attribution(attacker, embeddings, token_labels, directions, steps, device) -> np.ndarray:
    import torch
    from captum.attr import IntegratedGradients

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
