"""The published dataset: files that are whole or absent, numbers as the manifest says, and tools that read it."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from jobs import outputs, storage
from jobs.config import OutputConfig
from jobs.outputs import FileRecord, PartWriter, public_scale, vector_array
from sparse_core.errors import SparseError
from sparse_core.policy import Policy

SMALL_GROUPS = OutputConfig(row_group_rows=100)


@pytest.fixture(scope="module")
def table(small):
    return small.table()


@pytest.fixture(scope="module")
def released(small):
    return small.released


def write(output, table, config=SMALL_GROUPS, *, name="a", batch=250) -> FileRecord:
    with PartWriter(str(output), config, name=name) as part:
        for start in range(0, len(table), batch):
            part.write(table.slice(start, batch))
    return part.file


def config_of(format, precision="float32") -> OutputConfig:
    package = {"delta": "deltalake", "lance": "lance"}.get(format)
    if package:
        pytest.importorskip(package)
    return OutputConfig(format=format, precision=precision, row_group_rows=100)


every_format = pytest.mark.parametrize("format", ["parquet", "delta", "lance"])


# Files


def test_a_part_holds_the_rows_written_to_it_in_row_groups_of_the_configured_size(tmp_path, table):
    file = write(tmp_path, table)
    found = pq.ParquetFile(tmp_path / file.path)
    assert [found.metadata.row_group(n).num_rows for n in range(found.num_row_groups)] == [100] * 6
    assert found.read().equals(table)
    assert found.schema_arrow.field("embedding").type == pa.list_(pa.float32(), 384)
    assert found.metadata.row_group(0).column(0).compression == "ZSTD"


@every_format
def test_a_file_record_tells_path_rows_bytes_and_checksum(tmp_path, table, format):
    file = write(tmp_path, table, config_of(format))
    content = (tmp_path / file.path).read_bytes()
    assert (file.rows, file.bytes, file.sha256) == (600, len(content), hashlib.sha256(content).hexdigest())
    assert json.loads(json.dumps(file.listed)) == {
        "path": file.path,
        "rows": 600,
        "bytes": file.bytes,
        "sha256": file.sha256,
    }


@every_format
@pytest.mark.parametrize("batch", [7, 100, 600])
def test_the_same_rows_are_the_same_bytes_however_they_arrive(tmp_path, table, format, batch):
    config = config_of(format)
    assert write(tmp_path, table, config, batch=batch) == write(tmp_path / "again", table, config)


@every_format
def test_a_part_without_rows_leaves_no_file(tmp_path, table, format):
    assert write(tmp_path, table.slice(0, 0), config_of(format)) is None
    assert not list(tmp_path.rglob("part-*"))


@every_format
def test_a_part_that_fails_half_way_leaves_nothing(tmp_path, table, format):
    class Broken(Exception): ...

    with pytest.raises(Broken), PartWriter(str(tmp_path), config_of(format), name="a") as part:
        part.write(table)
        raise Broken
    assert part.file is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@every_format
def test_nothing_is_visible_while_a_part_is_written(tmp_path, table, format):
    with PartWriter(str(tmp_path), config_of(format), name="a") as part:
        part.write(table)
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert part.file.rows == 600


def test_a_written_part_replaces_an_older_one_of_its_name(tmp_path, table):
    write(tmp_path, table.slice(0, 10))
    file = write(tmp_path, table)
    assert pq.read_table(tmp_path / file.path).num_rows == 600


def test_folders_beside_the_dataset_are_parquet_whatever_its_format(tmp_path, table):
    with PartWriter(str(tmp_path), config_of("lance"), name="a", folder="quarantine") as part:
        part.write(table.select(["id"]))
    assert part.file.path == "quarantine/part-a.parquet"
    assert pq.read_table(tmp_path / part.file.path).equals(table.select(["id"]))


def test_a_writer_holds_no_more_than_a_row_group_and_a_table(tmp_path, table):
    """Peak of Arrow's memory while 60 times the table is written, against the table itself."""
    pool = pa.default_memory_pool()
    with PartWriter(str(tmp_path), OutputConfig(row_group_rows=600), name="a") as part:
        part.write(table)
        before, most = pool.bytes_allocated(), 0
        for _ in range(60):
            part.write(table)
            most = max(most, pool.bytes_allocated() - before)
    assert part.file.rows == 61 * 600
    assert most < 4 * table.nbytes


