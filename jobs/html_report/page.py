"""The page: sections in their order, in one file that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

import jinja2
import markupsafe

from jobs.html_report import attacks, beside, concepts, facts, guarantee, masks, noise_shapes, over_rho, pareto, trials
from jobs.html_report.content import Absent, Chart, Section
from jobs.html_report.drawing import as_png, as_svg
from jobs.html_report.reading import Findings

_TITLES = {
    "study": "Study",
    "audit": "Audit",
    "quickstart": "Quickstart",
    "privatize": "Release",
    "train_mask": "Mask",
    "calibrate": "Calibration",
}
_SCRIPT = """
const folds = document.querySelectorAll("details");
const fold = open => folds.forEach(one => { one.open = open; });
fold(false);
addEventListener("beforeprint", () => fold(true));
addEventListener("afterprint", () => fold(false));
"""


@dataclass(frozen=True)
class Page:
    """A page and its figures.

    Attributes
    ----------
    html : str
    charts : tuple of Chart
    """

    html: str
    charts: tuple[Chart, ...]

    @cached_property
    def pngs(self) -> dict[str, bytes]:
        """Every figure as a file, by its name."""
        return {f"{chart.name}.png": as_png(chart.figure) for chart in self.charts}


def render(findings: Findings) -> Page:
    """Make the page.

    The same findings make the same page. Tables are open in the file, so that print and readers without scripts have
    them; a script folds them on the screen.
    """
    told = _sections(findings)
    sections = [section for section in told if isinstance(section, Section)]
    absent = [section for section in told if isinstance(section, Absent)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jobs.html_report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["told"] = _told
    template = environment.get_template("page.html.j2")
    html = template.render(
        title=_TITLES.get(findings.kind, findings.kind),
        place=findings.place,
        policy_hash=findings.results.policy_hash,
        sections=[(_anchor(section.title), section) for section in sections],
        absent=absent,
        svg=as_svg,
        script=_SCRIPT,
        script_hash=base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
    )
    return Page(html, tuple(chart for section in sections for chart in section.charts))


def _sections(findings: Findings) -> list[Section | Absent]:
    compared = noise_shapes.chosen(findings)
    return [
        facts.overview(findings),
        pareto.pareto(findings),
        over_rho.against_rho(findings),
        attacks.bars(findings),
        concepts.concepts(findings),
        concepts.reconstructions(findings),
        masks.by_lambda(findings),
        masks.heat_maps(findings),
        noise_shapes.overlaps(findings, compared),
        noise_shapes.spectrum(findings, compared),
        beside.utilities(findings),
        beside.words_beside(findings),
        beside.other_risks(findings),
        beside.policy_alone(findings),
        guarantee.guarantee(findings),
        guarantee.limits(findings),
        facts.release(findings),
        trials.tried(findings),
        trials.failed_trials(findings),
        trials.trials(findings),
        facts.durations(findings),
        trials.settings(findings),
    ]


def _told(text: str) -> markupsafe.Markup:
    """Text with names of fields between backticks as code."""
    return markupsafe.Markup(re.sub(r"`(\w+)`", r"<code>\1</code>", str(markupsafe.escape(text))))


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
