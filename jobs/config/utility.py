"""What protected vectors should still be good for: the tasks that an audit measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jobs.config.section import Section

Paths = str | Annotated[tuple[str, ...], Field(min_length=1)]


class ClassificationUtility(Section):
    """Utility as classification: logistic regression on the vectors, accuracy on test records."""

    task: Literal["classification"] = "classification"
    """Name of the task."""
    name: str | None = None
    """Name in reports; null makes one of the task and the column."""
    label: str
    """Column with the class of each record."""
    min_class_size: Annotated[int, Field(gt=1)] = 20
    """Classes with fewer training records are left out."""
    samples_per_label: Annotated[int, Field(gt=0)] | None = None
    """Training records per class in each of ten experiments, as in MTEB (8 there); null trains once on all."""

    @property
    def title(self) -> str:
        """``name``, or what takes its place."""
        return self.name or f"classification of {self.label}"


class ClusteringUtility(Section):
    """Utility as clustering: k-means on the test records, v-measure of its clusters and the classes."""

    task: Literal["clustering"]
    """Name of the task."""
    name: str | None = None
    """Name in reports; null makes one of the task and the column."""
    label: str
    """Column with the class of each record."""

    @property
    def title(self) -> str:
        """``name``, or what takes its place."""
        return self.name or f"clustering by {self.label}"


class StsUtility(Section):
    """Utility as semantic similarity: whether pairs of records are as similar as people found them."""

    task: Literal["sts"]
    """Name of the task."""
    name: str | None = None
    """Name in reports; null takes the name of the task."""
    path: Paths
    """File of pairs: Parquet, CSV or JSON lines, as in input.path."""
    left: str = "left"
    """Column with the id of one record of the audit's input."""
    right: str = "right"
    """Column with the id of the other."""
    score: str = "score"
    """Column with the similarity that people gave the pair."""

    @property
    def title(self) -> str:
        """``name``, or what takes its place."""
        return self.name or "sts"


class RetrievalUtility(Section):
    """Utility as search: whether queries find the records that answer them, nDCG@10."""

    task: Literal["retrieval"]
    """Name of the task."""
    name: str | None = None
    """Name in reports; null makes one of the task and the sides."""
    queries: Paths
    """File of queries: Parquet, CSV or JSON lines, as in input.path."""
    query_id: str | None = "query_id"
    """Its column with a unique id per query; null makes one of each row, where document names the answers."""
    text: str | None = "text"
    """Its column with the query."""
    embedding: str | None = None
    """Its column of query vectors computed already, in place of text."""
    document: str | None = None
    """Its column with the id of the one record of the audit's input that answers the query, in place of qrels."""
    qrels: Paths | None = None
    """File of judgements, one row per query and record: columns `qrels_query`, `qrels_document`, `qrels_score`."""
    qrels_query: str = "query_id"
    """Column of qrels with the id of the query."""
    qrels_document: str = "doc_id"
    """Column of qrels with the id of a record of the audit's input."""
    qrels_score: str | None = "score"
    """Column of qrels with the relevance, above 0 where the record answers the query; null takes every row as 1."""
    sides: Literal["both", "trusted"] = "both"
    """'both' protects queries as the records are protected; 'trusted' searches with unprotected queries, as `sparse
    query` makes them for those who keep their queries to themselves."""
    prompt: str | None = None
    """Put before every query, such as 'query: ' for E5 models; null takes encoder.prompt."""

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if self.embedding is not None:
            if "text" in self.model_fields_set and self.text is not None:
                raise ValueError("embedding takes the place of text; leave text out")
            if self.prompt is not None:
                raise ValueError("prompt belongs to queries that are encoded; with embedding leave it out")
        elif self.text is None:
            raise ValueError("name the column of the query in text, or that of its vector in embedding")
        return self

    @model_validator(mode="after")
    def _one_answer(self) -> Self:
        if (self.document is None) == (self.qrels is None):
            raise ValueError(
                "say which records answer a query: name either a file in qrels, or in document a column of queries"
            )
        if self.qrels is not None and self.query_id is None:
            raise ValueError("qrels name queries by their id; name its column in query_id")
        return self

    @property
    def title(self) -> str:
        """``name``, or what takes its place."""
        return self.name or ("retrieval" if self.sides == "both" else "retrieval, trusted queries")


def _as_list(value: Any) -> Any:
    """One task alone may stand without a list, and classification without its name."""
    tasks = () if value is None else (value,) if isinstance(value, Mapping | Section) else value
    if not isinstance(tasks, list | tuple):
        return tasks
    return tuple({"task": "classification"} | dict(task) if isinstance(task, Mapping) else task for task in tasks)


def _distinct(tasks: tuple) -> tuple:
    titles = [task.title for task in tasks]
    twice = next((title for title in titles if titles.count(title) > 1), None)
    if twice is not None:
        raise ValueError(f"two tasks are called {twice!r}; give each a name of its own in name")
    return tasks


UtilityTask = Annotated[
    ClassificationUtility | ClusteringUtility | StsUtility | RetrievalUtility, Field(discriminator="task")
]
UtilityTasks = Annotated[tuple[UtilityTask, ...], BeforeValidator(_as_list), AfterValidator(_distinct)]
