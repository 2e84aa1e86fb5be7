"""Attackers who know which values a record can hold, or hold it several times: what they do to each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jobs.compared import Protected
from jobs.config import AveragingConfig, DictionaryConfig
from jobs.measuring import Material
from jobs.stages import RememberingEncoder
from jobs.stored_vectors import turned_back
from sparse_core.attacks import (
    AveragingRow,
    DictionaryResult,
    averaging_attack,
    dictionary_attack,
    estimate_knowledge,
    substituted_candidates,
    unknown_context,
)
from sparse_core.concepts import Span
from sparse_core.errors import SparseError
from sparse_core.mechanisms import Mahalanobis, Mechanism
from sparse_core.noise import Key

_LEAST_RECORDS = 20
_LEAST_NOISE = 1e-6
_DICTIONARY, _AVERAGING, _CHOICE = 8, 9, 10


@dataclass(frozen=True)
class ClosedSet:
    """Records that hold a value of a closed set, and what they would be with each of the others.

    Attributes
    ----------
    rows : int array, shape (n_attacked,)
        Of the material.
    truth : int array, shape (n_attacked,)
        Each record's value.
    candidates : float32 array, shape (n_attacked, n_values, n)
        The record's text with each value in place of its own, encoded.
    contexts : float32 array, shape (n_contexts, n_values, n), or None
        The same of texts that attackers know.
    share : float
        Of the test records that hold the concept, how many hold one of the values.
    """

    rows: np.ndarray
    truth: np.ndarray
    candidates: np.ndarray
    contexts: np.ndarray | None
    share: float


@dataclass(frozen=True)
class Choice:
    """Which records an attack on a closed set is about.

    Attributes
    ----------
    values : tuple of str
    place : dict of int to Span
        Records that hold one of the values, and where the first stands.
    attacked, known : int array
        Those of them that are attacked, and those of the attackers.
    share : float
        As in `ClosedSet`.
    """

    values: tuple[str, ...]
    place: dict[int, Span]
    attacked: np.ndarray
    known: np.ndarray
    share: float


def choose(
    config: DictionaryConfig,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    *,
    train: np.ndarray,
    test: np.ndarray,
    seed: int,
) -> Choice:
    """Choose values and records.

    Parameters
    ----------
    config : DictionaryConfig
    texts : sequence of str
    spans : sequence of (sequence of Span)
        Where they hold the concept.
    train, test : int array
        Texts that attackers know, and those they attack.
    seed : int

    Raises
    ------
    SparseError
        If too few test records hold one of the values.
    """
    generator = np.random.default_rng([seed, _CHOICE])
    values = config.listed() or _frequent(texts, spans, train, config.n_values)
    known = {value.casefold() for value in values}
    place = {}
    for row, found in enumerate(spans):
        at = next((span for span in found if _surface(texts[row], span) in known), None)
        if at is not None:
            place[row] = at
    attacked = np.array([row for row in test if row in place], dtype=int)
    if len(attacked) < _LEAST_RECORDS:
        raise SparseError(
            f"dictionary: only {len(attacked)} test records hold one of the {len(values)} values, and {_LEAST_RECORDS} "
            "are the least that a share can be told from. List values that the records hold, or more of them "
            "(dictionary.n_values), give more records, or leave dictionary out."
        )
    share = len(attacked) / sum(1 for row in test if spans[row])
    attacked = np.sort(generator.permutation(attacked)[: config.records])
    contexts = generator.permutation(np.array([row for row in train if row in place], dtype=int))[: config.contexts]
    return Choice(values, place, attacked, contexts, share)


def closed_set(
    config: DictionaryConfig,
    material: Material,
    spans: Sequence[Sequence[Span]],
    *,
    encoder: RememberingEncoder,
    seed: int,
) -> ClosedSet:
    """Choose values and records as `choose` does, and encode the texts that an attacker would try."""
    chosen = choose(config, material.texts, spans, train=material.train, test=material.test, seed=seed)
    number = {value.casefold(): at for at, value in enumerate(chosen.values)}

    def tried(rows: np.ndarray, title: str) -> np.ndarray:
        make = substituted_candidates(
            [material.texts[row] for row in rows],
            [chosen.place[row] for row in rows],
            chosen.values,
            encode=lambda texts: encoder.encode(texts, title=title),
        )
        return make(slice(0, len(rows))).astype(np.float32)

    return ClosedSet(
        chosen.attacked,
        np.array([number[_surface(material.texts[row], chosen.place[row])] for row in chosen.attacked]),
        tried(chosen.attacked, "Encoding texts with each value of the dictionary"),
        tried(chosen.known, "Encoding an attacker's texts with each value") if len(chosen.known) else None,
        chosen.share,
    )


def _surface(text: str, span: Span) -> str:
    return text[span.start : span.end].casefold()


def _frequent(texts: Sequence[str], spans: Sequence[Sequence[Span]], train: np.ndarray, count: int) -> tuple[str, ...]:
    """The concept's values that most training records hold, in their most frequent spelling."""
    held, spelled = Counter(), {}
    for row in train:
        found = {texts[row][span.start : span.end] for span in spans[row]}
        held.update({value.casefold() for value in found})
        for value in found:
            spelled.setdefault(value.casefold(), Counter())[value] += 1
    chosen = sorted(held, key=lambda value: (-held[value], value))[:count]
    if len(chosen) < 2:
        raise SparseError(
            "dictionary: the records that attackers know hold fewer than two values of the concept; list some in "
            "dictionary.values, or leave dictionary out."
        )
    return tuple(spelled[value].most_common(1)[0][0] for value in chosen)


