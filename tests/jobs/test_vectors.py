"""Vectors that were computed elsewhere, protected as they are."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import ledger, outputs, privatize
from jobs.config import PrivatizeConfig
from sparse_core.budget import compose
from sparse_core.errors import SparseError
from sparse_core.noise import Key, write_new_key
from sparse_core.policy import Policy


@pytest.fixture(scope="module")
def vectors(clinical, encoder):
    return encoder.encode(clinical["text"].to_pylist()[:600])


@pytest.fixture(scope="module")
def room(tmp_path_factory, clinical, vectors):
    room = tmp_path_factory.mktemp("vectors")
    ids = clinical["id"].to_pylist()[:600]
    stored = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    pq.write_table(pa.table({"id": ids, "vector": stored}), room / "stored.parquet")
    bad = [*vectors[:3].tolist(), None, [0.0] * 384, [float("nan")] * 384, [1.0] * 383, vectors[3].tolist()]
    table = pa.table({"id": ["a", "b", "c", "d", "e", "f", "g", "a"], "vector": pa.array(bad, pa.list_(pa.float64()))})
    pq.write_table(table, room / "bad.parquet")
    pq.write_table(pa.table({"id": ids, "vector": [row.tolist() for row in 5 * vectors]}), room / "long.parquet")
    write_new_key(room / "key")
    return room


def settings(room, name, **fields):
    return PrivatizeConfig(
        **{
            "input": {"path": str(room / f"{name}.parquet"), "embedding": "vector"},
            "encoder": "none",
            "output": str(room / f"out-{name}"),
            "protection": {"mechanism": "laplace", "rho": 2.0, "read_out": "none"},
            "key": {"file": str(room / "key")},
            "workers": {"actors": 1},
            "tracking": {"enabled": False},
        }
        | fields
    )


def published_of(config, ids):
    """Published vectors in the order of some ids."""
    table = pq.read_table(f"{config.output}/embeddings", columns=["id", "embedding"])
    row_of = {record: row for row, record in enumerate(table["id"].to_pylist())}
    return np.stack(table["embedding"].to_numpy())[[row_of[record] for record in ids]]


@pytest.fixture(scope="module")
def ids(clinical):
    return clinical["id"].to_pylist()[:600]


@pytest.fixture(scope="module")
def release(room):
    config = settings(room, "stored")
    return config, privatize.run(config)


def test_stored_vectors_are_released_under_a_policy_as_encoded_ones_are(release, vectors, ids):
    config, summary = release
    policy = Policy.load(f"{config.output}/policy")
    contents = [np.rint(row / 2.0**-20).astype("<i8").tobytes() for row in vectors.astype(np.float64)]
    expected = policy.release(vectors, ids=ids, contents=contents, key=Key.from_file(config.key.file))
    assert np.array_equal(published_of(config, ids), expected)
    assert summary.details["guarantee"]["rho"] == pytest.approx(2.0)
    assert (len(compose(ledger.read([config.output]))), summary.rows_out) == (600, 600)


def test_a_vector_is_another_release_only_where_it_differs_on_the_grid(room, vectors, ids, release):
    config, _ = release
    nudged = vectors.astype(np.float64)
    nudged[::2] = np.rint(nudged[::2] * 2.0**20) / 2.0**20 + 1e-8
    nudged[1::2, 0] += 4 * 2.0**-20
    pq.write_table(pa.table({"id": ids, "vector": [row.tolist() for row in nudged]}), room / "nudged.parquet")
    again = settings(room, "nudged", budget={"include": [config.output]})
    assert privatize.run(again).details["budget"]["subjects_released_anew"] == 300
    same = (published_of(config, ids) == published_of(again, ids)).all(axis=1)
    assert same.tolist() == [True, False] * 300


def test_vectors_that_cannot_be_used_are_quarantined_with_their_reason(room):
    config = settings(room, "bad")
    summary = privatize.run(config)
    reasons = {"null_vector", "zero_vector", "non_finite_vector", "wrong_length_vector", "duplicate_id"}
    assert summary.quarantined == dict.fromkeys(reasons, 1)
    assert (summary.rows_in, summary.rows_out) == (8, 3)
    apart = pq.read_table(f"{config.output}/quarantine").to_pylist()
    assert {row["id"]: row["reason"] for row in apart}["a"] == "duplicate_id"
    assert all(row["position"].startswith(f"{room}/bad.parquet: row ") for row in apart)


def test_duplicate_ids_can_be_refused_instead(room):
    config = settings(room, "bad", output=str(room / "strict"), limits={"duplicate_ids": "fail"})
    with pytest.raises(SparseError, match=r"limits\.duplicate_ids: 1 rows"):
        privatize.run(config)
    assert not (room / "strict").exists()


def test_rho_for_vectors_that_are_not_of_norm_1_needs_their_norm(room, vectors, ids):
    with pytest.raises(SparseError, match=r"median norm of the first [0-9]+ vectors is 5\..*embedding_norm"):
        privatize.plan(settings(room, "long"))
    protection = {"mechanism": "laplace", "rho": 2.0, "read_out": "none", "embedding_norm": 5.0}
    config = settings(room, "long", protection=protection)
    privatize.run(config)
    moved = published_of(config, ids) - 5 * vectors
    assert np.median(np.linalg.norm(moved, axis=1)) == pytest.approx(10.0, rel=0.01)


def test_a_column_of_vectors_and_an_encoder_exclude_each_other(room):
    for fields in ({"encoder": {}}, {"input": {"path": str(room / "stored.parquet")}}):
        with pytest.raises(ValueError, match="go together"):
            settings(room, "stored", **fields)


@pytest.mark.parametrize("dataset", [{"format": "delta"}, {"format": "lance"}, {"precision": "float16"}], ids=str)
def test_every_form_of_the_dataset_holds_the_same_release(room, ids, release, dataset):
    config = settings(room, "stored", output=str(room / "-".join(dataset.values())), dataset=dataset)
    privatize.run(config)
    assert outputs.verify(config.output, checksums=True) == []
    tables, found = zip(*outputs.read_published(config.output, columns=["id"]), strict=True)
    order = [record for table in tables for record in table["id"].to_pylist()]
    assert sorted(order) == sorted(ids)
    tolerance = 1e-3 if "precision" in dataset else 0
    assert np.abs(np.concatenate(found) - published_of(release[0], order)).max() <= tolerance
    manifest = outputs.read_manifest(config.output)
    assert (manifest["rows"], manifest["source_fingerprint"]) == (600, release[1].details["fingerprints"]["data"])


def test_what_an_actor_refuses_ends_the_job_in_its_words(room, monkeypatch):
    (room / "changing.parquet").write_bytes((room / "stored.parquet").read_bytes())
    config = settings(room, "changing")
    hand_out = privatize.stream

    def change_first(*arguments, **options):
        table = pq.read_table(room / "changing.parquet")
        pq.write_table(table.slice(0, 500), room / "changing.parquet")
        yield from hand_out(*arguments, **options)

    monkeypatch.setattr(privatize, "stream", change_first)
    with pytest.raises(SparseError, match=r"changing\.parquet has changed since the run began"):
        privatize.run(config)
