"""What protected vectors are still good for: the tasks of `jobs.config.utility`, checked, then measured row by row.

Tasks are scored on the vectors that are attacked. Classification learns from records that are not tested on, and
clustering groups the test records; pairs and queries, which people judged one by one, count wherever their records are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jobs.compared import Protected
from jobs.config import ClusteringUtility, RetrievalUtility, StsUtility, UtilityTask
from jobs.measuring import Material
from jobs.stages import RememberingEncoder
from jobs.utility_records import (
    Pairs,
    classified,
    clustered,
    planned_pairs,
    read_pairs,
    refuse_few_classes,
    similar,
)
from jobs.utility_search import Search, encode_search, planned_search, queries_for, read_search, why_not
from sparse_core.concepts import Concept
from sparse_core.evaluation import UtilityResult, retrieval
from sparse_core.noise import Key

_SEED = 2
_UNIT_TOLERANCE = 1e-2
_METRICS = {
    "classification": "accuracy",
    "clustering": "v_measure",
    "sts": "cosine_spearman",
    "retrieval": "ndcg_at_10",
}


@dataclass(frozen=True)
class PlannedUtility:
    """A task that can be measured: plain data, to be sent to workers.

    Attributes
    ----------
    config : UtilityTask
    data : Pairs or Search or None
        What was read for it.
    left_out : int
        Pairs or judgements that do not count, because they cannot be read or name no audited record.
    """

    config: UtilityTask
    data: Pairs | Search | None = None
    left_out: int = 0

    @property
    def warning(self) -> str | None:
        """What a user should know of the task's file; None if nothing."""
        if not self.left_out:
            return None
        if isinstance(self.data, Pairs):
            rows, counted = "pairs", f"{len(self.data.gold):,} pairs"
        else:
            rows, counted = "judgements", f"{len(self.data.ids):,} queries"
        return (
            f"utility {self.config.title!r}: {self.left_out:,} {rows} name no audited record, or cannot be read; "
            f"{counted} count."
        )


@dataclass(frozen=True)
class Utility:
    """What one task made of one row.

    Attributes
    ----------
    name, task : str
        The task's name in reports, and its kind.
    result : UtilityResult or None
        None where it cannot be measured on this row.
    skipped : str or None
        Then, why not.
    left_out : int
        As in `PlannedUtility`.
    """

    name: str
    task: str
    result: UtilityResult | None
    skipped: str | None = None
    left_out: int = 0

    def as_record(self) -> dict:
        """As ``summary.json`` holds it; figures are null where the task was skipped."""
        named = {"name": self.name, "task": self.task, "metric": _METRICS[self.task]}
        figures = {name: getattr(self.result, name, None) for name in ("score", "low", "high", "n_records")}
        return {**named, **figures, "skipped": self.skipped, "left_out": self.left_out}


def utility_columns(tasks: Sequence[UtilityTask]) -> tuple[str, ...]:
    """Columns of the corpus that tasks need."""
    return tuple(dict.fromkeys(task.label for task in tasks if hasattr(task, "label")))


def check_utilities(tasks: Sequence[UtilityTask]) -> None:
    """Check that the files of tasks are there and have their columns, without reading them.

    Raises
    ------
    SparseError
        If not.
    """
    for task in tasks:
        if isinstance(task, RetrievalUtility):
            planned_search(task)
        elif isinstance(task, StsUtility):
            planned_pairs(task)


def plan_utilities(
    tasks: Sequence[UtilityTask], *, ids: Sequence, columns: Mapping[str, Sequence], test: np.ndarray
) -> tuple[PlannedUtility, ...]:
    """Read the files of tasks and check that each can be measured, before anything is encoded.

    Parameters
    ----------
    tasks : sequence of UtilityTask
    ids : sequence of str or int
        Of the audited records.
    columns : mapping of str to sequence
        The columns of `utility_columns`, of the same records.
    test : int array
        Which of them attackers are tested on.

    Raises
    ------
    SparseError
        If a task has too few classes, or no pair or query about audited records, or mostly others.
    """
    known = set(map(str, ids))
    planned = []
    for task in tasks:
        if isinstance(task, RetrievalUtility):
            planned.append(PlannedUtility(task, *read_search(task, known)))
        elif isinstance(task, StsUtility):
            planned.append(PlannedUtility(task, *read_pairs(task, known)))
        else:
            refuse_few_classes(task, columns[task.label], test=test)
            planned.append(PlannedUtility(task))
    return tuple(planned)


def encode_queries(
    planned: Sequence[PlannedUtility], encoder: RememberingEncoder | None, *, dimension: int
) -> tuple[PlannedUtility, ...]:
    """Tasks with their queries encoded, once for all rows.

    Parameters
    ----------
    planned : sequence of PlannedUtility
    encoder : RememberingEncoder or None
        Needed for queries that are texts.
    dimension : int
        Of the records' vectors.

    Raises
    ------
    SparseError
        See `encode_search`.
    """
    return tuple(
        replace(task, data=encode_search(task.config, task.data, encoder, dimension=dimension))
        if isinstance(task.data, Search)
        else task
        for task in planned
    )


def measure_utilities(
    planned: Sequence[PlannedUtility],
    row: Protected,
    material: Material,
    *,
    encoder: RememberingEncoder | None,
    key: Key,
    seed: int,
    concepts: Sequence[Concept] = (),
) -> list[Utility]:
    """Every task on a row's published vectors; the first is the row's headline.

    Parameters
    ----------
    planned : sequence of PlannedUtility
        From `plan_utilities`, with queries encoded or not.
    row : Protected
    material : Material
    encoder : RememberingEncoder or None
        For queries that are texts and not encoded yet, and for those that redaction changes.
    key : Key
        Drawn for the audit: protects queries.
    seed : int
        The one that the row's baseline was made with.
    concepts : sequence of Concept
        What redaction takes out of queries.

    Returns
    -------
    list of Utility
        In the order of `planned`.
    """
    vectors = _as_used(row.published, material.vectors)
    rows_of = {str(record): number for number, record in enumerate(material.ids)}
    found = []
    for task in encode_queries(planned, encoder, dimension=material.vectors.shape[1]):
        config, data, generator = task.config, task.data, np.random.default_rng([seed, _SEED])
        result = skipped = None
        if isinstance(data, Pairs):
            result = similar(data, vectors, rows_of, generator=generator)
        elif isinstance(data, Search):
            skipped = why_not(config, data, row, encoder=encoder, concepts=concepts)
            if skipped is None:
                queries = queries_for(config, data, row, encoder=encoder, key=key, seed=seed, concepts=concepts)
                result = retrieval(queries, vectors, data.answers_by_row(rows_of), generator=generator)
        else:
            values = material.columns[config.label]
            if isinstance(config, ClusteringUtility):
                result = clustered(vectors, values, test=material.test, generator=generator)
            else:
                result = classified(config, vectors, values, test=material.test, generator=generator)
        found.append(Utility(config.title, config.task, result, skipped, task.left_out))
    return found


def _as_used(published: np.ndarray, unprotected: np.ndarray) -> np.ndarray:
    """Published vectors at norm 1 where the encoder makes such: consumers compare by cosine, whatever shrank them."""
    if np.abs(np.linalg.norm(unprotected, axis=1) - 1).max() > _UNIT_TOLERANCE:
        return published
    return published / np.linalg.norm(published, axis=1, keepdims=True)
