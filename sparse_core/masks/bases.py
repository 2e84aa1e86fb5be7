"""Bases: the directions in which a concept speaks, found from data.

Single coordinates of a sentence encoder are not privileged, so a mask over coordinates is close to isotropic
noise. A concept does live in directions, and a mask over those leaves most of a sentence's meaning in the clear.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from sparse_core.errors import SparseError

# What labels add to substitution: the context that gives a value away. At 1, STS12 leaks less at equal utility but the
# clinical sections, which that context tells, are told less well; at 0.1 both corpora leak more at equal utility.
LABEL_SHARE = 0.5
NEIGHBOURS = 5
MAX_NEIGHBOUR_RECORDS = 4000  # enough for a covariance of several hundred dimensions; the search is quadratic
BASES = ("substitution", "blend", "erasure", "label", "shift", "coordinate")


@dataclass(frozen=True)
class ConceptDirections:
    """Candidate directions of a concept, strongest first.

    Attributes
    ----------
    patterns : float array, shape (n, k)
        How each shows in an embedding: noise along a pattern hides it.
    filters : float array, shape (n, k)
        How each is read from an embedding, ``filters.T @ patterns = identity``. Equal to ``patterns`` where
        directions are orthogonal.
    strength : float array, shape (k,)
        Share of the concept's energy along each, summing to 1 where none is left out.
    cost : float array, shape (k,)
        Share of the utility lost by hiding each, as far as known: 1/n where directions are not weighed.
    """

    patterns: np.ndarray
    filters: np.ndarray
    strength: np.ndarray
    cost: np.ndarray


def concept_directions(
    basis: str,
    *,
    embeddings: np.ndarray,
    covariance: np.ndarray,
    positive: np.ndarray | None = None,
    negative: np.ndarray | None = None,
    token_labels: np.ndarray | sparse.sparray | None = None,
    substitutions: np.ndarray | None = None,
    penalty: float = 0.0,
    limit: int | None = None,
) -> ConceptDirections:
    """Find the directions of a concept.

    Parameters
    ----------
    basis : {"substitution", "blend", "erasure", "label", "shift", "coordinate"}
        ``label``: left singular vectors of the cross-covariance M between embeddings and standardised token
        indicators; outside their span no linear attacker learns anything about those tokens. ``shift``:
        eigenvectors of D = mean (x+ - x-)(x+ - x-)^T, where removing the concept moves a sentence. ``erasure``:
        ``label`` for whitened embeddings, with noise on C^(1/2) V, V the leading eigenvectors of
        C^(-1/2) M M^T C^(-1/2) (the directions that LEACE erases: Belrose et al., NeurIPS 2023). Among noises
        that drown so many directions it leaves a linear attacker the least: the explained label variance
        tr(M^T (C+N)^-1 M) is linear in (C+N)^-1 <= C^-1, hence smallest where N is infinite on such directions
        and nothing elsewhere. ``blend``: ``erasure`` of M M^T and D together, each scaled to the same whitened
        energy; the pairs say what few labels cannot. ``substitution``: D together with S, the scatter of how each
        value of the concept moves the same sentences, likewise whitened and scaled. Labels mix what a value does
        to a vector with the sentences that it happens to stand in, and the rarer a value, the worse; S holds the
        sentence fixed, so it needs no more than a few sentences per value and leaves the rest of their meaning
        alone. Token labels, where given, join with half the weight, for the context that gives a value away.
        ``coordinate``: the encoder's own axes, which have no order (arXiv 2602.07090).
    embeddings : float array, shape (n_records, n)
    covariance : float array, shape (n, n)
        Of the embeddings; positive definite.
    positive, negative : float array, shape (n_pairs, n)
        Sentences with the concept and the same sentences without it, row by row.
    token_labels : bool array, dense or SciPy sparse, shape (n_records, n_tokens)
    substitutions : float array, shape (n_contexts, n_values, n)
        Each context sentence with each value of the concept in its place.
    penalty : float
        Price of utility in units of concept energy, for the whitened bases (``erasure``, ``blend``,
        ``substitution``). With A their whitened scatter and U that of `fine_distinctions`, both of trace 1, and
        K = (I + N)^-1 what whitened noise N leaves, 0 <= K <= I: a linear attacker reads tr(K A), the read-out
        keeps tr(K U) of utility. Both are linear in K, so tr(K (A - penalty U)) is least where noise drowns the
        eigenvectors of A - penalty U with positive eigenvalues and spares the rest; those are the directions. At 0
        they are the eigenvectors of A, whatever else they carry.
    limit : int, optional
        Keep the directions with most to gain, strength - penalty * cost.

    Raises
    ------
    SparseError
        For an unknown name or missing material.
    """
    if basis == "coordinate":
        axes = np.eye(embeddings.shape[1])
        return _unweighed(axes, np.full(len(axes), 1 / len(axes)))
    if basis == "label":
        return _orthogonal(_label_scatter(embeddings, token_labels), limit)
    if basis == "shift":
        return _orthogonal(_shift_scatter(positive, negative), limit)
    scatters = []
    if basis in ("erasure", "blend") or (basis == "substitution" and token_labels is not None):
        share = LABEL_SHARE if basis == "substitution" else 1.0
        scatters.append((share, _label_scatter(embeddings, token_labels)))
    if basis in ("blend", "substitution"):
        scatters.append((1.0, _shift_scatter(positive, negative)))
    if basis == "substitution":
        scatters.append((1.0, _substitution_scatter(substitutions)))
    if scatters:
        utility = fine_distinctions(embeddings) if penalty > 0 else np.zeros_like(covariance)
        return _whitened(scatters, covariance, utility, penalty, limit)
    raise SparseError(f"unknown basis {basis!r}: choose one of {', '.join(BASES)}")


def noise_shape(
    directions: ConceptDirections, gates: np.ndarray, covariance: np.ndarray, *, graded: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Turn gates on concept directions into a mask over an orthogonal basis.

    Parameters
    ----------
    directions : ConceptDirections
    gates : float array, shape (k,), in [0, 1]
    covariance : float array, shape (n, n)
        Of the embeddings; positive definite.
    graded : bool
        Noise in proportion to the signal it must hide, so that every hidden direction keeps the same
        signal-to-noise ratio: with P the open patterns, N is proportional to P (P^T C^-1 P)^-1 P^T, the covariance
        of an embedding given all that stays in the clear. Otherwise as much noise in every open direction.

    Returns
    -------
    values : float array, shape (n,), in [0, 1]
    basis : float array, shape (n, n)
        Orthogonal. Columns after the noised ones are the principal components of what stays in the clear.
    """
    open_gates = gates > 0
    patterns, weights = directions.patterns[:, open_gates], gates[open_gates]
    values = np.zeros(len(patterns))
    if graded:
        hidden = np.linalg.inv(patterns.T @ np.linalg.solve(covariance, patterns))
        factor = patterns @ (np.sqrt(weights)[:, None] * np.linalg.cholesky(hidden))
        columns, scales, _ = np.linalg.svd(factor, full_matrices=False)
        values[: len(scales)] = (scales / scales[0]) ** 2
    else:
        columns, _ = np.linalg.qr(patterns)
        values[: len(weights)] = weights
    return values, complete_basis(columns, covariance)


