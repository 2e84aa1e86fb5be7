"""``sparse query``: trusted queries find among protected records what they would find among the originals."""

import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs.cli import main
from jobs.config import OutputConfig
from jobs.outputs import as_float32, read_published
from sparse_core.evaluation import retrieval
from sparse_core.policy import Policy


@pytest.fixture(scope="module")
def output(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("output")
    small.write(folder, OutputConfig(precision="int8"))
    return folder


@pytest.fixture
def ask(small, output, tmp_path):
    """Run the command on a table of queries; its exit status."""

    def run(table, *overrides):
        pq.write_table(table, tmp_path / "asked.parquet")
        settings = {
            "output": str(tmp_path / "out"),
            "release": str(output),
            "input": {"path": str(tmp_path / "asked.parquet")},
            "encoder": {"device": "cpu"},
        }
        (tmp_path / "query.yaml").write_text(yaml.safe_dump(settings))
        return main(["query", "--config", str(tmp_path / "query.yaml"), *overrides])

    return run


@pytest.mark.parametrize("umask", [0o022, 0])
def test_queries_are_for_their_owner_from_the_first_byte_whatever_the_umask(small, ask, tmp_path, monkeypatch, umask):
    modes, write_table = [], pq.ParquetWriter.write_table

    def watched(self, table, **options):
        write_table(self, table, **options)
        modes.extend(path.stat().st_mode & 0o777 for path in (tmp_path / "out").glob(".*"))

    monkeypatch.setattr(pq.ParquetWriter, "write_table", watched)
    before = os.umask(umask)
    try:
        assert ask(asked(small)) == 0
    finally:
        os.umask(before)
    assert set(modes) == {0o600}
    assert (tmp_path / "out" / "queries.parquet").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "out" / "summary.json").stat().st_mode & 0o777 == 0o666 & ~umask


def asked(small, step=40) -> pa.Table:
    return small.corpus.take(list(range(0, 600, step)))


def test_queries_become_the_vectors_that_the_policy_wants(small, ask, tmp_path):
    table = asked(small)
    assert ask(table, "passthrough=[section]") == 0
    found = pq.read_table(tmp_path / "out" / "queries.parquet")
    assert found.schema.field("embedding").type == pa.list_(pa.float32(), 384)
    assert found.drop(["embedding"]).equals(table.select(["id", "section"]))
    expected = small.policy.query_transform(small.embeddings[::40])
    np.testing.assert_allclose(as_float32(found["embedding"]), expected, atol=1e-6)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["job"], summary["policy_hash"]) == ("query", small.policy.hash)
    assert summary["counts"] == {"rows_in": 15, "rows_out": 15, "quarantined": {}}


def test_queries_find_no_less_in_the_release_than_plain_ones_among_raw_releases(small, ask, output, tmp_path):
    """nDCG@10 of the neighbours that the original vectors have; the raw release is the same noise without read-out."""
    assert ask(asked(small, step=4)) == 0
    transformed = as_float32(pq.read_table(tmp_path / "out" / "queries.parquet")["embedding"])
    plain = small.embeddings[::4]
    nearest = np.argsort(-(plain @ small.embeddings.T), axis=1)[:, 1:11]
    relevant = [{int(row): 1.0 for row in rows} for rows in nearest]
    raw = Policy.build(
        encoder=small.policy.encoder,
        mechanism="mahalanobis",
        mask=small.policy.mask,
        epsilon=small.policy.epsilon,
        floor=small.policy.floor,
        read_out="none",
    )
    published = np.concatenate([vectors for _, vectors in read_published(str(output))])

    def ndcg(queries, records):
        return retrieval(queries, records, relevant, generator=np.random.default_rng(0)).score

    searched, unread = ndcg(transformed, published), ndcg(plain, small.release(raw))
    print(f"nDCG@10: release, as int8 {searched:.3f}; raw release {unread:.3f}")
    assert searched >= unread
    assert ndcg(transformed, small.released) == pytest.approx(searched, abs=0.01)


