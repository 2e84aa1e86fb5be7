"""Words beside the concept's that should stay readable: those that mean nearly the same, and unrelated ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from jobs.cluster import cpu_cores, one_thread_each
from jobs.compared import Protected
from jobs.stages import RememberingEncoder
from sparse_core.attacks import PublicKnowledge, RidgeAttack
from sparse_core.concepts.words import word_tokens
from sparse_core.evaluation import Interval, guess_hits, ratio_interval

# Fewer than the attack of the headline tries: groups are compared with each other, in a third of the time.
_PENALTIES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
_TRANSFORMS = ("faithful", "readout")
_NEIGHBOURS = 3
_FREQUENCY_NEIGHBOURS = 10
_MOST_CANDIDATES = 3000
_LEAST_LETTERS = 3
_LEAST_TEST_RECORDS = 20


@dataclass(frozen=True)
class TokenGroups:
    """Which record holds which word of each group.

    Attributes
    ----------
    labels : bool array, shape (n_records, n_words)
    columns : dict of str to slice
        A group's columns; groups held by fewer than 20 test records are absent.
    """

    labels: np.ndarray
    columns: dict[str, slice]


def choose_groups(
    texts: Sequence[str],
    concept_of: Sequence[Sequence[str]],
    *,
    targets: Sequence[str],
    target_labels: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    min_count: int,
    encoder: RememberingEncoder,
    seed: int,
) -> TokenGroups:
    """Choose as many similar and as many unrelated words as there are concept tokens.

    Candidates are words of the training records that are in no record part of the concept. Similar are those with the
    highest cosine to a concept token, each encoded alone, at most three a token. Unrelated are drawn from the half of
    the candidates that is least like any concept token, each about as frequent as the concept token it stands for.

    Parameters
    ----------
    texts : sequence of str
    concept_of : sequence of (sequence of str)
        Concept tokens of each text.
    targets : sequence of str
        Concept tokens that are attacked.
    target_labels : bool array, shape (n_records, n_targets)
    train, test : int array
        Records attackers are trained and tested on.
    min_count : int
        Training records that must hold a candidate.
    encoder : RememberingEncoder
    seed : int

    Returns
    -------
    TokenGroups
    """
    words_of = [frozenset(word_tokens(text)) for text in texts]
    concept = {token for tokens in concept_of for token in tokens}
    counts = Counter(word for row in train for word in words_of[row])
    ranked = sorted(
        (
            word
            for word, count in counts.items()
            if count >= min_count and word not in concept and word.isalpha() and len(word) >= _LEAST_LETTERS
        ),
        key=lambda word: (-counts[word], word),
    )[:_MOST_CANDIDATES]
    groups = {"target": list(targets), "similar": [], "unrelated": []}
    if ranked:
        vectors = encoder.encode([*targets, *ranked], title="Encoding words")
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        cosines = vectors[: len(targets)] @ vectors[len(targets) :].T
        similar = _similar(cosines)
        frequencies = np.log([counts[word] for word in ranked])
        wanted = np.log(np.maximum(target_labels[train].sum(axis=0), 1))
        unrelated = _unrelated(cosines, similar, frequencies, wanted, np.random.default_rng([seed, 6]))
        groups["similar"] = [ranked[at] for at in similar]
        groups["unrelated"] = [ranked[at] for at in unrelated]
    parts, columns, start = [], {}, 0
    for name, words in groups.items():
        labels = np.array([[word in found for word in words] for found in words_of]).reshape(len(texts), len(words))
        labels = target_labels if name == "target" else labels
        if np.count_nonzero(labels[test].any(axis=1)) >= _LEAST_TEST_RECORDS:
            columns[name] = slice(start, start + len(words))
            parts.append(labels)
            start += len(words)
    return TokenGroups(np.concatenate(parts, axis=1), columns)


def _similar(cosines: np.ndarray) -> list[int]:
    """Candidates with the highest cosines, of each concept token's nearest few."""
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :_NEIGHBOURS]
    pairs = sorted((-cosines[token, at], at) for token, row in enumerate(nearest) for at in row)
    return list(dict.fromkeys(int(at) for _, at in pairs))[: len(cosines)]


def _unrelated(
    cosines: np.ndarray,
    similar: list[int],
    frequencies: np.ndarray,
    wanted: np.ndarray,
    generator: np.random.Generator,
) -> list[int]:
    """For each concept token, one of the least like candidates that is about as frequent."""
    likeness = cosines.max(axis=0)
    pool = np.setdiff1d(np.flatnonzero(likeness <= np.median(likeness)), similar)
    chosen = []
    for frequency in wanted[: len(pool)]:
        nearest = pool[np.argsort(np.abs(frequencies[pool] - frequency), kind="stable")[:_FREQUENCY_NEIGHBOURS]]
        chosen.append(int(generator.choice(nearest)))
        pool = pool[pool != chosen[-1]]
    return chosen


def attack_groups(
    protected: Sequence[Protected],
    vectors: np.ndarray,
    groups: TokenGroups,
    *,
    train: np.ndarray,
    test: np.ndarray,
    seed: int,
) -> dict[str, dict[str, dict]]:
    """Leakage of every group for every row, by one ridge each.

    Parameters
    ----------
    protected : sequence of Protected
    vectors : float array, shape (n_records, n)
        Unprotected, for the positive control.
    groups : TokenGroups
    train, test : int array
    seed : int

    Returns
    -------
    dict
        Row, group, then ``tokens`` and the intervals ``unprotected`` and ``protected``.
    """
    labels = groups.labels[test]

    def leakages(pair: tuple[np.ndarray, PublicKnowledge]) -> dict[str, Interval]:
        seen, public = pair
        ridge = RidgeAttack(penalties=_PENALTIES, transforms=_TRANSFORMS)
        fitted = ridge.fit(seen[train], groups.labels[train], public=public, seed=seed)
        scores = fitted.scores(seen[test])
        return {name: _leakage(scores[:, at], labels[:, at], seed) for name, at in groups.columns.items()}

    first = protected[0].knowledge[0].without_noise()
    pairs = [(vectors, first), *((row.noised, row.knowledge[0]) for row in protected)]
    with one_thread_each(), ThreadPoolExecutor(cpu_cores()) as pool:
        control, *measured = pool.map(leakages, pairs)
    return {
        row.name: {
            name: {
                "tokens": at.stop - at.start,
                "unprotected": _as_dict(control[name]),
                "protected": _as_dict(found[name]),
            }
            for name, at in groups.columns.items()
        }
        for row, found in zip(protected, measured, strict=True)
    }


def _leakage(scores: np.ndarray, labels: np.ndarray, seed: int) -> Interval:
    rows = labels.any(axis=1)
    hits = guess_hits(scores[rows], labels[rows]).sum(axis=1)
    generator = np.random.default_rng([seed, 7])
    return ratio_interval(hits, labels[rows].sum(axis=1), generator=generator)


def _as_dict(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
