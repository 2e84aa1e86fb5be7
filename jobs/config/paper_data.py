"""Public data sets that experiments of the paper run on: which file, and which columns of it."""

from __future__ import annotations

from typing import Literal

from jobs.config.section import Section


class SentencesData(Section):
    """Texts of a Parquet file, one record a row."""

    kind: Literal["sentences"]
    """Kind of data."""
    file: str
    """Parquet file, below the folder that `data` names."""
    bundled: bool = False
    """Whether the file comes with this repository, in configs/data, so that no folder is needed."""
    id: str = "id"
    """Column with a unique id."""
    text: str = "text"
    """Column with the text."""
    spans: str | None = None
    """Column of annotated spans {start, end, label}."""

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The columns needed of each file."""
        return {self.file: (self.id, self.text, *((self.spans,) if self.spans else ()))}


class PairsData(Section):
    """Sentence pairs that people judged: every sentence is a record, and utility is the similarity task."""

    kind: Literal["pairs"]
    """Kind of data."""
    file: str
    """Parquet file, below the folder that `data` names."""
    left: str = "sentence1"
    """Column with one sentence."""
    right: str = "sentence2"
    """Column with the other."""
    score: str = "score"
    """Column with their similarity."""
    split: str = "split"
    """Column that tells training pairs from test pairs."""
    scored: str = "test"
    """Value of the split whose pairs count for utility; the sentences of all pairs are records."""

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The columns needed of each file."""
        return {self.file: (self.left, self.right, self.score, self.split)}


class AnswersData(Section):
    """Answers and other texts of a pool, and the questions that search it: utility is retrieval."""

    kind: Literal["answers"]
    """Kind of data."""
    file: str
    """Parquet file of answers, below the folder that `data` names."""
    id: str = "doc_id"
    """Its column with a unique id."""
    text: str = "text"
    """Its column with the text."""
    queries: str
    """Parquet file of queries."""
    query_id: str = "query_id"
    """Its column with a unique id."""
    query: str = "text"
    """Its column with the query."""
    answer: str = "doc_id"
    """Its column with the id of the one answer."""
    others: str
    """Parquet file of further questions, which join the pool so that there are records enough to attack."""
    other_id: str = "question_id"
    """Its column with a unique id."""
    other: str = "text"
    """Its column with the question; those that are queries are left out."""

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The columns needed of each file."""
        return {
            self.file: (self.id, self.text),
            self.queries: (self.query_id, self.query, self.answer),
            self.others: (self.other_id, self.other),
        }
