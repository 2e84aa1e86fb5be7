"""Where runs are recorded: found, opened, and told early that it will not serve."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from jobs import storage
from jobs.config import JobConfig, TrackingConfig, without_credentials
from jobs.progress import console
from jobs.tracking.reaching import client_of, explained, probe
from sparse_core.errors import SparseError

_SQLITE = "sqlite:///"


def tracking_uri(config: JobConfig) -> str:
    """Where the run is recorded: as configured, or a SQLite store in the output directory.

    Raises
    ------
    SparseError
        If there is no such place, or it is a folder of files and the installed MLflow refuses those.
    """
    uri = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        if (local := _local_store(config)) is None:
            raise SparseError(
                "tracking.uri: with an output on object storage there is no place for the SQLite store; "
                "name a tracking server, or set tracking.enabled=false."
            )
        return local
    if _is_folder(uri) and not _folders_allowed():
        raise SparseError(
            f"tracking.uri: {uri} is a folder, and the installed MLflow no longer records into folders. Name a "
            "database (sqlite:////path/mlflow.db) or a server, or set MLFLOW_ALLOW_FILE_STORE=true."
        )
    return uri


def check_tracking(config: JobConfig) -> None:
    """Refuse to start where runs must be recorded and their place cannot be reached; that takes seconds."""
    if not config.tracking.enabled:
        return
    uri = tracking_uri(config)
    if config.tracking.required and not (uri.startswith(_SQLITE) or _is_folder(uri)):
        probe(uri, output=config.output)


@dataclass(frozen=True)
class Store:
    """A place for runs, which every process opens for itself.

    Attributes
    ----------
    uri : str
    experiment_id : str
    required : bool
        Whether failing to record ends the job.
    """

    uri: str
    experiment_id: str
    required: bool

    @cached_property
    def client(self):
        """MLflow's client."""
        return client_of(self.uri)

    @property
    def shown(self) -> str:
        """``uri`` for people."""
        return without_credentials(self.uri)

    def search(self, condition: str) -> list:
        """All runs of the experiment that a filter of MLflow's describes."""
        found, token = [], None
        while True:
            page = self.client.search_runs([self.experiment_id], condition, page_token=token)
            found += page
            if not (token := page.token):
                return found

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Where recording fails inside the block: end the job, or say so and go on, as configured."""
        try:
            with explained(self.uri):
                yield
        except SparseError as error:
            if self.required:
                raise
            console.print(f"Not recorded: {error}", highlight=False, soft_wrap=True)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def opened(config: JobConfig) -> Store | None:
    """Open the store of a job.

    Returns
    -------
    Store or None
        The SQLite store in the output where the configured one cannot be reached and is not required; None where
        the output is no place for one either.
    """
    uri, tracking = tracking_uri(config), config.tracking
    try:
        if not (uri.startswith(_SQLITE) or _is_folder(uri)):
            probe(uri, output=config.output)
        return Store(uri, _experiment(uri, tracking), tracking.required)
    except SparseError as error:
        if tracking.required:
            raise
        local = _local_store(config)
        place = "nowhere" if local is None else f"in {local}"
        console.print(f"{error} This run is recorded {place} instead.", highlight=False, soft_wrap=True)
        return None if local is None or local == uri else Store(local, _experiment(local, tracking), False)


def _experiment(uri: str, tracking: TrackingConfig) -> str:
    with explained(uri), _alone(uri):
        from mlflow.exceptions import MlflowException

        client = client_of(uri)
        if (experiment := client.get_experiment_by_name(tracking.experiment)) is not None:
            return experiment.experiment_id
        # A server knows where artifacts go; a SQLite store would put them into the current directory.
        location = (_folder(uri) / "mlflow").as_uri() if uri.startswith(_SQLITE) else None
        try:
            return client.create_experiment(tracking.experiment, artifact_location=location)
        except MlflowException:
            # Another process was faster.
            if (experiment := client.get_experiment_by_name(tracking.experiment)) is None:
                raise
            return experiment.experiment_id


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """One process at a time: of several that create the same SQLite store at once, all but one fail."""
    if not uri.startswith(_SQLITE):
        yield
        return
    folder = _folder(uri)
    storage.make_local_directory(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network filesystems know no locks.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _folder(uri: str) -> Path:
    return Path(uri.removeprefix(_SQLITE)).parent.resolve()


def _local_store(config: JobConfig) -> str | None:
    return None if "://" in config.output else f"{_SQLITE}{Path(config.output).resolve()}/mlflow.db"


def _is_folder(uri: str) -> bool:
    return uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks"))


def _folders_allowed() -> bool:
    from mlflow import environment_variables

    variable = getattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE", None)
    return variable is None or variable.get()
