"""Utility as search: queries and judgements read and matched, and queries made ready for each row's vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jobs import sources
from jobs.baselines import dropped, redacted, rotation
from jobs.compared import UNKNOWN, Protected
from jobs.config import InputConfig, RetrievalUtility
from jobs.sources.rows import vector_contents
from jobs.stages import RememberingEncoder, usable_vectors
from jobs.utility_files import named, numbers, refuse_strangers
from sparse_core.concepts import Concept, Span, find_spans, merge_spans
from sparse_core.errors import SparseError
from sparse_core.noise import Key


@dataclass(frozen=True)
class Search:
    """Queries that some audited record answers.

    Attributes
    ----------
    ids : tuple of str
        One per query.
    texts : tuple of str or None
        None where vectors are stored.
    vectors : float array, shape (n_queries, n), or None
        Unprotected; None as long as texts are not encoded.
    answers : tuple of dict
        Per query, relevance by the id of the record.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    vectors: np.ndarray | None
    answers: tuple[dict[str, float], ...]

    def answers_by_row(self, rows_of: Mapping[str, int]) -> list[dict[int, float]]:
        """Per query, relevance by the row of the record; empty where no record that answers it has a row."""
        there = [
            {rows_of[record]: score for record, score in found.items() if record in rows_of} for found in self.answers
        ]
        return [found if any(score > 0 for score in found.values()) else {} for found in there]


def planned_search(task: RetrievalUtility) -> tuple[sources.Source, sources.Source | None]:
    """The sources of queries and of judgements, their columns checked."""
    content = {"text": task.text} if task.embedding is None else {"embedding": task.embedding}
    columns = () if task.document is None else (task.document,)
    with named(task):
        queries = sources.plan(InputConfig(path=task.queries, id=task.query_id, **content), columns=columns)
        if task.qrels is None:
            return queries, None
        judged = (task.qrels_query, task.qrels_document, task.qrels_score)
        return queries, sources.plan_columns(task.qrels, [name for name in judged if name is not None])


def read_search(task: RetrievalUtility, known: Collection[str]) -> tuple[Search, int]:
    """Queries with the audited records that answer them, and how many judgements are about others or unreadable.

    Parameters
    ----------
    task : RetrievalUtility
    known : collection of str
        Ids of the audited records.

    Raises
    ------
    SparseError
        If no query can be used, two have one id, most judgements name records or queries that are not there, or no
        query has an answer.
    """
    queries, judged = planned_search(task)
    with named(task):
        contents, judgements = _read_queries(task, queries)
        unreadable = 0
        if judged is not None:
            judgements, unreadable = _read_judgements(task, judged)
        there = [(query, record, score) for query, record, score in judgements if query in contents and record in known]
        missing = len(judgements) - len(there) + unreadable
        refuse_strangers(len(judgements) + unreadable, missing, what="judgements", whom="a query or a record")
        answers: dict[str, dict[str, float]] = {}
        for query, record, score in there:
            answers.setdefault(query, {})[record] = score
        asked = [query for query, found in answers.items() if any(score > 0 for score in found.values())]
        if not asked:
            raise SparseError("no query has an audited record of relevance above 0.")
    content = [contents[query] for query in asked]
    stored = task.embedding is not None
    return Search(
        tuple(asked),
        None if stored else tuple(content),
        np.array(content) if stored else None,
        tuple(answers[query] for query in asked),
    ), missing


def _read_queries(
    task: RetrievalUtility, source: sources.Source
) -> tuple[dict[str, str | np.ndarray], list[tuple[str, str, float]]]:
    """Text or vector by query, and the answers that stand beside them."""
    contents: dict[str, str | np.ndarray] = {}
    answers = []
    unusable = 0
    for unit in source.units:
        for rows in sources.read(source, unit):
            unusable += len(rows.rejected)
            ids = list(map(str, rows.ids))
            for query, content in zip(ids, rows.texts if rows.vectors is None else rows.vectors, strict=True):
                if not np.array_equal(contents.setdefault(query, content), content):
                    raise SparseError(f"two queries of {source.input.shown_path} have the same id.")
            if task.document is not None:
                records = rows.columns[task.document].to_pylist()
                answers += [(query, str(record), 1.0) for query, record in zip(ids, records, strict=True)]
    if not contents:
        raise SparseError(f"none of the {unusable:,} rows of {source.input.shown_path} can be used as a query.")
    return contents, answers


