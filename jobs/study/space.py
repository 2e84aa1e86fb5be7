"""The policies a study tries: parameters, what two trials share, and names that stay the same from run to run."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from jobs.config import EncoderConfig, Range, SpaceConfig, StudyConfig

_ID_DIGITS = 12
_OF_THE_MASK = ("penalty", "basis", "removal", "directions")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What one trial tries.

    Attributes
    ----------
    mechanism : str
        Of `sparse_core.mechanisms.MECHANISMS`.
    rho, epsilon : float or None
        One of them, or neither for ``none``.
    read_out : {"wiener", "none"}
    seed : int
        Of mask training, noise and attackers.
    encoder, concept : str
        Names.
    penalty, basis, removal, floor : optional
        None for mechanisms that no mask shapes.
    directions : int, optional
        Most concept directions of the basis; the configured number if None.
    """

    mechanism: str
    rho: float | None = None
    epsilon: float | None = None
    read_out: str = "wiener"
    seed: int = 0
    encoder: str
    concept: str
    penalty: float | None = None
    basis: str | None = None
    removal: str | None = None
    floor: float | None = None
    directions: int | None = None

    def canonical(self) -> Parameters:
        """The same policy without what has no part in it, so that it is tried once."""
        if self.mechanism == "mahalanobis":
            return self
        return replace(self, **dict.fromkeys((*_OF_THE_MASK, "floor")))

    def as_record(self) -> dict:
        """As a trial's record names them."""
        fields = asdict(self)
        record = {"lambda": fields.pop("penalty")} | fields
        if self.directions is None:
            record.pop("directions")
        return record

    @classmethod
    def of_record(cls, record: dict) -> Parameters:
        """From what `as_record` gave."""
        fields = dict(record)
        return cls(penalty=fields.pop("lambda"), **fields)

    def trial_id(self, fingerprint: str) -> str:
        """Name of the trial in the study with this fingerprint."""
        return _digest([fingerprint, self.as_record()])

    def mask_id(self, fingerprint: str) -> str | None:
        """Name of the mask, which trials of equal ones share; None where none is learned."""
        if self.mechanism != "mahalanobis":
            return None
        shared = {name: getattr(self, name) for name in (*_OF_THE_MASK, "seed", "encoder", "concept")}
        return _digest([fingerprint, shared])


def _digest(value: list) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]


def encoder_names(config: StudyConfig) -> dict[str, EncoderConfig]:
    """Encoders by the name trials know them by: the model, numbered where one is listed with several settings."""
    models = [encoder.model for encoder in config.encoders]
    return {
        model if models.count(model) == 1 else f"{model} #{position}": encoder
        for position, (model, encoder) in enumerate(zip(models, config.encoders, strict=True), start=1)
    }


def grid(config: StudyConfig) -> list[Parameters]:
    """Every combination, once each, those with the same mask in a row."""
    space = config.space
    combined = itertools.product(
        encoder_names(config),
        [concept.name for concept in config.concepts],
        space.mechanism,
        space.seed,
        space.removal,
        space.basis,
        space.penalty,
        space.floor,
        space.read_out,
        space.rho or (None,),
        space.epsilon or (None,),
    )
    names = ("encoder", "concept", "mechanism", "seed", "removal", "basis", "penalty", "floor", "read_out")
    tried = (Parameters(**dict(zip((*names, "rho", "epsilon"), values, strict=True))) for values in combined)
    return list(dict.fromkeys(parameters.canonical() for parameters in tried))


def by_mask(trials: Iterable[Parameters]) -> list[list[Parameters]]:
    """Trials in groups that share a mask; those without one stand alone."""
    groups: dict[str, list[Parameters]] = {}
    for parameters in trials:
        groups.setdefault(parameters.mask_id("") or parameters.trial_id(""), []).append(parameters)
    return list(groups.values())


def evened(groups: list[list[Parameters]], workers: int) -> list[list[Parameters]]:
    """Groups, the last few in single trials, so that no worker ends a group long after the others have ended theirs.

    The first of each comes before the rest, which then find its mask.
    """
    whole, last = groups[: -2 * workers], groups[-2 * workers :]
    return [*whole, *(group[:1] for group in last), *([trial] for group in last for trial in group[1:])]


def by_policy(trials: Iterable[Parameters]) -> list[list[Parameters]]:
    """Trials in groups that differ in their seed only."""
    groups: dict[Parameters, list[Parameters]] = {}
    for parameters in trials:
        groups.setdefault(replace(parameters, seed=0), []).append(parameters)
    return list(groups.values())


@dataclass(frozen=True)
class Proposals:
    """Policies from what a search proposes: numbers and choices for what varies, and the rest as it stands.

    Attributes
    ----------
    space : SpaceConfig
    encoders : tuple of str
    concept : str
    """

    space: SpaceConfig
    encoders: tuple[str, ...]
    concept: str

    @property
    def varied(self) -> dict[str, Range | tuple]:
        """What a search chooses, by parameter: a range, or more than one value."""
        axes = {name: getattr(self.space, name) for name in SpaceConfig.model_fields if name != "seed"}
        axes["encoder"] = self.encoders
        return {name: axis for name, axis in axes.items() if isinstance(axis, Range) or len(axis or ()) > 1}

    def policy(self, proposed: Mapping[str, Any]) -> list[Parameters]:
        """What is proposed, with every seed."""
        axes = {name: getattr(self.space, name) for name in SpaceConfig.model_fields if name != "seed"}
        fixed = {name: axis[0] for name, axis in axes.items() if isinstance(axis, tuple)}
        fields = {"encoder": self.encoders[0], "concept": self.concept} | fixed | dict(proposed)
        return [Parameters(seed=seed, **fields).canonical() for seed in self.space.seed]

    def point(self, parameters: Parameters) -> dict[str, Any]:
        """What would have been proposed for a policy; where something has no part in it, any value does."""
        fields = asdict(parameters)
        return {
            name: (axis.low if isinstance(axis, Range) else axis[0]) if fields[name] is None else fields[name]
            for name, axis in self.varied.items()
        }
