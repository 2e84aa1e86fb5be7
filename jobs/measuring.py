"""What audits, studies and calibrations measure of protected vectors: attacks side by side, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np

from jobs.cluster import cpu_cores, one_thread_each
from jobs.compared import UNKNOWN, Protected
from jobs.progress import steps
from jobs.stored_vectors import displacement, turned_back
from jobs.summary import ProtectionRow
from sparse_core.attacks import (
    AttackResult,
    DictionaryResult,
    Reidentification,
    build_attack,
    headline,
    reidentification,
    run_attack,
)
from sparse_core.evaluation import Interval, TokenLabels, UtilityResult
from sparse_core.noise import Key

T = TypeVar("T")


@dataclass(frozen=True)
class Material:
    """What all protections are measured on: the same records, split and tokens.

    Attributes
    ----------
    ids : list
    texts : list of str
    vectors : float array, shape (n_records, n)
        Unprotected.
    concepts : dict of str to TokenLabels
        Tokens attacked of each concept; the first is the one whose leakage is the headline.
    train, test : int array
        Records that attackers know, and records they attack.
    columns : dict of str to list
        Columns of the corpus that utility tasks need.
    """

    ids: list
    texts: list[str]
    vectors: np.ndarray
    concepts: dict[str, TokenLabels]
    train: np.ndarray
    test: np.ndarray
    columns: dict[str, list] = field(default_factory=dict)

    @property
    def embedding_norm(self) -> float:
        """Median norm of the unprotected vectors."""
        return float(np.median(np.linalg.norm(self.vectors, axis=1)))


@dataclass(frozen=True)
class Finding:
    """What one attack got of one concept, of whatever kind the attack is; what a headline is chosen from.

    Attributes
    ----------
    attack, concept, verdict : str
    unprotected, protected, floor, leakage_normalized : Interval
    confidence : float
    """

    attack: str
    concept: str
    verdict: str
    unprotected: Interval
    protected: Interval
    floor: Interval
    leakage_normalized: Interval
    confidence: float

    @classmethod
    def of(cls, result: AttackResult, concept: str) -> Finding:
        """Of an attack on concept tokens."""
        shared = {name: getattr(result, name) for name in cls.__dataclass_fields__ if name != "concept"}
        return cls(concept=concept, **shared)

    @classmethod
    def of_dictionary(cls, result: DictionaryResult, concept: str, name: str) -> Finding:
        """Of an attack on a closed set, whose share of records read counts as leakage."""
        reach = result.unprotected.value - result.floor
        scaled = (
            (getattr(result.top1, end) - result.floor) / reach if reach > 0 else float("nan")
            for end in ("value", "low", "high")
        )
        return cls(
            name,
            concept,
            result.verdict,
            result.unprotected,
            result.top1,
            Interval(result.floor, result.floor, result.floor),
            Interval(*scaled),
            result.confidence.value,
        )


def side_by_side(measure: Callable[[Protected], T], protected: Sequence[Protected], title: str) -> list[T]:
    """Measure every protection on the cores there are, each on one thread."""
    with one_thread_each(), ThreadPoolExecutor(cpu_cores()) as pool, steps(title) as advance:
        found = []
        for result in pool.map(measure, protected):
            found.append(result)
            advance(len(found), len(protected))
        return found


def simulated_draws(row: Protected, material: Material, count: int) -> list[np.ndarray]:
    """Further releases of the training records, the read-out undone, under keys that an attacker draws.

    Whoever knows the policy can protect texts of its own as often as it likes; nobody can simulate a protection that
    is not described, and drawing without noise gives the same vectors again.

    Returns
    -------
    list of float32 array, shape (n_train, n)
        Empty where there is nothing to simulate.
    """
    if row.policy is None or row.policy.mechanism == "none":
        return []
    known = material.vectors[np.sort(material.train)]
    named = {"ids": range(len(known)), "contents": [""] * len(known)}
    drawn = (row.policy.release(known, **named, key=Key.ephemeral()) for _ in range(count))
    return [row.policy.undo_read_out(released).astype(np.float32) for released in drawn]


def attack_all(
    names: Sequence[str],
    protected: Sequence[Protected],
    material: Material,
    *,
    concept: str,
    seed: int,
    draws: int = 0,
    controls: Sequence[AttackResult] = (),
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[AttackResult]]:
    """Every attack on every protection, side by side on the cores there are, each on one thread.

    An attack's positive control is about the unprotected vectors, so the first protection's serves all.

    Parameters
    ----------
    names : sequence of str
        Of `sparse_core.attacks.ATTACKS`.
    protected : sequence of Protected
    material : Material
    concept : str
        Which of the material's concepts is attacked.
    seed : int
    draws : int
        Further draws of noise that attackers simulate to train on, see `simulated_draws`.
    controls : sequence of AttackResult
        Results of the same attacks on the same records and tokens, whose positive controls are taken over.
    advance : callable
        Called as ``advance(done, total)``.

    Returns
    -------
    dict
        Row, then results in the order of `names`.
    """
    known = {control.attack: control for control in controls}
    total, done = len(protected) * len(names), 0
    found: dict[str, list[AttackResult]] = {row.name: [] for row in protected}
    with one_thread_each(), ThreadPoolExecutor(cpu_cores()) as pool:
        # Where a control is still missing, the first protection brings it, and the others wait for it.
        bring = 0 if set(names) <= set(known) else 1
        starts = [0, *range(bring, len(protected), cpu_cores())] if bring else range(0, len(protected), cpu_cores())
        waves = [protected[start:stop] for start, stop in pairwise([*starts, len(protected)])]
        for wave in waves:
            simulated = {row.name: simulated_draws(row, material, draws) for row in wave}
            pairs = [(row, name) for row in wave for name in names]
            results = pool.map(
                lambda pair: _attack(
                    pair[1],
                    pair[0],
                    material,
                    material.concepts[concept],
                    simulated[pair[0].name],  # noqa: B023 - consumed within this turn of the loop
                    known.get(pair[1]),
                    seed,
                ),
                pairs,
            )
            for (row, name), result in zip(pairs, results, strict=True):
                found[row.name].append(result)
                known.setdefault(name, result)
                done += 1
                advance(done, total)
    return found


def _attack(
    name: str,
    row: Protected,
    material: Material,
    tokens: TokenLabels,
    simulated: list[np.ndarray],
    control: AttackResult | None,
    seed: int,
) -> AttackResult:
    """One attack; where attackers have to guess what was done to the vectors, with the guess that serves it best."""
    results = []
    for public in row.knowledge:
        results.append(
            run_attack(
                build_attack(name),
                unprotected=material.vectors,
                protected=row.noised,
                labels=tokens.labels,
                train=material.train,
                test=material.test,
                public=public,
                seed=seed,
                control=control,
                draws=simulated,
            )
        )
        control = results[0] if control is None else control
    return max(results, key=lambda result: result.protected.value)


def reidentify(row: Protected, material: Material, *, seed: int) -> Reidentification:
    """Link a row's test records to themselves; without a policy also as whoever works out how they were turned."""
    seen = [(row.noised[material.test], public) for public in row.knowledge]
    if row.policy is None:
        turned = turned_back(row.noised, material.vectors, known=material.train)
        seen.append((turned[material.test], None))
    found = [
        reidentification(
            vectors, material.vectors[material.test], public=public, generator=np.random.default_rng([seed, 3])
        )
        for vectors, public in seen
    ]
    return max(found, key=lambda one: (one.top1.value, one.mrr))


