"""How object storage is reached: one place sets it for every library that opens a URL in this process."""

from __future__ import annotations

import os
from typing import Any

import fsspec
from fsspec.config import conf as fsspec_defaults

from jobs.config import StorageConfig, without_credentials
from sparse_core.errors import SparseError

_PART_BYTES = 8 << 20
_USERS_OWN = dict(fsspec_defaults.get("s3", {}))
_configured: StorageConfig | None = None


def configure(config: StorageConfig) -> None:
    """Say how object storage is reached in this process; every job and every actor begins with this.

    It sets fsspec's defaults, so whatever opens an ``s3://`` URL through fsspec gets them. Settings that are null are
    looked up in the environment now.
    """
    global _configured
    _configured = config
    fsspec_defaults["s3"] = _USERS_OWN | s3_options(config)


def configured() -> StorageConfig:
    """The configuration in use; the defaults if none was set."""
    if _configured is None:
        configure(StorageConfig())
    return _configured


def s3_options(config: StorageConfig, **client: Any) -> dict[str, Any]:
    """Arguments of `s3fs.S3FileSystem`; `client` overrides settings of the botocore client."""
    retries = {"mode": "standard", "total_max_attempts": config.attempts}
    timeouts = {"connect_timeout": config.connect_timeout, "read_timeout": config.read_timeout}
    options: dict[str, Any] = {
        "anon": config.anonymous,
        "config_kwargs": {"retries": retries, **timeouts, **client},
        # A job must see what another has written since.
        "use_listings_cache": False,
        # Reading ahead 50 MB, as s3fs does, is many times what a column of a row group needs.
        "default_block_size": _PART_BYTES,
        # s3fs retries a broken body where it reads one stream, not where it reads several.
        "max_concurrency": 1,
    }
    # Stated rather than left to botocore, because s3fs keeps clients by their arguments.
    if endpoint := _endpoint(config):
        options["endpoint_url"] = endpoint
    if region := config.region or os.environ.get("AWS_REGION"):
        options["client_kwargs"] = {"region_name": region}
    if not config.anonymous and (profile := config.profile or os.environ.get("AWS_PROFILE")):
        options["profile"] = profile
    return options


def _endpoint(config: StorageConfig) -> str | None:
    return config.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def server(config: StorageConfig | None = None) -> str:
    """Name of the object storage in use, for messages."""
    return without_credentials(_endpoint(config or configured()) or "AWS")


def object_store_options() -> dict[str, str]:
    """What deltalake and lance take as `storage_options`.

    These libraries know nothing of botocore's profiles and roles, so credentials are resolved here, and the result is
    secret: pass it on, never print or store it, and take it anew for each use, because credentials of a role expire.
    """
    import botocore.session
    from botocore.exceptions import BotoCoreError

    from jobs.storage.errors import sentence

    config = configured()
    try:
        session = botocore.session.Session(profile=config.profile)
        endpoint = _endpoint(config) or session.get_scoped_config().get("endpoint_url")
        region = config.region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
        found = None if config.anonymous else session.get_credentials()
        credentials = found.get_frozen_credentials() if found else None
    except BotoCoreError as error:
        raise SparseError(sentence(error, "", field=None, write=False)) from None
    options = {
        "aws_region": region or "us-east-1",
        "aws_endpoint": endpoint,
        "allow_http": "true" if endpoint and endpoint.startswith("http://") else None,
        "aws_skip_signature": "true" if config.anonymous else None,
        "aws_access_key_id": credentials and credentials.access_key,
        "aws_secret_access_key": credentials and credentials.secret_key,
        "aws_session_token": credentials and credentials.token,
        "connect_timeout": f"{config.connect_timeout:g}s",
        # Theirs is for a whole request, whatever its size.
        "timeout": f"{10 * config.read_timeout:g}s",
        "max_retries": str(config.attempts),
        "client_max_retries": str(config.attempts),
    }
    return {name: value for name, value in options.items() if value}


def filesystem(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a URL and the path on it.

    Raises
    ------
    SparseError
        If this kind of storage is not supported, or the URL carries credentials.
    """
    url = str(url)
    if (shown := without_credentials(url)) != url:
        raise SparseError(
            f"{shown} carries a user name or password, which would be kept in logs and outputs. Leave them out; "
            "give credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in storage.profile."
        )
    configured()
    try:
        return fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise SparseError(f"{url}: this kind of storage is not supported ({error}).") from None


def join(url: str, *parts: str) -> str:
    """A URL below another."""
    return "/".join([str(url).rstrip("/"), *parts])
