"""Attack protected vectors as strongly as we can, and measure what they are still good for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

from jobs import outputs, sources, storage
from jobs.cli import job_main
from jobs.cluster import cpu_cores, one_thread_each
from jobs.config import AuditConfig, Compared
from jobs.progress import console, steps
from jobs.report import render_report, render_table
from jobs.stages import (
    RememberingEncoder,
    Roles,
    check_output,
    divide,
    find_concept,
    refuse_missing_entity_model,
    usable_vectors,
)
from jobs.summary import ProtectionRow, Summary
from jobs.tracking import tracked
from sparse_core.attacks import (
    AttackResult,
    PublicKnowledge,
    build_attack,
    check_enough_records,
    headline,
    reidentification,
    run_attack,
)
from sparse_core.concepts import Concept, concept_tokens
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.evaluation import TokenLabels, UtilityResult, classification, token_labels
from sparse_core.masks import Mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

CONFIG = AuditConfig


@dataclass(frozen=True)
class Plan:
    """What a run will read and attack."""

    source: sources.Source
    concept: Concept
    lines: tuple[str, ...]


def plan(config: AuditConfig) -> Plan:
    """Check inputs, masks and releases."""
    check_output("audit", config)
    columns = () if config.utility is None else (config.utility.label,)
    source = sources.plan(config.input, columns=columns)
    concept = config.concept.build()
    refuse_missing_entity_model(concept, config.input)
    if config.input.id is None and any(compared.release for compared in config.compare):
        raise SparseError("input.id: auditing a release needs ids to match texts with published vectors.")
    for compared in config.compare:
        if compared.release is not None and not storage.exists(storage.join(compared.release, "manifest.json")):
            raise SparseError(
                f"compare {compared.name!r}: {compared.release} is not a finished release; it has no manifest.json."
            )
        if compared.mask is not None:
            # Building with the mask's own encoder proves that the parts fit before the model is loaded.
            _simulated_policy(compared, None)
    rows = "an unknown number of" if source.n_rows is None else f"{source.n_rows:,}"
    return Plan(
        source,
        concept,
        (
            f"read        {rows} rows of {config.input.shown_path}",
            f"concept     {concept!r}",
            *(f"compare     {c.name}: {c.release or c.protection.mechanism}" for c in config.compare),
            f"attacks     {', '.join(config.attacks)}",
            f"utility     {'none' if config.utility is None else f'{config.utility.task} of {config.utility.label}'}",
            f"write       {config.output}/summary.json, {config.output}/report.md",
        ),
    )


@dataclass(frozen=True)
class Material:
    """What all protections are measured on: the same records, split and tokens."""

    ids: list
    vectors: np.ndarray
    tokens: TokenLabels
    train: np.ndarray
    test: np.ndarray
    classes: np.ndarray | None


@dataclass(frozen=True)
class Protected:
    """One protection and its published vectors, row by row those of the material.

    `noised` is what attackers make of them by undoing the read-out, and `public` what they know besides.
    """

    name: str
    policy: Policy
    published: np.ndarray
    noised: np.ndarray
    public: PublicKnowledge


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
    _refuse_few(config, concept_of, roles)
    encoder = encoder or RememberingEncoder.load(config.encoder)
    with tracked(config, summary) as tracking:
        with summary.timed("encode"):
            vectors = encoder.encode(corpus.texts, title="Encoding the corpus")
        summary.rows_in = len(corpus.texts) + sum(corpus.quarantined.values())
        summary.quarantined = dict(corpus.quarantined)
        with summary.timed("protect"):
            protected, kept = _protect_all(config, corpus, vectors, encoder)
        material = _material(config, corpus, concept_of, roles, vectors, kept)
        summary.rows_out = len(material.ids)
        with summary.timed("attack"), steps("Attacking") as advance:
            attacks = _attack_all(config, protected, material, advance)
        with summary.timed("utility"), steps("Measuring utility"):
            summary.protections = [_row(config, row, material, attacks[row.name]) for row in protected]
        summary.details = _details(material, attacks) | {"fingerprints": {"data": planned.source.fingerprint}}
        if len(protected) == 1:
            summary.policy_hash = protected[0].policy.hash
        report = render_report(summary, planned.concept.name, [row.policy for row in protected])
        storage.write_bytes(storage.join(config.output, "report.md"), report.encode())
        summary.write(config.output)
        tracking.log_text(report, "report.md")
    console.print(render_table(summary.protections), highlight=False, soft_wrap=True)
    console.print(f"Report: {config.output}/report.md", highlight=False, soft_wrap=True)
    return summary


def _protect_all(
    config: AuditConfig, corpus: sources.Corpus, vectors: np.ndarray, encoder: RememberingEncoder
) -> tuple[list[Protected], np.ndarray]:
    """Every protection's vectors, and the rows that all of them have."""
    kept = usable_vectors(vectors)
    releases = {c.name: _read_release(c, corpus.ids, config) for c in config.compare if c.release is not None}
    for present, _ in releases.values():
        kept &= present
    rows = np.flatnonzero(kept)
    if len(rows) == 0:
        raise SparseError("compare: no record of input.path has a usable vector in every release.")
    key = Key.ephemeral()
    protected = []
    for compared in config.compare:
        if compared.release is not None:
            with storage.local_directory(storage.join(compared.release, "policy")) as local:
                policy = Policy.load(local, encoder=encoder.spec, exact=False)
            published = releases[compared.name][1][rows]
        else:
            policy = _simulated_policy(compared, encoder.spec)
            published = policy.release(
                vectors[rows],
                ids=[corpus.ids[row] for row in rows],
                contents=[corpus.texts[row] for row in rows],
                key=key,
            )
        noised, public = policy.undo_read_out(published), policy.public_knowledge()
        protected.append(Protected(compared.name, policy, published, noised, public))
    return protected, kept


