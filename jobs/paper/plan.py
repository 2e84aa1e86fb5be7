"""Which experiments of the paper there are, and whether one can be run."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import yaml

from jobs import storage
from jobs.config import ConceptConfig, Experiment, ReproduceConfig, load_config
from jobs.config.reproduce import rho_of
from jobs.paper.data import digests, entities_of, located
from jobs.paper.table import Planned
from sparse_core.attacks.text import TEXT_ATTACKS, check_score_libraries
from sparse_core.concepts import find_spans
from sparse_core.errors import SparseError
from sparse_core.masks import require_captum

_ROOT = Path(__file__).parents[2]
EXPERIMENTS = _ROOT / "configs" / "paper"
_MOST_RHO_ON_SPHERE = math.sqrt(2)


@dataclass(frozen=True)
class Plan:
    """An experiment that can be run."""

    name: str
    experiment: Experiment
    files: dict[str, Path]
    records: int | None
    rows: tuple[Planned, ...]
    left_out: tuple[str, ...]
    output: str
    fingerprint: str

    @property
    def lines(self) -> list[str]:
        """What will be done."""
        what = self.experiment
        return [
            f"{self.name}: {what.title}",
            f"  data        {', '.join(map(str, self.files.values()))}",
            f"  concepts    {', '.join(concept.name for concept in what.concepts)}",
            f"  masks       {', '.join(what.masks) or 'none'}",
            f"  rows        {', '.join(one.name for one in self.rows)}",
            *(f"  left out    {text}" for text in self.left_out),
            f"  attacks     {', '.join(what.attacks)}",
            f"  write       {self.output}/result.md, {self.output}/result.json",
        ]


def names() -> list[str]:
    """The experiments there are."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def title(name: str) -> str:
    """What an experiment shows."""
    return yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8"))["title"]


def plan(name: str, config: ReproduceConfig) -> Plan:
    """Check an experiment, its data and what it needs, before anything is computed.

    Parameters
    ----------
    name : str
        Of a file in configs/paper, without its ending; or a path to a file like those.
    config : ReproduceConfig

    Raises
    ------
    SparseError
        If there is no such experiment, or its data, its extras or its settings do not fit.
    """
    path = Path(name) if name.endswith(".yaml") else EXPERIMENTS / f"{name}.yaml"
    if not path.is_file():
        raise SparseError(f"There is no experiment {name!r}; there are {', '.join(names())}.")
    experiment = load_config(Experiment, str(path), [])
    if config.reduced:
        if experiment.reduced is None:
            raise SparseError(f"reduced: the experiment {path.stem!r} does not say how to cut it; leave reduced out.")
        experiment = experiment.cut()
    experiment = experiment.model_copy(update={"concepts": tuple(map(_at_home, experiment.concepts))})
    for concept in experiment.concepts:
        concept.build()
    files = located(experiment, config.data)
    if getattr(experiment.data, "spans", None) is None:
        for concept in experiment.concepts:
            if concept.entity_types:
                find_spans(["Nobody"], entities_of(concept))
    if any(mask.whitebox for mask in experiment.masks.values()):
        require_captum()
    if set(experiment.attacks) & set(TEXT_ATTACKS):
        check_score_libraries()
    output = storage.join(config.output, path.stem + ("-reduced" if config.reduced else ""))
    storage.check(output, field="output", write=True)
    rows, left_out = planned_rows(experiment)
    read = [*files.values(), *(Path(concept.terms_file) for concept in experiment.concepts if concept.terms_file)]
    records = experiment.reduced.records if config.reduced else None
    settings = [experiment.measured, config.encoder.model_dump(mode="json"), records, digests(read)]
    fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return Plan(path.stem, experiment, files, records, tuple(rows), tuple(left_out), output, fingerprint)


def _at_home(concept: ConceptConfig) -> ConceptConfig:
    """Files of terms that experiments name are those of this repository, wherever the command is run."""
    if concept.terms_file is None:
        return concept
    return concept.model_copy(update={"terms_file": str(_ROOT / concept.terms_file)})


def planned_rows(experiment: Experiment) -> tuple[list[Planned], list[str]]:
    """Every row at every budget that its noise allows; and a sentence for each that is left out."""
    rows, left_out = [], []
    for row in experiment.rows:
        if not row.noisy:
            rows.append(Planned(row))
            continue
        at = [(budget, rho_of(budget)) for budget in experiment.budgets]
        excess = [] if row.mechanism != "purkayastha" else [one for one in at if one[1] >= _MOST_RHO_ON_SPHERE]
        rows += [Planned(row, *one) for one in at if one not in excess]
        if excess:
            left_out.append(
                f"{row.name} at {', '.join(f'{budget:g} (rho {rho:.2f})' for budget, rho in excess)}, as it publishes "
                "directions, and random ones are only rho 1.41 away."
            )
    return rows, left_out
