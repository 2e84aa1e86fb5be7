"""A policy: everything that decides what a release looks like, and the one call that makes one.

encoder + concepts + mask + mechanism + epsilon + read-out. Its hash names it: noise is drawn from (key, policy hash,
subject, content, embedding), so another policy draws independent noise, and one policy always the same.

What `Policy.guarantee` promises, of one vector and to whoever has not got the key: however they look at it, two
texts whose embeddings lie at distance d in the mechanism's metric differ in log-likelihood by at most
``law.privacy_map(d)`` (for ``gaussian`` but for ``delta``). It is about distances of vectors: two texts that the
encoder puts far apart may be told apart. It is a computational promise, because the noise comes from a key (see
`sparse_core.noise`). What else leaves the house beside the vector, the mask's statistics first of all, has its own
budget or none.

What a change does. The same subject, content, embedding, policy and key publish the same vector, which tells nothing
new. A change of any of them draws independent noise: another release, whose epsilon adds to the first's
(`sparse_core.budget`). So does a new key, for every record.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sparse_core.attacks import PublicKnowledge
from sparse_core.encoders import EncoderSpec
from sparse_core.encoders.spec import COMPUTED
from sparse_core.errors import SparseError
from sparse_core.masks import Mask
from sparse_core.mechanisms import DEFAULT_FLOOR, Guarantee, Mechanism, ReadOut, build_mechanism, wiener
from sparse_core.mechanisms.checks import UNIT_TOLERANCE, positive
from sparse_core.noise import Key, record_uniforms, vector_fingerprints
from sparse_core.positions import by_position

SCHEMA_VERSION = 2
READ_OUTS = ("wiener", "none")
_SAVED = ("mechanism", "epsilon", "floor", "read_out", "unit_norm", "delta", "embedding_norm")
_SMALLEST_GAIN = 1e-6
_SMALLEST_EPSILON = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """What is done to every record. Made by `Policy.build` or `Policy.load`.

    Attributes
    ----------
    encoder : EncoderSpec
    mechanism : str
        A name of `sparse_core.mechanisms.MECHANISMS`.
    epsilon : float or None
        In the mechanism's own metric; None for ``none``.
    mask : Mask or None
        Shapes the noise of ``mahalanobis``. For every mechanism its mean and covariance are what the
        read-out knows of the data.
    floor : float
        Share of the noise variance that ``mahalanobis`` spreads evenly.
    read_out : {"wiener", "none"}
    unit_norm : bool
        Scale what is published to norm 1.
    delta : float or None
        Of ``gaussian``, whose epsilon holds but for this probability; None for all others.
    embedding_norm : float or None
        Median norm of the embeddings, which rho refers to; None where it is not known. Decides no release, so that
        the hash leaves it out.
    """

    encoder: EncoderSpec
    mechanism: str
    epsilon: float | None
    mask: Mask | None
    floor: float
    read_out: str
    unit_norm: bool
    delta: float | None = None
    embedding_norm: float | None = None

    @classmethod
    def build(
        cls,
        *,
        encoder: EncoderSpec,
        mechanism: str,
        mask: Mask | None = None,
        epsilon: float | None = None,
        rho: float | None = None,
        embedding_norm: float | None = None,
        floor: float = DEFAULT_FLOOR,
        read_out: str = "wiener",
        unit_norm: bool = False,
        delta: float | None = None,
    ) -> Policy:
        """Build a policy.

        Parameters
        ----------
        encoder : EncoderSpec
        mechanism : str
        mask : Mask, optional
            Required by ``mahalanobis`` and by the Wiener read-out.
        epsilon, rho : float, optional
            Exactly one; rho is turned into epsilon here.
        embedding_norm : float, optional
            Median norm of the embeddings, which rho refers to; 1 where the encoder or the mechanism makes it so.
        floor, read_out, unit_norm
            As in the attributes.
        delta : float, optional
            For ``gaussian`` only; `DEFAULT_DELTA` if not given.

        Raises
        ------
        SparseError
            If the parts do not fit together.
        """
        if read_out not in READ_OUTS:
            raise SparseError(f"There is no read-out {read_out!r}; choose one of {', '.join(READ_OUTS)}.")
        if mask is None and read_out != "none" and mechanism != "none":
            raise SparseError(
                "The Wiener read-out needs the mean and covariance that a mask carries. "
                "Give a mask, or set read_out to 'none'."
            )
        if mask is not None and mask.dimension != encoder.dimension:
            raise SparseError(
                f"The mask has {mask.dimension} dimensions, the encoder {encoder.dimension}. "
                "Train a mask for this encoder."
            )
        norm = _norm(embedding_norm, unit=encoder.normalize or mechanism == "purkayastha")
        if rho is not None and norm is None:
            raise SparseError(
                "rho is relative to the norm of the embeddings, and this encoder does not normalise them. State "
                "their median norm in embedding_norm, or give epsilon."
            )
        built = build_mechanism(
            mechanism,
            dimension=encoder.dimension,
            epsilon=epsilon,
            rho=rho,
            embedding_norm=1.0 if norm is None else norm,
            mask=mask,
            floor=floor,
            delta=delta,
        )
        if built.delta and built.epsilon < _SMALLEST_EPSILON:
            raise SparseError(
                f"delta is {built.delta:g}, and under so much noise no two texts at distance 1 differ by more than "
                "that: epsilon would be 0 and tell nothing. Choose a smaller delta."
            )
        return cls(
            encoder=encoder,
            mechanism=mechanism,
            epsilon=None if mechanism == "none" else float(built.epsilon),
            mask=mask,
            floor=floor,
            read_out="none" if mechanism == "none" else read_out,
            unit_norm=unit_norm,
            delta=built.delta if mechanism == "gaussian" else None,
            embedding_norm=norm,
        )

    @cached_property
    def law(self) -> Mechanism:
        """The mechanism itself."""
        return build_mechanism(
            self.mechanism,
            dimension=self.encoder.dimension,
            epsilon=self.epsilon,
            mask=self.mask,
            floor=self.floor,
            delta=self.delta,
        )

    @cached_property
    def reader(self) -> ReadOut | None:
        """The read-out applied to every release; None if there is none."""
        if self.read_out == "none":
            return None
        return wiener(
            self.mask,
            self._noise_variance,
            covariance=self.mask.covariance,
            signal_gain=self.law.signal_gain,
            unit_norm=self.unit_norm,
        )

    @cached_property
    def hash(self) -> str:
        """64 hexadecimal digits that name the policy."""
        return hashlib.sha256(json.dumps(self._description(), sort_keys=True).encode()).hexdigest()

    @property
    def basis_name(self) -> str:
        """Basis of the mask that shapes the noise; ``isotropic`` where none does, ``none`` without noise."""
        if self.mechanism == "none":
            return "none"
        return self.mask.info.basis if self.mechanism == "mahalanobis" else "isotropic"

    def guarantee(self, *, embedding_norm: float | None = None) -> Guarantee:
        """What one release promises, see `Guarantee`.

        Parameters
        ----------
        embedding_norm : float, optional
            To state rho for embeddings of another median norm than the policy was built for.
        """
        return self.law.guarantee(embedding_norm=self.embedding_norm if embedding_norm is None else embedding_norm)

    def release(
        self,
        embeddings: np.ndarray,
        *,
        ids: Sequence[str | int],
        contents: Sequence[str | bytes],
        key: Key,
        subjects: Sequence[str | int] | None = None,
    ) -> np.ndarray:
        """Protect a batch: the vectors to publish.

        Parameters
        ----------
        embeddings : float array, shape (n_records, n)
        ids : list-like of str or int, length n_records
        contents : list-like of str or bytes, length n_records
            The text each vector was made of.
        key : Key
        subjects : list-like of str or int, length n_records, optional
            Whose each record is; by default each is its own. Copies of a text under one subject are one vector, and
            under several subjects as many independent draws of noise, which average.

        Returns
        -------
        float32 array, shape (n_records, n)
            The same for the same key, subject, content, embedding and policy, whatever the batch.

        Raises
        ------
        SparseError
            If lengths differ, or an embedding is not one that the mechanism protects.
        """
        embeddings = self.law.on_grid(embeddings)
        ids = by_position(ids, "ids", length=len(embeddings))
        uniforms = record_uniforms(
            key,
            subjects=ids if subjects is None else subjects,
            contents=contents,
            embeddings=embeddings,
            policy_hash=self.hash,
            count=self.law.uniforms_per_record,
        )
        released = self.law.release(embeddings, uniforms)
        if self.reader is not None:
            released = self.reader.apply(released)
        elif self.unit_norm:
            released = released / np.linalg.norm(released, axis=1, keepdims=True)
        return released.astype(np.float32)

    def fingerprints(
        self,
        embeddings: np.ndarray,
        *,
        subjects: Sequence[str | int],
        contents: Sequence[str | bytes],
        key: Key,
    ) -> np.ndarray:
        """Name the vectors that `release` would publish, for a ledger.

        Parameters
        ----------
        embeddings, subjects, contents, key
            As for `release`.

        Returns
        -------
        uint8 array, shape (n_records, 16)
            Equal exactly where key, policy, subject, content and embedding on the release's grid are, so that the
            vectors are one vector. They tell nothing of these to who has not got the key.
        """
        return vector_fingerprints(
            key,
            subjects=subjects,
            contents=contents,
            embeddings=self.law.on_grid(embeddings),
            policy_hash=self.hash,
        )

    def query_transform(self, queries: np.ndarray) -> np.ndarray:
        """Prepare trusted, unprotected queries for search among published vectors.

        Parameters
        ----------
        queries : float array, shape (n_queries, n)
            From the policy's encoder.

        Returns
        -------
        float64 array, shape (n_queries, n)
            See `sparse_core.mechanisms.readout` for why read-out vectors need no other queries than the
            original ones, and raw releases none either where there is no read-out to know of.
        """
        if self.reader is None:
            return np.asarray(queries, dtype=np.float64)
        return self.reader.query_transform(queries)

    def undo_read_out(self, vectors: np.ndarray) -> np.ndarray:
        """What anybody can do to published vectors: take the public read-out back.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)

        Returns
        -------
        float64 array, shape (n_records, n)
            The noised embeddings x + z, up to rounding, but for directions in which embeddings never vary: the
            read-out puts the mean there. Where the norm was set to 1 each vector's length is lost, and
            taken to be the typical one. Releases that are ``signal_gain`` times the embedding on average
            (``purkayastha``) are divided by it.
        """
        vectors = np.asarray(vectors, dtype=np.float64)
        if self.reader is None:
            return vectors / self.law.signal_gain
        reader = self.reader
        if self.unit_norm:
            spread = reader.signal_gain**2 * self.mask.covariance + np.diag(self._noise_variance)
            vectors = vectors * np.sqrt(reader.mean @ reader.mean + np.trace(reader.gain @ spread @ reader.gain.T))
        return (vectors - reader.mean) @ self._inverse_read_out.T / reader.signal_gain + reader.mean

    @cached_property
    def _inverse_read_out(self) -> np.ndarray:
        return np.linalg.pinv(self.reader.matrix, rcond=_SMALLEST_GAIN)

    def public_knowledge(self) -> PublicKnowledge:
        """What an attacker of vectors from `undo_read_out` is given."""
        noise = self._noise_variance / self.law.signal_gain**2
        if self.mask is None:
            return PublicKnowledge(basis=self.law.basis, noise_variance=noise)
        if self.mechanism == "mahalanobis":
            return PublicKnowledge(
                basis=self.mask.basis, noise_variance=noise, mean=self.mask.mean, variance=self.mask.variance
            )
        # Such noise has the same variance along any basis: the principal components serve an attacker best.
        variance, columns = np.linalg.eigh(self.mask.covariance)
        return PublicKnowledge(
            basis=self.mask.basis @ columns,
            noise_variance=noise,
            mean=self.mask.mean,
            variance=np.maximum(variance, 0),
        )

    @property
    def _noise_variance(self) -> np.ndarray:
        """Along the columns of the mask's basis; isotropic noise has the same variance in any."""
        return self.law.noise_variance()

    def save(self, directory: str | os.PathLike) -> None:
        """Write ``policy.json`` and the mask into a directory."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        described = self._description() | {
            "hash": self.hash,
            "encoder": asdict(self.encoder),
            "delta": self.delta,
            "embedding_norm": self.embedding_norm,
            # JSON knows no infinity, which is the epsilon of no noise.
            "guarantee": {k: None if v == math.inf else v for k, v in asdict(self.guarantee()).items()},
        }
        if self.mask is not None:
            self.mask.save(directory / "mask")
        if self.reader is not None:
            # Eigendecompositions differ in the last bits between machines; releases must not.
            from safetensors.numpy import save

            tensors = save({"gain": self.reader.gain})
            (directory / "read_out.safetensors").write_bytes(tensors)
            described["read_out_sha256"] = hashlib.sha256(tensors).hexdigest()
        temporary = directory / f".policy.json.{os.getpid()}"
        temporary.write_text(json.dumps(described, indent=2) + "\n")
        os.replace(temporary, directory / "policy.json")

    @classmethod
    def load(cls, directory: str | os.PathLike, *, encoder: EncoderSpec | None = None, exact: bool = True) -> Policy:
        """Read a policy.

        Parameters
        ----------
        directory : path
        encoder : EncoderSpec, optional
            The encoder it is to be used with; another one is refused.
        exact : bool
            Whether vectors must agree to the last bit, as a release's must. Queries and attacks need an encoder
            of the same meaning only (`EncoderSpec.space`), whatever backend and precision compute it.

        Raises
        ------
        SparseError
            If there is no policy, it was changed since it was written, or it belongs to another encoder.
        """
        from safetensors import SafetensorError

        path = Path(directory) / "policy.json"
        try:
            fields = json.loads(path.read_text())
            if fields["schema_version"] != SCHEMA_VERSION:
                raise SparseError(
                    f"{path} has schema version {fields['schema_version']}, this library reads version "
                    f"{SCHEMA_VERSION}: publish anew under a policy of this version, or use the version that wrote it."
                )
            mask = None
            if fields["mask"] is not None:
                mask = Mask.load(path.parent / "mask", encoder=encoder)
            policy = cls(
                encoder=EncoderSpec(**fields["encoder"]),
                mask=mask,
                **{name: fields[name] for name in _SAVED},
            )
            if policy.read_out != "none":
                tensors = (path.parent / "read_out.safetensors").read_bytes()
                if hashlib.sha256(tensors).hexdigest() != fields["read_out_sha256"]:
                    raise SparseError(f"The read-out in {path.parent} was changed after it was written.")
                policy.__dict__["reader"] = policy._saved_reader(tensors)
        except FileNotFoundError:
            raise SparseError(f"There is no complete policy in {path.parent}: a file is missing.") from None
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, SparseError):
                raise
            raise SparseError(f"{path} is not a policy ({type(error).__name__}: {error}).") from None
        if policy.hash != fields["hash"]:
            raise SparseError(f"{path} does not match its own hash: it was changed after it was written.")
        if encoder is not None:
            differing = [name for name in policy.encoder.space if encoder.space[name] != policy.encoder.space[name]]
            if exact and not differing:
                differing = [n for n in COMPUTED if getattr(encoder, n) != getattr(policy.encoder, n)]
            if differing:
                told = "; ".join(
                    f"{n} {getattr(policy.encoder, n)!r} in the policy, {getattr(encoder, n)!r} in the encoder"
                    for n in differing
                )
                raise SparseError(f"The policy in {path.parent} is not for {encoder.model}: {told}.")
        return policy

    def _saved_reader(self, tensors: bytes) -> ReadOut:
        from safetensors.numpy import load

        return ReadOut(
            mean=self.mask.mean,
            basis=self.mask.basis,
            gain=load(tensors)["gain"],
            signal_gain=self.law.signal_gain,
            unit_norm=self.unit_norm,
        )

    def _description(self) -> dict:
        described = {
            "schema_version": SCHEMA_VERSION,
            "encoder": self.encoder.identity,
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "mask": None if self.mask is None else _digest(self.mask),
            "floor": self.floor,
            "read_out": self.read_out,
            "unit_norm": self.unit_norm,
            "grid": self.law.grid,
        }
        return described if self.delta is None else described | {"delta": self.delta}


def _norm(given: float | None, *, unit: bool) -> float | None:
    """The median norm of the embeddings: as given, or 1 where they are unit vectors, or not known."""
    if given is None:
        return 1.0 if unit else None
    given = positive(given, "embedding_norm")
    if unit and abs(given - 1.0) > UNIT_TOLERANCE:
        raise SparseError(f"embedding_norm is {given:g}, but the embeddings are unit vectors. Leave it out.")
    return given


def _digest(mask: Mask) -> str:
    digest = hashlib.sha256()
    for array in (mask.values, mask.basis, mask.mean, mask.covariance):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
