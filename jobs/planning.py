"""What is checked before anything is computed: input, columns, key, mask, protection and output."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from jobs import outputs, registry, sources, storage
from jobs.cluster import check_cluster
from jobs.config import PrivatizeConfig
from jobs.stages import check_output, load_key
from jobs.units import RESERVED_COLUMNS, UNIT_NORM_TOLERANCE
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks import Mask, unite_masks
from sparse_core.mechanisms import DEFAULT_DELTA
from sparse_core.noise import Key
from sparse_core.policy import Policy


@dataclass(frozen=True)
class Plan:
    """What a run will read, do and write.

    `spec` is the encoder's where it is known without loading the model: the mask's, or that of stored vectors.
    """

    source: sources.Source
    key: Key
    mask: Mask | None
    spec: EncoderSpec | None
    lines: tuple[str, ...]


def checked(config: PrivatizeConfig) -> Plan:
    """Check everything that can be known before the model is loaded."""
    check_output("privatize", config)
    check_cluster(config.workers)
    _refuse_overlap(config)
    source = sources.plan(config.input, columns=config.passthrough, subject=config.budget.subject)
    reserved = RESERVED_COLUMNS if config.input.id is not None else (*RESERVED_COLUMNS, "id")
    for column, count in Counter((config.input.id, *config.passthrough)).items():
        if count > 1:
            kept = "is published anyway" if column == config.input.id else "stands there twice"
            raise SparseError(f"passthrough: {column!r} {kept}; name each further column once.")
        if column in reserved:
            raise SparseError(f"The output has a column {column!r} of its own; rename the input's.")
    copied = [name for name in (config.input.id, *config.passthrough) if name is not None]
    outputs.check_format(config.dataset, pa.schema([source.schema.field(name) for name in copied]))
    key = load_key(config.key)
    mask = mask_of(config)
    spec = mask and mask.info.encoder
    if config.encoder == "none":
        spec = _spec_of_vectors(config, source, mask)
    elif mask is not None:
        _refuse_other_model(mask, config)
    if spec is not None:
        # Building proves that the parts fit before the model is loaded.
        policy_of(config, spec, mask)
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    protection, dataset = config.protection, config.dataset
    strength = f"epsilon {protection.epsilon:g}" if protection.epsilon else f"rho {protection.rho or 0:g}"
    return Plan(
        source,
        key,
        mask,
        spec,
        (
            f"read        {rows} rows of {config.input.shown_path} in {len(source.units)} units",
            f"encoder     {'none, vectors are stored' if config.encoder == 'none' else config.encoder.model}",
            f"mask        {', '.join(paths) if (paths := mask_paths(config)) else 'none'}",
            f"protection  {protection.mechanism}, {strength}, floor {protection.floor:g}, "
            + (f"delta {protection.delta or DEFAULT_DELTA:g}, " if protection.mechanism == "gaussian" else "")
            + f"read-out {protection.read_out}",
            f"key         {key.identifier}" + (" (ephemeral)" if config.key.ephemeral else ""),
            f"write       {config.output}/{outputs.folder_of(dataset.format)} ({dataset.format}, {dataset.precision}), "
            f"{config.output}/quarantine, {config.output}/ledger, {config.output}/summary.json",
        ),
    )


def policy_of(config: PrivatizeConfig, spec: EncoderSpec, mask: Mask | None) -> Policy:
    """The policy of a run."""
    policy = Policy.build(encoder=spec, mask=mask, **config.protection.settings)
    # Where int8 has no public scale, this says so before anything is done.
    outputs.public_scale(policy, config.dataset.precision)
    return policy


def pinned(config: PrivatizeConfig) -> PrivatizeConfig:
    """The configuration with the version of each mask that an alias of the model registry points at now."""
    storage.configure(config.storage)
    if config.mask is None or isinstance(config.mask, str):
        return config.model_copy(update={"mask": registry.pinned(config.mask, config.tracking)})
    masks = tuple(m.model_copy(update={"path": registry.pinned(m.path, config.tracking)}) for m in config.mask)
    return config.model_copy(update={"mask": masks})


def mask_paths(config: PrivatizeConfig) -> list[str]:
    """Where the masks of a run are."""
    if config.mask is None:
        return []
    return [config.mask] if isinstance(config.mask, str) else [weighted.path for weighted in config.mask]


def mask_of(config: PrivatizeConfig, spec: EncoderSpec | None = None) -> Mask | None:
    """The mask of a run, united where there are several; one that was learned for another encoder is refused."""
    masks = []
    for path in mask_paths(config):
        with registry.opened(path, config.tracking) as local:
            masks.append(Mask.load(local, encoder=spec))
    if not masks:
        return None
    return masks[0] if isinstance(config.mask, str) else unite_masks(masks, weights=[m.weight for m in config.mask])


def _spec_of_vectors(config: PrivatizeConfig, source: sources.Source, mask: Mask | None) -> EncoderSpec:
    """What is known of the model behind stored vectors: what a mask says, or their dimension and norm."""
    rows = next((rows for unit in source.units for rows in sources.read(source.bare(), unit) if len(rows)), None)
    if rows is None:
        raise SparseError(f"input.embedding: no row of {config.input.shown_path} has a usable vector.")
    norms = np.linalg.norm(rows.vectors, axis=1)
    unit = bool((np.abs(norms - 1) <= UNIT_NORM_TOLERANCE).mean() > 0.5)
    shown = f"the median norm of the first {len(norms):,} vectors is {np.median(norms):.4g}"
    if mask is not None:
        spec = mask.info.encoder
        if spec.dimension != source.dimension:
            raise SparseError(
                f"input.embedding: the vectors have {source.dimension} dimensions, the mask {spec.dimension}. Take a "
                "mask that was learned for the model that made them."
            )
        if spec.normalize != unit:
            raise SparseError(
                f"input.embedding: the mask was learned for {'' if spec.normalize else 'other than '}unit vectors, but "
                f"{shown}. Take a mask that was learned for the model that made them."
            )
        return spec
    if config.protection.rho is not None and config.protection.embedding_norm is None and not unit:
        raise SparseError(
            f"protection.rho: it is relative to the norm of the embeddings, and {shown}. State it in "
            "protection.embedding_norm, or give epsilon instead of rho."
        )
    return EncoderSpec("none", None, "", source.dimension, "", normalize=unit, max_tokens=None)


def _refuse_overlap(config: PrivatizeConfig) -> None:
    _, output = storage.filesystem(config.output)
    for path in config.input.paths:
        _, source = storage.filesystem(path)
        if f"{output.rstrip('/')}/".startswith(f"{source.rstrip('/')}/"):
            raise SparseError(
                f"output: {config.output} lies inside input.path; the next run would read its own output."
            )


def _refuse_other_model(mask: Mask, config: PrivatizeConfig) -> None:
    learned = mask.info.encoder
    if learned.normalize != config.encoder.normalize or learned.prompt != config.encoder.prompt:
        raise SparseError(
            f"The mask in {', '.join(mask_paths(config))} was learned "
            f"with normalize={learned.normalize} and prompt {learned.prompt!r}, "
            f"the encoder is configured with normalize={config.encoder.normalize} and prompt {config.encoder.prompt!r}."
        )