# Tables of files


def read_back(output, format) -> pa.Table:
    if format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(f"{output}/embeddings").to_pyarrow_table()
    if format == "lance":
        import lance

        return lance.dataset(f"{output}/embeddings.lance").to_table()
    return pyarrow.dataset.dataset(Path(output) / "embeddings", format="parquet").to_table()


@every_format
def test_a_committed_dataset_has_every_row_once_and_no_stray_files(tmp_path, table, small, format):
    config = config_of(format)
    small.write(tmp_path, config)
    if format != "parquet":
        write(tmp_path, table.slice(0, 50), config, name="stray")
    found = read_back(tmp_path, format)
    assert found["id"].to_pylist() == table["id"].to_pylist()
    np.testing.assert_array_equal(outputs.as_float32(found["embedding"]), outputs.as_float32(table["embedding"]))


@pytest.mark.parametrize("format", ["delta", "lance"])
def test_committing_twice_is_committing_once(tmp_path, table, small, format):
    config = config_of(format)
    files = small.write(tmp_path, config)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    outputs.commit(str(tmp_path), config, files)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    assert outputs.listed(str(tmp_path), format) == {file.path for file in files}
    log = {"delta": "embeddings/_delta_log/*.json", "lance": "embeddings.lance/_versions/*.manifest"}[format]
    assert len(list(tmp_path.glob(log))) == 1


@pytest.mark.parametrize("format", ["delta", "lance"])
def test_a_table_of_other_files_is_refused(tmp_path, table, small, format):
    config = config_of(format)
    files = small.write(tmp_path, config)
    with pytest.raises(SparseError, match="already a table, and of other files"):
        outputs.commit(str(tmp_path), config, [*files, write(tmp_path, table, config, name="more")])


@pytest.mark.parametrize("format", ["delta", "lance"])
def test_a_dataset_that_was_never_committed_is_no_table(tmp_path, table, format):
    write(tmp_path, table, config_of(format))
    assert outputs.listed(str(tmp_path), format) is None


def test_file_records_survive_json_and_still_make_a_lance_dataset(tmp_path, table):
    config = config_of("lance")
    files = [FileRecord(**json.loads(json.dumps(asdict(write(tmp_path, table, config)))))]
    outputs.commit(str(tmp_path), config, files)
    assert read_back(tmp_path, "lance").num_rows == 600


def test_lance_keeps_lists_structs_and_categories_of_several_parts(tmp_path):
    config = config_of("lance")
    parts = [
        pa.table(
            {
                "id": [f"{part}-{row}" for row in range(4)],
                "kind": pa.array([f"kind {part}", "other", None, "other"]).dictionary_encode(),
                "tags": [[str(row)] * row or None for row in range(4)],
                "where": [{"line": row, "file": "f"} for row in range(4)],
            }
        )
        for part in range(3)
    ]
    files = [write(tmp_path, table, config, name=str(number)) for number, table in enumerate(parts)]
    outputs.commit(str(tmp_path), config, files)
    assert read_back(tmp_path, "lance").to_pylist() == [row for table in parts for row in table.to_pylist()]


def test_delta_keeps_times_and_unsigned_numbers_by_widening_them(tmp_path):
    config = config_of("delta")
    moments = pa.array([1_700_000_000_000_000_000, None], pa.timestamp("ns", "UTC"))
    table = pa.table({"id": ["a", "b"], "age": pa.array([255, 0], pa.uint8()), "seen": moments})
    outputs.commit(str(tmp_path), config, [write(tmp_path, table, config)])
    found = read_back(tmp_path, "delta")
    assert found["age"].to_pylist() == [255, 0]
    assert found["seen"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_000, None]


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.duration("s"), pa.list_(pa.uint8()), pa.float16(), pa.null()])
def test_columns_that_delta_cannot_hold_are_refused_by_name_before_anything_is_written(kind):
    config = config_of("delta")
    with pytest.raises(SparseError, match=r"'odd'.*Delta"):
        outputs.check_format(config, pa.schema([("id", pa.string()), ("odd", kind)]))


