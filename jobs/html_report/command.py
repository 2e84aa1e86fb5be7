"""``sparse report DIRECTORY``: write the page of a study, an audit or another run."""

from __future__ import annotations

import argparse

from jobs import storage
from jobs.config import without_credentials
from jobs.html_report.page import render
from jobs.html_report.reading import read
from jobs.html_report.recording import record
from jobs.progress import console
from sparse_core.errors import SparseError


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="sparse report", description="One self-contained page of what a study, an audit or another run came to."
    )
    parser.add_argument("directory", help="output directory of a study, an audit, a quickstart or another job")
    parser.add_argument("--output", metavar="FILE", help="where to write the page [DIRECTORY/report.html]")
    parser.add_argument("--png", action="store_true", help="write the figures as figures/*.png beside the page, too")
    parser.add_argument(
        "--mask", action="append", default=[], metavar="DIRECTORY", help="show this mask, too; may be repeated"
    )
    parser.add_argument(
        "--mlflow",
        metavar="URI",
        help="tracking store to add the page and figures to [MLFLOW_TRACKING_URI, or mlflow.db there or above]",
    )
    options = parser.parse_args(arguments)
    findings = read(options.directory, masks=options.mask)
    page = render(findings)
    output = options.output or storage.join(options.directory, "report.html")
    storage.write_bytes(output, page.html.encode(), private=findings.shows_texts)
    lines = [f"Report   {without_credentials(output)}"]
    if options.png:
        folder, _, _ = output.rpartition("/")
        place = storage.join(folder, "figures") if folder else "figures"
        for name, content in page.pngs.items():
            storage.write_bytes(storage.join(place, name), content)
        lines.append(f"Figures  {without_credentials(place)}")
    try:
        run = record(options.directory, findings, page, uri=options.mlflow)
    except SparseError as error:
        if options.mlflow is not None:
            raise
        # Nobody asked for it, and the page is there.
        run = None
        lines.append(f"Not recorded in MLflow: {error}")
    if run is not None:
        lines.append(f"MLflow   run {run}, report.html and figures/")
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return 0
