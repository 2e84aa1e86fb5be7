"""The page in MLflow: as artifacts of the run that wrote the directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jobs import storage
from jobs.config import without_credentials
from jobs.html_report.page import Page, render
from jobs.html_report.reading import Findings, without_texts
from jobs.tracking import client_of, explained
from jobs.tracking.runs import of_place
from sparse_core.errors import SparseError

_DATABASE = "mlflow.db"
_LEVELS = 3


def record(directory: str, findings: Findings, page: Page, *, uri: str | None) -> str | None:
    """Add the page and its figures to the MLflow run that wrote a directory, without texts that the page may show.

    Parameters
    ----------
    directory : str
    findings : Findings
    page : Page
        Of the findings.
    uri : str, optional
        Tracking store; by default those that jobs record in where none is configured.

    Returns
    -------
    str or None
        The run's id; None where no store was named and there is none, or no run of this directory in it.

    Raises
    ------
    SparseError
        If the store cannot be used, or one that was named knows no run of this directory.
    """
    for place in [uri] if uri else _own_stores(directory):
        with explained(place):
            client = client_of(place)
            run = _run_of(client, directory) or _run_of(client, storage.join(directory, "audit"))
            if run is not None:
                public = without_texts(findings)
                shown = page if public.results == findings.results else render(public)
                with tempfile.TemporaryDirectory() as temporary:
                    _write(Path(temporary), shown.html, page.pngs)
                    client.log_artifacts(run, temporary)
                return run
    if uri is None:
        return None
    raise SparseError(
        f"--mlflow: {without_credentials(uri)} knows no run that wrote {without_credentials(directory)}. Name the "
        "store that the run was recorded in."
    )


def _own_stores(directory: str) -> Iterator[str]:
    """Where jobs record by default: the environment's store, or a local one; a quickstart's lies above its jobs."""
    if named := os.environ.get("MLFLOW_TRACKING_URI"):
        yield named
    if "://" not in directory:
        place = Path(directory).resolve()
        for folder in (place, *place.parents)[:_LEVELS]:
            if (folder / _DATABASE).is_file():
                yield f"sqlite:///{folder / _DATABASE}"


def _run_of(client, directory: str) -> str | None:
    """The latest run that wrote a directory; a quickstart's is its audit."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    newest = client.search_runs(
        experiments, of_place(directory), max_results=1, order_by=["attributes.start_time DESC"]
    )
    return newest[0].info.run_id if newest else None


def _write(folder: Path, html: str, pngs: dict[str, bytes]) -> None:
    (folder / "report.html").write_text(html, encoding="utf-8")
    (folder / "figures").mkdir()
    for name, content in pngs.items():
        (folder / "figures" / name).write_bytes(content)
