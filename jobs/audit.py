"""Attack protected vectors as strongly as we can, and measure what they are still good for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

from jobs import sources, storage
from jobs.cli import job_main
from jobs.cluster import cpu_cores, one_thread_each
from jobs.compared import UNKNOWN, Protected, check_encoder, planned_vectors, protect_all
from jobs.config import AuditConfig, Compared
from jobs.progress import console, steps
from jobs.report import few_records, in_words, no_claim, render_report, render_table
from jobs.similar_tokens import attack_groups, choose_groups
from jobs.stages import (
    RememberingEncoder,
    Roles,
    check_output,
    divide,
    find_concept,
    refuse_missing_entity_model,
)
from jobs.stored_vectors import displacement, read_vectors, turned_back
from jobs.summary import ProtectionRow, Summary
from jobs.tracking import tracked
from sparse_core.attacks import (
    AttackResult,
    build_attack,
    check_enough_records,
    headline,
    reidentification,
    run_attack,
)
from sparse_core.concepts import Concept, concept_tokens
from sparse_core.errors import SparseError
from sparse_core.evaluation import TokenLabels, UtilityResult, classification, token_labels

CONFIG = AuditConfig


@dataclass(frozen=True)
class Plan:
    """What a run will read and attack."""

    source: sources.Source
    concept: Concept
    vectors: dict[str, sources.Source]
    lines: tuple[str, ...]


def plan(config: AuditConfig) -> Plan:
    """Check inputs, masks and releases."""
    check_output("audit", config)
    columns = () if config.utility is None else (config.utility.label,)
    source = sources.plan(config.input, columns=columns)
    concept = config.concept.build()
    refuse_missing_entity_model(concept, config.input)
    vectors = planned_vectors(config)
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    return Plan(
        source,
        concept,
        vectors,
        (
            f"read        {rows} rows of {config.input.shown_path}",
            f"concept     {concept!r}",
            *(f"compare     {c.name}: {_shown(c)}" for c in config.compare),
            f"attacks     {', '.join(config.attacks)}",
            f"utility     {'none' if config.utility is None else f'{config.utility.task} of {config.utility.label}'}",
            f"write       {config.output}/summary.json, {config.output}/report.md",
        ),
    )


def _shown(compared: Compared) -> str:
    if compared.vectors is not None:
        return f"vectors of {compared.vectors.shown_path}, policy {compared.policy or 'unknown'}"
    return compared.release or compared.kind


@dataclass(frozen=True)
class Material:
    """What all protections are measured on: the same records, split and tokens."""

    ids: list
    vectors: np.ndarray
    tokens: TokenLabels
    train: np.ndarray
    test: np.ndarray
    classes: np.ndarray | None


def run(config: AuditConfig, *, encoder: RememberingEncoder | None = None, verbose: bool = False) -> Summary:
    """Audit the protections and write ``summary.json`` and ``report.md``.

    Parameters
    ----------
    config : AuditConfig
    encoder : RememberingEncoder, optional
        Loaded already.
    """
    planned = plan(config)
    summary = Summary("audit")
    corpus = sources.read_all(planned.source)
    spans = find_concept(corpus, planned.concept, config.input)
    concept_of = [concept_tokens(text, found) for text, found in zip(corpus.texts, spans, strict=True)]
    roles = divide(corpus.texts, config.split)
    stored = read_vectors(config, planned.vectors, corpus.ids)
    present = np.all([np.ones(len(corpus.ids), bool), *(found.present for found in stored.values())], axis=0)
    if warning := few_records(_refuse_few(config, concept_of, roles, present)):
        console.print(warning, highlight=False, soft_wrap=True)
    encoder = encoder or RememberingEncoder.load(config.encoder)
    check_encoder(config, planned.vectors, encoder.spec)
    with tracked(config, summary) as tracking:
        with summary.timed("encode"):
            vectors = encoder.encode(corpus.texts, title="Encoding the corpus")
        summary.rows_in = len(corpus.texts) + sum(corpus.quarantined.values())
        summary.quarantined = dict(corpus.quarantined)
        with summary.timed("protect"):
            protected, kept = protect_all(config, corpus, spans, vectors, stored, encoder, attackers=roles.attack)
        material = _material(config, corpus, concept_of, roles, vectors, kept)
        summary.rows_out = len(material.ids)
        with summary.timed("attack"), steps("Attacking") as advance:
            attacks = _attack_all(config, protected, material, advance)
        groups = {}
        if config.similar_tokens:
            with summary.timed("similar_tokens"):
                groups = _attack_groups(config, corpus, concept_of, protected, material, kept, encoder)
        with summary.timed("utility"), steps("Measuring utility"):
            summary.protections = [_row(config, row, material, attacks[row.name]) for row in protected]
        summary.details = _details(material, attacks, groups) | {"fingerprints": {"data": planned.source.fingerprint}}
        if len(protected) == 1 and protected[0].policy is not None:
            summary.policy_hash = protected[0].policy.hash
        promises = [
            no_claim(row.compared) if row.policy is None else in_words(figures, row.policy)
            for row, figures in zip(protected, summary.protections, strict=True)
        ]
        report = render_report(summary, planned.concept.name, promises)
        storage.write_bytes(storage.join(config.output, "report.md"), report.encode())
        summary.write(config.output)
        tracking.log_text(report, "report.md")
    console.print(render_table(summary.protections), highlight=False, soft_wrap=True)
    if warning := few_records(summary.details["concept_test_records"]):
        console.print(warning, highlight=False, soft_wrap=True)
    console.print(f"Report: {config.output}/report.md", highlight=False, soft_wrap=True)
    return summary


def _refuse_few(config: AuditConfig, concept_of: list, roles: Roles, present: np.ndarray) -> int:
    """Refuse a corpus too small to attack before anything is encoded; otherwise, how many records will be attacked."""
    rows = np.flatnonzero(present)
    train, test = (np.flatnonzero(np.isin(rows, role)) for role in (roles.attack, roles.test))
    for role, found in (("attackers are to know", train), ("are to be attacked", test)):
        if len(found) == 0:
            raise SparseError(f"compare: none of the records that {role} has a vector in every row of the table.")
    tokens = token_labels([concept_of[row] for row in rows], train=train, min_count=config.min_token_count)
    n_records = int(tokens.labels[test].any(axis=1).sum())
    check_enough_records(n_records)
    return n_records


def _material(
    config: AuditConfig,
    corpus: sources.Corpus,
    concept_of: list,
    roles: Roles,
    vectors: np.ndarray,
    kept: np.ndarray,
) -> Material:
    rows = np.flatnonzero(kept)
    train, test = (np.flatnonzero(np.isin(rows, role)) for role in (roles.attack, roles.test))
    tokens = token_labels([concept_of[row] for row in rows], train=train, min_count=config.min_token_count)
    classes = None
    if config.utility is not None:
        classes = np.array([str(corpus.columns[config.utility.label][row]) for row in rows])
    return Material([corpus.ids[row] for row in rows], vectors[rows], tokens, train, test, classes)


def _attack_all(
    config: AuditConfig, protected: list[Protected], material: Material, advance: Callable
) -> dict[str, list[AttackResult]]:
    """Every attack on every protection, side by side on the cores there are, each on one thread.

    An attack's positive control is about the unprotected vectors, so the first protection's serves all.
    """
    first, *others = protected
    total = len(protected) * len(config.attacks)
    with one_thread_each(), ThreadPoolExecutor(cpu_cores()) as pool:
        done = 0

        def collected(results):
            nonlocal done
            for result in results:
                done += 1
                advance(done, total)
                yield result

        controls = list(collected(pool.map(lambda name: _attack(config, name, first, material, None), config.attacks)))
        pairs = [(name, row, control) for row in others for name, control in zip(config.attacks, controls, strict=True)]
        rest = list(collected(pool.map(lambda pair: _attack(config, *pair[:2], material, pair[2]), pairs)))
    found = {first.name: controls}
    for (_, row, _), result in zip(pairs, rest, strict=True):
        found.setdefault(row.name, []).append(result)
    return found


def _attack(
    config: AuditConfig, name: str, row: Protected, material: Material, control: AttackResult | None
) -> AttackResult:
    """One attack; where attackers have to guess what was done to the vectors, with the guess that serves it best."""
    results = []
    for public in row.knowledge:
        results.append(
            run_attack(
                build_attack(name),
                unprotected=material.vectors,
                protected=row.noised,
                labels=material.tokens.labels,
                train=material.train,
                test=material.test,
                public=public,
                seed=config.seed,
                control=control,
            )
        )
        control = results[0] if control is None else control
    return max(results, key=lambda result: result.protected.value)


def _attack_groups(
    config: AuditConfig,
    corpus: sources.Corpus,
    concept_of: list,
    protected: list[Protected],
    material: Material,
    kept: np.ndarray,
    encoder: RememberingEncoder,
) -> dict:
    rows = np.flatnonzero(kept)
    groups = choose_groups(
        [corpus.texts[row] for row in rows],
        [concept_of[row] for row in rows],
        targets=material.tokens.vocabulary,
        target_labels=material.tokens.labels,
        train=material.train,
        test=material.test,
        min_count=config.min_token_count,
        encoder=encoder,
        seed=config.seed,
    )
    return attack_groups(
        protected, material.vectors, groups, train=material.train, test=material.test, seed=config.seed
    )


def _row(config: AuditConfig, row: Protected, material: Material, results: list[AttackResult]) -> ProtectionRow:
    strongest = headline(results)
    utility = _utility(config, row.published, material)
    norm = float(np.median(np.linalg.norm(material.vectors, axis=1)))
    guarantee = None if row.policy is None else row.policy.guarantee(embedding_norm=norm)
    if guarantee is not None:
        rho = guarantee.rho
    else:
        rho = displacement(row.noised, material.vectors) / norm if row.protection == UNKNOWN else 0.0
    claimed = guarantee is not None and row.policy.mechanism != "none"
    return ProtectionRow(
        name=row.name,
        protection=row.protection,
        basis=row.basis,
        epsilon=guarantee.epsilon if claimed else None,
        epsilon_euclidean=guarantee.epsilon_euclidean if claimed else None,
        rho=rho,
        leakage=strongest and strongest.protected.value,
        leakage_low=strongest and strongest.protected.low,
        leakage_high=strongest and strongest.protected.high,
        leakage_attack=strongest and strongest.attack,
        utility=utility and utility.score,
        utility_low=utility and utility.low,
        utility_high=utility and utility.high,
        utility_task=utility and f"{utility.task} {utility.metric}",
        reidentification=_reidentified(config, row, material),
        confidence=strongest and strongest.confidence,
        leakage_unprotected=strongest and strongest.unprotected.value,
        leakage_floor=strongest and strongest.floor.value,
        leakage_normalized=strongest and strongest.leakage_normalized.value,
    )


def _reidentified(config: AuditConfig, row: Protected, material: Material) -> float:
    """Share of test records found again; without a policy also by whoever works out how the vectors were turned."""
    seen = [(row.noised[material.test], public) for public in row.knowledge]
    if row.policy is None:
        turned = turned_back(row.noised, material.vectors, known=material.train)
        seen.append((turned[material.test], None))
    return max(
        reidentification(
            vectors,
            material.vectors[material.test],
            public=public,
            generator=np.random.default_rng([config.seed, 3]),
        ).top1.value
        for vectors, public in seen
    )


def _utility(config: AuditConfig, published: np.ndarray, material: Material) -> UtilityResult | None:
    if config.utility is None:
        return None
    learning = np.setdiff1d(np.arange(len(material.ids)), material.test)
    names, counts = np.unique(material.classes[learning], return_counts=True)
    usable = np.isin(material.classes, names[counts >= config.utility.min_class_size])
    train = learning[usable[learning]]
    test = material.test[usable[material.test]]
    # Consumers compare by cosine, so vectors count at norm 1, as the encoder made them.
    vectors = published / np.linalg.norm(published, axis=1, keepdims=True)
    return classification(
        vectors[train],
        material.classes[train],
        vectors[test],
        material.classes[test],
        samples_per_label=config.utility.samples_per_label,
        generator=np.random.default_rng([config.seed, 2]),
    )


def _details(material: Material, attacks: dict[str, list[AttackResult]], groups: dict) -> dict:
    return {
        "train_records": len(material.train),
        "test_records": len(material.test),
        "concept_test_records": int(material.tokens.labels[material.test].any(axis=1).sum()),
        "tokens_attacked": len(material.tokens.vocabulary),
        "tokens_coverage": material.tokens.coverage,
        "attacks": {
            name: {
                result.attack: {
                    "verdict": result.verdict,
                    "unprotected": asdict(result.unprotected),
                    "protected": asdict(result.protected),
                    "floor": asdict(result.floor),
                    "leakage_normalized": asdict(result.leakage_normalized),
                    "confidence": result.confidence,
                }
                for result in results
            }
            for name, results in attacks.items()
        },
        "token_groups": groups,
    }


if __name__ == "__main__":
    job_main("audit")
