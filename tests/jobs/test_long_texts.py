"""Texts longer than the encoder reads: cut off and counted, or released chunk by chunk."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import ledger, privatize
from jobs.config import PrivatizeConfig
from jobs.stages import chunker_of
from sparse_core.budget import compose
from sparse_core.noise import Key, write_new_key
from sparse_core.policy import Policy

CHUNK = {"tokens": 48, "overlap": 8}


@pytest.fixture(scope="module")
def room(tmp_path_factory, clinical):
    room = tmp_path_factory.mktemp("long")
    sentences = clinical["text"].to_pylist()
    rows = [{"id": n, "text": " ".join(sentences[40 * n : 40 * n + length])} for n, length in enumerate((1, 12, 40, 2))]
    pq.write_table(pa.Table.from_pylist([{**row, "section": f"s{row['id']}"} for row in rows]), room / "in.parquet")
    write_new_key(room / "key")
    return room, {row["id"]: row["text"] for row in rows}


def released(room, name, **fields):
    settings = {
        "input": {"path": str(room / "in.parquet")},
        "passthrough": ["section"],
        "output": str(room / name),
        "protection": {"mechanism": "laplace", "rho": 1.0, "read_out": "none"},
        "key": {"file": str(room / "key")},
        "workers": {"actors": 1},
        "tracking": {"enabled": False},
    }
    config = PrivatizeConfig(**settings | fields)
    return config, privatize.run(config)


def test_without_chunks_what_is_cut_off_is_counted(room):
    _, summary = released(room[0], "whole")
    assert (summary.rows_out, summary.details["truncated"]) == (4, 1)


def test_chunks_are_records_that_name_their_text(room, job_encoder):
    folder, texts = room
    config, summary = released(folder, "chunked", chunk=CHUNK)
    table = pq.read_table(f"{config.output}/embeddings")
    rows = sorted(table.to_pylist(), key=lambda row: (row["parent"], row["chunk"]))
    assert [row["id"] for row in rows] == [f"{row['parent']}#{row['chunk']}" for row in rows]
    assert {row["parent"] for row in rows} == set(texts) and summary.details["truncated"] == 0
    assert all(row["section"] == f"s{row['parent']}" for row in rows)

    chunker = chunker_of(config.chunk, job_encoder).keywords["chunker"]
    contents = [chunk for parent in sorted(texts) for chunk in chunker.split(texts[parent])]
    policy = Policy.load(f"{config.output}/policy", encoder=job_encoder.spec)
    ids = [row["id"] for row in rows]
    expected = policy.release(
        job_encoder.encode(contents),
        ids=ids,
        subjects=[str(row["parent"]) for row in rows],
        contents=contents,
        key=Key.from_file(folder / "key"),
    )
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)
    spent = compose(ledger.read([config.output]))
    assert (len(spent), spent.releases.sum()) == (len(texts), len(rows))


def test_the_same_chunks_again_cost_nothing(room):
    folder, _ = room
    first, summary = released(folder, "first", chunk=CHUNK)
    _, again = released(folder, "again", chunk=CHUNK, budget={"include": [first.output]})
    assert again.details["budget"]["subjects"] == 4 and again.rows_out == summary.rows_out
    assert again.details["budget"]["subjects_released_anew"] == 0
