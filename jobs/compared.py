"""The rows of an audit's table: reading or making their vectors, and what attackers are told of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs import registry, sources, storage
from jobs.baselines import dropped, redacted, refuse_nothing_left, rotation
from jobs.config import AuditConfig, Compared
from jobs.stages import RememberingEncoder, usable_vectors
from jobs.stored_vectors import Found, check_dimension, check_noise, planned_source
from sparse_core.attacks import PublicKnowledge, estimate_knowledge
from sparse_core.concepts import Span
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks import Mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Protected:
    """One row's vectors, record by record those that are compared.

    Attributes
    ----------
    compared : Compared
        The row as configured.
    policy : Policy or None
        None where nobody states one.
    published : float array, shape (n_records, n)
        What a consumer gets.
    noised : float array, shape (n_records, n)
        What attackers make of it by undoing the read-out.
    knowledge : tuple of PublicKnowledge
        What they know besides; several where they have to guess, best guess first.
    basis : str
        Of the mask; see `Policy.basis_name`.
    mask : Mask or None
        Whose directions were dropped.
    """

    compared: Compared
    policy: Policy | None
    published: np.ndarray
    noised: np.ndarray
    knowledge: tuple[PublicKnowledge, ...]
    basis: str
    mask: Mask | None = None

    @property
    def name(self) -> str:
        """The row's name."""
        return self.compared.name

    @property
    def protection(self) -> str:
        """The mechanism or baseline; ``unknown`` for vectors without a policy."""
        if self.policy is not None:
            return self.policy.mechanism
        return UNKNOWN if self.compared.vectors is not None else self.compared.kind


def pinned(config: AuditConfig) -> AuditConfig:
    """The configuration with the version of each mask that an alias of the model registry points at now."""
    storage.configure(config.storage)
    rows = (row.model_copy(update={"mask": registry.pinned(row.mask, config.tracking)}) for row in config.compare)
    return config.model_copy(update={"compare": tuple(rows)})


def planned_vectors(config: AuditConfig) -> dict[str, sources.Source]:
    """Check all that can be checked of the rows before the model is loaded; the stored vectors' sources, by row.

    Raises
    ------
    SparseError
        If a release, mask, policy or file of vectors is absent or does not fit.
    """
    found = {}
    for compared in config.compare:
        if config.input.id is None and (compared.release or compared.vectors):
            raise SparseError("input.id: auditing published vectors needs ids to match texts with them.")
        if compared.release is not None and not storage.exists(storage.join(compared.release, "manifest.json")):
            raise SparseError(
                f"compare {compared.name!r}: {compared.release} is not a finished release; it has no manifest.json."
            )
        if compared.vectors is not None:
            found[compared.name] = planned_source(compared.vectors, f"compare {compared.name!r}", "vectors")
            policy = _stated_policy(compared, None)
            if policy is not None:
                check_dimension(
                    f"compare {compared.name!r}", found[compared.name], policy.encoder.dimension, "its policy"
                )
        elif compared.mask is not None:
            # Building with the mask's own encoder proves that the parts fit before the model is loaded.
            mask = _mask(config, compared, None)
            if compared.baseline == "dropping":
                refuse_nothing_left(compared, mask)
            else:
                _simulated_policy(compared, mask, mask.info.encoder)
    return found


def check_vectors(
    config: AuditConfig,
    stored: dict[str, sources.Source],
    *,
    dimension: int,
    whose: str,
    spec: EncoderSpec | None,
) -> None:
    """Refuse rows that belong to another encoder, as far as their dimension or what they say of it tells.

    Parameters
    ----------
    config : AuditConfig
    stored : dict
        From `planned_vectors`.
    dimension : int
        Of the unprotected vectors.
    whose : str
        Names them.
    spec : EncoderSpec or None
        None where the encoder is not known.

    Raises
    ------
    SparseError
        If stored vectors have another dimension, or a policy or mask is another encoder's.
    """
    for compared in config.compare:
        if compared.vectors is not None:
            check_dimension(f"compare {compared.name!r}", stored[compared.name], dimension, whose)
        parts = (_stated_policy(compared, spec), _mask(config, compared, spec))
        theirs = next((p.encoder if isinstance(p, Policy) else p.info.encoder for p in parts if p is not None), None)
        if theirs is not None and theirs.dimension != dimension:
            raise SparseError(
                f"compare {compared.name!r} is made for vectors of dimension {theirs.dimension}, and those of {whose} "
                f"have {dimension}."
            )


