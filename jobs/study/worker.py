"""What runs in a Ray Tune worker."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from jobs import storage
from jobs.config import StorageConfig
from jobs.study.results import record_url, score_of, unfinished
from jobs.study.space import Parameters, Proposals
from jobs.study.trial import Reference, Trial
from sparse_core.errors import SparseError
from sparse_core.masks import Mask

LOOKED = "looked"
_OURS = ("sparse_core", "jobs")


@dataclass(frozen=True)
class Shared:
    """What every worker is sent once.

    Attributes
    ----------
    output, fingerprint : str
    storage : StorageConfig
    leakage_weight : float
    first_look : bool
        Whether a trial reports after a first look, where it may be stopped.
    prepared : dict
        References to a `Prepared` in the object store by (encoder, concept).
    references : dict
        References to a `Reference` there by (encoder, concept, seed).
    proposals : Proposals or None
        What makes policies of what is proposed; None for a grid.
    """

    output: str
    fingerprint: str
    storage: StorageConfig
    leakage_weight: float
    first_look: bool
    prepared: dict[tuple[str, str], ray.ObjectRef]
    references: dict[tuple[str, str, int], ray.ObjectRef]
    proposals: Proposals | None = None

    @property
    def worst_score(self) -> float:
        """No utility kept, all leaked."""
        return -self.leakage_weight

    def trials_of(self, config: Mapping[str, Any]) -> list[Parameters]:
        """The trials behind one configuration of Ray Tune."""
        if "trials" in config:
            return [Parameters.of_record(record) for record in config["trials"]]
        return self.proposals.policy(config)


class TrialWorker(tune.Trainable):
    """Runs the trials of one configuration, one a step; with a first look before the first."""

    def setup(self, config: dict[str, Any], *, shared: Shared) -> None:
        import torch

        torch.set_num_threads(1)
        storage.configure(shared.storage)
        self._shared = shared
        self._fetched: dict[ray.ObjectRef, Any] = {}
        self._mask: tuple[str, Mask] | None = None
        self.reset_config(config)

    def reset_config(self, config: dict[str, Any]) -> bool:
        """Take on the next configuration in the same process."""
        self._trials = self._shared.trials_of(config)
        self._scores: list[float] = []
        self._begun: Trial | None = None
        self._looks = 0
        return True

    def step(self) -> dict[str, Any]:
        """Run a trial, or have a first look at it."""
        parameters = self._trials[len(self._scores)]
        name = parameters.trial_id(self._shared.fingerprint)
        record, ended = storage.read_json(record_url(self._shared.output, name)), []
        if record is None:
            try:
                if self._shared.first_look and not self._scores and self._begun is None:
                    self._begun = self._begin(name, parameters)
                    score = self._score(self._begun.first_look(), parameters)
                    self._looks = 1
                    return {"status": LOOKED, "score": score, "looks": 1, "ended": [], "done": False}
                record = self._finished(self._begun or self._begin(name, parameters), parameters)
            except Exception as error:
                record = unfinished(name, parameters, "failed", reason_of(error))
            storage.write_json(record_url(self._shared.output, name), record)
            ended.append(name)
        self._begun = None
        self._scores.append(self._shared.worst_score if record["score"] is None else record["score"])
        return {
            "status": record["status"],
            "score": sum(self._scores) / len(self._scores),
            "looks": self._looks,
            "ended": ended,
            "done": len(self._scores) == len(self._trials),
        }

    def _begin(self, name: str, parameters: Parameters) -> Trial:
        shared = self._shared
        trial = Trial(
            self._get(shared.prepared[parameters.encoder, parameters.concept]),
            parameters,
            name=name,
            mask=self._known_mask(parameters),
            reference=self._reference(parameters),
        )
        mask_id = parameters.mask_id(shared.fingerprint)
        if mask_id is not None and (self._mask is None or self._mask[0] != mask_id):
            self._mask = mask_id, trial.mask
            with storage.upload_directory(self._mask_url(mask_id)) as local:
                trial.mask.save(local)
        return trial

    def _finished(self, trial: Trial, parameters: Parameters) -> dict:
        record = trial.finish()
        record["score"] = self._score(record["row"], parameters)
        mask_id = parameters.mask_id(self._shared.fingerprint)
        return record | {"mask_path": mask_id and f"masks/{mask_id}"}

    def _score(self, row: Mapping[str, Any], parameters: Parameters) -> float:
        reference = self._reference(parameters).record["row"]
        return score_of(row, reference, leakage_weight=self._shared.leakage_weight)

    def _known_mask(self, parameters: Parameters) -> Mask | None:
        mask_id = parameters.mask_id(self._shared.fingerprint)
        if mask_id is None:
            return None
        if self._mask is None or self._mask[0] != mask_id:
            if not storage.exists(storage.join(self._mask_url(mask_id), "mask.json")):
                return None
            with storage.local_directory(self._mask_url(mask_id)) as local:
                self._mask = mask_id, Mask.load(local)
        return self._mask[1]

    def _mask_url(self, mask_id: str) -> str:
        return storage.join(self._shared.output, "masks", mask_id)

    def _reference(self, parameters: Parameters) -> Reference:
        return self._get(self._shared.references[parameters.encoder, parameters.concept, parameters.seed])

    def _get(self, reference: ray.ObjectRef) -> Any:
        if reference not in self._fetched:
            self._fetched[reference] = ray.get(reference)
        return self._fetched[reference]


def reason_of(error: Exception) -> str:
    """Why a trial failed: what we say ourselves in full, of others the kind and the place.

    Messages of libraries may quote what they were given, such as a text.
    """
    if isinstance(error, SparseError):
        return str(error)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        ours = next((path.parts.index(name) for name in _OURS if name in path.parts), None)
        if ours is not None:
            return f"{type(error).__name__} at {'/'.join(path.parts[ours:])}:{frame.lineno}"
    return type(error).__name__
