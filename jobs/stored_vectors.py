"""Vectors that were published already: reading them, matching them with texts, checking what is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs import outputs, sources
from jobs.config import AuditConfig, Compared, InputConfig, StoredVectors
from sparse_core.errors import SparseError
from sparse_core.noise import Key
from sparse_core.policy import Policy

NOISE_TOLERANCE = 0.05
_SIMULATED_RECORDS = 2000


@dataclass(frozen=True)
class Found:
    """Vectors that were read, in the order of the corpus, and the rows that have one."""

    present: np.ndarray
    vectors: np.ndarray


def planned_source(stored: StoredVectors, where: str, field: str) -> sources.Source:
    """The source of stored vectors, checked; `where` and `field` name them in messages."""
    try:
        return sources.plan(InputConfig(path=stored.path, id=stored.id, embedding=stored.embedding))
    except SparseError as error:
        raise SparseError(f"{where}: {str(error).replace('input.', f'{field}.')}") from None


def read_unprotected(source: sources.Source, ids: Sequence) -> Found:
    """Unprotected vectors that were computed already.

    Raises
    ------
    SparseError
        If they share no id with the corpus, or have mixed dimensions.
    """
    return _matched("unprotected", ids, *_read_stored("unprotected", source), source.input.shown_path, "vectors")


def read_vectors(config: AuditConfig, sources_of: dict[str, sources.Source], ids: Sequence) -> dict[str, Found]:
    """Vectors of all rows that were published already, by row.

    Raises
    ------
    SparseError
        If one shares no id with the corpus, or has vectors of mixed dimensions.
    """
    found = {}
    for compared in config.compare:
        where = f"compare {compared.name!r}"
        if compared.vectors is not None:
            read = _read_stored(where, sources_of[compared.name])
            found[compared.name] = _matched(where, ids, *read, compared.vectors.shown_path, "vectors")
        elif compared.release is not None:
            read = list(outputs.read_published(compared.release, columns=[config.input.id]))
            published = np.concatenate([vectors for _, vectors in read]) if read else np.zeros((1, 0), np.float32)
            published_ids = [record for table, _ in read for record in table[config.input.id].to_pylist()]
            found[compared.name] = _matched(where, ids, published_ids, published, compared.release, "a release")
    return found


def check_dimension(where: str, source: sources.Source, dimension: int, whose: str) -> None:
    """Refuse vectors of another dimension than others', named by `whose`; `where` names them."""
    if source.dimension != dimension:
        raise SparseError(
            f"{where}: the vectors of {source.input.shown_path} have dimension {source.dimension}, those of {whose} "
            f"{dimension}. Name in encoder.model the model that they were made with."
        )


def check_noise(compared: Compared, policy: Policy, original: np.ndarray, published: np.ndarray) -> None:
    """Refuse vectors that are not as far from their texts' embeddings as the policy puts them.

    What the policy comes to is simulated, as read-outs that cannot be undone entirely change it.
    """
    rows = np.resize(np.arange(len(original)), _SIMULATED_RECORDS)
    simulated = policy.release(original[rows], ids=range(len(rows)), contents=[""] * len(rows), key=Key.ephemeral())
    stated = displacement(policy.undo_read_out(simulated), original[rows])
    measured = displacement(policy.undo_read_out(published), original)
    # Stored numbers are rounded, which counts where there is no noise.
    if abs(measured - stated) > max(NOISE_TOLERANCE * stated, 1e-3):
        raise SparseError(
            f"compare {compared.name!r}: the vectors are a median of {measured:.4g} away from the embeddings of their "
            f"texts, and under the policy in {compared.policy} it would be {stated:.4g}. They were "
            "made under another policy, by another encoder or of other texts; name their own policy, or none."
        )


def displacement(noised: np.ndarray, original: np.ndarray) -> float:
    """Median distance of vectors from the embeddings they were made of."""
    return float(np.median(np.linalg.norm(noised - original, axis=1)))


def turned_back(protected: np.ndarray, original: np.ndarray, *, known: np.ndarray) -> np.ndarray:
    """Protected vectors after the rotation and shift that bring known records closest to their embeddings.

    What anybody can do who knows some of the texts (orthogonal Procrustes, Schönemann 1966): a secret rotation of the
    data set is no secret then.

    Parameters
    ----------
    protected, original : float array, shape (n_records, n)
    known : int array
        Records whose embeddings the attacker knows.

    Returns
    -------
    float64 array, shape (n_records, n)
    """
    here, there = protected[known].mean(axis=0, dtype=np.float64), original[known].mean(axis=0, dtype=np.float64)
    left, _, right = np.linalg.svd((protected[known] - here).T @ (original[known] - there))
    return (protected - here) @ (left @ right) + there


def _read_stored(where: str, source: sources.Source) -> tuple[list, np.ndarray]:
    """Ids and vectors, in the order they are stored."""
    ids, vectors, reasons = [], [], Counter()
    for unit in source.units:
        for rows in sources.read(source, unit):
            ids += rows.ids
            vectors.append(rows.vectors.astype(np.float32))
            reasons.update(rejected.reason for rejected in rows.rejected)
    odd = reasons["wrong_length_vector"]
    if odd:
        raise SparseError(
            f"{where}: {source.input.shown_path} mixes dimensions: {odd:,} of "
            f"{len(ids) + reasons.total():,} vectors have another length than {source.dimension}. Give vectors of one "
            "encoder throughout."
        )
    if not ids:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        raise SparseError(f"{where}: no row of {source.input.shown_path} can be used: {told}.")
    return ids, np.concatenate(vectors)


def _matched(where: str, ids: Sequence, published_ids: list, vectors: np.ndarray, place: str, kind: str) -> Found:
    """Published vectors in the order of the corpus."""
    # An id published twice does not tell which vector belongs to which text: such records are left out.
    repeated = {record for record, count in Counter(published_ids).items() if count > 1}
    row_of = {record: row for row, record in enumerate(published_ids) if record not in repeated}
    rows = np.array([row_of.get(record, -1) for record in ids])
    if (rows < 0).all():
        why = f"{'Is it' if kind == 'a release' else 'Are they'} {kind} of another corpus?"
        kinds = [type(records[0]).__name__ for records in (ids, published_ids) if records]
        if len(set(kinds)) > 1:
            why = f"Those of input.path are {kinds[0]}, these {kinds[1]}: store both as one type."
        raise SparseError(f"{where}: none of the ids of input.path is in {place}. {why}")
    return Found(rows >= 0, vectors[np.maximum(rows, 0)])
