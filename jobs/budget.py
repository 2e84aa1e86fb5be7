"""``sparse budget show DATASET...``: what was released under which policy, and what is left."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from jobs import ledger
from jobs.escaping import for_terminal
from sparse_core.budget import Releases, Spent, compose

_COLUMNS = ("policy", "key", "metric", "epsilon", "epsilon_euclidean", "delta", "subjects", "releases")


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="sparse budget", description="What subjects have spent of their budget.")
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="policies, releases per subject, epsilon spent and left")
    show.add_argument("dataset", nargs="+", help="output directory of a privatize job; several are added up")
    show.add_argument(
        "--limit", type=_limit, help="epsilon_euclidean a subject may spend; by default the datasets' own"
    )
    options = parser.parse_args(arguments)
    print(for_terminal(report(options.dataset, limit=options.limit), lines=True))
    return 0


def _limit(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no limit; it must be positive and finite")
    return value


def report(datasets: Sequence[str], *, limit: float | None = None) -> str:
    """What the subjects of some datasets have spent, there and in the datasets that these counted.

    Parameters
    ----------
    datasets : sequence of str
        Output directories of privatize jobs.
    limit : float, optional
        In epsilon_euclidean; by default the least that the datasets were written under.
    """
    counted, releases = releases_of(datasets)
    if limit is None:
        limit = limit_of(datasets)
    growing = [
        f"not finished         {url}: more may be spent than is told here" for url in filter(ledger.unfinished, counted)
    ]
    return "\n".join([*_policies(releases), "", *_spent(compose(releases), limit, counted), *growing])


def releases_of(datasets: Sequence[str]) -> tuple[list[str], Releases]:
    """The ledgers that count for some datasets, and all releases of the datasets' subjects."""
    own = ledger.read([ledger.located(url) for url in datasets])
    counted = ledger.with_included(datasets)
    releases = ledger.read(counted)
    return counted, releases.take(np.isin(releases.subjects, own.subjects))


def limit_of(datasets: Sequence[str]) -> float | None:
    """The least limit that some datasets were written under."""
    claims = [ledger.claim(url) for url in datasets]
    limits = [claim.get(name) for claim in claims for name in ("max_epsilon_per_subject", "max_epsilon_per_record")]
    return min((value for value in limits if value is not None), default=None)


def _policies(releases: Releases) -> list[str]:
    table = [_COLUMNS]
    for row, charge in enumerate(releases.table):
        subjects = releases.subjects[releases.charges == row]
        if len(subjects):
            prices = [ledger.shown(value) for value in (charge.epsilon, charge.epsilon_euclidean, charge.delta)]
            table.append(
                (
                    charge.policy[:16],
                    charge.key,
                    charge.metric,
                    *prices,
                    f"{len(np.unique(subjects)):,}",
                    f"{len(subjects):,}",
                )
            )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _spent(spent: Spent, limit: float | None, counted: Sequence[str]) -> list[str]:
    if not len(spent):
        return ["Nothing was released."]
    counts = zip(*np.unique(spent.releases, return_counts=True), strict=True)
    lines = [
        f"ledgers counted      {', '.join(counted)}",
        "releases per subject " + ", ".join(f"{releases}: {subjects:,} subjects" for releases, subjects in counts),
        f"epsilon spent        {_range(spent.epsilon_euclidean)} (Euclidean)",
    ]
    if np.isfinite(spent.epsilon).all():
        lines.append(f"                     {_range(spent.epsilon)} (in the one metric of all releases)")
    if spent.delta.any():
        lines.append(f"delta spent          {_range(spent.delta)}; then epsilon is for texts up to distance 1 only")
    if limit is None:
        return [*lines, "left                 no limit was set"]
    left = np.maximum(limit - spent.epsilon_euclidean, 0.0)
    return [
        *lines,
        f"left of {limit:<12.6g} {ledger.shown(ledger.median(left))} at the median, {ledger.shown(left.min())} at "
        f"least; {np.count_nonzero(left == 0):,} subjects have nothing left",
    ]


def _range(values: np.ndarray) -> str:
    return f"{ledger.shown(ledger.median(values))} at the median, {ledger.shown(values.max())} at most"
