"""Progress for people: a live line in a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from jobs.escaping import for_terminal


class _PlainConsole(Console):
    """Shows strings as they are: no markup, and nothing that a terminal obeys."""

    def print(self, *objects, **options) -> None:
        shown = (for_terminal(each, lines=True) if isinstance(each, str) else each for each in objects)
        super().print(*shown, **{"markup": False} | options)


console = _PlainConsole()
_log = logging.getLogger("sparse")
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show how far a stage is.

    Yields
    ------
    callable
        ``advance(done, total, detail="")``; the total may be unknown.
    """
    started, title = time.monotonic(), for_terminal(title)
    if sys.stdout.isatty():
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(title, total=None, detail="")

            def show(done: int, total: int | None, detail: str = "") -> None:
                progress.update(task, completed=done, total=total, detail=for_terminal(detail))

            yield show
    else:
        last = started

        def log(done: int, total: int | None, detail: str = "") -> None:
            nonlocal last
            if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                share = f"{done:,} of {total:,}" if total else f"{done:,}"
                _log.info("%s: %s%s", title, share, f", {for_terminal(detail)}" if detail else "")

        yield log
    console.print(f"{title}: {time.monotonic() - started:.1f} s", highlight=False, soft_wrap=True)
