"""Noise laws with their guarantees, and the read-out that undoes what may be undone.

Adding a mechanism is one module and one line in ``_BUILDERS``.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.mechanisms.base import AdditiveMechanism, Guarantee, Mechanism
from sparse_core.mechanisms.gaussian import DEFAULT_DELTA, Gaussian
from sparse_core.mechanisms.grid import DEFAULT_GRID, exact_float32_bound, release_grid, round_to_grid
from sparse_core.mechanisms.laplace import Laplace
from sparse_core.mechanisms.linear import apply_rows
from sparse_core.mechanisms.mahalanobis import Mahalanobis
from sparse_core.mechanisms.none import NoMechanism
from sparse_core.mechanisms.purkayastha import Purkayastha
from sparse_core.mechanisms.readout import ReadOut, wiener
from sparse_core.mechanisms.sigma import DEFAULT_FLOOR, SMALLEST_FLOOR

__all__ = [
    "DEFAULT_DELTA",
    "DEFAULT_FLOOR",
    "DEFAULT_GRID",
    "MECHANISMS",
    "SMALLEST_FLOOR",
    "AdditiveMechanism",
    "Gaussian",
    "Guarantee",
    "Laplace",
    "Mahalanobis",
    "Mechanism",
    "NoMechanism",
    "Purkayastha",
    "ReadOut",
    "apply_rows",
    "build_mechanism",
    "exact_float32_bound",
    "release_grid",
    "round_to_grid",
    "wiener",
]


class WeightedBasis(Protocol):
    """The part of a mask that shapes noise; :class:`sparse_core.masks.Mask` is one."""

    values: np.ndarray
    basis: np.ndarray | None


def build_mechanism(
    name: str,
    *,
    dimension: int,
    epsilon: float | None = None,
    rho: float | None = None,
    embedding_norm: float = 1.0,
    mask: WeightedBasis | None = None,
    floor: float = DEFAULT_FLOOR,
    degenerate: str = "refuse",
    delta: float | None = None,
) -> Mechanism:
    """Build a mechanism by its name in a configuration.

    Parameters
    ----------
    name : str
        One of ``MECHANISMS``.
    dimension : int
    epsilon, rho : float, optional
        Exactly one; neither for ``none``.
    embedding_norm : float
        Median norm of the embeddings; used with rho.
    mask : object with ``values`` (n,) and ``basis`` (n, n), optional
        Required by ``mahalanobis``; the others do not use it.
    floor, degenerate
        For ``mahalanobis``: see :class:`Mahalanobis`.
    delta : float, optional
        For ``gaussian`` only.

    Raises
    ------
    SparseError
        For an unknown name, a missing mask or a mask of another dimension, and whatever the mechanism
        itself refuses.
    """
    if name not in _BUILDERS:
        raise SparseError(f"There is no mechanism {name!r}; choose one of {', '.join(MECHANISMS)}.")
    if delta is not None and name != "gaussian":
        raise SparseError(f"delta belongs to 'gaussian'; {name!r} has none. Leave it out.")
    return _BUILDERS[name](
        dimension=dimension,
        strength={"epsilon": epsilon, "rho": rho, "embedding_norm": embedding_norm},
        mask=mask,
        shape={"floor": floor, "degenerate": degenerate},
        delta=delta,
    )


def _laplace(*, dimension, strength, **_) -> Laplace:
    return Laplace(dimension=dimension, **strength)


def _mahalanobis(*, dimension, strength, mask, shape, **_) -> Mahalanobis:
    if mask is None:
        raise SparseError("The mechanism 'mahalanobis' needs a mask; train one, or choose 'laplace'.")
    if len(mask.values) != dimension:
        raise SparseError(
            f"The mask has {len(mask.values)} directions but the embeddings {dimension} dimensions. "
            "Use the encoder the mask was trained for."
        )
    return Mahalanobis(weights=mask.values, basis=mask.basis, **shape, **strength)


def _purkayastha(*, dimension, strength, **_) -> Purkayastha:
    return Purkayastha(dimension=dimension, **strength)


def _gaussian(*, dimension, strength, delta, **_) -> Gaussian:
    return Gaussian(dimension=dimension, delta=DEFAULT_DELTA if delta is None else delta, **strength)


def _none(*, dimension, strength, **_) -> NoMechanism:
    if strength["epsilon"] is not None or strength["rho"] is not None:
        raise SparseError("The mechanism 'none' takes neither epsilon nor rho. Leave them out.")
    return NoMechanism(dimension=dimension)


_BUILDERS: dict[str, Callable[..., Mechanism]] = {
    "laplace": _laplace,
    "mahalanobis": _mahalanobis,
    "purkayastha": _purkayastha,
    "gaussian": _gaussian,
    "none": _none,
}
MECHANISMS = tuple(_BUILDERS)
