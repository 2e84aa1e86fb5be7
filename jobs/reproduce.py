"""``sparse reproduce NAME...``: results of the paper measured anew, its figures beside ours."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jobs import audit, storage, train_mask
from jobs.config import (
    AuditConfig,
    Compared,
    ConceptConfig,
    ProtectionConfig,
    ReproduceConfig,
    TrackingConfig,
    TrainMaskConfig,
    load_config,
)
from jobs.paper.data import Prepared, prepare
from jobs.paper.plan import Plan, names, plan, title
from jobs.paper.table import compared, render
from jobs.progress import console
from jobs.stages import RememberingEncoder
from sparse_core.errors import SparseError


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="sparse reproduce",
        description=ReproduceConfig.__doc__,
        epilog="experiments:\n" + "\n".join(f"  {name:<12} {title(name)}" for name in names()) + "\n\nfields: "
        "data=DIR (public data sets, see configs/paper/README.md), output=DIR, reduced=true, encoder.model=NAME",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, compute nothing")
    parser.add_argument("name", nargs="+", metavar="NAME", help="experiments, or 'all'; then fields as field=value")
    given = parser.parse_intermixed_args(arguments)
    chosen = [word for word in given.name if "=" not in word]
    config = load_config(ReproduceConfig, None, [word for word in given.name if "=" in word])
    if not chosen:
        raise SparseError(f"Name an experiment, or all: {', '.join(names())}.")
    plans = [plan(name, config) for name in (names() if chosen == ["all"] else chosen)]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("sparse").setLevel(logging.INFO)
    if given.dry_run:
        console.print("\n".join(line for one in plans for line in one.lines), highlight=False, soft_wrap=True)
        return 0
    for page in run(plans, config):
        console.print(page, highlight=False, soft_wrap=True, markup=False)
    return 0


def run(plans: Sequence[Plan], config: ReproduceConfig) -> list[str]:
    """Run experiments one after the other, and write ``result.md`` and ``result.json`` of each.

    An experiment whose result is there already, for the same settings and data, is not run again; its page is made anew
    with the paper's figures and explanations as they now stand.

    Returns
    -------
    list of str
        The page of each.
    """
    pages, encoder, corpora = [], None, {}
    with tempfile.TemporaryDirectory(prefix="sparse-reproduce-") as directory:
        for planned in plans:
            found = storage.read_json(storage.join(planned.output, "result.json"))
            if found is None or found["fingerprint"] != planned.fingerprint or None in _audits(planned).values():
                encoder = encoder or RememberingEncoder.load(config.encoder)
                experiment = planned.experiment
                key = repr((experiment.data, experiment.concepts, experiment.utility, planned.records))
                if key not in corpora:
                    folder = Path(directory, str(len(corpora)))
                    folder.mkdir()
                    corpora[key] = prepare(experiment, planned.files, folder, records=planned.records)
                found = _measured(planned, corpora[key], config, encoder)
            pages.append(_written(planned, found))
    return pages


def _measured(planned: Plan, prepared: Prepared, config: ReproduceConfig, encoder: RememberingEncoder) -> dict:
    """Learn masks and audit every concept; what is told of that beside the audits' own summaries."""
    started = time.monotonic()
    masks = []
    for concept in prepared.concepts:
        for name in planned.experiment.masks:
            masks.append(_learned(planned, prepared, concept, name, config, encoder))
        audit.run(_audit(planned, prepared, concept, config), encoder=encoder)
    return {
        "name": planned.name,
        "fingerprint": planned.fingerprint,
        "encoder": encoder.spec.model,
        "reduced": config.reduced,
        "records": prepared.n_records,
        "seconds": round(time.monotonic() - started, 1),
        "left_out": list(planned.left_out),
        "masks": masks,
    }


def _written(planned: Plan, found: dict) -> str:
    """The page of what was measured, beside the paper's figures."""
    lines = compared(planned.experiment, planned.rows, _audits(planned))
    page = render(planned.experiment, lines, found)
    # The result comes last: where it is, everything is.
    storage.write_bytes(storage.join(planned.output, "result.md"), page.encode())
    storage.write_json(storage.join(planned.output, "result.json"), found | {"lines": lines})
    return page


def _audits(planned: Plan) -> dict[str, dict | None]:
    return {
        concept.name: storage.read_json(storage.join(_audit_output(planned, concept), "summary.json"))
        for concept in planned.experiment.concepts
    }


def _learned(
    planned: Plan,
    prepared: Prepared,
    concept: ConceptConfig,
    name: str,
    config: ReproduceConfig,
    encoder: RememberingEncoder,
) -> dict:
    """Learn a mask; what is told of it."""
    output = _mask_output(planned, concept, name)
    mask = train_mask.run(
        TrainMaskConfig(
            output=output,
            input=prepared.input,
            concept=concept,
            encoder=config.encoder,
            mask=planned.experiment.masks[name],
            split=planned.experiment.split,
            tracking=TrackingConfig(enabled=False),
        ),
        encoder=encoder,
    )
    metrics = mask.info.metrics
    return {
        "name": name,
        "concept": concept.name,
        "basis": planned.experiment.masks[name].basis,
        "open": int(np.count_nonzero(mask.values)),
        "dimension": mask.dimension,
        "accuracy": metrics.get("accuracy"),
        "seconds": storage.read_json(storage.join(output, "summary.json"))["durations"]["learn"],
    }


def _mask_output(planned: Plan, concept: ConceptConfig, name: str) -> str:
    return storage.join(planned.output, _folder(concept), "masks", name)


def _audit_output(planned: Plan, concept: ConceptConfig) -> str:
    return storage.join(planned.output, _folder(concept), "audit")


def _folder(concept: ConceptConfig) -> str:
    return concept.name.replace(" ", "-")


def _audit(planned: Plan, prepared: Prepared, concept: ConceptConfig, config: ReproduceConfig) -> AuditConfig:
    experiment = planned.experiment
    compare = []
    for one in planned.rows:
        row = one.row
        mask = None if row.mask is None else storage.join(_mask_output(planned, concept, row.mask), "mask")
        if row.baseline is not None:
            compare.append(Compared(name=one.name, baseline=row.baseline, mask=mask))
            continue
        noise = {"rho": one.rho, "floor": row.floor, "read_out": row.read_out} if row.noisy else {}
        compare.append(
            Compared(name=one.name, mask=mask, protection=ProtectionConfig(mechanism=row.mechanism, **noise))
        )
    return AuditConfig(
        output=_audit_output(planned, concept),
        input=prepared.input,
        concept=concept,
        encoder=config.encoder,
        split=experiment.split,
        compare=tuple(compare),
        attacks=experiment.attacks,
        text_attacks=experiment.text_attacks,
        draws=experiment.draws,
        min_token_count=experiment.min_token_count,
        utility=prepared.utility,
        similar_tokens=False,
        tracking=TrackingConfig(enabled=False),
    )