def protection_row(
    row: Protected,
    material: Material,
    results: Sequence[AttackResult | Finding],
    *,
    utility: UtilityResult | None,
    linked: Reidentification,
) -> ProtectionRow:
    """A row of the table from what was measured.

    Parameters
    ----------
    row : Protected
    material : Material
    results : sequence of AttackResult or Finding
        All attacks whose maximum is the headline.
    utility : UtilityResult or None
        The task shown in the table.
    linked : Reidentification
    """
    strongest = headline(results)
    norm = material.embedding_norm
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
        leakage_concept=getattr(strongest, "concept", None),
        leakage_learned=strongest and strongest.protected.value,
        utility=utility and utility.score,
        utility_low=utility and utility.low,
        utility_high=utility and utility.high,
        utility_task=utility and f"{utility.task} {utility.metric}",
        reidentification=linked.top1.value,
        confidence=strongest and strongest.confidence,
        leakage_unprotected=strongest and strongest.unprotected.value,
        leakage_floor=strongest and strongest.floor.value,
        leakage_normalized=strongest and strongest.leakage_normalized.value,
    )


def as_record(result: AttackResult) -> dict:
    """An attack's figures as ``summary.json`` holds them."""
    return {
        "verdict": result.verdict,
        **{
            figure: asdict(getattr(result, figure))
            for figure in ("unprotected", "protected", "floor", "leakage_normalized")
        },
        "confidence": result.confidence,
    }