def test_delta_refuses_a_number_that_its_widest_type_cannot_hold(tmp_path):
    table = pa.table({"id": ["a"], "seen": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(SparseError, match="'seen'"):
        write(tmp_path, table, config_of("delta"))


# Precision


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@every_format
def test_vectors_come_back_as_float32_whatever_the_format_and_precision(tmp_path, small, format, precision):
    if (format, precision) == ("delta", "float16"):
        pytest.skip("Delta Lake has no 16-bit floats")
    released, scale = small.released, public_scale(small.policy, precision)
    small.write(tmp_path, config_of(format, precision))
    read = list(outputs.read_published(str(tmp_path), columns=["id"]))
    vectors = np.concatenate([vectors for _, vectors in read])
    assert [record for ids, _ in read for record in ids["id"].to_pylist()] == small.corpus["id"].to_pylist()
    assert vectors.dtype == np.float32
    step = {"float32": 0.0, "float16": 2**-11 * np.abs(released), "int8": (scale or 0) / 2}[precision]
    assert (np.abs(vectors - released) <= step + 1e-7).all()


@pytest.mark.parametrize(("precision", "cosine_error"), [("float16", 1e-6), ("int8", 2e-3)])
def test_rounding_turns_vectors_by_little(small, precision, cosine_error):
    released, scale = small.released, public_scale(small.policy, precision)
    rounded = outputs.as_float32(vector_array(released, precision, scale), scale).astype(np.float64)
    cosines = (rounded * released).sum(axis=1) / np.linalg.norm(rounded, axis=1) / np.linalg.norm(released, axis=1)
    assert (1 - cosines).max() < cosine_error
    assert outputs.count_clipped(released, precision, scale) == 0


@pytest.mark.parametrize("mechanism", ["laplace", "mahalanobis", "gaussian", "purkayastha", "none"])
@pytest.mark.parametrize("changes", [{}, {"unit_norm": True}, {"read_out": "none"}], ids=["", "unit", "raw"])
def test_the_public_scale_fits_real_releases_of_every_policy(small, mechanism, changes):
    built = Policy.build(
        encoder=small.policy.encoder,
        mechanism=mechanism,
        mask=small.policy.mask,
        rho=None if mechanism == "none" else 1.2,
        floor=0.03,
        **changes,
    )
    released = small.release(built)
    scale = public_scale(built, "int8")
    assert outputs.count_clipped(released, "int8", scale) / released.size < 1e-5
    # Wide enough, and not so wide that steps are wasted.
    assert np.abs(released).max() > 127 * scale / 4


def test_without_a_mask_unit_vectors_bound_the_scale_and_others_have_none(small):
    laplace = {"mechanism": "laplace", "rho": 2, "read_out": "none"}
    built = Policy.build(encoder=small.policy.encoder, **laplace)
    assert outputs.count_clipped(small.release(built), "int8", public_scale(built, "int8")) == 0
    assert public_scale(Policy.build(encoder=small.policy.encoder, **laplace, unit_norm=True), "int8") == pytest.approx(
        1 / 127, rel=0.01
    )
    with pytest.raises(SparseError, match="int8 needs a scale"):
        unbounded = replace(small.policy.encoder, normalize=False)
        public_scale(Policy.build(encoder=unbounded, embedding_norm=1.0, **laplace), "int8")


def test_the_scale_does_not_depend_on_the_last_bits_of_a_mask(small):
    spec = replace(small.policy.encoder, dimension=24)
    mask = small.mask(small.embeddings[:, :24], spec)
    nudged = replace(mask, covariance=mask.covariance * (1 + 1e-13))
    built = [Policy.build(encoder=spec, mechanism="laplace", rho=1, mask=m) for m in (mask, nudged)]
    assert len({public_scale(policy, "int8") for policy in built}) == 1


def test_int8_clips_what_is_out_of_range_and_counts_it():
    vectors = np.array([[1.27, -1.28, 5.0, 0.014]], np.float32)
    assert vector_array(vectors, "int8", 0.01).to_pylist() == [[127, -127, 127, 1]]
    assert outputs.count_clipped(vectors, "int8", 0.01) == 1 + 1
    assert vector_array(np.array([[1e6]], np.float32), "float16").to_pylist() == [[65504.0]]


def test_the_column_tells_its_precision_and_scale(tmp_path, small):
    scale = public_scale(small.policy, "int8")
    file = write(tmp_path, small.table("int8"))
    told = pq.read_schema(tmp_path / file.path).field("embedding").metadata
    assert told[b"sparse.precision"] == b"int8"
    assert float(told[b"sparse.scale"]) == scale


def test_delta_and_float16_do_not_go_together():
    with pytest.raises(ValueError, match="no 16-bit floats"):
        OutputConfig(format="delta", precision="float16")


# Manifest


@every_format
def test_the_manifest_tells_files_schema_policy_guarantee_and_precision(tmp_path, small, format):
    files = small.write(tmp_path, config_of(format))
    manifest = outputs.read_manifest(str(tmp_path))
    assert manifest["files"] == [file.listed for file in files]
    assert manifest["rows"] == 600 and manifest["bytes"] == sum(file.bytes for file in files)
    kind = "list<element: float>" if format == "delta" else "fixed_size_list<item: float>[384]"
    assert manifest["schema"]["embedding"] == kind
    assert list(manifest["schema"]) == ["id", "embedding", "section", "policy"]
    assert manifest["policy_hash"] == small.policy.hash
    assert manifest["guarantee"]["epsilon"] == small.policy.guarantee().epsilon
    assert (manifest["format"], manifest["precision"], manifest["scale"]) == (format, "float32", None)
    assert manifest["source_fingerprint"] == "f00d"


@every_format
def test_an_intact_output_verifies(tmp_path, small, format):
    small.write(tmp_path, config_of(format))
    assert outputs.verify(str(tmp_path), checksums=True) == []


@every_format
def test_verifying_finds_missing_cut_and_changed_files(tmp_path, small, format):
    files = small.write(tmp_path, config_of(format))
    missing, cut, changed = (tmp_path / file.path for file in files)
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    problems = outputs.verify(str(tmp_path), checksums=True)
    for path, problem, told in zip((missing, cut, changed), problems, ("missing", "bytes", "SHA-256"), strict=True):
        assert path.name in problem and told in problem
    assert len(outputs.verify(str(tmp_path))) == 2


def test_verifying_finds_files_that_a_reader_of_the_folder_would_read_too(tmp_path, table, small):
    small.write(tmp_path, SMALL_GROUPS)
    write(tmp_path, table, name="stray")
    assert "part-stray.parquet is not in the manifest" in outputs.verify(str(tmp_path))[0]


def test_verifying_finds_a_table_of_other_files(tmp_path, small):
    config = config_of("delta")
    small.write(tmp_path, config)
    (tmp_path / "embeddings/_delta_log/00000000000000000000.json").unlink()
    assert "does not consist of" in outputs.verify(str(tmp_path))[0]


def test_an_output_without_a_manifest_cannot_be_verified(tmp_path):
    with pytest.raises(SparseError, match="not a finished release"):
        outputs.verify(str(tmp_path))


# Tools that read the dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("dataset")
    small.write(folder, SMALL_GROUPS)
    (folder / "embeddings" / ".tmp0a1b").write_bytes(b"PAR1 cut sho")
    return folder / "embeddings"


def test_pandas_reads_the_folder(dataset, released):
    frame = pd.read_parquet(dataset)
    np.testing.assert_array_equal(np.vstack(frame["embedding"]), released)


def test_duckdb_reads_the_folder_and_searches_it(dataset, table, released):
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.execute(
        f"""select id, array_inner_product(embedding::float[384], $1::float[384]) as score
        from '{dataset}/*.parquet' order by score desc limit 3""",
        [released[5].tolist()],
    ).fetchall()
    best = np.argsort(-(released @ released[5]))[:3]
    assert [record for record, _ in rows] == [table["id"][int(row)].as_py() for row in best]


def test_polars_reads_the_folder(dataset, released):
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(f"{dataset}/*.parquet")
    assert frame.schema["embedding"] == polars.Array(polars.Float32, 384)
    np.testing.assert_array_equal(frame["embedding"].to_numpy(), released)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_duckdb_and_polars_read_the_small_precisions(tmp_path, small, precision):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    released, scale = small.released, public_scale(small.policy, precision)
    file = write(tmp_path, small.table(precision))
    stored = {"float16": released.astype(np.float16), "int8": np.rint(released / np.float64(scale))}[precision]
    by_duckdb = duckdb.sql(f"select embedding from '{tmp_path / file.path}'").to_arrow_table()["embedding"].to_numpy()
    for read in (np.vstack(by_duckdb), polars.read_parquet(tmp_path / file.path)["embedding"].to_numpy()):
        np.testing.assert_array_equal(read.astype(np.float64), stored.astype(np.float64))


def test_faiss_indexes_the_column(dataset, released):
    faiss = pytest.importorskip("faiss")
    column = pyarrow.dataset.dataset(dataset).to_table(columns=["embedding"])["embedding"]
    matrix = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
    index = faiss.IndexFlatIP(matrix.shape[1])
    index.add(matrix)
    _, found = index.search(released[:20], 5)
    expected = np.argsort(-(released[:20] @ released.T), axis=1)[:, :5]
    assert (found == expected).mean() > 0.95


def test_lancedb_opens_a_lance_release_as_a_table_and_searches_it(tmp_path, table, small):
    lancedb = pytest.importorskip("lancedb")
    small.write(tmp_path, config_of("lance"))
    released = small.released
    opened = lancedb.connect(str(tmp_path)).open_table("embeddings")
    found = opened.search(released[5], vector_column_name="embedding").distance_type("dot").limit(3).to_arrow()
    best = np.argsort(-(released @ released[5]))[:3]
    assert found["id"].to_pylist() == [table["id"][int(row)].as_py() for row in best]


def test_lancedb_takes_in_a_parquet_release(tmp_path, dataset, table):
    lancedb = pytest.importorskip("lancedb")
    batches = pyarrow.dataset.dataset(dataset).to_batches()
    made = lancedb.connect(str(tmp_path)).create_table("embeddings", batches, schema=table.schema)
    assert made.count_rows() == 600


def test_qdrant_takes_in_the_rows(dataset, table, released):
    qdrant = pytest.importorskip("qdrant_client")
    client = qdrant.QdrantClient(":memory:")
    models = qdrant.models
    client.create_collection("release", models.VectorParams(size=384, distance=models.Distance.DOT))
    number = 0
    for batch in pyarrow.dataset.dataset(dataset).to_batches():
        points = [
            models.PointStruct(id=number + row, vector=record.pop("embedding"), payload=record)
            for row, record in enumerate(batch.to_pylist())
        ]
        client.upsert("release", points)
        number += len(points)
    (best,) = client.query_points("release", released[5].tolist(), limit=1).points
    assert best.payload["id"] == table["id"][int(np.argmax(released @ released[5]))].as_py()


def test_polars_reads_a_delta_release_with_its_categories(tmp_path, small):
    polars = pytest.importorskip("polars")
    small.write(tmp_path, config_of("delta"))
    frame = polars.read_delta(f"{tmp_path}/embeddings")
    np.testing.assert_array_equal(np.vstack(frame["embedding"]), small.released)
    assert frame["policy"].unique().to_list() == [small.policy.hash[:16]]


def test_duckdb_reads_the_files_of_a_delta_release(tmp_path, small):
    duckdb = pytest.importorskip("duckdb")
    small.write(tmp_path, config_of("delta"))
    assert duckdb.sql(f"select count(*) from '{tmp_path}/embeddings/*.parquet'").fetchall() == [(600,)]


# Object storage


@every_format
def test_an_output_on_object_storage_is_the_same_dataset(s3, tmp_path, small, format):
    config = config_of(format)
    files = small.write(s3, config)
    outputs.commit(s3, config, files)
    assert files == small.write(tmp_path, config)
    assert outputs.verify(s3, checksums=True) == []
    vectors = np.concatenate([vectors for _, vectors in outputs.read_published(s3)])
    np.testing.assert_array_equal(vectors, small.released)
    if format != "parquet":
        assert outputs.listed(s3, format) == {file.path for file in files}


@every_format
def test_a_part_that_fails_on_object_storage_leaves_no_object(s3, table, format):
    class Broken(Exception): ...

    fs, path = storage.filesystem(s3)
    with pytest.raises(Broken), PartWriter(s3, config_of(format), name="a") as part:
        part.write(table)
        raise Broken
    assert not fs.exists(path) or fs.find(path) == []
