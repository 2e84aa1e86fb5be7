"""Trials on Ray Tune: in a worker one after the other where they share a mask or a policy, side by side otherwise."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Read by Ray Tune when it is imported: its tables, logs and files have no reader here, and it is not to keep the
# interrupt for itself.
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from jobs import storage
from jobs.cluster import cluster_address, cpu_cores
from jobs.config import Range, StudyConfig
from jobs.study.results import read_records, record_url, unfinished
from jobs.study.space import Parameters, Proposals, by_mask, by_policy, evened
from jobs.study.trial import Prepared, Reference, measure_reference
from jobs.study.worker import LOOKED, Shared, TrialWorker
from sparse_core.errors import SparseError

_STOPPED = "stopped early: after a first look at a third of the records, others did better"
_LOST = "its worker ended without a word, as one does that runs out of memory or whose machine is lost"
_ROUNDS_WITHOUT_NEWS = 2

OnRecord = Callable[[dict], None]
Key = tuple[str, str, int]


def measure_references(
    prepared: Mapping[tuple[str, str], ray.ObjectRef], wanted: Sequence[Key], *, first_look: bool, advance: Callable
) -> dict[Key, tuple[ray.ObjectRef, dict]]:
    """Unprotected vectors, measured side by side: where each `Reference` lies in the object store, and its record.

    Parameters
    ----------
    prepared : mapping
        References to a `Prepared` in the object store by (encoder, concept).
    wanted : sequence of (encoder, concept, seed)
    first_look : bool
        See `measure_reference`.
    advance : callable
        Called as ``advance(done, total)``.

    Raises
    ------
    SparseError
        See `measure_reference`; and if a worker is lost.
    """
    tasks = {
        _reference.remote(prepared[encoder, concept], encoder, seed, first_look): (encoder, concept, seed)
        for encoder, concept, seed in wanted
    }
    waiting, found = list(tasks), {}
    while waiting:
        (done, *_), waiting = ray.wait(waiting)
        try:
            measured = ray.get(done)
        except ray.exceptions.RayError as error:
            raise SparseError(
                f"A worker failed over unprotected vectors ({type(error).__name__}): look at its memory, or run again "
                "with --verbose to see what it says."
            ) from error
        if isinstance(measured, SparseError):
            raise measured
        found[tasks[done]] = (done, measured.record)
        advance(len(found), len(tasks))
    return found


@ray.remote(num_cpus=1)
def _reference(prepared: Prepared, encoder: str, seed: int, first_look: bool) -> Reference | SparseError:
    """An error is returned, because Ray would wrap a raised one into a traceback."""
    try:
        return measure_reference(prepared, encoder=encoder, seed=seed, first_look=first_look)
    except SparseError as error:
        return error


@dataclass(frozen=True)
class Runner:
    """Runs trials and tells of each.

    Attributes
    ----------
    config : StudyConfig
    shared : Shared
    on_record : callable
        Called in this process with the record of every trial that ends.
    verbose : bool
    """

    config: StudyConfig
    shared: Shared
    on_record: OnRecord
    verbose: bool = False

    def run_grid(self, trials: Sequence[Parameters]) -> None:
        """Run trials, those without a record."""
        while missing := [p for p in trials if p.trial_id(self.shared.fingerprint) not in self._recorded()]:
            groups = by_policy(missing) if self.config.early_stopping else evened(by_mask(missing), self._workers)
            space = [[parameters.as_record() for parameters in group] for group in groups]
            self._fit({"trials": tune.grid_search(space)})

    def run_search(self, proposals: Proposals, n_policies: int) -> None:
        """Run what Optuna proposes until so many policies are recorded; it learns from those recorded already."""
        idle = 0
        while idle < _ROUNDS_WITHOUT_NEWS:
            records = self._recorded()
            tried = by_policy(Parameters.of_record(record["parameters"]) for record in records.values())
            # A policy of whose seeds only some were reached comes first.
            self.run_grid([p for trials in tried for p in proposals.policy(proposals.point(trials[0]))])
            if len(tried) >= n_policies:
                return
            search = self._optuna(proposals, tried)
            self._fit({}, search=search, n_new=n_policies - len(tried))
            # The same may be proposed again, where there is little to choose from.
            idle = 0 if len(self._recorded()) > len(records) else idle + 1

    @property
    def _workers(self) -> int:
        """As many as configured, else one per CPU core."""
        workers = self.config.workers
        return workers.actors or (int(ray.cluster_resources()["CPU"]) if cluster_address(workers) else cpu_cores())

    def _recorded(self) -> dict[str, dict]:
        return read_records(self.shared.output)

    def _optuna(self, proposals: Proposals, tried: Sequence[Sequence[Parameters]]):
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        if not self.verbose:
            optuna.logging.set_verbosity(optuna.logging.WARNING)
        records = self._recorded()
        scores = []
        for trials in tried:
            found = [records.get(p.trial_id(self.shared.fingerprint), {}).get("score") for p in trials]
            known = [score for score in found if score is not None]
            scores.append(sum(known) / len(known) if known else self.shared.worst_score)
        known = {"points_to_evaluate": [proposals.point(trials[0]) for trials in tried], "evaluated_rewards": scores}
        return OptunaSearch(
            space={name: _distribution(axis) for name, axis in proposals.varied.items()},
            metric="score",
            mode="max",
            seed=len(tried),
            **known if tried else {},
        )

    def _fit(self, space: dict[str, Any], *, search=None, n_new: int = 1) -> None:
        """Run Ray Tune once; whose worker is lost, is recorded as failed, and those in line behind it stay missing."""
        if not self.verbose:
            logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        scheduler = FIFOScheduler()
        if self.config.early_stopping:
            # One rung, at the first look; trials report no second.
            scheduler = ASHAScheduler("looks", "score", "max", max_t=2, grace_period=1, reduction_factor=2)
        with tempfile.TemporaryDirectory(prefix="sparse-study-") as folder:
            tune.Tuner(
                tune.with_resources(tune.with_parameters(TrialWorker, shared=self.shared), {"cpu": 1}),
                param_space=space,
                tune_config=tune.TuneConfig(
                    search_alg=search,
                    scheduler=scheduler,
                    num_samples=n_new,
                    max_concurrent_trials=self._workers,
                    reuse_actors=True,
                    trial_name_creator=_name,
                    trial_dirname_creator=_name,
                ),
                run_config=tune.RunConfig(
                    name="study",
                    storage_path=folder,
                    verbose=2 if self.verbose else 0,
                    callbacks=[_Watch(self)],
                    checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                ),
            ).fit()

    def record(self, record: dict) -> None:
        """Write the record of a trial that no worker could write."""
        storage.write_json(record_url(self.shared.output, record["trial"]), record)
        self.on_record(record)


def _name(trial) -> str:
    return trial.trial_id


def _distribution(axis: Range | tuple):
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(axis, Range):
        return FloatDistribution(axis.low, axis.high, log=axis.log)
    return CategoricalDistribution(axis)


class _Watch(tune.Callback):
    """Tells of trials as they end."""

    def __init__(self, runner: Runner):
        self._runner = runner

    def on_trial_result(self, iteration, trials, trial, result, **info):
        for name in result["ended"]:
            record = storage.read_json(record_url(self._runner.shared.output, name))
            self._runner.on_record(record)

    def on_trial_complete(self, iteration, trials, trial, **info):
        """One that was only looked at was stopped there, and with it the policy's other seeds."""
        if trial.last_result.get("status") == LOOKED:
            for parameters in self._missing(trial):
                name = parameters.trial_id(self._runner.shared.fingerprint)
                score = trial.last_result["score"]
                self._runner.record(unfinished(name, parameters, "stopped", _STOPPED, score))

    def on_trial_error(self, iteration, trials, trial, **info):
        for parameters in self._missing(trial)[:1]:
            name = parameters.trial_id(self._runner.shared.fingerprint)
            self._runner.record(unfinished(name, parameters, "failed", _LOST))

    def _missing(self, trial) -> list[Parameters]:
        shared = self._runner.shared
        recorded = read_records(shared.output)
        return [p for p in shared.trials_of(trial.config) if p.trial_id(shared.fingerprint) not in recorded]
