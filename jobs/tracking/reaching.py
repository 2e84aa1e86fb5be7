"""Reaching MLflow: quietly, without long waits, and with sentences for what goes wrong."""

from __future__ import annotations

import logging
import os
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.config import without_credentials
from sparse_core.errors import SparseError

_DATABASES = ("postgresql", "mysql", "mssql")
_PROBE_SECONDS = 10
_SHOWN_CHARACTERS = 200


def client_of(uri: str):
    """MLflow's client of a store, which is made first where it is a database without tables."""
    quiet()
    with warnings.catch_warnings():
        # SQLAlchemy's about MLflow's use of it.
        warnings.simplefilter("ignore", DeprecationWarning)
        import mlflow

        return mlflow.MlflowClient(tracking_uri=uri)


@contextmanager
def explained(uri: str, *, hint: str = "") -> Iterator[None]:
    """Turn what MLflow and the libraries under it raise into a `SparseError` that names the setting."""
    quiet()
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except ModuleNotFoundError as error:
        told = f"needs the package {error.name}, which is not installed"
        raise SparseError(f"tracking.uri: {without_credentials(uri)} {told}.") from None
    except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
        raise SparseError(f"tracking.uri: {_sentence(uri, error)}{hint}") from None


def quiet() -> None:
    """Keep MLflow from logging, telling its makers, and waiting more than about a minute for a server."""
    for name in ("alembic", "mlflow", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    }.items():
        os.environ.setdefault(name, value)


def _sentence(uri: str, error: Exception) -> str:
    shown, message = without_credentials(uri), without_credentials(str(error))
    status = getattr(error, "get_http_status_code", lambda: None)()
    if "error code 401" in message or "error code 403" in message or status in (401, 403):
        return (
            f"{shown} does not let this user in. Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN."
        )
    if any(told in message for told in ("Max retries exceeded", "Connection", "timed out", "could not translate")):
        reason = next((r for r in ("refused", "timed out", "resolve", "translate") if r in message), None)
        reason = {"refused": "connection refused", "timed out": "no answer"}.get(reason, "no connection")
        return f"{shown} cannot be reached ({reason}). Check the address, and that the server runs."
    return f"{shown} cannot be used ({textwrap.shorten(message, _SHOWN_CHARACTERS, placeholder=' ...')})."


def probe(uri: str, *, output: str) -> None:
    """Find out within seconds whether a server or database serves.

    Parameters
    ----------
    uri : str
    output : str
        Of the job, whose SQLite store may take its place.

    Raises
    ------
    SparseError
        If it does not.
    """
    hint = " To go on without it, set tracking.required=false"
    hint += ": the run is then recorded in the output." if "://" not in output else "."
    with explained(uri, hint=hint), _impatient():
        if uri.startswith(_DATABASES):
            # MLflow would try again for minutes.
            from sqlalchemy import create_engine

            known = uri.startswith(("postgresql", "mysql"))
            engine = create_engine(uri, connect_args={"connect_timeout": _PROBE_SECONDS} if known else {})
            with engine.connect():
                pass
        else:
            client_of(uri).search_experiments(max_results=1)


@contextmanager
def _impatient() -> Iterator[None]:
    settings = {"MAX_RETRIES": 1, "TIMEOUT": _PROBE_SECONDS, "BACKOFF_FACTOR": 1}
    settings = {f"MLFLOW_HTTP_REQUEST_{name}": str(value) for name, value in settings.items()}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
