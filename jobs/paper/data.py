"""Public data sets as the experiments of the paper need them: records with ids, their concept, and a utility task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.config import ConceptConfig, Experiment, InputConfig
from jobs.config.paper_data import AnswersData, PairsData, SentencesData
from jobs.progress import steps
from sparse_core.concepts import Concept, Span, find_spans
from sparse_core.concepts.words import WORD, fold_word
from sparse_core.errors import SparseError

BUNDLED = Path(__file__).parents[2] / "configs" / "data"
_SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("label", pa.string())]))
# Entities hold them ("Bank of America"), and to recover one tells nothing.
_FUNCTION_WORDS = frozenset(("the", "a", "an", "of", "and", "for", "in", "on", "at", "to", "from", "by"))


@dataclass(frozen=True)
class Prepared:
    """A corpus that jobs can read.

    Attributes
    ----------
    input : InputConfig
    concepts : tuple of ConceptConfig
        Those of the experiment; where entities were looked for, they are annotated in the corpus.
    utility : tuple of dict
        Tasks, as an audit's configuration takes them.
    n_records : int
    """

    input: InputConfig
    concepts: tuple[ConceptConfig, ...]
    utility: tuple[dict[str, Any], ...]
    n_records: int


def located(experiment: Experiment, folder: str | None) -> dict[str, Path]:
    """Where each of the experiment's files is, after checking that it has the columns that are read.

    Raises
    ------
    SparseError
        If no folder is given and one is needed, or a file or a column is missing.
    """
    data, found = experiment.data, {}
    for file, columns in data.files.items():
        label = experiment.utility and experiment.utility.label
        wanted = list(dict.fromkeys((*columns, *((label,) if label else ()))))
        bundled = isinstance(data, SentencesData) and data.bundled
        needed = f"it needs the file {file} with the columns {', '.join(wanted)}"
        if folder is None and not bundled:
            raise SparseError(
                f"data: name the folder of public data sets, as in data=/data/public; {needed}. "
                "configs/paper/README.md describes the folder."
            )
        path = BUNDLED / file if bundled else Path(folder, file)
        if not path.is_file():
            raise SparseError(f"data: there is no file {path}; {needed}, see configs/paper/README.md.")
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowInvalid, OSError) as error:
            raise SparseError(f"data: {path} cannot be read as a Parquet file ({error}).") from None
        missing = [name for name in wanted if name not in names]
        if missing:
            raise SparseError(f"data: {path} has no column {', '.join(missing)}; it has {', '.join(names)}.")
        found[file] = path
    return found


def digests(files: Iterable[Path]) -> list[str]:
    """A checksum of each file."""
    found = []
    for path in files:
        with open(path, "rb") as opened:
            found.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return found


def prepare(experiment: Experiment, files: dict[str, Path], directory: Path, *, records: int | None) -> Prepared:
    """Write the experiment's records, and what its utility needs, into a directory.

    Parameters
    ----------
    experiment : Experiment
    files : dict
        From `located`.
    directory : Path
        Exists, and is empty.
    records : int or None
        How many records or pairs to draw; None takes all.
    """
    data = experiment.data
    if isinstance(data, SentencesData):
        table = _drawn(pq.read_table(files[data.file]), records)
        columns = {"id": table[data.id].cast(pa.string()), "text": table[data.text]}
        annotations = table[data.spans].to_pylist() if data.spans else None
        utility = ()
        if experiment.utility is not None:
            columns[experiment.utility.label] = table[experiment.utility.label]
            utility = (experiment.utility.model_dump(),)
    elif isinstance(data, PairsData):
        columns, pairs = _pairs(_drawn(pq.read_table(files[data.file]), records), data)
        pq.write_table(pairs, directory / "pairs.parquet")
        annotations, utility = None, ({"task": "sts", "path": str(directory / "pairs.parquet")},)
    else:
        columns, queries = _answers(data, files, records)
        pq.write_table(queries, directory / "queries.parquet")
        task = {"task": "retrieval", "queries": str(directory / "queries.parquet"), "document": "answer"}
        annotations, utility = None, (task,)
    concepts = experiment.concepts
    entities = any(concept.entity_types for concept in concepts)
    if entities:
        texts = [text or "" for text in columns["text"].to_pylist()]
        columns["spans"] = pa.array(_annotated(texts, concepts, annotations), _SPANS)
        concepts = tuple(
            concept.model_copy(update={"entity_types": (concept.name,), "entity_model": None})
            if concept.entity_types
            else concept
            for concept in concepts
        )
    table = pa.table(columns)
    pq.write_table(table, directory / "corpus.parquet")
    source = InputConfig(path=str(directory / "corpus.parquet"), annotations="spans" if entities else None)
    return Prepared(source, concepts, utility, table.num_rows)


def _drawn(table: pa.Table, count: int | None) -> pa.Table:
    if count is None or count >= table.num_rows:
        return table
    return table.take(np.sort(np.random.default_rng(0).choice(table.num_rows, count, replace=False)))


def _pairs(table: pa.Table, data: PairsData) -> tuple[dict[str, Any], pa.Table]:
    left, right = table[data.left].to_pylist(), table[data.right].to_pylist()
    ids = {text: f"s{number}" for number, text in enumerate(dict.fromkeys([*left, *right]))}
    pairs = pa.table(
        {
            "left": [ids[text] for text in left],
            "right": [ids[text] for text in right],
            "score": table[data.score],
            "split": table[data.split].cast(pa.string()),
        }
    )
    scored = pairs.filter(pc.equal(pairs["split"], data.scored))
    if scored.num_rows == 0:
        raise SparseError(f"data: {data.file} has no row with {data.scored!r} in the column {data.split}.")
    return {"id": pa.array(list(ids.values())), "text": pa.array(list(ids))}, scored.drop_columns("split")


def _answers(data: AnswersData, files: dict[str, Path], records: int | None) -> tuple[dict[str, Any], pa.Table]:
    answers, others = (_drawn(pq.read_table(files[name]), records) for name in (data.file, data.others))
    queries = pq.read_table(files[data.queries])
    asked = set(queries[data.query].to_pylist())
    other = [
        (f"other-{name}", text)
        for name, text in zip(others[data.other_id].to_pylist(), others[data.other].to_pylist(), strict=True)
        if text not in asked
    ]
    ids = [f"answer-{name}" for name in answers[data.id].to_pylist()]
    columns = {
        "id": pa.array([*ids, *(name for name, _ in other)]),
        "text": pa.array([*answers[data.text].to_pylist(), *(text for _, text in other)]),
    }
    named = pa.table(
        {
            "query_id": queries[data.query_id].cast(pa.string()),
            "text": queries[data.query],
            "answer": [f"answer-{name}" for name in queries[data.answer].to_pylist()],
        }
    )
    return columns, named.filter(pc.is_in(named["answer"], pa.array(ids)))


def entities_of(concept: ConceptConfig) -> Concept:
    """The part of a concept that entities are, without its terms and patterns."""
    return concept.model_copy(update={"terms": (), "terms_file": None, "patterns": ()}).build()


def _annotated(texts: Sequence[str], concepts: Sequence[ConceptConfig], annotations: list | None) -> list[list[dict]]:
    """The entities of every concept, under its name, without function words."""
    found: list[list[dict]] = [[] for _ in texts]
    for concept in concepts:
        if not concept.entity_types:
            continue
        with steps(f"Finding entities ({concept.name})") as advance:
            spans = find_spans(texts, entities_of(concept), annotations=annotations, progress=advance)
        for row, (text, within) in enumerate(zip(texts, spans, strict=True)):
            for span in within:
                for start, end in _runs(text, span):
                    found[row].append({"start": start, "end": end, "label": concept.name})
    return found


def _runs(text: str, span: Span) -> list[tuple[int, int]]:
    """The stretches of a span between its function words."""
    runs: list[tuple[int, int]] = []
    open_run = False
    for match in WORD.finditer(text, span.start, span.end):
        if fold_word(match.group()) in _FUNCTION_WORDS:
            open_run = False
        elif open_run:
            runs[-1] = (runs[-1][0], match.end())
        else:
            runs.append(match.span())
            open_run = True
    return runs
