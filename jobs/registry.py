"""Masks in MLflow's model registry: ``models:/NAME@ALIAS`` and ``models:/NAME/VERSION`` wherever a mask is named.

A version is a mask artifact, as it lies on disk, in the run that made it. It says what it is in its tags; it is no
model that MLflow could load or serve.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs import storage
from jobs.config import RegistryConfig, TrackingConfig, without_credentials
from jobs.progress import console
from jobs.tracking import Run, client_of, explained
from sparse_core.errors import SparseError

_SCHEME = "models:/"
_REFERENCE = re.compile(r"models:/([^/@:]+)(?:@([\w-]+)|/(\d+))")
_SHOWN = 20


@dataclass(frozen=True)
class Registered:
    """A version of a mask in a registry."""

    name: str
    version: str
    alias: str | None = None

    @property
    def reference(self) -> str:
        """What a configuration says to get this version, whatever the alias comes to mean."""
        return f"{_SCHEME}{self.name}/{self.version}"


def register_mask(run: Run, directory: str, config: RegistryConfig, *, artifact: str = "mask") -> Registered | None:
    """Put a mask into the model registry, and let the alias point at it.

    Parameters
    ----------
    run : Run
        That made the mask; becomes the version's origin.
    directory : str
        Mask artifact.
    config : RegistryConfig
    artifact : str
        Folder of the run that the mask lies in, or is put into.

    Returns
    -------
    Registered or None
        The version; one that is there already is not made twice. None where nothing is recorded.
    """
    if run.store is None:
        return None
    described = storage.read_json(storage.join(directory, "mask.json"))
    registered = None
    with run.store.recording():
        client = run.store.client
        if not client.list_artifacts(run.run_id, artifact):
            run.log_directory(directory, artifact)
        version = _version(client, run, artifact, config.name, described)
        client.set_registered_model_alias(config.name, config.alias, version)
        registered = Registered(config.name, str(version), config.alias)
    if registered is not None:
        console.print(
            f"Registered as {registered.reference}, {_SCHEME}{config.name}@{config.alias}, in {run.store.shown}",
            highlight=False,
            soft_wrap=True,
        )
    return registered


def _version(client, run: Run, artifact: str, name: str, described: dict) -> str:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description="Masks of SPARSE for embeddings; not to be served.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {
        "sparse.mask": described["sha256"],
        "sparse.concepts": ", ".join(described["concepts"]),
        "sparse.basis": described["basis"],
        "sparse.encoder": described["encoder"]["model"],
    }
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.tags.get("sparse.mask") == tags["sparse.mask"]:
            return version.version
    source = f"{client.get_run(run.run_id).info.artifact_uri}/{artifact}"
    # A model's own form is not asked for: the source is any folder of the run.
    return client.create_model_version(name, source, run.run_id, tags=tags).version


def registered(references: Iterable[str]) -> list[str]:
    """Those masks of some that are named by their place in a registry."""
    return [reference for reference in references if reference.startswith(_SCHEME)]


def pinned(reference: str | None, tracking: TrackingConfig) -> str | None:
    """A mask's name with the version that an alias points at now; anything else as it is.

    Raises
    ------
    SparseError
        Naming what there is, if the registry has no such mask, version or alias.
    """
    if reference is None or not reference.startswith(_SCHEME):
        return reference
    found = _find(reference, tracking)
    return f"{_SCHEME}{found.name}/{found.version}"


@contextmanager
def opened(reference: str, tracking: TrackingConfig) -> Iterator[Path]:
    """A mask's directory as a local one, from storage or from the registry."""
    if not reference.startswith(_SCHEME):
        with storage.local_directory(reference) as local:
            yield local
        return
    uri, found = _uri(reference, tracking), _find(reference, tracking)
    with tempfile.TemporaryDirectory() as temporary:
        with explained(uri):
            from mlflow.artifacts import download_artifacts

            source = client_of(uri).get_model_version_download_uri(found.name, found.version)
            local = Path(download_artifacts(source, dst_path=temporary, tracking_uri=uri))
        if not (local / "mask.json").exists():
            raise SparseError(f"mask: {reference} in {without_credentials(uri)} is no mask; it has no mask.json.")
        yield local


def _find(reference: str, tracking: TrackingConfig):
    from mlflow.exceptions import MlflowException

    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise SparseError(f"mask: {reference!r} names no mask; write models:/NAME@ALIAS or models:/NAME/VERSION.")
    name, alias, version = match.groups()
    uri = _uri(reference, tracking)
    with explained(uri):
        client = client_of(uri)
        try:
            if alias is not None:
                return client.get_model_version_by_alias(name, alias)
            return client.get_model_version(name, version)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
        raise SparseError(f"mask: {reference} is not in {without_credentials(uri)}; {_offer(client, name)}.")


def _offer(client, name: str) -> str:
    models = {model.name: model for model in client.search_registered_models(max_results=1000)}
    if name not in models:
        names = ", ".join(sorted(models)[:_SHOWN])
        return f"there are the masks {names}" if names else "no mask is registered there"
    aliases = client.get_registered_model(name).aliases
    versions = sorted(int(version.version) for version in client.search_model_versions(f"name = '{name}'"))
    told = ", ".join(f"{alias} (version {version})" for alias, version in sorted(aliases.items())) or "none"
    return f"{name} has the aliases {told} and the versions {', '.join(map(str, versions[-_SHOWN:])) or 'none'}"


def _uri(reference: str, tracking: TrackingConfig) -> str:
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise SparseError(
            f"mask: {reference} lies in a model registry; name its tracking server or database in tracking.uri or "
            "MLFLOW_TRACKING_URI."
        )
    return uri
