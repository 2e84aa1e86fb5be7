"""What everyone knows of a protection, or can work out."""

from dataclasses import dataclass, replace

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length, check_vectors


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """What an attacker is given: the noise law and the read-out, never the noise.

    A protected vector is y = x + z. A published read-out is public and invertible, so undo it first
    (`Policy.undo_read_out`). Every field may be None where nothing is known, as for vectors protected
    by another tool; attacks then estimate what they need from their training records.

    Parameters
    ----------
    basis : float array, shape (n, n), optional
        Orthogonal U; columns are directions. The identity if not given.
    noise_variance : float array, shape (n,), optional
        E[z_i^2] along each direction.
    mean : float array, shape (n,), optional
        Of unprotected vectors.
    variance : float array, shape (n,), optional
        Of unprotected vectors along each direction.
    """

    basis: np.ndarray | None = None
    noise_variance: np.ndarray | None = None
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None

    def __post_init__(self):
        for name in ("noise_variance", "mean", "variance"):
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
            Noise variance 0; the basis, mean and variance stay.
        """
        noise = None if self.noise_variance is None else np.zeros_like(self.noise_variance, dtype=float)
        return replace(self, noise_variance=noise)


def estimate_knowledge(unprotected: np.ndarray, protected: np.ndarray) -> PublicKnowledge:
    """What an attacker works out about an undocumented noise law from records whose text it knows.

    Knowing a text and the encoder is knowing the unprotected vector, so the training records of an
    attack show samples of the noise. Use it to audit vectors protected by another tool; pass
    training records only.

    Parameters
    ----------
    unprotected, protected : float array, shape (n_records, n)
        The same records before and after protection.

    Returns
    -------
    PublicKnowledge
        The principal directions of the differences as basis, and their second moments as noise
        variance. The difference is the noise if the tool adds noise; if it moves vectors otherwise
        (rotates, rounds, scales) it is only what such a change looks like to someone who assumes
        noise.

    Raises
    ------
    SparseError
        For unusable or mismatched vectors.
    """
    unprotected = check_vectors(unprotected, "unprotected")
    protected = check_vectors(protected, "protected", dimension=unprotected.shape[1])
    check_same_length(unprotected=unprotected, protected=protected)
    noise = protected.astype(np.float64) - unprotected
    moments, basis = np.linalg.eigh(noise.T @ noise / len(noise))
    mean = unprotected.mean(axis=0, dtype=np.float64)
    variance = np.var((unprotected - mean) @ basis, axis=0)
    return PublicKnowledge(basis=basis, noise_variance=np.maximum(moments, 0), mean=mean, variance=variance)
