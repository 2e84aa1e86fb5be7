"""The coordinates an attacker derives from what is public."""

from dataclasses import dataclass

import numpy as np

from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.errors import SparseError

TRANSFORMS = ("whitened", "faithful", "readout", "plain", "joint")
_SMALLEST_SHARE = 1e-10


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Linear features of protected vectors, each right under another prior on what tells tokens apart.

    Parameters
    ----------
    center : float array, shape (n,)
    transforms : dict of str to float array, shape (n, n_features)
        `whitened`: every public direction scaled to variance 1. `faithful`: these, times the
        correlation sqrt(fidelity) of noised and noiseless coordinate, so that every direction of the
        unprotected vectors counts alike. `readout`: Wiener-shrunk, in the units of the unprotected
        vectors. `plain`: the protected vectors' own units. `joint`: as `faithful`, in the directions
        that make the covariances of both noise and protected vectors diagonal.
    """

    center: np.ndarray
    transforms: dict[str, np.ndarray]

    def features(self, vectors: np.ndarray, name: str) -> np.ndarray:
        """Centred vectors under one transform.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)
        name : str
            A key of `transforms`.

        Returns
        -------
        float array, shape (n_records, n_features)
        """
        return (vectors - self.center) @ self.transforms[name]


def fit_coordinates(vectors: np.ndarray, public: PublicKnowledge) -> Coordinates:
    """Features of protected vectors, from public knowledge and the vectors themselves.

    The directions are the public basis, or the principal directions of the vectors where there is no
    basis to know. Centre and spread are estimated from the attacker's own training vectors: they
    contain signal plus noise, whatever data the public variances were measured on. The split of the
    spread into signal and noise (fidelity) uses the noise law if it is known and is all signal
    otherwise.

    Parameters
    ----------
    vectors : float array, shape (n_records, n)
        Protected vectors.
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
    covariance = centred.T @ centred / len(centred)
    if public.basis is not None:
        basis = np.asarray(public.basis, dtype=np.float64)
    elif public.noise_variance is not None:
        basis = np.eye(dimension)
    else:
        basis = np.linalg.eigh(covariance)[1]
    total = np.einsum("ij,ij->j", basis, covariance @ basis)
    total = np.maximum(total, _SMALLEST_SHARE * total.max() + np.finfo(float).tiny)
    noise = np.zeros(dimension) if public.noise_variance is None else np.asarray(public.noise_variance)
    if public.variance is None:
        fidelity = 1 - np.minimum(noise / total, 1)
    else:
        signal = np.asarray(public.variance, dtype=float) + _SMALLEST_SHARE * total.max()
        fidelity = signal / (signal + noise)
    whitened = basis / np.sqrt(total)
    transforms = {
        "whitened": whitened,
        "faithful": whitened * np.sqrt(fidelity),
        "readout": basis * fidelity,
        "plain": basis,
        "joint": joint_directions(covariance, basis, noise),
    }
    return Coordinates(center, transforms)


def joint_directions(covariance: np.ndarray, basis: np.ndarray, noise_variance: np.ndarray) -> np.ndarray:
    """Directions that diagonalise noise and protected vectors at once, scaled by what they tell.

    With N the noise covariance and C that of protected vectors, the eigenvalues of N^-1/2 C N^-1/2
    are 1 plus the signal-to-noise ratio; below 1 they are sampling error and the direction is
    dropped. Without noise these are the whitened principal directions.

    Parameters
    ----------
    covariance : float array, shape (n, n)
        C.
    basis : float array, shape (n, n)
        Directions in which N is diagonal.
    noise_variance : float array, shape (n,)
        N's diagonal.

    Returns
    -------
    float array, shape (n, n)
        Coordinates along these columns have variance 1 times their fidelity.
    """
    least = 1e-8 * np.trace(covariance) / len(covariance) + np.finfo(float).tiny
    whitener = basis / np.sqrt(np.maximum(noise_variance, least))
    ratio, rotation = np.linalg.eigh(whitener.T @ covariance @ whitener)
    ratio = np.maximum(ratio, 1)
    return whitener @ rotation * np.sqrt((1 - 1 / ratio) / ratio)
