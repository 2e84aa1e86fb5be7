"""Where masks put their noise: on the same directions as each other or not, and on how many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D

from jobs.html_report.content import Absent, Chart, Section, cut, plural, share
from jobs.html_report.drawing import FAINT, canvas, legend_below, looks, plain_log, shown, style
from jobs.html_report.found_masks import FoundMask
from jobs.html_report.masks import NO_MASKS, thinned
from jobs.html_report.overlap import Overlap, overlap
from jobs.html_report.reading import Findings
from sparse_core.masks import Mask

_MOST_COMPARED, _MOST_CURVES = 8, 6
_RANKS = (1, 5, 10, 20, 50, 100, 200, 400, 800)


def chosen(findings: Findings) -> list[tuple[FoundMask, Mask]]:
    """Artifacts of one mask for each concept and basis: of the middle lambda and the first seed."""
    found: dict[tuple[str, str, str], list[FoundMask]] = {}
    for mask in findings.masks:
        found.setdefault((mask.encoder, mask.concept, mask.basis), []).append(mask)
    several = len(found) > 1
    picked = []
    for masks in found.values():
        first = min(mask.seed or 0 for mask in masks)
        ranked = sorted((m for m in masks if (m.seed or 0) == first), key=lambda mask: mask.penalty or 0)
        picked += [ranked[len(ranked) // 2]] if several else thinned(ranked, _MOST_COMPARED)
    picked = [mask for mask in picked if mask.values.any()][:_MOST_COMPARED]
    loaded = [(mask, mask.artifact()) for mask in picked]
    return [(mask, artifact) for mask, artifact in loaded if artifact is not None]


def overlaps(findings: Findings, masks: Sequence[tuple[FoundMask, Mask]]) -> Section | Absent:
    """How much noise of two masks falls on the same directions."""
    title = "Overlap between masks"
    encoder = masks[0][0].encoder if masks else ""
    same = [(found, mask) for found, mask in masks if found.encoder == encoder]
    if len(same) < 2:
        why = "it takes at least two masks of one encoder whose files are here; name more with --mask."
        return Absent(title, why)
    names = [found.name for found, _ in same]
    pairs = {(i, j): overlap(a, b) for i, (_, a) in enumerate(same) for j, (_, b) in enumerate(same) if i < j}
    others = f" Masks of other encoders than {encoder} cannot be compared with these." if len(same) < len(masks) else ""
    return Section(
        title,
        (
            "Whether hiding one concept hides another, too: 1 means the same directions, and two masks that have "
            "nothing to do with each other are near what chance gives (in the table). Masks are compared through the "
            "noise that they shape, Sigma, which does not depend on the basis. Jaccard is of the open directions, "
            f"cosine of the noise energy, which counts strong directions more.{others}",
        ),
        charts=(_overlaps(names, pairs),),
    )


def _overlaps(names: list[str], pairs: dict[tuple[int, int], Overlap]) -> Chart:
    n = len(names)
    with style():
        wide = n <= 5
        figure, panels = canvas(2.9, columns=2) if wide else canvas(1.4 + 0.75 * n, rows=2)
        for axes, figure_of in zip(panels, ("jaccard", "cosine"), strict=True):
            matrix = np.eye(n)
            for (i, j), found in pairs.items():
                matrix[i, j] = matrix[j, i] = getattr(found, figure_of)
            axes.imshow(matrix, cmap="cividis", vmin=0, vmax=1, aspect="auto")
            axes.grid(False)
            for i in range(n):
                for j in range(n):
                    ink = "black" if matrix[i, j] > 0.55 else "white"
                    axes.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", color=ink, fontsize=8.5)
            axes.set_xticks(np.arange(0.5, n - 1), minor=True)
            axes.set_yticks(np.arange(0.5, n - 1), minor=True)
            axes.grid(which="minor", color="white", linewidth=1.5)
            axes.tick_params(which="minor", length=0)
            axes.set_xticks(range(n), [str(at + 1) for at in range(n)])
            axes.set_title(f"{figure_of.capitalize()} overlap", loc="left")
            axes.set_yticks(range(n), [f"{at}: {shown(name)}" for at, name in enumerate(names, start=1)])
        if wide:
            panels[1].set_yticks(range(n), [str(at + 1) for at in range(n)])
    most = max(pairs, key=lambda pair: pairs[pair].cosine)
    return Chart(
        "overlap",
        alt=f"Two matrices of {n} masks each, Jaccard and cosine overlap. Most alike: {names[most[0]]} and "
        f"{names[most[1]]}, cosine {pairs[most].cosine:.2f}.",
        caption="Columns have the numbers of the rows.",
        figure=figure,
        table=cut(
            ("mask", "and", "Jaccard", "by chance", "cosine", "by chance"),
            [
                (
                    names[i],
                    names[j],
                    *(f"{value:.3f}" for value in (f.jaccard, f.jaccard_chance, f.cosine, f.cosine_chance)),
                )
                for (i, j), f in pairs.items()
            ],
            most=60,
            rest="the masks' own files",
        ),
    )


def spectrum(findings: Findings, masks: Sequence[tuple[FoundMask, Mask]]) -> Section | Absent:
    """How the noise is spread over directions, strongest first."""
    title = "Sensitivity spectrum"
    if not masks:
        return Absent(title, NO_MASKS if not findings.masks else "no mask has its file here.")
    drawn = masks[:_MOST_CURVES]
    return Section(
        title,
        (
            "A mask puts noise where the concept is told. The steeper its curve falls, the fewer directions carry the "
            "noise, and the more is left untouched; the dotted line is noise spread evenly, as Laplace's is.",
        ),
        charts=(_spectrum([found for found, _ in drawn]),),
    )


def _spectrum(masks: list[FoundMask]) -> Chart:
    n = max(len(mask.values) for mask in masks)
    ranks = [rank for rank in _RANKS if rank < n]
    rows = []
    with style():
        figure, (left, right) = canvas(3.9, columns=2)
        handles = []
        for mask, look in zip(masks, looks([mask.name for mask in masks]).values(), strict=True):
            energy = np.sort(mask.values)[::-1] / mask.values.sum()
            count, held = np.count_nonzero(energy), np.cumsum(energy)
            places, options = np.arange(1, count + 1), {"color": look.colour, "linestyle": look.line}
            marks = {"marker": look.marker, "markersize": 5}
            left.plot(places, energy[:count], **options, **marks, markevery=(count // 16, max(count // 6, 1)))
            right.plot(np.arange(len(held) + 1), [0, *held], **options, **marks, markevery=max(len(held) // 10, 1))
            handles.append(Line2D([], [], **options, marker=look.marker, label=shown(mask.name)))
            rows.append((mask.name, str(count), share(mask.energy_open), *(share(_at(held, rank)) for rank in ranks)))
        left.axhline(1 / n, color=FAINT, linestyle=":")
        handles.append(right.plot([0, n], [0, 1], color=FAINT, linestyle=":", label="spread evenly")[0])
        plain_log(left)
        left.set_ylim(bottom=max(left.get_ylim()[0], 1e-5))
        left.set_ylabel("share of the noise energy (log scale)")
        left.set_xlabel("direction, strongest first")
        right.set_ylabel("share in the strongest directions")
        right.set_xlabel("number of directions")
        legend_below(figure, handles, [handle.get_label() for handle in handles])
    rows.append(("spread evenly", str(n), "-", *(share(rank / n) for rank in ranks)))
    half = {mask.name: _directions_for(mask.values, 0.5) for mask in masks}
    return Chart(
        "spectrum",
        alt="Two panels: noise energy of each direction, sorted, and its running sum. "
        + " ".join(f"Half of the noise of {name} is in {plural(count, 'direction')}." for name, count in half.items()),
        caption="Concept energy: how much of what tells the concept open directions cover, as training reported.",
        figure=figure,
        table=cut(
            ("mask", "open", "concept energy", *(f"strongest {rank}" for rank in ranks)),
            rows,
            most=_MOST_CURVES + 1,
            rest="the masks' own files",
        ),
    )


def _at(held: np.ndarray, rank: int) -> float:
    return float(held[min(rank, len(held)) - 1])


def _directions_for(values: np.ndarray, wanted: float) -> int:
    """How many of the strongest directions hold a share of the noise energy."""
    held = np.cumsum(np.sort(values)[::-1])
    return int(np.searchsorted(held, wanted * held[-1])) + 1
