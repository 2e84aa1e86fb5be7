"""Checks that every mechanism shares: each refusal says what to do."""

import math
import numbers

import numpy as np

from sparse_core.errors import SparseError

SMALLEST_NOISE_NORM, LARGEST_NOISE_NORM = 2.0**-40, 2.0**100
UNIT_TOLERANCE = 1e-3
"""How far from 1 the norm of a unit vector may be."""


def chosen_epsilon(*, epsilon: float | None, rho: float | None, embedding_norm: float, unit_noise_norm: float) -> float:
    """Resolve "epsilon or rho, exactly one" for noise whose norm is inversely proportional to epsilon.

    Parameters
    ----------
    epsilon, rho : float or None
    embedding_norm : float
        Median norm of the embeddings; used with rho.
    unit_noise_norm : float
        Median noise norm at epsilon = 1.
    """
    if exactly_one(epsilon=epsilon, rho=rho) == "epsilon":
        epsilon = positive(epsilon, "epsilon")
        check_noise_norm(unit_noise_norm / epsilon, f"epsilon {epsilon:g}", unit_noise_norm)
        return epsilon
    noise_norm = positive(rho, "rho") * positive(embedding_norm, "embedding_norm")
    check_noise_norm(noise_norm, f"rho {rho:g}", unit_noise_norm)
    return unit_noise_norm / noise_norm


def check_noise_norm(norm: float, cause: str, unit_noise_norm: float | None = None) -> None:
    """Refuse noise so large that float32 could not hold a release, or so small that it would round to nothing.

    Parameters
    ----------
    norm : float
        Median noise norm.
    cause : str
        What it comes from.
    unit_noise_norm : float, optional
        Median noise norm at epsilon = 1, where it is inversely proportional to epsilon.

    Raises
    ------
    SparseError
        With the usable range.
    """
    if SMALLEST_NOISE_NORM <= norm <= LARGEST_NOISE_NORM:
        return
    usable = f"a noise norm from {SMALLEST_NOISE_NORM:.3g} to {LARGEST_NOISE_NORM:.3g}"
    if unit_noise_norm is not None:
        ends = (unit_noise_norm / bound for bound in (LARGEST_NOISE_NORM, SMALLEST_NOISE_NORM))
        usable += ", that is epsilon from {:.3g} to {:.3g}".format(*ends)
    raise SparseError(f"{cause} comes to noise of median norm {norm:.3g}. Choose {usable}.")


def exactly_one(**options: float | None) -> str:
    """Return the name of the single option given; refuse none or several."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        names = " or ".join(options)
        raise SparseError(f"Give exactly one of {names}; {len(given)} were given.")
    return given[0]


def positive(value: float, name: str) -> float:
    """Return a finite number above 0 as a float, or raise SparseError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise SparseError(f"{name} is {value!r}; it must be a number above 0.")
    if not (math.isfinite(value) and value > 0):
        raise SparseError(f"{name} is {value}; it must be finite and above 0.")
    return float(value)


def checked_dimension(dimension: int, *, smallest: int = 1) -> int:
    """Return the dimension as an int, or raise SparseError."""
    if isinstance(dimension, bool) or not isinstance(dimension, numbers.Integral) or dimension < smallest:
        raise SparseError(f"dimension is {dimension!r}; it must be a whole number of at least {smallest}.")
    return int(dimension)


def checked_embeddings(embeddings: np.ndarray, dimension: int) -> np.ndarray:
    """Return embeddings as a float64 array of shape (n_records, dimension), or raise SparseError."""
    embeddings = np.asarray(embeddings)
    if embeddings.dtype.kind not in "fiu":
        raise SparseError(f"Embeddings have type {embeddings.dtype}; they must be real numbers.")
    if embeddings.ndim != 2 or embeddings.shape[1] != dimension:
        raise SparseError(
            f"Embeddings have shape {embeddings.shape}; this mechanism protects (n_records, {dimension}). "
            "Use the encoder the policy was made for."
        )
    embeddings = embeddings.astype(np.float64, copy=False)
    finite = np.isfinite(embeddings)
    if not finite.all():
        row = int(np.argmin(finite.all(axis=1)))
        raise SparseError(
            f"The embedding in row {row} (counted from 0) has NaN or infinite values. "
            "Quarantine such records before protecting."
        )
    return embeddings


def checked_uniforms(uniforms: np.ndarray, count: int) -> np.ndarray:
    """Return uniforms as a float64 array of shape (n_records, count) in (0, 1), or raise SparseError."""
    uniforms = np.asarray(uniforms, dtype=np.float64)
    if uniforms.ndim != 2 or uniforms.shape[1] != count:
        raise SparseError(f"Uniforms have shape {uniforms.shape}; this mechanism needs (n_records, {count}).")
    if uniforms.size and not (uniforms.min() > 0.0 and uniforms.max() < 1.0):
        raise SparseError("Uniforms must lie strictly between 0 and 1; draw them with record_uniforms.")
    return uniforms


def checked_counts(embeddings: np.ndarray, uniforms: np.ndarray) -> None:
    """Refuse a batch whose embeddings and uniforms have different numbers of records."""
    if len(embeddings) != len(uniforms):
        raise SparseError(f"There are {len(embeddings)} embeddings but uniforms for {len(uniforms)} records.")
