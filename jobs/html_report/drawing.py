"""How figures look: told apart by shape as well as by colour, and the same bytes for the same data."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

WIDTH = 7.2
"""Inches: a figure stands at its own size on a printed page."""
INK = "#222222"
FAINT = "#6b6b6b"
# Okabe and Ito's colours, which differ for all common kinds of colour vision; without yellow, too pale on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oo")
_LONGEST = 34
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.5,
    "lines.markersize": 6,
    "hatch.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    # Names are the user's: a dollar sign in one is no formula.
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    # Text stays text: it is small, and any script that the reader's machine knows is drawn.
    "svg.fonttype": "none",
    "svg.hashsalt": "sparse",
}


@dataclass(frozen=True)
class Look:
    """How one series is drawn in every figure of a page."""

    colour: str
    marker: str
    line: str | tuple
    hatch: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, in the order given."""
    parts = zip(cycle(_COLOURS), cycle(_MARKERS), cycle(_LINES), cycle(_HATCHES), strict=False)
    return {name: Look(*found) for name, found in zip(names, islice(parts, len(names)), strict=True)}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the page's style within the block."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def canvas(height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width, and its axes row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def plain_log(axes: Axes) -> None:
    """A logarithmic y axis whose numbers are text like all others, after what it shows is drawn."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def legend_below(figure: Figure, handles: Sequence, labels: Sequence[str], *, columns: int = 3) -> None:
    """A legend under the axes, where it hides nothing."""
    columns = min(columns, len(handles)) or 1
    figure.legend(handles, [shown(label) for label in labels], loc="outside lower center", ncols=columns)


def shown(name: str) -> str:
    """A name for a figure: one line, not too long."""
    name = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in name)).strip()
    name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    # A legend leaves out names with a leading underscore.
    return f" {name}" if name.startswith("_") else name


def as_svg(figure: Figure) -> str:
    """A figure as a data URL."""
    file = io.BytesIO()
    with style():
        # Without these the file names its date and the maker's address.
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


def as_png(figure: Figure) -> bytes:
    """A figure as a file for slides."""
    file = io.BytesIO()
    with style():
        figure.savefig(file, format="png", dpi=200, metadata={"Software": None})
    return file.getvalue()


def whiskers(value: float, low: float | None, high: float | None) -> list[list[float]] | None:
    """An interval as error bars take it."""
    if low is None or high is None:
        return None
    return [[max(value - low, 0.0)], [max(high - value, 0.0)]]
