"""A study as an MLflow run with a child per trial."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from jobs import storage
from jobs.config import JobConfig
from jobs.summary import Summary
from jobs.tracking.runs import Run, end_orphans, ended, log_figures, of_place, place_of, settings_of
from jobs.tracking.store import Store, opened

_PARENT = "mlflow.parentRunId"
_STATUS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_REASON_CHARACTERS = 500


class StudyRun(Run):
    """The run of a study. A copy of it, pickled, serves in any process that can reach the store.

    Does nothing where tracking is disabled.
    """

    def __init__(self, store: Store | None, run_id: str | None, *, output: str, common: Mapping[str, str]):
        super().__init__(store, run_id)
        self._output = output
        self._common = dict(common)

    def log_trial(self, record: Mapping[str, Any]) -> str | None:
        """Record a trial that ended as a child run, unless it is recorded already; one repeated takes its run over.

        Parameters
        ----------
        record : mapping
            As it lies in ``trials/ID.json`` of the study.

        Returns
        -------
        str or None
            The child's run; None where nothing is recorded.
        """
        if self.store is None:
            return None
        known, status = self._children.get(record["trial"], (None, None))
        if status == _STATUS[record["status"]]:
            return known
        with self.store.recording():
            known = self._record(record, known)
        return known

    @cached_property
    def _children(self) -> dict[str, tuple[str, str]]:
        """Run and status by trial; RUNNING are those that a process was killed over."""
        found = {}
        with self.store.recording():
            for run in self.store.search(f"tags.`{_PARENT}` = '{self.run_id}'"):
                found[run.data.tags["sparse.trial"]] = (run.info.run_id, run.info.status)
        return found

    def _record(self, record: Mapping[str, Any], run_id: str | None) -> str:
        client, trial = self.store.client, record["trial"]
        now = int(time.time() * 1000)
        if run_id is None:
            tags = {_PARENT: self.run_id, "sparse.job": "trial", "sparse.trial": trial}
            started = now - int(1000 * sum(record["durations"].values()))
            run = client.create_run(self.store.experiment_id, started, tags, run_name=trial)
            run_id = run.info.run_id
            self._children[trial] = (run_id, "RUNNING")
        params = {name: value for name, value in record["parameters"].items() if value is not None}
        log_figures(self.store, run_id, params=self._common | params, metrics=_metrics(record), tags=_words(record))
        if record["mask_path"] is not None:
            with storage.local_directory(storage.join(self._output, record["mask_path"])) as local:
                client.log_artifacts(run_id, str(local), "mask")
        status = _STATUS[record["status"]]
        client.set_terminated(run_id, status=status, end_time=now)
        self._children[trial] = (run_id, status)
        return run_id

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_children"}


@contextmanager
def tracked_study(config: JobConfig, summary: Summary, study: Mapping[str, Any]) -> Iterator[StudyRun]:
    """Record a study: its run is opened again where the study is resumed, and ends as `tracked`'s do.

    Parameters
    ----------
    config : JobConfig
    summary : Summary
        Written to the run at the end, without its protections: every trial has a run of its own.
    study : mapping
        As it lies in ``study.json``: its ``fingerprint`` names it, ``fingerprints`` are its data's.
    """
    store = opened(config) if config.tracking.enabled else None
    fingerprints = {"study": study["fingerprint"], **study["fingerprints"]}
    common = {f"fingerprint.{name}": str(value) for name, value in fingerprints.items()}
    run = StudyRun(store, None, output=config.output, common=common)
    if store is not None:
        with store.recording():
            run.run_id = _parent(store, config, summary.job, study["fingerprint"])
    if run.run_id is None:
        yield StudyRun(None, None, output=config.output, common=common)
        return

    def log() -> None:
        end_orphans(store, f"tags.`{_PARENT}` = '{run.run_id}'")
        there = store.client.get_run(run.run_id).data.params
        settings = settings_of(config, fingerprints)
        params = {name: value for name, value in settings.items() if name not in there}
        log_figures(store, run.run_id, params=params, metrics=_metrics_of_study(summary))
        store.client.log_dict(run.run_id, summary.as_dict(), "summary.json")

    with ended(run, log):
        yield run


def _parent(store: Store, config: JobConfig, job: str, fingerprint: str) -> str:
    condition = f"tags.`sparse.study` = '{fingerprint}' and tags.`sparse.job` = '{job}' and {of_place(config.output)}"
    if found := store.search(condition):
        store.client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id
    tags = {"sparse.job": job, "sparse.study": fingerprint, "sparse.output": place_of(config.output)}
    return store.client.create_run(store.experiment_id, run_name=job, tags=tags).info.run_id


def _words(record: Mapping[str, Any]) -> dict[str, str]:
    """What is said of a trial in words: tags."""
    verdicts = {f"sparse.verdict.{name}": attack["verdict"] for name, attack in record["attacks"].items()}
    return verdicts | {"mlflow.note.content": (record["reason"] or "")[:_REASON_CHARACTERS]}


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a trial under the names of `ProtectionRow`, and those behind them."""
    metrics = {**(record["row"] or {}), "score": record.get("score")}
    for name, attack in record["attacks"].items():
        for figure in ("unprotected", "protected", "floor", "leakage_normalized"):
            metrics |= {f"attack/{name}/{figure}/{key}": value for key, value in attack[figure].items()}
        metrics[f"attack/{name}/confidence"] = attack["confidence"]
    for utility in record["utilities"]:
        metrics |= {f"utilities/{utility['name']}/{key}": utility[key] for key in ("score", "low", "high")}
    metrics |= {f"mask/{name}": value for name, value in (record["mask"] or {}).items()}
    return metrics | {f"seconds/{stage}": value for stage, value in record["durations"].items()}


def _metrics_of_study(summary: Summary) -> dict[str, Any]:
    metrics = {"rows_in": summary.rows_in, "rows_out": summary.rows_out}
    metrics |= {f"seconds/{stage}": seconds for stage, seconds in summary.durations.items()}
    metrics |= {f"trials/{status}": count for status, count in summary.details.get("trials", {}).items()}
    for name, found in summary.details.get("best", {}).items():
        metrics |= {
            f"best/{name}/{figure}": value for figure, value in {"score": found["score"], **found["mean"]}.items()
        }
    return metrics
