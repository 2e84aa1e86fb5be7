"""The mask on disk: a directory with ``mask.safetensors`` and ``mask.json``.

The JSON file names concepts and carries a salted fingerprint of their tokens, never the tokens themselves.
"""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError

SCHEMA_VERSION = 2
_ARRAYS = ("values", "basis", "mean", "covariance")


@dataclass(frozen=True)
class MaskInfo:
    """Where a mask comes from.

    Attributes
    ----------
    concepts : tuple of str
        Names of the concepts the mask hides.
    concept_fingerprint, salt : str
        Salted hash of the concepts' tokens and its salt.
    encoder : EncoderSpec
        The encoder whose vectors the mask is about.
    basis : str
        Name of the basis, see `concept_directions`.
    penalty : float
        Weight of the expected share of open gates in training (lambda).
    seed : int
    metrics : dict of str to float
        What training reported: held-out accuracy, open directions, expected L0.
    learned_from : str or None
        Names the records it was learned from: a hash of a corpus and how it was split. None where that was not told.
    schema_version : int
    """

    concepts: tuple[str, ...]
    concept_fingerprint: str
    salt: str
    encoder: EncoderSpec
    basis: str
    penalty: float
    seed: int
    metrics: dict[str, float]
    learned_from: str | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Mask:
    """How much noise each direction of a basis gets, and what a read-out must know.

    Attributes
    ----------
    values : float64 array, shape (n,), in [0, 1]
    basis : float64 array, shape (n, n)
        Orthogonal; columns are directions.
    mean : float64 array, shape (n,)
        Mean embedding of the training corpus, in the encoder's coordinates.
    covariance : float64 array, shape (n, n)
        Covariance of the training corpus in the basis.
    info : MaskInfo
    """

    values: np.ndarray
    basis: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    info: MaskInfo

    def __post_init__(self):
        for name in _ARRAYS:
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        problem = _problem(self)
        if problem:
            raise SparseError(f"not a valid mask: {problem}")

    @property
    def dimension(self) -> int:
        return len(self.values)

    @property
    def variance(self) -> np.ndarray:
        """Variance of the training corpus along each direction, shape (n,)."""
        return np.diag(self.covariance)

    def save(self, directory: str | os.PathLike) -> None:
        """Write the artifact; ``mask.json`` last, so that a directory that has one is complete."""
        from safetensors.numpy import save

        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        tensors = save({name: getattr(self, name) for name in _ARRAYS})
        described = dataclasses.asdict(self.info) | {"sha256": hashlib.sha256(tensors).hexdigest()}
        _replace(directory / "mask.safetensors", tensors)
        _replace(directory / "mask.json", json.dumps(described, indent=2, sort_keys=True).encode() + b"\n")

    @staticmethod
    def load(directory: str | os.PathLike, *, encoder: EncoderSpec | None = None) -> "Mask":
        """Read an artifact.

        Parameters
        ----------
        directory : path
        encoder : EncoderSpec, optional
            The encoder the mask is meant to be used with.

        Raises
        ------
        SparseError
            If a file is missing, damaged or of another schema, or if the mask was learned for another encoder,
            dimension or normalisation.
        """
        directory = Path(directory)
        info, digest = _read_info(directory / "mask.json")
        if encoder is not None:
            _check_encoder(info.encoder, encoder, directory)
        return Mask(**_read_arrays(directory / "mask.safetensors", digest), info=info)


def _problem(mask: Mask) -> str | None:
    n = mask.values.size
    shapes = {"values": (n,), "basis": (n, n), "mean": (n,), "covariance": (n, n)}
    for name, shape in shapes.items():
        array = getattr(mask, name)
        if array.shape != shape:
            return f"{name} has shape {array.shape} where {shape} belongs"
        if not np.isfinite(array).all():
            return f"{name} has values that are not finite"
    if mask.values.min() < 0 or mask.values.max() > 1:
        return f"values lie in [{mask.values.min():.3g}, {mask.values.max():.3g}] where [0, 1] belongs"
    if np.abs(mask.basis.T @ mask.basis - np.eye(n)).max() > 1e-6:
        return "the basis is not orthogonal"
    return None


def _read_info(path: Path) -> tuple[MaskInfo, str]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        version = fields["schema_version"]
    except FileNotFoundError:
        raise SparseError(f"no mask in {path.parent}: {path.name} is missing; train one or check the path") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SparseError(f"{path} is damaged ({error!r}): train the mask again") from None
    if version != SCHEMA_VERSION:
        raise SparseError(
            f"{path} has schema version {version}, this library reads version {SCHEMA_VERSION}: "
            "train the mask again, or use the library version that wrote it"
        )
    try:
        digest = fields.pop("sha256")
        fields["encoder"] = EncoderSpec(**fields["encoder"])
        fields["concepts"] = tuple(fields["concepts"])
        return MaskInfo(**fields), digest
    except (KeyError, TypeError) as error:
        raise SparseError(f"{path} is damaged ({error!r}): train the mask again") from None


def _read_arrays(path: Path, digest: str) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = path.read_bytes()
        if hashlib.sha256(tensors).hexdigest() != digest:
            raise SparseError(f"{path} is damaged or not the one mask.json describes: train the mask again")
        arrays = load(tensors)
        return {name: arrays[name] for name in _ARRAYS}
    except FileNotFoundError:
        raise SparseError(f"{path} is missing beside its mask.json: train the mask again") from None
    except (SafetensorError, KeyError) as error:
        raise SparseError(f"{path} is damaged ({error!r}): train the mask again") from None


def _check_encoder(learned: EncoderSpec, wanted: EncoderSpec, directory: Path) -> None:
    ours, theirs = learned.space, wanted.space
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        told = "; ".join(f"{name} {ours[name]!r} in the mask, {theirs[name]!r} in the encoder" for name in differing)
        raise SparseError(
            f"the mask in {directory} was learned for {learned.model} and cannot protect vectors of "
            f"{wanted.model}: {told}. Train a mask for this encoder."
        )


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
