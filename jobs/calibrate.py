"""Find the policy that keeps leakage within a limit at the least loss of utility, and write it.

Leakage falls as noise grows, up to chance, so for each size of mask the smallest sufficient noise is found by halving.
What is found that way is a little luckier than it deserves: the policy with the highest utility is measured again with
other noise, on records that had no part in choosing it, and that figure counts. Two policies are measured so at most;
each of two intervals at 95% errs upwards once in forty times, so a policy over the limit passes once in twenty at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import yaml

from jobs import sources, storage
from jobs.cli import job_main
from jobs.config import CalibrateConfig
from jobs.embedding_cache import CachedEncoder
from jobs.noise_search import Bench, Search, Tried, halves, sizes, within_loss
from jobs.progress import console, steps
from jobs.registry import register_mask
from jobs.report import few_records, render_table
from jobs.stages import RememberingEncoder, check_output, refuse_missing_entity_model, settled
from jobs.study.trial import find, prepare
from jobs.summary import ProtectionRow, Summary
from jobs.tracking import Run, tracked
from jobs.utility_tasks import check_utilities, utility_columns
from sparse_core.concepts import Concept
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError

CONFIG = CalibrateConfig
FLAGS = ("max_leakage", "max_utility_loss")
_NAME = "calibrated"
_LOOKS = 2


class NoPolicyError(SparseError):
    """No policy was found within the limits; nothing is wrong with the configuration."""

    exit_status = 3


@dataclass(frozen=True)
class Plan:
    """What will be searched."""

    source: sources.Source
    concept: Concept
    lines: tuple[str, ...]


def plan(config: CalibrateConfig) -> Plan:
    """Check inputs, concept, tasks and output."""
    check_output("calibrate", config)
    source = sources.plan(config.input, columns=utility_columns(config.utility))
    concept = config.concept.build()
    refuse_missing_entity_model(concept, config.input)
    check_utilities(config.utility)
    loss = "" if config.max_utility_loss is None else f", at most {config.max_utility_loss:.3g} of utility lost"
    n_sizes = len(sizes(config))
    return Plan(
        source,
        concept,
        (
            f"read        {config.input.shown_path}",
            f"concept     {concept!r}",
            f"seek        highest {config.utility[0].title}, leakage at most {config.max_leakage:.3g}{loss}",
            f"search      {n_sizes} masks, rho {config.rho.low:g} to {config.rho.high:g} in {config.steps} halvings",
            f"attacks     {', '.join(config.attacks)}",
            f"write       {config.output}/policy, {config.output}/privatize.yaml, {config.output}/summary.json",
        ),
    )


def run(config: CalibrateConfig, *, encoder: RememberingEncoder | None = None, verbose: bool = False) -> Summary:
    """Search, and write ``<output>/policy`` and ``<output>/privatize.yaml``.

    Parameters
    ----------
    config : CalibrateConfig
    encoder : RememberingEncoder, optional
        Loaded already.
    verbose : bool
        Has no effect; every job takes it.

    Raises
    ------
    NoPolicyError
        If no policy within the limits is found, telling how near one came. ``summary.json`` is written all the same.
    """
    plan(config)
    summary = Summary("calibrate")
    with summary.timed("read"):
        found = find(config)
    loaded = encoder or RememberingEncoder.load(config.encoder)
    with tracked(config, summary) as tracking:
        with summary.timed("encode"):
            cached = CachedEncoder(loaded, config.cache or storage.join(config.output, "embeddings"))
            prepared = prepare(config, cached, found=found)
        summary.rows_out = len(prepared.material.ids)
        summary.quarantined = prepared.quarantined
        summary.rows_in = len(found.corpus.ids) + sum(prepared.quarantined.values())
        choosing, telling = halves(prepared, seed=config.split.seed)
        with summary.timed("search"), steps("Searching") as advance:
            search = Search(config, Bench(config, choosing, seed=config.seed), advance)
            search.run()
        with summary.timed("confirm"), steps("Measuring the choice again"):
            bench = Bench(config, telling, seed=config.seed + 1)
            looks = _looks(config, search, bench)
        if warning := few_records(bench.n_attacked):
            console.print(warning, highlight=False, soft_wrap=True)
        chosen = looks[-1] if looks and _within(config, looks[-1]) else None
        reason = (
            _praise(config, chosen, bench, others=choosing is not telling)
            if chosen
            else _regret(config, search, looks, bench)
        )
        shown = {"unprotected": bench.reference.record} | ({_NAME: looks[-1].record} if looks else {})
        summary.protections = [ProtectionRow(**record["row"]) for record in shown.values()]
        summary.details = {
            "limits": {"max_leakage": config.max_leakage, "max_utility_loss": config.max_utility_loss},
            "chosen": chosen and chosen.as_record(),
            "reason": reason,
            "chosen_on_other_records": choosing is not telling,
            "concept_test_records": bench.n_attacked,
            "attacks": {name: record["attacks"] for name, record in shown.items()},
            "looks": [look.as_record() for look in looks],
            "tried": [tried.as_record() for tried in search.tried],
            "skipped": search.skipped,
            "fingerprints": {"data": prepared.data_fingerprint},
        }
        if chosen:
            summary.policy_hash = chosen.policy.hash
            summary.details["guarantee"] = asdict(chosen.policy.guarantee())
            summary.details["registered"] = _write(config, chosen, reason, loaded.spec, tracking)
        summary.write(config.output)
    console.print(render_table(summary.protections), highlight=False, soft_wrap=True)
    if not chosen:
        raise NoPolicyError(reason)
    console.print(
        f"{reason}\nPolicy              {config.output}/policy\nPublish under it    sparse privatize --config "
        f"{config.output}/privatize.yaml",
        highlight=False,
        soft_wrap=True,
    )
    return summary


def _within(config: CalibrateConfig, tried: Tried) -> bool:
    return tried.bound <= config.max_leakage and within_loss(config, tried)


def _looks(config: CalibrateConfig, search: Search, bench: Bench) -> list[Tried]:
    """What the best of the search came to on the bench; where that leaks too much, also what a safer one did."""
    looks: list[Tried] = []
    wanted = config.max_leakage
    while len(looks) < _LOOKS:
        best = next((tried for tried in search.eligible if tried.bound <= wanted), None)
        if best is None:
            break
        looks.append(bench.measure(best.parameters, best.mask, _NAME))
        if looks[-1].bound <= config.max_leakage:
            break
        # As far below the limit as this one turned out above it.
        wanted = min(wanted, best.bound) - (looks[-1].bound - config.max_leakage)
    return looks


def _praise(config: CalibrateConfig, chosen: Tried, bench: Bench, *, others: bool) -> str:
    row = chosen.row
    where = (
        "records that had no part in choosing it"
        if others
        else ("the records that chose it, too few to be divided; take the figures for a little too good")
    )
    return (
        f"Found {chosen}, epsilon {row['epsilon']:.4g}: leakage {row['leakage']:.3f}, at most {chosen.bound:.3f} "
        f"(limit {config.max_leakage:.3g}), and {chosen.loss:.1%} of utility lost, on {bench.n_attacked} {where}."
    )


def _regret(config: CalibrateConfig, search: Search, looks: Sequence[Tried], bench: Bench) -> str:
    """That there is no policy, and how near one came."""
    limit = f"{config.max_leakage:.3g}"
    quiet = [tried for tried in search.tried if tried.bound <= config.max_leakage]
    if not quiet:
        nearest = min(search.tried, key=lambda tried: tried.bound)
        told = f"No policy tried keeps the upper bound of leakage within {limit}. The nearest is {_shown(nearest)}."
        if (floor := nearest.row["leakage_floor"]) is not None and floor >= config.max_leakage:
            told += f" Attackers who know nothing of the records guess {floor:.3f} right already."
        if nearest.row["rho"] >= 0.99 * config.rho.high:
            told += " More noise may do (rho.high)."
        return f"{told} More test records than {bench.n_attacked} would narrow the interval."
    if not search.eligible:
        least = min(quiet, key=lambda tried: tried.loss)
        told = (
            f"No policy tried keeps leakage within {limit} and loses at most {config.max_utility_loss:.1%} of utility. "
            f"Within the leakage, the least loss is that of {_shown(least)}."
        )
        useful = [tried for tried in search.tried if within_loss(config, tried)]
        if useful:
            told += f" Within the loss, the least leakage is that of {_shown(min(useful, key=lambda t: t.bound))}."
        return told
    shown = "; ".join(_shown(look) for look in looks)
    return (
        f"What the search chose does not stay within the limits where it is measured again, with other noise: {shown}. "
        f"More test records than {bench.n_attacked}, or smaller lambdas, may help."
    )


def _shown(tried: Tried) -> str:
    leakage = tried.row["leakage"]
    told = "no measurable leakage" if leakage is None else f"leakage {leakage:.3f}, at most {tried.bound:.3f}"
    return f"{tried}: {told}, {tried.loss:.1%} of utility lost"


def _write(config: CalibrateConfig, chosen: Tried, reason: str, spec: EncoderSpec, tracking: Run) -> dict | None:
    """Write the policy and a configuration that publishes under it; the mask's place in the registry."""
    place = storage.join(config.output, "policy")
    with storage.upload_directory(place) as local:
        chosen.policy.save(local)
    policy = chosen.policy
    settings = {
        "output": storage.join(config.output, "release"),
        "input": config.input.model_dump(mode="json", exclude_defaults=True),
        # What 'auto' came to is part of the policy.
        "encoder": settled(config.encoder, spec).model_dump(mode="json", exclude_defaults=True),
        "mask": storage.join(place, "mask"),
        "protection": {
            "mechanism": policy.mechanism,
            "epsilon": policy.epsilon,
            "floor": policy.floor,
            "read_out": policy.read_out,
            "unit_norm": policy.unit_norm,
        },
        "tracking": config.tracking.model_dump(mode="json", exclude_defaults=True),
        "storage": config.storage.model_dump(mode="json", exclude_defaults=True),
    }
    head = (
        f"# {reason}\n#\n#   sparse key new sparse.key\n"
        f"#   sparse privatize --config {storage.join(config.output, 'privatize.yaml')} key.file=sparse.key\n\n"
    )
    body = yaml.safe_dump({name: value for name, value in settings.items() if value != {}}, sort_keys=False)
    storage.write_bytes(storage.join(config.output, "privatize.yaml"), (head + body).encode())
    tracking.log_directory(place, "policy")
    if config.registry is None:
        return None
    registered = register_mask(tracking, storage.join(place, "mask"), config.registry, artifact="policy/mask")
    return registered and asdict(registered)


if __name__ == "__main__":
    job_main("calibrate")
