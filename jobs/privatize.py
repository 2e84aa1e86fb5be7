"""Embed and protect a corpus: read, validate, encode, protect, write, commit.

The driver plans units of work, and Ray Data hands them to actors (`jobs.units`), which write one file each, under a
name that is a hash of the unit. A unit is done when its record lies in ``_units/``, which is written last, so a run
that was killed continues with the units that are left. Noise is keyed, so a unit done twice is the same file twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace

from jobs import lease, ledger, outputs, registry, resume, spending, storage
from jobs.cli import job_main
from jobs.config import PrivatizeConfig
from jobs.planning import Plan, checked, mask_of, mask_paths, pinned, policy_of
from jobs.progress import console, steps
from jobs.stages import RememberingEncoder, chunker_of, settled
from jobs.stream import Progress, stream
from jobs.summary import Summary
from jobs.tracking import tracked
from jobs.units import UnitWork, published_schema
from sparse_core.policy import Policy

CONFIG = PrivatizeConfig


def plan(config: PrivatizeConfig) -> Plan:
    """Check inputs, mask, key, output and budget."""
    config = pinned(config)
    planned = checked(config)
    # A mask tells the encoder's space, not what computes; so that the policy's hash is known only of stored vectors.
    known = config.encoder == "none"
    policy = policy_of(config, planned.spec, planned.mask) if known else None
    resume.done_units(config.output, _claim(config, planned, policy))
    budget = "no limit, no earlier releases counted"
    if config.budget.counts:
        encoder = None if known else RememberingEncoder.load(config.encoder)
        policy = policy or policy_of(config, encoder.spec, planned.mask)
        with _spending(config, planned, policy, encoder) as costs:
            costs.refuse_overspending()
            budget = costs.line
    return replace(planned, lines=(*planned.lines, f"budget      {budget}"))


def run(config: PrivatizeConfig, *, encoder: RememberingEncoder | None = None, verbose: bool = False) -> Summary:
    """Privatize a corpus into ``<output>/embeddings``.

    Parameters
    ----------
    config : PrivatizeConfig
    encoder : RememberingEncoder, optional
        Loaded already; tells the driver which vectors to expect. Actors load their own.
    verbose : bool
        Show Ray's logs.
    """
    config = pinned(config)
    planned = checked(config)
    spec = planned.spec
    if config.encoder != "none":
        encoder = encoder or RememberingEncoder.load(config.encoder)
        spec = encoder.spec
        if planned.mask is not None:
            mask_of(config, spec)
    policy = policy_of(config, spec, planned.mask)
    with lease.held(config.output) as check_lease:
        return _run(config, planned, policy, encoder, check_lease, verbose)


def _run(
    config: PrivatizeConfig,
    planned: Plan,
    policy: Policy,
    encoder: RememberingEncoder | None,
    check_lease: Callable[[], None],
    verbose: bool,
) -> Summary:
    summary, units = Summary("privatize"), planned.source.units
    summary.policy_hash = policy.hash
    claim = _claim(config, planned, policy)
    done = resume.done_units(config.output, claim)
    resume.refuse_other_policy(config.output, done.values(), policy)
    if lost := resume.damaged(config.output, done.values()):
        console.print(
            f"{len(lost)} of {len(done)} finished units have lost files, or they were changed: done again.",
            soft_wrap=True,
        )
        resume.forget(config.output, lost)
        done = {name: record for name, record in done.items() if name not in lost}
    folders = (outputs.folder_of(config.dataset.format), ledger.FOLDER, "quarantine", resume.UNITS)
    resume.sweep(config.output, folders)
    todo = [unit for unit in units if unit.name not in done]
    if not todo and resume.finished(config.output):
        _tally(summary, done)
        console.print(f"{config.output} is complete: nothing to do.", highlight=False, soft_wrap=True)
        return summary
    with summary.timed("plan"), _spending(config, planned, policy, encoder) as costs:
        costs.refuse_overspending()
        if config.limits.duplicate_ids == "fail":
            costs.refuse_duplicates()
        summary.details |= {"budget": costs.figures, "copies": asdict(costs.copies)}
        resume.write_claim(config.output, claim, policy)
        noted = costs.write_notes(config.output, units, done=done)
    if warning := costs.copies.warning:
        console.print(warning, highlight=False, soft_wrap=True)
    if config.key.ephemeral:
        console.print(
            "Ephemeral key: this release can never be reproduced; a re-run averages the noise away.",
            soft_wrap=True,
        )
    work = UnitWork(
        source=planned.source,
        key=planned.key,
        encoder=None if config.encoder == "none" else settled(config.encoder, encoder.spec),
        output=config.output,
        dataset=config.dataset,
        storage=config.storage,
        passthrough=config.passthrough,
        chunk=config.chunk,
        noted=noted,
        policy_hash=policy.hash,
    )
    with tracked(config, summary) as tracking:
        with summary.timed("protect"), steps("Embedding and protecting") as advance:
            progress = Progress(config, advance, done.values(), planned.source.n_rows)
            progress.stop_if_over_limit(last=not todo)
            for record in stream(config, work, todo, verbose=verbose):
                check_lease()
                done[record["unit"]] = record
                progress.add(record, last=len(done) == len(units))
        _tally(summary, done)
        summary.details |= {
            "guarantee": asdict(policy.guarantee()),
            "key_identifier": planned.key.identifier,
            "registered_masks": registry.registered(mask_paths(config)),
            "truncated": sum(record["truncated"] for record in done.values()),
            "unforeseen_releases": sum(record["unforeseen"] for record in done.values()),
            "fingerprints": {"data": planned.source.fingerprint},
        }
        check_lease()
        resume.sweep(config.output, folders)
        _commit(config, planned, policy, [done[unit.name] for unit in units])
        summary.write(config.output)
        tracking.log_directory(storage.join(config.output, "policy"), "policy")
    quarantined, truncated = sum(summary.quarantined.values()), summary.details["truncated"]
    console.print(
        f"{summary.rows_out:,} of {summary.rows_in:,} rows protected, {quarantined:,} quarantined"
        + (f", {truncated:,} texts cut off where the encoder stops reading: " if truncated else ": ")
        + f"{config.output}/{outputs.folder_of(config.dataset.format)}",
        highlight=False,
        soft_wrap=True,
    )
    return summary


def _spending(
    config: PrivatizeConfig, planned: Plan, policy: Policy, encoder: RememberingEncoder | None
) -> spending.Spending:
    prepare = (lambda rows: rows) if config.chunk is None else chunker_of(config.chunk, encoder)
    return spending.plan(config.budget, planned.source, policy, planned.key, output=config.output, prepare=prepare)


def _claim(config: PrivatizeConfig, planned: Plan, policy: Policy | None) -> dict:
    """What binds an output directory to one policy, key, source and form."""
    return {
        "policy_hash": policy and policy.hash,
        "key_identifier": planned.key.identifier,
        "source_fingerprint": planned.source.fingerprint,
        "units": len(planned.source.units),
        "passthrough": list(config.passthrough),
        "dataset": config.dataset.model_dump(mode="json"),
        "chunk": config.chunk and config.chunk.model_dump(),
        "counted": [ledger.located(url) for url in config.budget.include],
        "max_epsilon_per_subject": config.budget.max_epsilon_per_subject,
        "subject": config.budget.subject,
        "id": config.input.id,
    }


def _tally(summary: Summary, done: dict[str, dict]) -> None:
    records = done.values()
    summary.rows_in = sum(record["rows_in"] for record in records)
    summary.rows_out = sum(record["rows_out"] for record in records)
    summary.quarantined = dict(sum((Counter(record["quarantined"]) for record in records), Counter()))
    seconds = sum((Counter(record.get("seconds", {})) for record in records), Counter())
    of_this_run = [record for record in records if record.get("protected")]
    if of_this_run:
        names = ("started", "protected")
        summary.details["first_row"] = {name: min(record[name] for record in of_this_run) for name in names}
    summary.durations |= {f"actors_{stage}": round(spent, 3) for stage, spent in seconds.items()}


def _commit(config: PrivatizeConfig, planned: Plan, policy: Policy, records: list[dict]) -> None:
    resume.refuse_other_policy(config.output, records, policy)
    files = [outputs.FileRecord(**record["file"]) for record in records if record["file"] is not None]
    outputs.commit(config.output, config.dataset, files)
    scale = outputs.public_scale(policy, config.dataset.precision)
    outputs.write_manifest(
        config.output,
        config.dataset,
        files,
        schema=published_schema(
            planned.source,
            config.dataset,
            config.passthrough,
            chunked=config.chunk is not None,
            dimension=policy.encoder.dimension,
            scale=scale,
        ),
        policy=policy,
        scale=scale,
        source_fingerprint=planned.source.fingerprint,
        truncated=sum(record["truncated"] for record in records),
        clipped=sum(record["clipped"] for record in records),
        registered_masks=registry.registered(mask_paths(config)),
        ledger=[record["ledger"] for record in records if record["ledger"] is not None],
    )


if __name__ == "__main__":
    job_main("privatize")
