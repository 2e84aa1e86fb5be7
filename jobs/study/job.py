"""Plan a study and carry it out: prepare what trials share, run those missing, and sum up."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass

from jobs import sources, storage
from jobs.cluster import check_cluster
from jobs.config import StudyConfig
from jobs.embedding_cache import CachedEncoder
from jobs.progress import console, steps
from jobs.registry import register_mask
from jobs.report import render_table
from jobs.stages import RememberingEncoder, check_output, refuse_missing_entity_model
from jobs.study.results import (
    Study,
    best,
    details_of,
    opened,
    read_records,
    record_url,
    rows_of,
)
from jobs.study.space import Parameters, Proposals, by_policy, encoder_names, grid
from jobs.study.trial import Prepared, find, prepare
from jobs.summary import Summary
from jobs.tracking import StudyRun, tracked_study
from jobs.utility_tasks import check_utilities, utility_columns
from sparse_core.concepts import Concept
from sparse_core.errors import SparseError

_SHOWN = 10


@dataclass(frozen=True)
class Plan:
    """What will be tried, and what is there already.

    Attributes
    ----------
    study : Study
    content : dict
        Of ``study.json``.
    missing : list of Parameters
        Trials of a grid that have no record.
    recorded : dict
        Records by trial.
    complete : bool
        Whether nothing is missing.
    lines : tuple of str
    """

    study: Study
    content: dict
    missing: list[Parameters]
    recorded: dict[str, dict]
    complete: bool
    lines: tuple[str, ...]


def plan(config: StudyConfig) -> Plan:
    """Check inputs, concepts, tasks and output."""
    check_output("study", config)
    check_cluster(config.workers)
    if config.search == "optuna" and importlib.util.find_spec("optuna") is None:
        raise SparseError("search: 'optuna' needs the extra 'study': pip install 'sparse-embeddings[study]'.")
    source = sources.plan(config.input, columns=utility_columns(config.utility))
    concepts: list[Concept] = [concept.build() for concept in config.concepts]
    for concept in concepts:
        refuse_missing_entity_model(concept, config.input)
    check_utilities(config.utility)
    study, content = opened(config, concepts, source.fingerprint)
    recorded = read_records(config.output)
    if config.retry_failed:
        recorded = {name: record for name, record in recorded.items() if record["status"] != "failed"}
    trials = grid(config) if config.search == "grid" else []
    missing = [parameters for parameters in trials if parameters.trial_id(study.fingerprint) not in recorded]
    if config.search == "grid":
        wanted = f"{len(trials)} trials, each combination once"
        done, complete = len(trials) - len(missing), not missing
    else:
        tried = by_policy(Parameters.of_record(record["parameters"]) for record in recorded.values())
        done = sum(len(trials) == len(config.space.seed) for trials in tried)
        complete = done == len(tried) >= config.trials
        seeds = len(config.space.seed)
        wanted = f"{config.trials} policies that Optuna proposes" + (f", each with {seeds} seeds" if seeds > 1 else "")
    lines = (
        f"read        {config.input.shown_path}",
        *(f"concept     {concept!r}" for concept in concepts),
        *(f"encoder     {name}" for name in encoder_names(config)),
        f"try         {wanted}" + (f"; {done} are there already" if done else ""),
        f"attacks     {', '.join(config.attacks)}",
        f"write       {config.output}/trials, {config.output}/masks, {config.output}/summary.json",
    )
    return Plan(study, content, missing, recorded, complete, lines)


def run(config: StudyConfig, *, encoder: RememberingEncoder | None = None, verbose: bool = False) -> Summary:
    """Run the trials that are missing, and write ``summary.json``.

    Parameters
    ----------
    config : StudyConfig
    encoder : RememberingEncoder, optional
        Loaded already, where the study has one.
    """
    planned = plan(config)
    summary = Summary("study")
    if config.retry_failed:
        for name in read_records(config.output).keys() - planned.recorded.keys():
            storage.remove(record_url(config.output, name))
    with tracked_study(config, summary, planned.content) as tracking:
        for record in planned.recorded.values():
            tracking.log_trial(record)
        if not planned.complete:
            _run_missing(config, planned, summary, tracking.log_trial, encoder, verbose)
        records = read_records(config.output)
        summary.protections = rows_of(records)
        summary.details = details_of(records, read_records(config.output, "references")) | {
            "fingerprints": planned.content["fingerprints"]
        }
        summary.details["registered"] = _registered(config, tracking, records)
        summary.write(config.output)
    _show(config, records)
    return summary


def _run_missing(
    config: StudyConfig,
    planned: Plan,
    summary: Summary,
    on_trial: Callable[[dict], object],
    encoder: RememberingEncoder | None,
    verbose: bool,
) -> None:
    """Prepare and run the missing trials; `on_trial` is called with the record of each that ends."""
    import ray

    from jobs.cluster import ray_session

    prepared = _prepare_all(config, planned, summary, encoder)
    # Not before: what cannot be measured would keep the directory from the study that can.
    storage.write_json(storage.join(config.output, "study.json"), planned.content)
    with ray_session(config.workers, verbose=verbose):
        # Imported now, because it settles how Ray Tune behaves in this process.
        from jobs.study.runner import Runner, measure_references
        from jobs.study.worker import Shared

        sent = {key: ray.put(prepared.pop(key)) for key in list(prepared)}
        missing = planned.missing
        wanted = {(p.encoder, p.concept, p.seed) for p in missing} or {
            (*key, seed) for key in sent for seed in config.space.seed
        }
        with summary.timed("references"), steps("Attacking unprotected vectors") as advance:
            references = measure_references(sent, sorted(wanted), first_look=config.early_stopping, advance=advance)
        for _, record in references.values():
            name = Parameters.of_record(record["parameters"]).trial_id(planned.study.fingerprint)
            storage.write_json(record_url(config.output, name, "references"), record | {"trial": name})
        proposals = None
        if config.search == "optuna":
            proposals = Proposals(config.space, tuple(encoder_names(config)), config.concepts[0].name)
        shared = Shared(
            config.output,
            planned.study.fingerprint,
            config.storage,
            config.leakage_weight,
            config.early_stopping,
            sent,
            {key: reference for key, (reference, _) in references.items()},
            proposals,
        )
        n_missing = len(missing)
        if proposals is not None:
            n_missing = max(0, config.trials * len(config.space.seed) - len(planned.recorded))
        with summary.timed("trials"), steps("Trials") as advance:
            records, ended = dict(planned.recorded), set()
            advance(0, n_missing, _told(records))

            def on_record(record: dict) -> None:
                records[record["trial"]] = record
                ended.add(record["trial"])
                on_trial(record)
                advance(len(ended), n_missing, _told(records))

            runner = Runner(config, shared, on_record, verbose)
            if proposals is None:
                runner.run_grid(missing)
            else:
                runner.run_search(proposals, config.trials)


def _prepare_all(
    config: StudyConfig, planned: Plan, summary: Summary, loaded: RememberingEncoder | None
) -> dict[tuple[str, str], Prepared]:
    """What trials share, by encoder and concept; the encoders are needed no longer afterwards."""
    with summary.timed("read"):
        found = {concept.name: find(config, concept) for concept in config.concepts}
    prepared = {}
    cache = config.cache or storage.join(config.output, "embeddings")
    shaped = "mahalanobis" in config.space.mechanism
    for name, settings in encoder_names(config).items():
        encoder = CachedEncoder(loaded or RememberingEncoder.load(settings), cache)
        for concept, where in found.items():
            with summary.timed(f"encode {name}, {concept}" if len(found) * len(config.encoders) > 1 else "encode"):
                prepared[name, concept] = prepare(
                    config,
                    encoder,
                    found=where,
                    bases=config.space.basis if shaped else (),
                    removals=config.space.removal if shaped else (),
                    salt=planned.study.salt,
                )
    first = next(iter(prepared.values()))
    summary.rows_out = len(first.material.ids)
    summary.quarantined = first.quarantined
    summary.rows_in = len(next(iter(found.values())).corpus.ids) + sum(first.quarantined.values())
    return prepared


def _registered(config: StudyConfig, run: StudyRun, records: dict[str, dict]) -> dict | None:
    """Put the mask of the best policy that has one into the model registry, if asked to."""
    first = config.concepts[0].name
    chosen = best(r for r in records.values() if r["mask_path"] is not None and r["parameters"]["concept"] == first)
    if config.registry is None or not chosen:
        return None
    path = chosen[0]["mask_path"]
    found = register_mask(run, storage.join(config.output, path), config.registry, artifact=path)
    return found and asdict(found)


def _told(records: dict[str, dict]) -> str:
    """The best so far, in a line."""
    chosen = best(records.values())
    if not chosen:
        return ""
    row, parameters = chosen[0]["row"], chosen[0]["parameters"]
    utility = "" if row["utility"] is None else f", utility {row['utility']:.2f}"
    lambda_ = "" if parameters["lambda"] is None else f" lambda {parameters['lambda']:.3g}"
    return f"best {parameters['mechanism']}{lambda_} rho {row['rho']:.3g}: leakage {row['leakage'] or 0:.2f}{utility}"


def _show(config: StudyConfig, records: dict[str, dict]) -> None:
    done = sorted((r for r in records.values() if r["status"] == "done"), key=lambda record: -record["score"])
    rows = {row.name: row for row in rows_of(records)}
    if done:
        console.print(render_table([rows[r["trial"]] for r in done[:_SHOWN]]), highlight=False, soft_wrap=True)
    counts = {status: sum(r["status"] == status for r in records.values()) for status in ("stopped", "failed")}
    more = "".join(f", {count} {status}" for status, count in counts.items() if count)
    console.print(
        f"{len(done)} trials done{more}; all in {config.output}/summary.json", highlight=False, soft_wrap=True
    )
