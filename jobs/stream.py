"""Handing units of work to actors through Ray Data, and how far that is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from jobs import sources
from jobs.cluster import actor_count, ray_session
from jobs.config import PrivatizeConfig
from jobs.units import UnitActor, UnitWork
from sparse_core.errors import SparseError

_ROWS_TO_JUDGE_A_SHARE = 10_000


def stream(config: PrivatizeConfig, work: UnitWork, todo: list[sources.Unit], *, verbose: bool) -> Iterator[dict]:
    """Do units of work, each in one actor; their records, in the order in which they are done.

    An actor that dies is replaced and its unit done again. What an actor refuses ends the job in its own words.
    """
    if not todo:
        return
    import ray.data
    from ray.data import ActorPoolStrategy

    with ray_session(config.workers, verbose=verbose):
        gpus, actors = actor_count(config.workers)
        dataset = ray.data.from_items([{"unit": unit} for unit in todo], override_num_blocks=len(todo))
        dataset = dataset.map_batches(
            UnitActor,
            fn_constructor_args=(work,),
            batch_size=1,
            compute=ActorPoolStrategy(size=min(actors, len(todo))),
            num_cpus=0 if gpus else 1,
            num_gpus=1 if gpus else 0,
        )
        for row in dataset.iter_rows():
            if "refused" in row["record"]:
                raise SparseError(row["record"]["refused"])
            yield row["record"]


class Progress:
    """Rows, speed and quarantined rows so far; stops the run at the limit."""

    def __init__(self, config: PrivatizeConfig, advance: Callable, done: Iterable[dict], n_rows: int | None):
        self._config, self._advance, self._n_rows = config, advance, n_rows
        self._rows, self._quarantined = 0, Counter()
        self._started: float | None = None
        for record in done:
            self._count(record)
        self._before = self._rows

    def add(self, record: dict, *, last: bool) -> None:
        """Count a unit's record and show how far the run is."""
        self._count(record)
        # Starting up is not part of the speed.
        self._started = self._started or record["started"]
        speed = (self._rows - self._before) / max(time.time() - self._started, 1e-9)
        shown = f"{speed:,.0f} rows/s, {self._quarantined.total():,} quarantined"
        self._advance(self._rows, self._n_rows and max(self._n_rows, self._rows), shown)
        self.stop_if_over_limit(last=last)

    def _count(self, record: dict) -> None:
        self._rows += record["rows_in"]
        self._quarantined.update(record["quarantined"])

    def stop_if_over_limit(self, *, last: bool) -> None:
        """Raise once more rows are quarantined than the user allows."""
        limit, rows, total = self._config.limits.max_quarantined, self._rows, self._quarantined.total()
        # A share of few rows says little: one bad file must not stop a healthy corpus.
        if limit is None or (limit < 1 and rows < _ROWS_TO_JUDGE_A_SHARE and not last):
            return
        if total > (limit * rows if limit < 1 else limit):
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._quarantined.most_common())
            output = self._config.output
            raise SparseError(
                f"limits.max_quarantined: {total} of {rows} rows were quarantined ({reasons}), more than {limit:g}. "
                f"See {output}/quarantine. Raise the limit and run the same command again, or mend the input and "
                "choose another output directory."
            )