def protect_all(
    config: AuditConfig,
    corpus: sources.Corpus,
    spans: Sequence[Sequence[Span]],
    vectors: np.ndarray,
    found: dict[str, Found],
    encoder: RememberingEncoder | None,
    *,
    attackers: np.ndarray,
    present: np.ndarray,
) -> tuple[list[Protected], np.ndarray]:
    """Every row's vectors, and the records that all of them have.

    Parameters
    ----------
    config : AuditConfig
    corpus : Corpus
    spans : sequence of (sequence of Span)
        Where each text holds the concept.
    vectors : float array, shape (n_texts, n)
        The corpus, encoded.
    found : dict
        From `read_vectors`.
    encoder : RememberingEncoder
    attackers : int array
        Rows of the corpus that attackers know, hence what they may estimate noise from.
    present : bool array, shape (n_texts,)
        Rows that have an unprotected vector.

    Returns
    -------
    protected : list of Protected
    kept : bool array, shape (n_texts,)
    """
    kept = present & usable_vectors(vectors)
    spec = None if encoder is None else encoder.spec
    without = {}
    for compared in config.compare:
        if compared.baseline == "redaction":
            texts = redacted(corpus.texts, spans, how=compared.removal, seed=config.seed)
            without[compared.name] = encoder.encode(texts, title=f"Encoding redacted texts ({compared.removal})")
            kept &= usable_vectors(without[compared.name])
        elif compared.name in found:
            kept &= found[compared.name].present
    rows = np.flatnonzero(kept)
    if len(rows) == 0:
        raise SparseError("compare: no record of input.path has a usable vector in every row of the table.")
    known = np.isin(rows, attackers)
    if not known.any():
        raise SparseError("compare: none of the records that attackers are to know has a vector in every row.")
    original, key = vectors[rows], Key.ephemeral()
    ids, texts = [corpus.ids[row] for row in rows], [corpus.texts[row] for row in rows]
    protected = []
    for compared in config.compare:
        policy, knowledge, basis = None, (PublicKnowledge(),), "none"
        if compared.release is not None or compared.vectors is not None:
            policy, published = _stated_policy(compared, spec), found[compared.name].vectors[rows]
            if policy is None:
                # With not many more records than dimensions, the estimate can mislead more than it helps.
                knowledge, basis = (*knowledge, estimate_knowledge(original[known], published[known])), UNKNOWN
            elif compared.vectors is not None:
                check_noise(compared, policy, original, published)
        elif compared.protection is not None:
            mask = _mask(config, compared, spec)
            policy = _simulated_policy(compared, mask, spec or mask.info.encoder)
            published = policy.release(original, ids=ids, contents=texts, key=key)
        elif compared.baseline == "redaction":
            published = without[compared.name][rows]
        elif compared.baseline == "rotation":
            published = (original @ rotation(original.shape[1], seed=config.seed)).astype(np.float32)
        else:
            mask = _mask(config, compared, spec)
            published, basis = dropped(original, mask), mask.info.basis
            silent = np.zeros(mask.dimension)
            knowledge = (
                PublicKnowledge(basis=mask.basis, noise_variance=silent, mean=mask.mean, variance=mask.variance),
            )
        noised = published
        if policy is not None:
            noised = policy.undo_read_out(published)
            knowledge, basis = (policy.public_knowledge(),), policy.basis_name
        dropping = mask if compared.baseline == "dropping" else None
        protected.append(Protected(compared, policy, published, noised, knowledge, basis, dropping))
    return protected, kept


def _mask(config: AuditConfig, compared: Compared, spec: EncoderSpec | None) -> Mask | None:
    if compared.mask is None:
        return None
    with registry.opened(compared.mask, config.tracking) as local:
        return Mask.load(local, encoder=spec)


def _simulated_policy(compared: Compared, mask: Mask | None, spec: EncoderSpec) -> Policy:
    return Policy.build(encoder=spec, mask=mask, **compared.protection.settings)


def _stated_policy(compared: Compared, spec: EncoderSpec | None) -> Policy | None:
    place = compared.policy if compared.release is None else storage.join(compared.release, "policy")
    if place is None:
        return None
    with storage.local_directory(place) as local:
        return Policy.load(local, encoder=spec, exact=False)
