"""Embed and protect a corpus: read, validate, encode, protect, write, commit.

The driver plans units of work, and Ray Data hands them to actors (`jobs.units`), which write one file each, under a
name that is a hash of the unit. A unit is done when its record lies in ``_units/``, which is written last, so a run
that was killed continues with the units that are left. Noise is keyed, so a unit done twice is the same file twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from jobs import ledger, sources, storage
from jobs.cli import job_main
from jobs.cluster import actor_count, ray_session
from jobs.config import PrivatizeConfig
from jobs.progress import console, steps
from jobs.stages import RememberingEncoder, check_output, load_key
from jobs.summary import Summary
from jobs.tracking import tracked
from jobs.units import RESERVED_COLUMNS, UnitActor, UnitWork
from sparse_core.budget import Spent
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks import Mask, unite_masks
from sparse_core.noise import Key
from sparse_core.policy import Policy

CONFIG = PrivatizeConfig
_ROWS_TO_JUDGE_A_SHARE = 10_000


@dataclass(frozen=True)
class Plan:
    """What a run will read, do and write."""

    source: sources.Source
    key: Key
    mask: Mask | None
    lines: tuple[str, ...]


def plan(config: PrivatizeConfig) -> Plan:
    """Check inputs, mask, key, output and budget."""
    planned = _checked(config)
    if planned.mask is not None:
        _done(config, _claim(config, planned, _policy(config, planned.mask.info.encoder, planned.mask)))
    budget = "no limit, no earlier releases counted"
    if _counts(config):
        spec = planned.mask.info.encoder if planned.mask else RememberingEncoder.load(config.encoder).spec
        spending = _spending(config, planned, _policy(config, spec, planned.mask))
        spending.refuse_overspending()
        budget = spending.line
    return replace(planned, lines=(*planned.lines, f"budget      {budget}"))


def _checked(config: PrivatizeConfig) -> Plan:
    check_output("privatize", config)
    _refuse_overlap(config)
    source = sources.plan(config.input, columns=config.passthrough)
    reserved = RESERVED_COLUMNS if config.input.id is not None else (*RESERVED_COLUMNS, "id")
    for column in (config.input.id, *config.passthrough):
        if column in reserved:
            raise SparseError(f"The output has a column {column!r} of its own; rename the input's.")
    key = load_key(config.key)
    mask = _mask(config)
    if mask is not None:
        _refuse_other_model(mask, config)
        # Building with the mask's own encoder proves that the parts fit before the model is loaded.
        _policy(config, mask.info.encoder, mask)
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    protection = config.protection
    strength = f"epsilon {protection.epsilon:g}" if protection.epsilon else f"rho {protection.rho or 0:g}"
    return Plan(
        source,
        key,
        mask,
        (
            f"read        {rows} rows of {config.input.path} in {len(source.units)} units",
            f"encoder     {config.encoder.model}",
            f"mask        {', '.join(paths) if (paths := _mask_paths(config)) else 'none'}",
            f"protection  {protection.mechanism}, {strength}, floor {protection.floor:g}, "
            f"read-out {protection.read_out}",
            f"key         {key.identifier}" + (" (ephemeral)" if config.key.ephemeral else ""),
            f"write       {config.output}/embeddings, {config.output}/quarantine, {config.output}/ledger, "
            f"{config.output}/summary.json",
        ),
    )


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
    planned = _checked(config)
    summary = Summary("privatize")
    encoder = encoder or RememberingEncoder.load(config.encoder)
    policy = _policy(config, encoder.spec, planned.mask)
    summary.policy_hash = policy.hash
    claim = _claim(config, planned, policy)
    done = _done(config, claim)
    todo = [unit for unit in planned.source.units if unit.name not in done]
    finished = all(storage.exists(storage.join(config.output, name)) for name in ("manifest.json", "summary.json"))
    if not todo and finished:
        _tally(summary, done)
        console.print(f"{config.output} is complete: nothing to do.", highlight=False, soft_wrap=True)
        return summary
    # Without ids of their own no two rows are one record.
    spending = None
    if _counts(config) or config.input.id is not None:
        with summary.timed("budget"):
            spending = _spending(config, planned, policy)
            spending.refuse_overspending()
        summary.details["budget"] = spending.figures
    _write_claim(config, planned, policy, claim)
    if config.key.ephemeral:
        console.print(
            "Ephemeral key: this release can never be reproduced; a re-run averages the noise away.",
            soft_wrap=True,
        )
    with tracked(config, summary) as tracking:
        with summary.timed("protect"), steps("Embedding and protecting") as advance:
            work = UnitWork(planned.source, planned.key, config.encoder, config.output, config.passthrough)
            _stop_if_over_limit(config, done, last=not todo)
            for record in _stream(config, work, spending.repeated if spending else None, todo, verbose):
                done[record["unit"]] = record
                seen = sum(r["rows_in"] for r in done.values())
                advance(seen, planned.source.n_rows or seen)
                _stop_if_over_limit(config, done, last=len(done) == len(planned.source.units))
        _tally(summary, done)
        summary.details |= {
            "guarantee": asdict(policy.guarantee()),
            "key_identifier": planned.key.identifier,
            "fingerprints": {"data": planned.source.fingerprint},
        }
        _commit(config, planned, policy, done)
        summary.write(config.output)
        tracking.log_directory(storage.join(config.output, "policy"), "policy")
    quarantined = sum(summary.quarantined.values())
    console.print(
        f"{summary.rows_out:,} of {summary.rows_in:,} rows protected, {quarantined:,} quarantined: "
        f"{config.output}/embeddings",
        highlight=False,
        soft_wrap=True,
    )
    return summary


def _policy(config: PrivatizeConfig, spec: EncoderSpec, mask: Mask | None) -> Policy:
    return Policy.build(encoder=spec, mask=mask, **config.protection.model_dump())


def _mask_paths(config: PrivatizeConfig) -> list[str]:
    if config.mask is None:
        return []
    return [config.mask] if isinstance(config.mask, str) else [weighted.path for weighted in config.mask]


def _mask(config: PrivatizeConfig, spec: EncoderSpec | None = None) -> Mask | None:
    masks = []
    for path in _mask_paths(config):
        with storage.local_directory(path) as local:
            masks.append(Mask.load(local, encoder=spec))
    if not masks:
        return None
    return masks[0] if isinstance(config.mask, str) else unite_masks(masks, weights=[m.weight for m in config.mask])


def _refuse_overlap(config: PrivatizeConfig) -> None:
    (_, source), (_, output) = storage.filesystem(config.input.path), storage.filesystem(config.output)
    if f"{output.rstrip('/')}/".startswith(f"{source.rstrip('/')}/"):
        raise SparseError(f"output: {config.output} lies inside input.path; the next run would read its own output.")


def _refuse_other_model(mask: Mask, config: PrivatizeConfig) -> None:
    learned = mask.info.encoder
    if learned.normalize != config.encoder.normalize or learned.prompt != config.encoder.prompt:
        raise SparseError(
            f"The mask in {', '.join(_mask_paths(config))} was learned "
            f"with normalize={learned.normalize} and prompt {learned.prompt!r}, "
            f"the encoder is configured with normalize={config.encoder.normalize} and prompt {config.encoder.prompt!r}."
        )


def _counts(config: PrivatizeConfig) -> bool:
    return config.budget.max_epsilon_per_record is not None or bool(config.budget.include)


def _spending(config: PrivatizeConfig, planned: Plan, policy: Policy) -> ledger.Spending:
    return ledger.plan(config.budget, planned.source, policy, planned.key, output=config.output)


def _claim(config: PrivatizeConfig, planned: Plan, policy: Policy) -> dict:
    """What binds an output directory to one policy, key and source."""
    return {
        "policy_hash": policy.hash,
        "key_identifier": planned.key.identifier,
        "source_fingerprint": planned.source.fingerprint,
        "passthrough": list(config.passthrough),
        "counted": [ledger.located(url) for url in config.budget.include],
        "max_epsilon_per_record": config.budget.max_epsilon_per_record,
    }


def _done(config: PrivatizeConfig, claim: dict) -> dict[str, dict]:
    """Refuse an output directory that is bound otherwise; the records of units already done in it."""
    found = storage.read_json(storage.join(config.output, "claim.json"))
    if found is None:
        return {}
    for name, told in (
        ("policy_hash", "another policy"),
        ("key_identifier", "another key"),
        ("source_fingerprint", "another input, or its files have changed"),
        ("passthrough", "other passthrough columns"),
        ("counted", "another budget.include"),
    ):
        if found.get(name) != claim[name]:
            raise SparseError(
                f"output: {config.output} already holds a release of {told} ({name} {found.get(name)!r} there, "
                f"{claim[name]!r} here). Choose another output directory."
            )
    units = storage.join(config.output, "_units")
    if not storage.exists(units):
        return {}
    fs, path = storage.filesystem(units)
    # A killed run may leave half a record under a temporary name.
    records = [storage.read_json(fs.unstrip_protocol(name)) for name in fs.find(path) if name.endswith(".json")]
    return {record["unit"]: record for record in records}


def _write_claim(config: PrivatizeConfig, planned: Plan, policy: Policy, claim: dict) -> None:
    url = storage.join(config.output, "claim.json")
    found = storage.read_json(url)
    if found is None:
        _mask(config, policy.encoder)
        with storage.upload_directory(storage.join(config.output, "policy")) as local:
            policy.save(local)
    if found != claim:
        storage.write_json(url, claim)


def _tally(summary: Summary, done: dict[str, dict]) -> None:
    summary.rows_in = sum(record["rows_in"] for record in done.values())
    summary.rows_out = sum(record["rows_out"] for record in done.values())
    summary.quarantined = dict(sum((Counter(r["quarantined"]) for r in done.values()), Counter()))


def _stream(
    config: PrivatizeConfig, work: UnitWork, repeated: Spent | None, todo: list[sources.Unit], verbose: bool
) -> Iterator[dict]:
    if not todo:
        return
    import ray
    import ray.data
    from ray.data import ActorPoolStrategy

    with ray_session(config.workers, verbose=verbose):
        gpus, actors = actor_count(config.workers)
        actors = min(actors, len(todo))
        # By reference: actors on one machine share one copy.
        repeated = ray.put(repeated) if repeated else None
        dataset = ray.data.from_items([{"unit": unit} for unit in todo], override_num_blocks=len(todo))
        dataset = dataset.map_batches(
            UnitActor,
            fn_constructor_args=(work, repeated),
            batch_size=1,
            compute=ActorPoolStrategy(size=actors),
            num_cpus=0 if gpus else 1,
            num_gpus=1 if gpus else 0,
        )
        for row in dataset.iter_rows():
            yield row["record"]


def _stop_if_over_limit(config: PrivatizeConfig, done: dict[str, dict], *, last: bool) -> None:
    limit = config.limits.max_quarantined
    rows = sum(record["rows_in"] for record in done.values())
    # A share of few rows says little: one bad file must not stop a healthy corpus.
    if limit is None or (limit < 1 and rows < _ROWS_TO_JUDGE_A_SHARE and not last):
        return
    quarantined = sum((Counter(r["quarantined"]) for r in done.values()), Counter())
    total = quarantined.total()
    if total > (limit * rows if limit < 1 else limit):
        reasons = ", ".join(f"{count} {reason}" for reason, count in quarantined.most_common())
        raise SparseError(
            f"limits.max_quarantined: {total} of {rows} rows were quarantined ({reasons}), more than {limit:g}. See "
            f"{config.output}/quarantine; mend the input or raise the limit and run the same command again."
        )


def _commit(config: PrivatizeConfig, planned: Plan, policy: Policy, done: dict[str, dict]) -> None:
    units = [done[unit.name] for unit in planned.source.units]
    storage.write_json(
        storage.join(config.output, "manifest.json"),
        {
            "policy_hash": policy.hash,
            "source_fingerprint": planned.source.fingerprint,
            "dimension": policy.encoder.dimension,
            "epsilon_spent_metric": "euclidean",
            "rows": sum(record["rows_out"] for record in units),
            "truncated": sum(record["truncated"] for record in units),
            "files": [f"embeddings/part-{record['unit']}.parquet" for record in units if record["rows_out"]],
        },
    )


if __name__ == "__main__":
    job_main("privatize")