def _simulated_policy(compared: Compared, spec: EncoderSpec | None) -> Policy:
    """The policy to simulate, for an encoder or for the one that the mask was learned for."""
    mask = None
    if compared.mask is not None:
        with storage.local_directory(compared.mask) as local:
            mask = Mask.load(local, encoder=spec)
    return Policy.build(encoder=spec or mask.info.encoder, mask=mask, **compared.protection.settings)


def _read_release(compared: Compared, ids: list, config: AuditConfig) -> tuple[np.ndarray, np.ndarray]:
    """Which ids a release holds, and their published vectors in the order of ``ids``."""
    read = list(outputs.read_published(compared.release, columns=[config.input.id]))
    published = np.concatenate([vectors for _, vectors in read]) if read else np.zeros((1, 0), np.float32)
    published_ids = [record for table, _ in read for record in table[config.input.id].to_pylist()]
    # An id published twice does not tell which vector belongs to which text: such records are left out.
    repeated = {record for record, count in Counter(published_ids).items() if count > 1}
    row_of = {record: row for row, record in enumerate(published_ids) if record not in repeated}
    rows = np.array([row_of.get(record, -1) for record in ids])
    if (rows < 0).all():
        raise SparseError(
            f"compare {compared.name!r}: none of the ids of input.path is in {compared.release}. "
            "Is it a release of another corpus?"
        )
    return rows >= 0, published[np.maximum(rows, 0)]


def _refuse_few(config: AuditConfig, concept_of: list, roles: Roles) -> None:
    """Refuse a corpus too small to attack before anything is encoded."""
    tokens = token_labels(concept_of, train=roles.attack, min_count=config.min_token_count)
    check_enough_records(int(tokens.labels[roles.test].any(axis=1).sum()))


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
    return run_attack(
        build_attack(name),
        unprotected=material.vectors,
        protected=row.noised,
        labels=material.tokens.labels,
        train=material.train,
        test=material.test,
        public=row.public,
        seed=config.seed,
        control=control,
    )


def _row(config: AuditConfig, row: Protected, material: Material, results: list[AttackResult]) -> ProtectionRow:
    strongest = headline(results)
    utility = _utility(config, row.published, material)
    found = reidentification(
        row.noised[material.test],
        material.vectors[material.test],
        public=row.public,
        generator=np.random.default_rng([config.seed, 3]),
    )
    norms = np.median(np.linalg.norm(material.vectors, axis=1))
    guarantee = row.policy.guarantee(embedding_norm=float(norms))
    noised = row.policy.mechanism != "none"
    return ProtectionRow(
        name=row.name,
        protection=row.policy.mechanism,
        basis=row.policy.basis_name,
        epsilon=guarantee.epsilon if noised else None,
        epsilon_euclidean=guarantee.epsilon_euclidean if noised else None,
        rho=guarantee.rho,
        leakage=strongest and strongest.protected.value,
        leakage_low=strongest and strongest.protected.low,
        leakage_high=strongest and strongest.protected.high,
        leakage_attack=strongest and strongest.attack,
        utility=utility and utility.score,
        utility_low=utility and utility.low,
        utility_high=utility and utility.high,
        utility_task=utility and f"{utility.task} {utility.metric}",
        reidentification=found.top1.value,
        confidence=strongest and strongest.confidence,
        leakage_unprotected=strongest and strongest.unprotected.value,
        leakage_floor=strongest and strongest.floor.value,
        leakage_normalized=strongest and strongest.leakage_normalized.value,
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


def _details(material: Material, attacks: dict[str, list[AttackResult]]) -> dict:
    return {
        "train_records": len(material.train),
        "test_records": len(material.test),
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
    }


if __name__ == "__main__":
    job_main("audit")
