"""A job as an MLflow run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from jobs import ledger, storage
from jobs.config import JobConfig, public_settings
from jobs.summary import Summary
from jobs.tracking.store import Store, opened
from sparse_core.errors import SparseError

_PACKAGES = ("sparse-embeddings", "ray", "torch", "sentence-transformers", "transformers", "numpy", "pyarrow")
_PARAM_CHARACTERS = 500
_NAME = re.compile(r"[^\w\-. /]")
_PARAMS, _METRICS = 100, 850


class Run:
    """A run being recorded; does nothing where tracking is disabled."""

    def __init__(self, store: Store | None, run_id: str | None):
        self.store = store
        self.run_id = run_id

    def log_directory(self, directory: str, name: str) -> None:
        """Store a directory as an artifact."""
        if self.store is not None:
            with self.store.recording(), storage.local_directory(directory) as local:
                self.store.client.log_artifacts(self.run_id, str(local), name)

    def log_text(self, text: str, name: str) -> None:
        """Store a page as an artifact."""
        if self.store is not None:
            with self.store.recording():
                self.store.client.log_text(self.run_id, text, name)


@contextmanager
def tracked(config: JobConfig, summary: Summary) -> Iterator[Run]:
    """Record a job as an MLflow run: FINISHED when the block ends, FAILED when it raises, KILLED when interrupted.

    Settings, versions and metrics go in at the end, from the summary, so that nothing is logged that the
    summary does not hold. A run of the same job and output that was killed before it could say so is set to KILLED.
    """
    store = opened(config) if config.tracking.enabled else None
    if store is None:
        yield Run(None, None)
        return
    tags = {"sparse.job": summary.job, "sparse.output": place_of(config.output)}
    run = Run(store, None)
    with store.recording():
        end_orphans(store, f"tags.`sparse.job` = '{summary.job}' and {of_place(config.output)}")
        run.run_id = store.client.create_run(store.experiment_id, run_name=summary.job, tags=tags).info.run_id
    if run.run_id is None:
        yield Run(None, None)
        return
    with ended(run, lambda: _log(run, config, summary)):
        yield run


@contextmanager
def ended(run: Run, log, *, complete: str = "The output is complete, but not all of it is recorded.") -> Iterator[None]:
    """Give a run its end, however the block ends, after a last word from `log`."""
    try:
        with _termination_raises():
            yield
    except BaseException as error:
        # What went wrong with the job is to be told, not what went wrong with telling.
        with suppress(Exception):
            log()
        with suppress(Exception):
            killed = isinstance(error, KeyboardInterrupt | SystemExit)
            run.store.client.set_terminated(run.run_id, status="KILLED" if killed else "FAILED")
        raise
    try:
        with run.store.recording():
            log()
            run.store.client.set_terminated(run.run_id, status="FINISHED")
    except SparseError as error:
        raise SparseError(f"{complete} {error}") from None


@contextmanager
def _termination_raises() -> Iterator[None]:
    """SIGTERM ends Python without a word; as an exception it lets the run be ended, too."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        # Ray may have put its own in place, which raises as well.
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def place_of(output: str) -> str:
    """A name for an output directory that does not tell where it is."""
    return hashlib.sha256(ledger.located(output).encode()).hexdigest()[:32]


def of_place(output: str) -> str:
    """MLflow's filter for the runs of an output directory."""
    return f"tags.`sparse.output` = '{place_of(output)}'"


def end_orphans(store: Store, condition: str) -> None:
    """Set runs to KILLED that a process left RUNNING because it was killed itself."""
    for run in store.search(f"{condition} and attributes.status = 'RUNNING'"):
        store.client.set_terminated(run.info.run_id, status="KILLED")


def log_figures(
    store: Store,
    run_id: str,
    *,
    params: Mapping[str, object] = {},
    metrics: Mapping[str, object] = {},
    tags: Mapping[str, str] = {},
) -> None:
    """Log in as few requests as MLflow allows; what is not a finite number is no metric."""
    from mlflow.entities import Metric, Param, RunTag

    texts = [Param(_NAME.sub("_", name), str(value)[:_PARAM_CHARACTERS]) for name, value in params.items()]
    now = int(time.time() * 1000)
    numbers = [
        Metric(_NAME.sub("_", name), float(value), now, 0)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    marks = [RunTag(name, value) for name, value in tags.items()]
    for part in range(max(1, -(-len(texts) // _PARAMS), -(-len(numbers) // _METRICS - 1))):
        store.client.log_batch(
            run_id,
            params=texts[part * _PARAMS : (part + 1) * _PARAMS],
            metrics=numbers[part * _METRICS : (part + 1) * _METRICS],
            tags=marks if part == 0 else (),
        )


def settings_of(config: JobConfig, fingerprints: Mapping[str, object]) -> dict[str, str]:
    """What of a job's configuration and surroundings is public: parameters of its run."""
    settings = public_settings(config)
    settings |= {f"fingerprint.{name}": str(value) for name, value in fingerprints.items()}
    return settings | {f"version.{name}": importlib.metadata.version(name) for name in _PACKAGES}


def _log(run: Run, config: JobConfig, summary: Summary) -> None:
    settings = settings_of(config, summary.details.get("fingerprints", {}))
    metrics = {"rows_in": summary.rows_in, "rows_out": summary.rows_out}
    metrics |= {f"quarantined/{reason}": count for reason, count in summary.quarantined.items()}
    metrics |= {f"seconds/{stage}": seconds for stage, seconds in summary.durations.items()}
    metrics |= {f"mask/{name}": value for name, value in summary.details.get("mask_metrics", {}).items()}
    metrics |= {f"guarantee/{k}": v for k, v in summary.details.get("guarantee", {}).items()}
    for row in summary.as_dict()["protections"]:
        metrics |= {f"{row['name']}/{k}": v for k, v in row.items() if k != "name"}
    log_figures(
        run.store,
        run.run_id,
        params=settings | {"policy_hash": str(summary.policy_hash)},
        metrics=metrics,
        tags={"sparse.policy_hash": str(summary.policy_hash)},
    )
    run.store.client.log_dict(run.run_id, summary.as_dict(), "summary.json")
