"""MLflow: what a run did, and never a key, a concept's term or a text."""

from __future__ import annotations

import importlib.metadata
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs import storage
from jobs.config import JobConfig, public_settings, without_credentials
from jobs.summary import Summary
from sparse_core.errors import SparseError

_PACKAGES = ("sparse-embeddings", "ray", "torch", "sentence-transformers", "transformers", "numpy", "pyarrow")
_PARAM_CHARACTERS = 500
_NAME = re.compile(r"[^\w\-. /]")


def tracking_uri(config: JobConfig) -> str:
    """Where the run is recorded: as configured, or a SQLite store in the output directory."""
    if config.tracking.uri is not None:
        return config.tracking.uri
    if "://" in config.output:
        raise SparseError(
            "tracking.uri: with an output on object storage there is no place for the SQLite store; "
            "name a tracking server, or set tracking.enabled=false."
        )
    return f"sqlite:///{Path(config.output).resolve()}/mlflow.db"


@contextmanager
def tracked(config: JobConfig, summary: Summary) -> Iterator[Run]:
    """Record a job as an MLflow run: FINISHED when the block ends, FAILED when it raises.

    Settings, versions and metrics go in at the end, from the summary, so that nothing is logged that the
    summary does not hold.
    """
    if not config.tracking.enabled:
        yield Run(None, None)
        return
    client, run_id = _start(config, summary)
    try:
        yield Run(client, run_id)
    except BaseException:
        _log(client, run_id, config, summary)
        client.set_terminated(run_id, status="FAILED")
        raise
    _log(client, run_id, config, summary)
    client.set_terminated(run_id, status="FINISHED")


class Run:
    """A run being recorded; does nothing where tracking is disabled."""

    def __init__(self, client, run_id: str | None):
        self._client = client
        self.run_id = run_id

    def log_directory(self, directory: str, name: str) -> None:
        """Store a directory as an artifact."""
        if self._client is not None:
            with storage.local_directory(directory) as local:
                self._client.log_artifacts(self.run_id, str(local), name)

    def log_text(self, text: str, name: str) -> None:
        """Store a page as an artifact."""
        if self._client is not None:
            self._client.log_text(self.run_id, text, name)


def _start(config: JobConfig, summary: Summary):
    for name in ("alembic", "mlflow", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow
    from mlflow.exceptions import MlflowException

    uri = tracking_uri(config)
    # A server knows where artifacts go; a SQLite store would put them into the current directory.
    database = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
    if database is not None:
        storage.make_local_directory(database.parent)
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(config.tracking.experiment)
        experiment_id = (
            client.create_experiment(
                config.tracking.experiment,
                artifact_location=None if database is None else (database.parent.resolve() / "mlflow").as_uri(),
            )
            if experiment is None
            else experiment.experiment_id
        )
        run = client.create_run(experiment_id, run_name=summary.job, tags={"sparse.job": summary.job})
    except MlflowException as error:
        shown, message = without_credentials(uri), without_credentials(error.message[:200])
        raise SparseError(f"tracking.uri: {shown} cannot be used ({message}).") from None
    return client, run.info.run_id


def _log(client, run_id: str, config: JobConfig, summary: Summary) -> None:
    from mlflow.entities import Metric, Param, RunTag

    settings = public_settings(config) | {"policy_hash": str(summary.policy_hash)}
    settings |= {f"fingerprint.{k}": str(v) for k, v in summary.details.get("fingerprints", {}).items()}
    settings |= {f"version.{name}": importlib.metadata.version(name) for name in _PACKAGES}
    params = [Param(_NAME.sub("_", key), value[:_PARAM_CHARACTERS]) for key, value in settings.items()]
    metrics = {"rows_in": summary.rows_in, "rows_out": summary.rows_out}
    metrics |= {f"quarantined/{reason}": count for reason, count in summary.quarantined.items()}
    metrics |= {f"seconds/{stage}": seconds for stage, seconds in summary.durations.items()}
    metrics |= {f"mask/{name}": value for name, value in summary.details.get("mask_metrics", {}).items()}
    metrics |= {f"guarantee/{k}": v for k, v in summary.details.get("guarantee", {}).items()}
    for row in summary.as_dict()["protections"]:
        metrics |= {f"{row['name']}/{k}": v for k, v in row.items() if k != "name"}
    numbers = [
        Metric(_NAME.sub("_", key), float(value), 0, 0)
        for key, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    for start in range(0, len(params), 100):
        client.log_batch(run_id, params=params[start : start + 100])
    for start in range(0, len(numbers), 500):
        client.log_batch(run_id, metrics=numbers[start : start + 500])
    client.log_batch(run_id, tags=[RunTag("sparse.policy_hash", str(summary.policy_hash))])
    client.log_dict(run_id, summary.as_dict(), "summary.json")