def test_unusable_queries_are_set_apart_with_reason_and_place(small, ask, tmp_path, capsys):
    table = pa.table({"id": ["a", "b", "c"], "text": ["Is asthma mentioned?", " ", None]})
    assert ask(table) == 0
    assert pq.read_table(tmp_path / "out" / "queries.parquet")["id"].to_pylist() == ["a"]
    rejected = pq.read_table(tmp_path / "out" / "quarantine.parquet").to_pylist()
    assert [(row["id"], row["reason"]) for row in rejected] == [("b", "blank_text"), ("c", "null_text")]
    out = " ".join(capsys.readouterr().out.split())
    assert "1 queries, 2 quarantined" in out and "not protected" in out


def test_queries_may_be_vectors(small, ask, tmp_path):
    vectors = small.embeddings[:7].astype(np.float64)
    table = pa.table({"id": list(range(7)), "vector": list(vectors)})
    assert ask(table, "encoder=none", "input.embedding=vector") == 0
    found = pq.read_table(tmp_path / "out" / "queries.parquet")
    assert found["id"].to_pylist() == list(range(7))
    np.testing.assert_allclose(as_float32(found["embedding"]), small.policy.query_transform(vectors), atol=1e-7)


@pytest.mark.parametrize("own", ["prompt=query: ", "backend=torch", "backend=onnx"])
def test_a_prompt_or_backend_of_their_own_does_not_make_queries_strangers(small, ask, own):
    assert ask(asked(small), f"encoder.{own}") == 0


def refused(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_vectors_of_another_dimension_are_refused(small, ask, capsys):
    table = pa.table({"id": [0], "vector": [[1.0, 2.0]]})
    assert ask(table, "encoder=none", "input.embedding=vector") == 2
    assert "2 dimensions" in refused(capsys)


def test_another_encoder_is_refused(small, ask, output, tmp_path, capsys):
    assert ask(asked(small), "encoder.normalize=false", "--dry-run") == 0
    other = tmp_path / "other"
    spec = replace(small.policy.encoder, weights_sha256="b" * 64)
    Policy.build(encoder=spec, mechanism="laplace", rho=1, read_out="none").save(other / "policy")
    (other / "manifest.json").write_text("{}")
    assert ask(asked(small), f"release={other}") == 2
    assert "weights_sha256" in refused(capsys)
    assert not (tmp_path / "out" / "queries.parquet").exists()


def test_text_cannot_be_asked_of_vectors_computed_elsewhere(small, ask, tmp_path, capsys):
    spec = replace(small.policy.encoder, weights_sha256="")
    Policy.build(encoder=spec, mechanism="laplace", rho=1, read_out="none").save(tmp_path / "other" / "policy")
    (tmp_path / "other" / "manifest.json").write_text("{}")
    assert ask(asked(small), f"release={tmp_path / 'other'}") == 2
    assert "computed elsewhere" in refused(capsys)


def test_a_release_without_a_policy_is_refused_before_anything_is_read(small, ask, tmp_path, capsys):
    assert ask(asked(small), f"release={tmp_path}", "--dry-run") == 2
    assert "has no policy" in refused(capsys)


def test_queries_do_not_overwrite_the_release(small, ask, output, capsys):
    assert ask(asked(small), f"output={output}") == 2
    assert "holds the output of privatize" in refused(capsys)


def test_no_usable_query_is_an_error(small, ask, tmp_path, capsys):
    assert ask(pa.table({"id": ["a"], "text": [" "]})) == 2
    assert "no usable query" in refused(capsys)
    assert not (tmp_path / "out" / "queries.parquet").exists()


def test_a_dry_run_writes_nothing(small, ask, tmp_path, capsys):
    assert ask(asked(small), "--dry-run") == 0
    assert "queries of" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_release_that_is_not_finished_is_refused(small, ask, tmp_path, capsys):
    small.write(tmp_path / "cut", finished=False)
    assert ask(asked(small), f"release={tmp_path / 'cut'}") == 2
    assert "is not a finished release" in " ".join(capsys.readouterr().err.split())
