"""What an audit found, row by row, and how ``summary.json`` holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from jobs.audit.records import Found
from jobs.closed_sets import ClosedSet, attack_averaging, attack_dictionary, closed_set
from jobs.compared import Protected
from jobs.config import AuditConfig
from jobs.measuring import Finding, Material, as_record, attack_all, protection_row, side_by_side
from jobs.progress import steps
from jobs.reconstructions import Secrets, as_details, attack_texts
from jobs.similar_tokens import attack_groups, choose_groups
from jobs.stages import RememberingEncoder
from jobs.summary import ProtectionRow, Summary
from jobs.utility_tasks import Utility
from sparse_core.attacks import ATTACKS, AttackResult, AveragingRow, DictionaryResult, Reidentification
from sparse_core.attacks.text import TEXT_ATTACKS, TextAttackResult
from sparse_core.concepts import Concept, Span
from sparse_core.evaluation import TokenLabels


@dataclass(frozen=True)
class Results:
    """What attackers got, by row.

    Attributes
    ----------
    attacks : dict of str to (dict of str to (list of AttackResult))
        Of each concept, then of each row.
    written : dict of str to (list of TextAttackResult)
        Of attacks that write sentences.
    closed : ClosedSet or None
    dictionaries : dict of str to (dict of str to DictionaryResult)
    averages : dict of str to (tuple of AveragingRow)
    groups : dict
        See `attack_groups`.
    """

    attacks: dict[str, dict[str, list[AttackResult]]]
    written: dict[str, list[TextAttackResult]] = field(default_factory=dict)
    closed: ClosedSet | None = None
    dictionaries: dict[str, dict[str, DictionaryResult]] = field(default_factory=dict)
    averages: dict[str, tuple[AveragingRow, ...]] = field(default_factory=dict)
    groups: dict = field(default_factory=dict)


def attack(
    config: AuditConfig,
    protected: Sequence[Protected],
    material: Material,
    found: Found,
    rows: np.ndarray,
    encoder: RememberingEncoder | None,
    summary: Summary,
) -> Results:
    """Run everything that is configured.

    Parameters
    ----------
    config : AuditConfig
    protected : sequence of Protected
    material : Material
    found : Found
    rows : int array
        The material's records in the corpus.
    encoder : RememberingEncoder or None
    summary : Summary
        Gets the durations.
    """
    main = config.concept.name
    with summary.timed("attack"), steps("Attacking") as advance:
        attacks = _on_tokens(config, protected, material, advance)
    written = {}
    if names := [name for name in config.attacks if name in TEXT_ATTACKS]:
        with summary.timed("text_attacks"), steps("Writing texts") as advance:
            written = attack_texts(
                names,
                config.text_attacks,
                protected,
                material,
                concept=main,
                encoder=encoder,
                draws=config.draws,
                seed=config.seed,
                advance=advance,
            )
        for name, results in written.items():
            attacks[main][name] += [result.leakage for result in results]
    spans = [found.spans[main][row] for row in rows]
    told = _told_more(config, protected, material, spans, encoder, summary)
    groups = {}
    if config.similar_tokens and encoder is not None:
        with summary.timed("similar_tokens"):
            groups = _on_groups(config, found, protected, material, rows, encoder)
    return Results(attacks, written, *told, groups)


def _on_tokens(
    config: AuditConfig, protected: Sequence[Protected], material: Material, advance: Callable[[int, int], None]
) -> dict[str, dict[str, list[AttackResult]]]:
    """Results of every concept, row by row."""
    names = [name for name in config.attacks if name in ATTACKS]
    found, total = {}, len(material.concepts) * len(protected) * len(names)
    for number, concept in enumerate(material.concepts):
        before = number * len(protected) * len(names)
        found[concept] = attack_all(
            names,
            protected,
            material,
            concept=concept,
            seed=config.seed,
            draws=config.draws,
            advance=lambda done, _, before=before: advance(before + done, total),
        )
    return found


def _told_more(
    config: AuditConfig,
    protected: Sequence[Protected],
    material: Material,
    spans: list[list[Span]],
    encoder: RememberingEncoder | None,
    summary: Summary,
) -> tuple[ClosedSet | None, dict[str, dict[str, DictionaryResult]], dict[str, tuple[AveragingRow, ...]]]:
    """What attackers get who know a closed set of values, or hold several releases; row by row."""
    closed, dictionaries, averages = None, {}, {}
    if config.dictionary is not None:
        with summary.timed("dictionary"):
            closed = closed_set(config.dictionary, material, spans, encoder=encoder, seed=config.seed)
            tried = side_by_side(
                lambda row: attack_dictionary(row, material, closed, seed=config.seed), protected, "Dictionary"
            )
            dictionaries = {row.name: result for row, result in zip(protected, tried, strict=True)}
    if config.averaging is not None:
        with summary.timed("averaging"):
            averaged = side_by_side(
                lambda row: attack_averaging(config.averaging, row, material, closed, seed=config.seed),
                protected,
                "Averaging",
            )
            averages = {row.name: result for row, result in zip(protected, averaged, strict=True) if result}
    return closed, dictionaries, averages


def _on_groups(
    config: AuditConfig,
    found: Found,
    protected: Sequence[Protected],
    material: Material,
    rows: np.ndarray,
    encoder: RememberingEncoder,
) -> dict:
    tokens: TokenLabels = material.concepts[config.concept.name]
    known = [found.tokens[concept.name] for concept in (config.concept, *config.other_concepts)]
    groups = choose_groups(
        material.texts,
        [[token for of_concept in known for token in of_concept[row]] for row in rows],
        targets=tokens.vocabulary,
        target_labels=tokens.labels,
        train=material.train,
        test=material.test,
        min_count=config.min_token_count,
        encoder=encoder,
        seed=config.seed,
    )
    return attack_groups(
        protected, material.vectors, groups, train=material.train, test=material.test, seed=config.seed
    )


def row_of(
    config: AuditConfig,
    row: Protected,
    material: Material,
    results: Results,
    *,
    linked: Reidentification,
    utilities: Sequence[Utility],
) -> ProtectionRow:
    """A row of the table; the headline is the most that any attack got of any concept that is to be hidden."""
    utility = utilities[0].result if utilities else None
    listed = [concept.name for concept in (config.concept, *config.other_concepts)]
    findings = [Finding.of(result, concept) for concept in listed for result in results.attacks[concept][row.name]]
    learned = protection_row(row, material, findings, utility=utility, linked=linked)
    findings += [
        Finding.of_dictionary(result, config.concept.name, f"dictionary ({told})")
        for told, result in results.dictionaries.get(row.name, {}).items()
    ]
    return replace(
        protection_row(row, material, findings, utility=utility, linked=linked), leakage_learned=learned.leakage
    )


def details_of(
    config: AuditConfig,
    concepts: Sequence[Concept],
    found: Found,
    material: Material,
    results: Results,
    *,
    linked: dict[str, Reidentification],
    utilities: dict[str, list[Utility]],
) -> dict:
    """Everything but the table, as ``summary.json`` holds it."""
    unlisted = {concept.name for concept in config.unlisted_concepts}
    concepts_found = {
        name: {
            "listed": name not in unlisted,
            "concept_test_records": int(tokens.labels[material.test].any(axis=1).sum()),
            "tokens_attacked": len(tokens.vocabulary),
            "tokens_coverage": tokens.coverage,
            "attacks": {
                row: {result.attack: as_record(result) for result in of_row}
                for row, of_row in results.attacks[name].items()
            },
        }
        for name, tokens in material.concepts.items()
    }
    main = {name: value for name, value in concepts_found[config.concept.name].items() if name != "listed"}
    return {
        "train_records": len(material.train),
        "test_records": len(material.test),
        **main,
        "concepts": concepts_found,
        "reidentification": {name: _linked(link) for name, link in linked.items()},
        "dictionary": {
            name: {told: asdict(result) for told, result in of_row.items()}
            for name, of_row in results.dictionaries.items()
        },
        "dictionary_share": results.closed and results.closed.share,
        "averaging": {name: [asdict(row) for row in of_row] for name, of_row in results.averages.items()},
        "reconstruction": _reconstructions(config, concepts, found, results),
        "token_groups": results.groups,
        "utilities": {name: [task.as_record() for task in tasks] for name, tasks in utilities.items()},
    }


def _reconstructions(config: AuditConfig, concepts: Sequence[Concept], found: Found, results: Results) -> dict:
    tokens = {token for of_concept in found.tokens.values() for of_text in of_concept for token in of_text}
    secrets = Secrets(tuple(concepts), frozenset(tokens))
    details = {}
    for row, of_row in results.written.items():
        compared = next((one for one in results.attacks[config.concept.name][row] if one.attack == "mlc"), None)
        details[row] = {
            result.leakage.attack: as_details(
                result, compared=compared, secrets=secrets, examples=config.text_attacks.examples
            )
            for result in of_row
        }
    return details


def _linked(link: Reidentification) -> dict:
    return {
        "top1": asdict(link.top1),
        "top1_cosine": asdict(link.top1_cosine),
        "top1_whitened": link.top1_whitened and asdict(link.top1_whitened),
        "mrr": link.mrr,
        "strategy": link.strategy,
        "n_candidates": link.n_candidates,
    }
