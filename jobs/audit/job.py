"""Plan an audit, run it, and write what it found."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jobs import registry, sources, storage
from jobs.audit.policy_alone import attack_policies
from jobs.audit.records import find, hidden_spans, material_of, refuse_few, refuse_other_vectors
from jobs.audit.results import attack, details_of, row_of
from jobs.cluster import one_thread_each
from jobs.compared import check_vectors, pinned, planned_vectors, protect_all
from jobs.config import AuditConfig, Compared
from jobs.measuring import reidentify, side_by_side
from jobs.progress import console, steps
from jobs.report import few_records, in_words, no_claim, policy_alone, render_report, render_table
from jobs.stages import (
    RememberingEncoder,
    check_output,
    divide,
    named_split,
    refuse_missing_entity_model,
    usable_vectors,
)
from jobs.stored_vectors import check_dimension, planned_source, read_unprotected, read_vectors
from jobs.summary import Summary
from jobs.tracking import tracked
from jobs.utility_tasks import check_utilities, encode_queries, measure_utilities, plan_utilities, utility_columns
from sparse_core.attacks.text import TEXT_ATTACKS, build_text_attack, check_score_libraries
from sparse_core.concepts import Concept
from sparse_core.errors import SparseError
from sparse_core.noise import Key


@dataclass(frozen=True)
class Plan:
    """What a run will read and attack."""

    config: AuditConfig
    source: sources.Source
    concepts: tuple[Concept, ...]
    vectors: dict[str, sources.Source]
    unprotected: sources.Source | None
    lines: tuple[str, ...]


def plan(config: AuditConfig) -> Plan:
    """Check inputs, masks and releases."""
    check_output("audit", config)
    config = pinned(config)
    check_utilities(config.utility)
    if config.dictionary is not None:
        config.dictionary.listed()
    if names := [name for name in config.attacks if name in TEXT_ATTACKS]:
        check_score_libraries()
        for name in names:
            build_text_attack(name, **config.text_attacks.options).check()
    source = sources.plan(config.input, columns=utility_columns(config.utility))
    concepts = tuple(concept.build() for concept in config.concepts)
    for concept in concepts:
        refuse_missing_entity_model(concept, config.input)
    vectors, unprotected = planned_vectors(config), None
    if config.unprotected is not None:
        if config.input.id is None:
            raise SparseError("input.id: matching unprotected vectors with texts needs ids.")
        unprotected = planned_source(config.unprotected, "unprotected", "unprotected")
        check_vectors(config, vectors, dimension=unprotected.dimension, whose="unprotected", spec=None)
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    more = [name for name in ("dictionary", "averaging") if getattr(config, name) is not None]
    return Plan(
        config,
        source,
        concepts,
        vectors,
        unprotected,
        (
            f"read        {rows} rows of {config.input.shown_path}",
            *(f"concept     {concept!r}" for concept in concepts),
            *(f"compare     {c.name}: {_shown(c)}" for c in config.compare),
            f"attacks     {', '.join([*config.attacks, *more])}",
            f"utility     {', '.join(task.title for task in config.utility) or 'none'}",
            f"write       {config.output}/summary.json, {config.output}/report.md",
        ),
    )


def _shown(compared: Compared) -> str:
    if compared.vectors is not None:
        return f"vectors of {compared.vectors.shown_path}, policy {compared.policy or 'unknown'}"
    return compared.release or compared.kind


def run(config: AuditConfig, *, encoder: RememberingEncoder | None = None, verbose: bool = False) -> Summary:
    """Audit the protections and write ``summary.json`` and ``report.md``.

    Parameters
    ----------
    config : AuditConfig
    encoder : RememberingEncoder, optional
        Loaded already.
    """
    planned = plan(config)
    config = planned.config
    summary = Summary("audit")
    corpus = sources.read_all(planned.source)
    found = find(config, planned.concepts, corpus)
    roles = divide(corpus.texts, config.split)
    stored = read_vectors(config, planned.vectors, corpus.ids)
    given = planned.unprotected and read_unprotected(planned.unprotected, corpus.ids)
    present = np.ones(len(corpus.ids), bool) if given is None else given.present.copy()
    for vectors in stored.values():
        present &= vectors.present
    utilities = plan_utilities(
        config.utility,
        ids=[corpus.ids[row] for row in np.flatnonzero(present)],
        columns={name: [values[row] for row in np.flatnonzero(present)] for name, values in corpus.columns.items()},
        test=np.flatnonzero(np.isin(np.flatnonzero(present), roles.test)),
    )
    warnings = (few_records(refuse_few(config, corpus, found, roles, present)), *(task.warning for task in utilities))
    for warning in filter(None, warnings):
        console.print(warning, highlight=False, soft_wrap=True)
    if encoder is None and config.encoder != "none":
        encoder = RememberingEncoder.load(config.encoder)
    if encoder is not None:
        spec = encoder.spec
        if planned.unprotected is not None:
            check_dimension("unprotected", planned.unprotected, spec.dimension, f"the encoder {spec.model}")
        check_vectors(config, planned.vectors, dimension=spec.dimension, whose=f"the encoder {spec.model}", spec=spec)
    with tracked(config, summary) as tracking:
        with summary.timed("encode"):
            if given is None:
                vectors = encoder.encode(corpus.texts, title="Encoding the corpus")
            else:
                vectors = given.vectors
                refuse_other_vectors(config, corpus, given.present, vectors, encoder)
            encoded = np.ones(len(vectors), bool) if given is None else given.present
            utilities = encode_queries(utilities, encoder, dimension=vectors.shape[1])
        summary.rows_in = len(corpus.texts) + sum(corpus.quarantined.values())
        summary.quarantined = dict(corpus.quarantined)
        with summary.timed("protect"):
            hidden = hidden_spans(config, found)
            protected, kept = protect_all(
                config, corpus, hidden, vectors, stored, encoder, attackers=roles.attack, present=present
            )
        rows = np.flatnonzero(kept)
        material = material_of(config, corpus, found, roles, vectors, rows)
        summary.rows_out = len(rows)
        results = attack(config, protected, material, found, rows, encoder, summary)
        with summary.timed("policy_alone"), one_thread_each():
            alone = attack_policies(
                config,
                protected,
                corpus,
                found,
                roles,
                vectors,
                usable=usable_vectors(vectors) & encoded,
                rows=rows,
                closed=results.closed,
                encoder=encoder,
            )
        with summary.timed("reidentification"):
            linked = side_by_side(
                lambda row: reidentify(row, material, seed=config.seed), protected, "Re-identifying records"
            )
        with summary.timed("utility"), one_thread_each(), steps("Measuring utility"):
            key = Key.ephemeral()
            hidden_concepts = planned.concepts[: 1 + len(config.other_concepts)]
            measured = {
                row.name: measure_utilities(
                    utilities, row, material, encoder=encoder, key=key, seed=config.seed, concepts=hidden_concepts
                )
                for row in protected
            }
        linked = {row.name: link for row, link in zip(protected, linked, strict=True)}
        summary.protections = [
            replace(
                row_of(config, row, material, results, linked=linked[row.name], utilities=measured[row.name]),
                **(alone[row.name].figures() if row.name in alone else {}),
            )
            for row in protected
        ]
        summary.details = details_of(
            config, planned.concepts, found, material, results, linked=linked, utilities=measured
        ) | {
            "policy_alone": {name: of_row.as_record() for name, of_row in alone.items()},
            "fingerprints": {"data": planned.source.fingerprint},
            "masks_learned_elsewhere": [
                row.name
                for row in protected
                if row.policy is not None
                and row.policy.mask is not None
                and row.policy.mask.info.learned_from != named_split(planned.source.fingerprint, config.split)
            ],
            "registered_masks": registry.registered(row.mask for row in config.compare if row.mask is not None),
        }
        if len(protected) == 1 and protected[0].policy is not None:
            summary.policy_hash = protected[0].policy.hash
        promises = [
            no_claim(row.compared) if row.policy is None else in_words(figures, row.policy)
            for row, figures in zip(protected, summary.protections, strict=True)
        ]
        name = planned.concepts[0].name
        report = render_report(summary, name, promises)
        storage.write_bytes(storage.join(config.output, "report.md"), report.encode(), private=summary.shows_texts)
        summary.write(config.output)
        tracking.log_text(render_report(summary.without_texts(), name, promises), "report.md")
    console.print(render_table(summary.protections), highlight=False, soft_wrap=True)
    for warning in (few_records(summary.details["concept_test_records"]), *policy_alone(summary.protections)):
        if warning:
            console.print(warning, highlight=False, soft_wrap=True)
    console.print(f"Report: {config.output}/report.md", highlight=False, soft_wrap=True)
    return summary
