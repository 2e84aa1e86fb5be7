"""Bases: orthogonal matrices whose leading columns are the directions in which a concept speaks.

Single coordinates of a sentence encoder are not privileged, so a mask over coordinates is close to isotropic
noise. A concept does live in few *directions*, which the functions here find from data.
"""

from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError

BASES = ("coordinate", "shift", "label", "blend")


@dataclass(frozen=True)
class Basis:
    """An orthogonal basis and how strongly the concept shows in each of its directions.

    Attributes
    ----------
    directions : float array, shape (n, n)
        Orthogonal; columns are directions, the concept's first, by falling strength.
    strength : float array, shape (n,)
        Share of the concept's energy along each direction, summing to 1; exactly 0 for the directions that
        only complete the basis. Uniform for ``coordinate``, which has no such order.
    """

    directions: np.ndarray
    strength: np.ndarray


def build_basis(
    name: str,
    *,
    embeddings: np.ndarray,
    positive: np.ndarray | None = None,
    negative: np.ndarray | None = None,
    token_labels: np.ndarray | None = None,
    directions: int | None = None,
) -> Basis:
    """Find the directions of a concept and complete them to an orthogonal basis.

    Parameters
    ----------
    name : {"coordinate", "shift", "label", "blend"}
        ``coordinate``: the encoder's own axes (arXiv 2602.07090). ``shift``: eigenvectors of
        mean (x+ - x-)(x+ - x-)^T, the directions in which removing the concept moves a sentence. ``label``: left
        singular vectors of the cross-covariance between embeddings and standardised token indicators; no linear
        attacker learns anything about those tokens outside their span (the theorem behind LEACE, Belrose et al.,
        NeurIPS 2023). ``blend``: eigenvectors of the sum of the ``shift`` and ``label`` matrices, each scaled to
        unit trace.
    embeddings : float array, shape (n_records, n)
    positive, negative : float array, shape (n_pairs, n)
        Sentences with the concept and the same sentences without it, row by row.
    token_labels : bool array, shape (n_records, n_tokens)
    directions : int, optional
        Keep at most this many concept directions; the others join the complement.

    Returns
    -------
    Basis
        The complement's columns are the principal components of ``embeddings`` there, so that a read-out knows
        the signal it may restore.

    Raises
    ------
    SparseError
        For an unknown name or missing material.
    """
    dimension = embeddings.shape[1]
    if name == "coordinate":
        return Basis(np.eye(dimension), np.full(dimension, 1 / dimension))
    if name == "shift":
        scatter = _shift_scatter(positive, negative)
    elif name == "label":
        scatter = _label_scatter(embeddings, token_labels)
    elif name == "blend":
        scatter = _unit_trace(_shift_scatter(positive, negative))
        scatter = scatter + _unit_trace(_label_scatter(embeddings, token_labels))
    else:
        raise SparseError(f"unknown basis {name!r}: choose one of {', '.join(BASES)}")
    return _basis_of(_unit_trace(scatter), embeddings, directions)


def complete_basis(columns: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Extend orthonormal ``columns`` (n, k) by the principal components of ``covariance`` in their complement."""
    dimension, count = columns.shape
    if count == dimension:
        return columns
    full, _ = np.linalg.qr(columns, mode="complete")
    complement = full[:, count:]
    _, vectors = np.linalg.eigh(complement.T @ covariance @ complement)
    return np.hstack([columns, complement @ vectors[:, ::-1]])


def _basis_of(scatter: np.ndarray, embeddings: np.ndarray, directions: int | None) -> Basis:
    energy, vectors = np.linalg.eigh(scatter)
    energy, vectors = energy[::-1], vectors[:, ::-1]
    count = int(np.sum(energy > 1e-9 * energy[0]))
    if directions is not None:
        count = min(count, directions)
    strength = np.zeros(len(energy))
    strength[:count] = energy[:count] / energy[:count].sum()
    covariance = np.cov(embeddings, rowvar=False, bias=True)
    return Basis(complete_basis(vectors[:, :count], covariance), strength)


def _shift_scatter(positive: np.ndarray | None, negative: np.ndarray | None) -> np.ndarray:
    if positive is None or negative is None:
        raise SparseError("this basis needs sentence pairs with and without the concept (positive, negative)")
    shift = positive - negative
    return shift.T @ shift / len(shift)


def _label_scatter(embeddings: np.ndarray, token_labels: np.ndarray | None) -> np.ndarray:
    if token_labels is None:
        raise SparseError("this basis needs token_labels; without them choose basis='shift'")
    indicators = np.asarray(token_labels, dtype=np.float64)
    deviation = indicators.std(axis=0)
    varies = deviation > 0
    if not varies.any():
        raise SparseError("token_labels are constant: no concept token separates one record from another")
    standardised = (indicators[:, varies] - indicators[:, varies].mean(axis=0)) / deviation[varies]
    crossed = (embeddings - embeddings.mean(axis=0)).T @ standardised / len(embeddings)
    return crossed @ crossed.T


def _unit_trace(matrix: np.ndarray) -> np.ndarray:
    trace = np.trace(matrix)
    if not trace > 0:
        raise SparseError("the concept does not move the embeddings at all: check its terms and the pairs")
    return matrix / trace