def _read_judgements(task: RetrievalUtility, source: sources.Source) -> tuple[list[tuple[str, str, float]], int]:
    """Query, record and relevance; and how many rows could not be read."""
    columns = sources.read_columns(source)
    values = columns.values
    asked, records = (list(map(str, values[name])) for name in (task.qrels_query, task.qrels_document))
    scores = np.ones(len(asked))
    if task.qrels_score is not None:
        scores = numbers(values[task.qrels_score], task.qrels_score)
    return list(zip(asked, records, scores.tolist(), strict=True)), columns.rejected.total()


def encode_search(
    task: RetrievalUtility, search: Search, encoder: RememberingEncoder | None, *, dimension: int
) -> Search:
    """The queries with their unprotected vectors.

    Parameters
    ----------
    task : RetrievalUtility
    search : Search
    encoder : RememberingEncoder or None
        For texts.
    dimension : int
        Of the records' vectors.

    Raises
    ------
    SparseError
        If there is no encoder for texts, or stored vectors are unusable or have another dimension.
    """
    with named(task):
        if search.vectors is None:
            if encoder is None:
                raise SparseError("queries are texts, and there is no encoder; name a column of vectors in embedding.")
            asking = encoder if task.prompt is None else encoder.with_prompt(task.prompt)
            search = replace(search, vectors=asking.encode(search.texts, title=f"Encoding queries ({task.title})"))
        if search.vectors.shape[1] != dimension:
            raise SparseError(
                f"queries have {search.vectors.shape[1]} dimensions, records {dimension}. Take vectors of the model "
                "that the records were encoded with."
            )
        unusable = int((~usable_vectors(search.vectors)).sum())
        if unusable:
            raise SparseError(
                f"{unusable:,} of {len(search.ids):,} queries have a vector that is zero or not finite; leave them out."
            )
        return search


def why_not(
    task: RetrievalUtility,
    search: Search,
    row: Protected,
    *,
    encoder: RememberingEncoder | None,
    concepts: Sequence[Concept],
) -> str | None:
    """Why a row cannot be searched this way; None where it can."""
    if task.sides == "trusted" or row.policy is not None:
        return None
    if row.protection == UNKNOWN:
        return "nobody states how these vectors were protected, so that queries cannot be; set sides to trusted"
    if row.compared.baseline == "redaction":
        if search.texts is None or encoder is None:
            return "redaction takes a concept out of texts and encodes what is left, and queries are vectors here"
        try:
            _found([""], concepts)
        except SparseError as error:
            return f"redaction needs to find the concept in queries: {error}"
    return None


def queries_for(
    task: RetrievalUtility,
    search: Search,
    row: Protected,
    *,
    encoder: RememberingEncoder | None,
    key: Key,
    seed: int,
    concepts: Sequence[Concept],
) -> np.ndarray:
    """Query vectors as whoever searches a row would use them, float array, shape (n_queries, n).

    A rotation is part of either side: whoever does not know it finds nothing at all.
    """
    if row.policy is not None:
        if task.sides == "trusted":
            return row.policy.query_transform(search.vectors)
        contents = search.texts
        if contents is None:
            contents = vector_contents(search.vectors, row.policy.law.grid)
        # A query may have a record's id; its noise must be its own nevertheless.
        ids = [f"query\x1f{query}" for query in search.ids]
        return row.policy.release(search.vectors, ids=ids, contents=contents, key=key)
    baseline = row.compared.baseline
    if baseline == "rotation":
        return search.vectors @ rotation(search.vectors.shape[1], seed=seed)
    if task.sides == "trusted" or baseline is None:
        return search.vectors
    if baseline == "dropping":
        return dropped(search.vectors, row.mask)
    texts = redacted(search.texts, _found(search.texts, concepts), how=row.compared.removal, seed=seed)
    changed = replace(search, texts=tuple(texts), vectors=None)
    return encode_search(task, changed, encoder, dimension=search.vectors.shape[1]).vectors


def _found(texts: Sequence[str], concepts: Sequence[Concept]) -> list[list[Span]]:
    """Where texts hold any of the concepts."""
    spans = [find_spans(texts, concept) for concept in concepts]
    return [merge_spans(span for found in of_text for span in found) for of_text in zip(*spans, strict=True)]
