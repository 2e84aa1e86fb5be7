"""What masks look like: by lambda, and direction by direction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.lines import Line2D

from jobs.html_report.content import Absent, Chart, Section, cut, number, plural, share
from jobs.html_report.drawing import FAINT, canvas, legend_below, looks, shown, style
from jobs.html_report.found_masks import FoundMask
from jobs.html_report.reading import Findings

_MOST_GROUPS, _MOST_ROWS = 8, 16
_BINS = (0.0, 0.01, 0.1, 0.5, 1.0)
NO_MASKS = "no mask lies in this directory; name one with --mask."


def _groups(masks: Sequence[FoundMask]) -> dict[str, list[FoundMask]]:
    """Masks of one concept and encoder, in the order of basis, lambda and seed."""
    encoders = {mask.encoder for mask in masks}
    found: dict[str, list[FoundMask]] = {}
    for mask in sorted(masks, key=lambda m: (m.concept, m.encoder, m.basis, m.penalty or 0, m.seed or 0)):
        title = f"{mask.concept}, {mask.encoder}" if len(encoders) > 1 else mask.concept
        found.setdefault(title, []).append(mask)
    return found


def by_lambda(findings: Findings) -> Section | Absent:
    """Sparsity and accuracy against lambda."""
    title = "Lambda: sparsity and accuracy"
    trained = _groups([mask for mask in findings.masks if mask.penalty is not None])
    groups = {name: masks for name, masks in trained.items() if len({mask.penalty for mask in masks}) > 1}
    if not groups:
        why = "it takes masks of at least two lambda, and there are none here."
        return Absent(title, why if findings.masks else NO_MASKS)
    drawn = looks(sorted({mask.basis for masks in groups.values() for mask in masks}))
    drawable = list(groups.items())[:_MOST_GROUPS]
    charts = [_by_lambda(name, masks, drawn, at) for at, (name, masks) in enumerate(drawable, start=1)]
    return Section(
        title,
        (
            "Lambda is what an open direction costs while a mask is learned: the larger, the more directions close and "
            "stay free of noise. Accuracy is of a classifier that tells held-out sentences with the concept from the "
            "same sentences without it, through the mask; what the length of sentences alone tells is the baseline.",
        ),
        charts=tuple(charts),
    )


def _by_lambda(name: str, masks: list[FoundMask], drawn: dict, at: int) -> Chart:
    penalties = sorted({mask.penalty for mask in masks})
    with style():
        figure, (left, right) = canvas(3.5, columns=2)
        handles = []
        for basis in sorted({mask.basis for mask in masks}):
            own, look = [mask for mask in masks if mask.basis == basis], drawn[basis]
            _over_lambda(left, own, "sparsity", look)
            _over_lambda(right, own, "accuracy", look)
            handles.append(Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line, label=basis))
        baselines = [mask.accuracy_length_only for mask in masks if mask.accuracy_length_only is not None]
        if baselines:
            handles.append(right.axhline(median(baselines), color=FAINT, linestyle=":", label="length alone"))
        for axes in (left, right):
            axes.set_xlabel("lambda")
            if penalties[0] > 0 and penalties[-1] / penalties[0] >= 8:
                axes.set_xscale("log")
            if len(penalties) <= 6:
                axes.set_xticks(penalties, [f"{penalty:g}" for penalty in penalties])
                axes.minorticks_off()
        left.set_ylabel("share of directions closed")
        right.set_ylabel("held-out accuracy")
        left.set_ylim(-0.03, 1.03)
        if name:
            left.set_title(shown(name), loc="left")
        legend_below(figure, handles, [handle.get_label() for handle in handles])
    sparsest = max(masks, key=lambda mask: mask.sparsity)
    return Chart(
        f"lambda-{at}",
        alt=f"Two panels over lambda from {penalties[0]:g} to {penalties[-1]:g} for {name}: share of closed directions "
        f"and held-out accuracy of {plural(len(masks), 'mask')}. Sparsest: {sparsest.name} with "
        f"{share(sparsest.sparsity)} closed.",
        caption="Marks are medians over seeds, bars run from the least to the most.",
        figure=figure,
        table=cut(
            ("mask", "lambda", "directions closed", "open", "accuracy", "length alone"),
            [
                (
                    mask.name,
                    number(mask.penalty),
                    share(mask.sparsity),
                    f"{np.count_nonzero(mask.values)} of {len(mask.values)}",
                    number(mask.accuracy),
                    number(mask.accuracy_length_only),
                )
                for mask in masks
            ],
            most=120,
            rest="the masks' own files",
        ),
    )


def _over_lambda(axes, masks: Sequence[FoundMask], figure: str, look) -> None:
    at: dict[float, list[float]] = {}
    for mask in masks:
        if getattr(mask, figure) is not None:
            at.setdefault(mask.penalty, []).append(getattr(mask, figure))
    if not at:
        return
    middles = [median(at[place]) for place in sorted(at)]
    lows = [middle - min(at[place]) for middle, place in zip(middles, sorted(at), strict=True)]
    highs = [max(at[place]) - middle for middle, place in zip(middles, sorted(at), strict=True)]
    axes.errorbar(
        sorted(at), middles, yerr=[lows, highs], color=look.colour, marker=look.marker, linestyle=look.line, capsize=2
    )


def heat_maps(findings: Findings) -> Section | Absent:
    """Each mask as a row of its values, concept by concept."""
    title = "Masks, direction by direction"
    if not findings.masks:
        return Absent(title, NO_MASKS)
    groups = _groups(findings.masks)
    drawable = list(groups.items())[:_MOST_GROUPS]
    charts = [_heat_map(name, masks, at) for at, (name, masks) in enumerate(drawable, start=1)]
    return Section(
        title,
        (
            "A row is a mask, a column a direction of its basis: dark ones get no noise beyond the floor, bright ones "
            "the most. Only masks over single coordinates share their columns; directions of other bases are each "
            "mask's own.",
        ),
        charts=tuple(charts),
    )


def _heat_map(name: str, masks: list[FoundMask], at: int) -> Chart:
    rows = thinned(masks, _MOST_ROWS)
    widest = max(len(mask.values) for mask in rows)
    values = np.full((len(rows), widest), np.nan)
    for place, mask in enumerate(rows):
        values[place, : len(mask.values)] = mask.values
    with style():
        figure, (axes,) = canvas(1.5 + 0.27 * len(rows))
        # Even in lightness, so that it reads the same in grey and for any colour vision.
        image = axes.imshow(values, aspect="auto", cmap="cividis", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        axes.grid(False)
        axes.set_yticks(
            range(len(rows)), [shown(mask.name.removeprefix(mask.concept).strip() or mask.name) for mask in rows]
        )
        axes.set_yticks(np.arange(0.5, len(rows) - 1), minor=True)
        axes.grid(axis="y", which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="minor", length=0)
        axes.set_xlabel("direction")
        if name:
            axes.set_title(shown(name), loc="left")
        figure.colorbar(image, ax=axes, label="mask", pad=0.01, aspect=12, ticks=(0, 0.1, 0.5, 1))
    columns = ["0", *(f"({low:g}, {high:g}]" for low, high in pairwise(_BINS))]
    widest_open = max(rows, key=lambda mask: np.count_nonzero(mask.values))
    left = len(masks) - len(rows)
    return Chart(
        f"mask-{at}",
        alt=f"Heat map of {plural(len(rows), 'mask')} of {name} over {widest} directions. Most open: "
        f"{widest_open.name} with {np.count_nonzero(widest_open.values)} open directions.",
        caption="The table counts directions by their value; the values themselves are in each mask's file."
        + (f" {plural(left, 'further mask')} of {name} are not drawn." if left else ""),
        figure=figure,
        table=cut(
            ("mask", *(f"value {column}" for column in columns)),
            [(mask.name, *map(str, _counts(mask.values))) for mask in rows],
            most=_MOST_ROWS,
            rest="the masks' own files",
        ),
    )


def _counts(values: np.ndarray) -> list[int]:
    inside = [int(((values > low) & (values <= high)).sum()) for low, high in pairwise(_BINS)]
    return [int((values == 0).sum()), *inside]


def thinned(masks: list[FoundMask], most: int) -> list[FoundMask]:
    """Where they are many, those of the first seed, evenly over the others."""
    if len(masks) > most:
        first = min(mask.seed or 0 for mask in masks)
        masks = [mask for mask in masks if (mask.seed or 0) == first]
    if len(masks) > most:
        masks = [masks[round(at)] for at in np.linspace(0, len(masks) - 1, most)]
    return masks
