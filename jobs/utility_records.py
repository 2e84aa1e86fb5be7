"""Utility of the records themselves: classifying and clustering them, and how similar pairs of them are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jobs import sources
from jobs.config import ClassificationUtility, ClusteringUtility, StsUtility
from jobs.utility_files import named, numbers, refuse_strangers
from sparse_core.errors import SparseError
from sparse_core.evaluation import UtilityResult, classification, clustering, sts

_LEAST_PAIRS = 3


@dataclass(frozen=True)
class Pairs:
    """Ids of the records of each pair, and the similarity that people gave it."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    gold: np.ndarray


def refuse_few_classes(task: ClassificationUtility | ClusteringUtility, values: Sequence, *, test: np.ndarray) -> None:
    """Refuse a column that does not tell two classes apart.

    Parameters
    ----------
    task : ClassificationUtility or ClusteringUtility
    values : sequence
        The column.
    test : int array
        Rows of the test records.

    Raises
    ------
    SparseError
    """
    place = f"utility {task.title!r}: column {task.label!r}"
    tested = _labelled(values, test)[1]
    if isinstance(task, ClusteringUtility):
        if len(set(tested)) < 2:
            raise SparseError(
                f"{place} has {len(set(tested))} classes on the {len(test):,} test records; clustering needs two."
            )
        return
    usable = _usable_classes(task, values, test)
    if len(usable) < 2:
        raise SparseError(
            f"{place} has {len(usable)} classes with {task.min_class_size} training records or more; classification "
            "needs two. Lower min_class_size, or name another column in label."
        )
    if not np.isin(tested, usable).any():
        raise SparseError(f"{place} has no test record of a class that can be learned; name another column in label.")


def classified(
    task: ClassificationUtility,
    vectors: np.ndarray,
    values: Sequence,
    *,
    test: np.ndarray,
    generator: np.random.Generator,
) -> UtilityResult:
    """Accuracy on the test records of a classifier that learned from all others; arguments as for the checks."""
    usable = _usable_classes(task, values, test)
    (train, train_labels), (test, test_labels) = (
        _labelled(values, rows, usable) for rows in (_learning(values, test), test)
    )
    return classification(
        vectors[train],
        train_labels,
        vectors[test],
        test_labels,
        samples_per_label=task.samples_per_label,
        generator=generator,
    )


def clustered(vectors: np.ndarray, values: Sequence, *, test: np.ndarray, generator: np.random.Generator):
    """V-measure on the test records."""
    rows, labels = _labelled(values, test)
    return clustering(vectors[rows], labels, generator=generator)


def planned_pairs(task: StsUtility) -> sources.Source:
    """The source of pairs, its columns checked."""
    with named(task):
        return sources.plan_columns(task.path, (task.left, task.right, task.score))


def read_pairs(task: StsUtility, known: Collection[str]) -> tuple[Pairs, int]:
    """Pairs of audited records, and how many others or unreadable ones there are.

    Parameters
    ----------
    task : StsUtility
    known : collection of str
        Ids of the audited records.

    Raises
    ------
    SparseError
        If most pairs are of other records, scores are no numbers, or too few pairs are left.
    """
    columns = sources.read_columns(planned_pairs(task))
    values, unreadable = columns.values, columns.rejected.total()
    left, right = (np.array(values[side], dtype=object).astype(str) for side in (task.left, task.right))
    there = np.array([one in known and other in known for one, other in zip(left, right, strict=True)], dtype=bool)
    missing = int((~there).sum()) + unreadable
    with named(task):
        refuse_strangers(len(there) + unreadable, missing, what="pairs", whom="a record")
        gold = numbers(values[task.score], task.score)[there]
        if len(gold) < _LEAST_PAIRS or np.ptp(gold) == 0:
            raise SparseError(
                f"{len(gold)} pairs of audited records, with {len(np.unique(gold))} different scores; a rank "
                f"correlation needs {_LEAST_PAIRS} pairs that differ."
            )
    return Pairs(tuple(left[there].tolist()), tuple(right[there].tolist()), gold), missing


def similar(
    pairs: Pairs, vectors: np.ndarray, rows_of: Mapping[str, int], *, generator: np.random.Generator
) -> UtilityResult:
    """Rank correlation of cosines and scores; `rows_of` has the row of each record's id."""
    left, right = (np.array([rows_of.get(record, -1) for record in side]) for side in (pairs.left, pairs.right))
    there = (left >= 0) & (right >= 0)
    return sts(vectors[left[there]], vectors[right[there]], pairs.gold[there], generator=generator)


def _learning(values: Sequence, test: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(len(values)), test)


def _labelled(values: Sequence, rows: np.ndarray, usable: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Those of the rows that have a label, of the usable ones where they are told; and their labels."""
    rows = np.array([row for row in rows if values[row] is not None], dtype=int)
    labels = np.array([str(values[row]) for row in rows])
    there = slice(None) if usable is None else np.isin(labels, usable)
    return rows[there], labels[there]


def _usable_classes(task: ClassificationUtility, values: Sequence, test: np.ndarray) -> np.ndarray:
    names, counts = np.unique(_labelled(values, _learning(values, test))[1], return_counts=True)
    return names[counts >= task.min_class_size]
