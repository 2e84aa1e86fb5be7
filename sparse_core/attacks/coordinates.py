"""What everyone knows of a protection, and the coordinates an attacker derives from it."""

from dataclasses import dataclass, replace

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_vectors

_SMALLEST_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """What an attacker is given: the noise law and the read-out, never the noise.

    A protected vector is y = x + z, or after a read-out mean + U diag(shrinkage) U^T (y - mean),
    possibly scaled to norm 1. Every field may be None where nothing is known, as for vectors
    protected by another tool; attacks then estimate what they need from their training records.

    Parameters
    ----------
    basis : float array, shape (n, n), optional
        Orthogonal U; columns are directions. The identity if not given.
    noise_variance : float array, shape (n,), optional
        E[z_i^2] along each direction, before any read-out.
    mean : float array, shape (n,), optional
        Of unprotected vectors.
    variance : float array, shape (n,), optional
        Of unprotected vectors along each direction.
    shrinkage : float array, shape (n,), optional
        The read-out's factors, if the vectors are published after a read-out.
    unit_norm : bool
        Whether the vectors were scaled to norm 1 after the read-out.
    """

    basis: np.ndarray | None = None
    noise_variance: np.ndarray | None = None
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None
    shrinkage: np.ndarray | None = None
    unit_norm: bool = False

    def __post_init__(self):
        for name in ("noise_variance", "mean", "variance", "shrinkage"):
            value = getattr(self, name)
            if value is not None and self.basis is not None and np.shape(value) != (len(self.basis),):
                raise SparseError(
                    f"{name} has shape {np.shape(value)} for a basis of dimension {len(self.basis)}; "
                    "give one entry per direction"
                )
        if self.basis is not None:
            basis = check_vectors(self.basis, "basis", dimension=len(self.basis))
            if not np.allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-4):
                raise SparseError("basis is not orthogonal; give a basis of orthonormal columns")
        for name in ("noise_variance", "variance"):
            value = getattr(self, name)
            if value is not None and (np.asarray(value) < 0).any():
                raise SparseError(f"{name} is negative in direction {np.argmin(value)}; variances are at least 0")

    def without_noise(self) -> "PublicKnowledge":
        """The same knowledge about unprotected vectors.

        Returns
        -------
        PublicKnowledge
            Noise variance 0 and no read-out; the basis, mean and variance stay.
        """
        noise = None if self.noise_variance is None else np.zeros_like(self.noise_variance, dtype=float)
        return replace(self, noise_variance=noise, shrinkage=None, unit_norm=False)

    def undo_readout(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors as they were before the published read-out, which is public and invertible.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)

        Returns
        -------
        float array, shape (n_records, n)
            y up to rounding; up to an error in each record's scale where the norm was set to 1, since
            the norm is replaced by its root mean square under the known variances.
        """
        if self.shrinkage is None:
            return vectors
        basis = np.eye(vectors.shape[1]) if self.basis is None else self.basis
        mean = np.zeros(vectors.shape[1]) if self.mean is None else self.mean
        shrinkage = np.maximum(np.asarray(self.shrinkage, dtype=float), 1e-9)
        if self.unit_norm and self.variance is not None and self.noise_variance is not None:
            spread = shrinkage**2 * (self.variance + self.noise_variance)
            vectors = vectors * np.sqrt(mean @ mean + spread.sum())
        return mean + ((vectors - mean) @ basis / shrinkage) @ basis.T


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Whitened coordinates: per direction, centred and divided by the spread of protected vectors.

    Parameters
    ----------
    center : float array, shape (n,)
    directions : float array, shape (n, n_directions)
        Orthonormal columns, each divided by the spread of the vectors along it.
    fidelity : float array, shape (n_directions,)
        Signal variance / (signal variance + noise variance) along each direction, in [0, 1].
    spread : float array, shape (n_directions,)
        Root of signal plus noise variance along each direction.
    """

    center: np.ndarray
    directions: np.ndarray
    fidelity: np.ndarray
    spread: np.ndarray

    def whitened(self, vectors: np.ndarray) -> np.ndarray:
        """Coordinates of variance 1.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)

        Returns
        -------
        float array, shape (n_records, n_directions)
        """
        return (vectors - self.center) @ self.directions

    def scales(self) -> dict[str, np.ndarray]:
        """Ways to weigh whitened coordinates, each right under another prior on what tells tokens apart.

        Returns
        -------
        dict of str to float array, shape (n_directions,)
            `whitened`: every direction of the protected vectors alike. `faithful`: every direction of
            the unprotected vectors alike, times the correlation sqrt(fidelity) that noise leaves.
            `readout`: Wiener-shrunk, in the units of the unprotected vectors. `plain`: the protected
            vectors' own units.
        """
        return {
            "whitened": np.ones_like(self.fidelity),
            "faithful": np.sqrt(self.fidelity),
            "readout": self.fidelity * self.spread,
            "plain": self.spread,
        }


def fit_coordinates(vectors: np.ndarray, public: PublicKnowledge) -> Coordinates:
    """Whitened coordinates of protected vectors, from public knowledge and the vectors themselves.

    The directions are the public basis, or the principal directions of the vectors where there is no
    basis to know. Centre and spread are estimated from the attacker's own training vectors: they
    contain signal plus noise, whatever data the public variances were measured on. The split of the
    spread into signal and noise uses the noise law if it is known and is 1 (all signal) otherwise.

    Parameters
    ----------
    vectors : float array, shape (n_records, n)
        Protected vectors before any read-out.
    public : PublicKnowledge

    Returns
    -------
    Coordinates

    Raises
    ------
    SparseError
        If the public knowledge is of another dimension.
    """
    dimension = vectors.shape[1]
    for name in ("basis", "noise_variance", "variance", "mean"):
        known = getattr(public, name)
        if known is not None and len(known) != dimension:
            raise SparseError(f"public {name} has dimension {len(known)} but the vectors {dimension}")
    center = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - center
    if public.basis is not None:
        basis = np.asarray(public.basis, dtype=np.float64)
    elif public.noise_variance is not None:
        basis = np.eye(dimension)
    else:
        basis = np.linalg.eigh(centred.T @ centred)[1]
    total = np.mean((centred @ basis) ** 2, axis=0)
    total = np.maximum(total, _SMALLEST_SHARE * max(total.max(), _SMALLEST_SHARE))
    if public.noise_variance is None:
        fidelity = np.ones(dimension)
    elif public.variance is None:
        fidelity = 1 - np.minimum(np.asarray(public.noise_variance) / total, 1)
    else:
        signal = np.maximum(np.asarray(public.variance, dtype=float), _SMALLEST_SHARE)
        fidelity = signal / (signal + np.asarray(public.noise_variance))
    spread = np.sqrt(total)
    return Coordinates(center, basis / spread, fidelity, spread)