def complete_basis(columns: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Extend orthonormal ``columns`` (n, k) by the principal components of ``covariance`` in their complement."""
    dimension, count = columns.shape
    if count == dimension:
        return columns
    full, _ = np.linalg.qr(columns, mode="complete")
    complement = full[:, count:]
    _, vectors = np.linalg.eigh(complement.T @ covariance @ complement)
    return np.hstack([columns, complement @ vectors[:, ::-1]])


def fine_distinctions(embeddings: np.ndarray) -> np.ndarray:
    """Estimate what tells a sentence from the sentences most like it: search and similarity live on that.

    The covariance of embeddings weighs topics, which a read-out keeps anyway; that of the differences between
    nearest neighbours weighs what similarity scores must still resolve.

    Parameters
    ----------
    embeddings : float array, shape (n_records, n)
        Of a large corpus, 4000 records at even steps are used.

    Returns
    -------
    float array, shape (n, n)
        Covariance of the differences between records and their five nearest others (exact duplicates count once),
        shrunk as by Ledoit and Wolf; positive definite.
    """
    from sklearn.covariance import ledoit_wolf

    steps = np.linspace(0, len(embeddings) - 1, min(len(embeddings), MAX_NEIGHBOUR_RECORDS)).astype(int)
    records = np.unique(embeddings[steps], axis=0)
    if len(records) < 2:
        raise SparseError("all embeddings are the same: a mask needs records that differ")
    squares = np.sum(records**2, axis=1)
    distances = squares[:, None] + squares - 2 * records @ records.T
    np.fill_diagonal(distances, np.inf)
    count = min(NEIGHBOURS, len(records) - 1)
    nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
    differences = (records[:, None] - records[nearest]).reshape(-1, records.shape[1])
    return ledoit_wolf(differences, assume_centered=True)[0]


def _unweighed(vectors: np.ndarray, strength: np.ndarray) -> ConceptDirections:
    return ConceptDirections(vectors, vectors, strength, np.full(len(strength), 1 / len(vectors)))


def _orthogonal(scatter: np.ndarray, limit: int | None) -> ConceptDirections:
    energy, vectors = np.linalg.eigh(scatter)
    chosen = _leading(energy, energy, limit)
    return _unweighed(vectors[:, chosen], energy[chosen] / energy.sum())


def _whitened(
    scatters: list[tuple[float, np.ndarray]],
    covariance: np.ndarray,
    utility: np.ndarray,
    penalty: float,
    limit: int | None,
) -> ConceptDirections:
    variance, axes = np.linalg.eigh(covariance)
    root, inverse_root = axes * np.sqrt(variance) @ axes.T, axes / np.sqrt(variance) @ axes.T
    total = np.zeros_like(covariance)
    for weight, scatter in scatters:
        whitened = inverse_root @ scatter @ inverse_root
        total += weight * whitened / np.trace(whitened)
    total /= np.trace(total)
    # C^(1/2) (C^(-1/2) U C^(-1/2)) C^(1/2): whitened differences, each weighed by what the read-out makes of it.
    utility = utility / (np.trace(utility) or 1.0)
    gain, vectors = np.linalg.eigh(total - penalty * utility)
    strength, cost = (np.einsum("ij,ik,kj->j", vectors, matrix, vectors, optimize=True) for matrix in (total, utility))
    chosen = _leading(gain, strength, limit)
    vectors = vectors[:, chosen]
    return ConceptDirections(root @ vectors, inverse_root @ vectors, strength[chosen], cost[chosen])


def _leading(order: np.ndarray, energy: np.ndarray, limit: int | None) -> np.ndarray:
    """Indices with any energy, by descending `order`, at most `limit` of them."""
    falling = np.argsort(-order, kind="stable")
    return falling[energy[falling] > 1e-9 * energy.max()][:limit]


def _shift_scatter(positive: np.ndarray | None, negative: np.ndarray | None) -> np.ndarray:
    if positive is None or negative is None:
        raise SparseError("this basis needs sentence pairs with and without the concept (positive, negative)")
    shift = positive - negative
    if not shift.any():
        raise SparseError("removing the concept does not move a single embedding: check its terms and the pairs")
    return shift.T @ shift / len(shift)


def _substitution_scatter(substitutions: np.ndarray | None) -> np.ndarray:
    if substitutions is None or substitutions.shape[1] < 2:
        raise SparseError(
            "basis 'substitution' needs sentences with different values of the concept put in; for a concept of a "
            "single value choose basis='shift'"
        )
    effects = substitutions.mean(axis=0)
    effects = effects - effects.mean(axis=0)
    return effects.T @ effects / len(effects)


def _label_scatter(embeddings: np.ndarray, token_labels: np.ndarray | sparse.sparray | None) -> np.ndarray:
    if token_labels is None:
        raise SparseError("this basis needs token_labels; without them choose basis='shift'")
    indicators = sparse.csc_array(token_labels, dtype=np.float64)
    count = indicators.sum(axis=0)
    varies = (count > 0) & (count < len(embeddings))
    if not varies.any():
        raise SparseError("token_labels are constant: no concept token tells one record from another")
    centred = embeddings - embeddings.mean(axis=0)
    crossed = indicators[:, varies].T @ centred / len(centred)
    rate = count[varies, None] / len(centred)
    crossed /= np.sqrt(rate * (1 - rate))
    return crossed.T @ crossed