def attack_dictionary(
    row: Protected, material: Material, closed: ClosedSet, *, seed: int
) -> dict[str, DictionaryResult]:
    """Try all values on a row: ``known``, by who knows the rest of each text, and ``unknown``, by who does not.

    Of a row without a policy the attacker estimates the noise from the records it knows, turning vectors back first,
    or goes by cosine; what serves it best counts. ``unknown`` needs a mask, which says what embeddings are like.
    """
    law, noised = _assumed(row, material)
    attacked = {
        "noised": noised[closed.rows],
        "truth": closed.truth,
        "unprotected": material.vectors[closed.rows],
        "published": row.published[closed.rows] if row.policy is not None else noised[closed.rows],
    }

    def attack(candidates: np.ndarray, law: Mechanism) -> DictionaryResult:
        generator = np.random.default_rng([seed, _DICTIONARY])
        found = dictionary_attack(candidates=candidates, law=law, generator=generator, **attacked)
        better = row.policy is None and found.top1_cosine.value > found.top1.value
        return replace(found, top1=found.top1_cosine) if better else found

    results = {"known": attack(closed.candidates, law)}
    if closed.contexts is not None and row.policy is not None and row.policy.mask is not None:
        results["unknown"] = attack(*unknown_context(row.policy, closed.contexts))
    return results


def _assumed(row: Protected, material: Material) -> tuple[Mechanism, np.ndarray]:
    """The law an attacker reckons with, and the vectors it applies to."""
    if row.policy is not None:
        return row.policy.law, row.noised
    turned = turned_back(row.noised, material.vectors, known=material.train)
    seen = estimate_knowledge(material.vectors[material.train], turned[material.train])
    variance = seen.noise_variance + _LEAST_NOISE
    sigma = (seen.basis * variance) @ seen.basis.T
    # At this epsilon the covariance of the law's noise is the sigma it is given.
    return Mahalanobis.from_sigma((sigma + sigma.T) / 2, epsilon=np.sqrt(len(sigma) + 1)), turned


def attack_averaging(
    config: AveragingConfig, row: Protected, material: Material, closed: ClosedSet | None, *, seed: int
) -> tuple[AveragingRow, ...]:
    """Publish a row's records several times, with fresh and with keyed noise; nothing for rows that draw none."""
    if row.policy is None or row.policy.mechanism == "none":
        return ()
    generator = np.random.default_rng([seed, _AVERAGING])
    if closed is None:
        rows = np.sort(generator.permutation(material.test)[: config.records])
        given = {}
    else:
        rows = closed.rows[: config.records]
        given = {"candidates": closed.candidates[: len(rows)], "truth": closed.truth[: len(rows)]}
    return averaging_attack(
        row.policy,
        material.vectors[rows],
        [material.ids[at] for at in rows],
        [material.texts[at] for at in rows],
        keys=[Key.ephemeral() for _ in range(max(config.releases))],
        releases=config.releases,
        generator=generator,
        **given,
    )
