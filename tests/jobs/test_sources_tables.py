"""Lists of paths, Hive partitions, Delta Lake and Lance tables; on a local disk and on S3."""

import base64
import datetime
import json
import os
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3_servers
from corpora import RECORDS, WRITERS, as_csv, as_jsonl, as_parquet, pairs, plan, read

from jobs import sources, storage
from jobs.config import InputConfig, StorageConfig
from sparse_core.errors import SparseError

DELTA, LANCE = pytest.importorskip("deltalake"), pytest.importorskip("lance")


def rows_of(source):
    """Every good row as a dictionary of its id and further columns."""
    batches = [rows for unit in source.units for rows in sources.read(source, unit)]
    return [{"id": i} | more for rows in batches for i, more in zip(rows.ids, rows.columns.to_pylist(), strict=True)]


# Lists and globs


def test_a_list_is_all_that_its_paths_name_in_their_order_and_once(put, tmp_path):
    paths = [
        put("z.jsonl", as_jsonl(RECORDS[:2])),
        put("in/b.csv", as_csv(RECORDS[2:4])),
        put("in/a.parquet", as_parquet(RECORDS[4:])),
    ]
    source = plan(tmp_path)
    listed = sources.plan(InputConfig(path=[paths[0], f"{tmp_path}/in/b*", f"{tmp_path}/in"]))
    assert read(listed)[0] == pairs(RECORDS[:2] + RECORDS[2:4] + RECORDS[4:])
    assert sorted(read(source)[0]) == sorted(read(listed)[0])


def test_a_path_of_a_list_that_names_nothing_is_told(put, tmp_path):
    with pytest.raises(SparseError, match=r"there is no file at .*nowhere"):
        sources.plan(InputConfig(path=[put("a.jsonl", as_jsonl(RECORDS)), f"{tmp_path}/nowhere"]))


def test_a_glob_takes_the_folders_it_matches_but_nothing_hidden(put, tmp_path):
    put("in/2023/a.jsonl", as_jsonl(RECORDS[:3]))
    put("in/2024/deep/a.jsonl", as_jsonl(RECORDS[3:]))
    put("in/2024/_tmp/a.jsonl", b"no data")
    put("in/other/a.jsonl", b"no data")
    assert read(plan(tmp_path / "in" / "20*"))[0] == pairs(RECORDS)
    assert read(plan(tmp_path / "in" / "20*" / "**" / "*.jsonl"))[0] == pairs(RECORDS)


# Hive partitions


def test_folders_named_key_value_become_columns(put, tmp_path):
    put("in/year=2023/ward=A%20%2F1/a.parquet", as_parquet(RECORDS[:1]))
    put("in/year=2024/ward=12/b.jsonl", as_jsonl(RECORDS[1:2]))
    put("in/year=2024/ward=__HIVE_DEFAULT_PARTITION__/c.csv", as_csv(RECORDS[2:3]))
    source = plan(tmp_path / "in", columns=("year", "ward", "section"))
    assert source.schema.field("year").type == pa.int64() and source.schema.field("ward").type == pa.string()
    assert rows_of(source) == [
        {"id": "r0", "year": 2023, "ward": "A /1", "section": "CC"},
        {"id": "r1", "year": 2024, "ward": "12", "section": "ROS"},
        {"id": "r2", "year": 2024, "ward": None, "section": "CC"},
    ]


def test_a_column_in_the_file_counts_more_than_its_folder(put, tmp_path):
    put("in/section=X/a.parquet", as_parquet(RECORDS[:1]))
    assert rows_of(plan(tmp_path / "in", columns=("section",))) == [{"id": "r0", "section": "CC"}]


def test_a_file_outside_the_partitions_is_told_with_the_column(put, tmp_path):
    put("in/year=2024/a.parquet", as_parquet(RECORDS[:1]))
    put("in/b.parquet", as_parquet(RECORDS[1:2]))
    with pytest.raises(SparseError, match=r"b\.parquet has no column 'year'"):
        plan(tmp_path / "in", columns=("year",))


# Files that do not fit together


@pytest.mark.parametrize("first", [pa.int64(), pa.string(), pa.list_(pa.string())])
def test_columns_of_two_types_are_refused_naming_files_and_column(tmp_path, first):
    values = {pa.int64(): 1, pa.string(): "x"}.get(first, ["x"])
    for name, kind, value in (("a", first, values), ("b", pa.float64(), 1.5)):
        table = pa.table({"id": [name], "text": ["words"], "score": pa.array([value], kind)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert len(read(plan(tmp_path))[0]) == 2
    with pytest.raises(SparseError, match=r"'score' is .* in .*a\.parquet and double in .*b\.parquet"):
        plan(tmp_path, columns=("score",))


def test_kinds_of_text_and_all_null_columns_fit_together(tmp_path):
    kinds = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.null()]
    for number, kind in enumerate(kinds):
        said = pa.array([None if pa.types.is_null(kind) else "words"], kind)
        pq.write_table(pa.table({"id": [number], "text": said, "note": said}), tmp_path / f"{number}.parquet")
    source = plan(tmp_path, columns=("note",))
    good, rejected = read(source)
    assert good == [(0, "words"), (1, "words"), (2, "words")]
    assert [(row.id, row.reason) for row in rejected] == [("3", "null_text")]
    assert [row["note"] for row in rows_of(source)] == ["words"] * 3


def test_numbers_in_json_lines_may_be_whole_in_one_file(put, tmp_path):
    put("in/a.jsonl", as_jsonl([{"id": 1, "text": "x", "score": 1}]))
    put("in/b.jsonl", as_jsonl([{"id": 2, "text": "y", "score": 2.5}]))
    put("in/c.jsonl", as_jsonl([{"id": 3, "text": "z", "score": None}]))
    found = rows_of(plan(tmp_path / "in", columns=("score",)))
    assert [row["score"] for row in found] == [1.0, 2.5, None]


# Delta Lake


def table(records, **columns):
    return pa.Table.from_pylist([record | columns for record in records])


def test_a_delta_table_is_its_current_version(tmp_path):
    path = str(tmp_path / "notes")
    DELTA.write_deltalake(path, table(RECORDS[:3]))
    DELTA.write_deltalake(path, table(RECORDS[3:]), mode="append")
    before = plan(path)
    assert sorted(read(before)[0]) == sorted(pairs(RECORDS)) and before.n_rows == len(RECORDS)
    DELTA.DeltaTable(path).delete("id = 'r1'")
    after = plan(path)
    assert sorted(read(after)[0]) == sorted(pairs(RECORDS[:1] + RECORDS[2:]))
    assert after.fingerprint != before.fingerprint
    DELTA.write_deltalake(path, table(RECORDS[:1]), mode="overwrite")
    assert read(plan(path))[0] == pairs(RECORDS[:1])


def test_partitions_and_later_columns_of_a_delta_table_come_along(tmp_path):
    path, day = str(tmp_path / "notes"), datetime.date(2024, 2, 29)
    DELTA.write_deltalake(path, table(RECORDS[:1], day=day, ward="a/b c"), partition_by=["day", "ward"])
    later = table(RECORDS[1:2], day=day, ward=None, score=1.5)
    later = later.set_column(later.schema.get_field_index("ward"), "ward", pa.array([None], pa.string()))
    DELTA.write_deltalake(path, later, mode="append", schema_mode="merge", partition_by=["day", "ward"])
    found = rows_of(plan(path, columns=("day", "ward", "score")))
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": "r0", "day": day, "ward": "a/b c", "score": None},
        {"id": "r1", "day": day, "ward": None, "score": 1.5},
    ]


def test_vectors_may_stand_in_delta_and_lance_tables(tmp_path):
    vectors = pa.table({"id": [1, 2], "v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))})
    DELTA.write_deltalake(str(tmp_path / "delta"), vectors)
    fixed = vectors.set_column(1, "v", vectors["v"].cast(pa.list_(pa.float32(), 2)))
    LANCE.write_dataset(fixed, str(tmp_path / "t.lance"))
    for path in (tmp_path / "delta", tmp_path / "t.lance"):
        source = plan(path, embedding="v")
        (rows,) = [rows for unit in source.units for rows in sources.read(source, unit)]
        assert (source.dimension, rows.vectors.tolist()) == (2, [[1, 2], [3, 4]])


def deletion_vector(*rows: int) -> dict:
    """Delta's inline form: a Roaring bitmap of deleted rows in base 85 of the alphabet of ZeroMQ."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = content + b"\0" * (-len(content) % 4)
    usual = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    zeromq = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(padded).translate(bytes.maketrans(usual, zeromq)).decode()
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(content), "cardinality": len(rows)}


def write_log(folder, *, features=(), configuration=None, **add):
    """A Delta table of one file, with a log as other writers leave it."""
    pq.write_table(table(RECORDS), folder / "a.parquet")
    names = [{"name": n, "type": "string", "nullable": True, "metadata": {}} for n in RECORDS[0]]
    features = list(features)
    actions = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "0",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": names}),
                "partitionColumns": [],
                "configuration": configuration or {},
                "createdTime": 0,
            }
        },
        {
            "add": {
                "path": "a.parquet",
                "partitionValues": {},
                "size": (folder / "a.parquet").stat().st_size,
                "modificationTime": 1,
                "dataChange": True,
                "stats": json.dumps({"numRecords": len(RECORDS)}),
                **add,
            }
        },
    ]
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def test_deleted_rows_that_still_stand_in_files_are_refused(tmp_path):
    write_log(tmp_path, features=["deletionVectors"], deletionVector=deletion_vector(1, 4))
    with pytest.raises(SparseError, match=r"has deletion vectors.*PURGE"):
        plan(tmp_path)


def test_a_delta_table_that_may_have_deletion_vectors_and_has_none_is_read(tmp_path):
    write_log(tmp_path, features=["deletionVectors"], configuration={"delta.enableDeletionVectors": "true"})
    assert read(plan(tmp_path))[0] == pairs(RECORDS)


def test_a_damaged_delta_log_is_told_in_one_sentence(tmp_path):
    write_log(tmp_path)
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("no log")
    with pytest.raises(SparseError, match=r"the Delta Lake table .* cannot be read") as error:
        plan(tmp_path)
    assert "\n" not in str(error.value)


# Lance


def test_a_lance_table_is_one_version_without_its_deleted_rows(tmp_path, clinical):
    path, records = str(tmp_path / "notes.lance"), clinical.slice(0, 3000).to_pylist()
    LANCE.write_dataset(clinical.slice(0, 3000), path, max_rows_per_file=700)
    LANCE.dataset(path).delete("section = 'ROS'")
    kept = [record for record in records if record["section"] != "ROS"]
    source = plan(path, columns=("section",))
    assert source.n_rows == len(kept) and len(source.units) > 4
    LANCE.dataset(path).delete("section = 'CC'")
    assert read(source) == (pairs(kept), [])
    assert [row["section"] for row in rows_of(source)] == [record["section"] for record in kept]
    assert plan(path).fingerprint != source.fingerprint


def test_a_damaged_lance_table_is_told(tmp_path):
    path = tmp_path / "notes.lance"
    LANCE.write_dataset(table(RECORDS), str(path))
    source = plan(path)
    for file in (path / "data").iterdir():
        file.unlink()
    with pytest.raises(SparseError, match=r"the Lance table .* cannot be read|there is no file"):
        read(source)
    for file in (path / "_versions").iterdir():
        file.write_bytes(b"nothing")
    with pytest.raises(SparseError, match=r"the Lance table .* cannot be read"):
        plan(path)


def test_a_name_with_brackets_is_a_name_if_there_is_such_a_file(put):
    assert read(plan(put("notes [v2]*.jsonl", as_jsonl(RECORDS))))[0] == pairs(RECORDS)


def test_tables_in_a_folder_are_read_as_tables_beside_its_files(put, tmp_path):
    LANCE.write_dataset(table(RECORDS[:2]), str(tmp_path / "in" / "a.lance"))
    for mode in ("error", "overwrite"):
        DELTA.write_deltalake(str(tmp_path / "in" / "b"), table(RECORDS[2:4]), mode=mode)
    put("in/c.jsonl", as_jsonl(RECORDS[4:]))
    for path in (tmp_path / "in", tmp_path / "in" / "*"):
        assert sorted(read(plan(path))[0]) == sorted(pairs(RECORDS))


@pytest.mark.parametrize(("library", "kind"), [("deltalake", "delta"), ("lance", "lance")])
def test_a_missing_library_is_told_with_the_extra_that_brings_it(tmp_path, monkeypatch, library, kind):
    DELTA.write_deltalake(str(tmp_path / "delta"), table(RECORDS))
    LANCE.write_dataset(table(RECORDS), str(tmp_path / "t.lance"))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SparseError, match=rf"needs the extra '{kind}'"):
        plan(tmp_path / ("delta" if kind == "delta" else "t.lance"))


# S3


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket on a server of its own, and how many requests it has answered."""
    with pytest.MonkeyPatch.context() as patch, s3_servers.moto_server() as server:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in s3_servers.environment().items():
            patch.setenv(name, value)
        s3_servers.create_bucket(server)
        with s3_servers.fault_proxy(server) as proxy:
            storage.configure(StorageConfig(endpoint=proxy.url, region="us-east-1"))
            yield proxy
        storage.configure(StorageConfig())


@pytest.fixture
def uploaded(bucket, tmp_path):
    """Upload a folder; its URL."""

    def upload(folder, name):
        fs, path = storage.filesystem(f"s3://{s3_servers.BUCKET}/{name}")
        fs.put(f"{folder}/", f"{path}/", recursive=True)
        return f"s3://{s3_servers.BUCKET}/{name}"

    return upload


def test_everything_reads_from_s3_as_from_a_disk(put, tmp_path, uploaded):
    root = tmp_path / "in"
    put("in/year=2023/a.parquet", as_parquet(RECORDS[:1]))
    put("in/year=2024/b.jsonl", as_jsonl(RECORDS[1:2]))
    put("in/year=2024/c.csv.zst", pa.compress(as_csv(RECORDS[2:3]), "zstd", asbytes=True))
    DELTA.write_deltalake(str(root / "year=2025" / "d"), table(RECORDS[3:5]))
    LANCE.write_dataset(table(RECORDS[5:]), str(root / "year=2025" / "e.lance"))
    url = uploaded(root, "everything")
    for path in ("", "/*", "/year=202*"):
        assert read(plan(f"{url}{path}")) == read(plan(f"{root}{path}"))
    for path in ("/year=2023/a.parquet", "/year=2025/d", "/year=2025/e.lance"):
        assert read(plan(f"{url}{path}")) == read(plan(f"{root}{path}"))
    source = plan(url, id=None)
    ids = [row["id"] for row in rows_of(source)]
    assert ids == [row["id"] for row in rows_of(plan(root, id=None))]


def test_planning_and_reading_small_files_takes_few_requests(put, tmp_path, bucket, uploaded, clinical):
    records = clinical.to_pylist()[:300]
    for number in range(100):
        put(f"in/{number:03d}.parquet", as_parquet(records[3 * number : 3 * number + 3]))
    url = uploaded(tmp_path / "in", "small")
    before = bucket.requests
    source = plan(url)
    planned = bucket.requests - before
    assert read(source)[0] == pairs(records)
    read_ = bucket.requests - before - planned
    # A footer each, and the listing.
    assert planned <= 100 + 5
    assert read_ <= 100


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_file_that_changes_after_planning_is_not_read(put, tmp_path, uploaded, name):
    path = put(f"in/{name}", WRITERS[name](RECORDS))
    here, there = plan(path), plan(uploaded(tmp_path / "in", f"changing-{name}"))
    put(f"in/{name}", WRITERS[name](RECORDS[::-1]))
    os.utime(path, (0, 0))
    uploaded(tmp_path / "in", f"changing-{name}")
    for source in (here, there):
        with pytest.raises(SparseError, match=rf"{name} has changed since the run began"):
            read(source)


def test_many_paths_are_listed_at_once(put, tmp_path, bucket, uploaded):
    records = [{"id": number, "text": "words"} for number in range(200)]
    for number, record in enumerate(records):
        put(f"in/{number:03d}.jsonl", as_jsonl([record]))
    url = uploaded(tmp_path / "in", "many")
    before = bucket.requests
    source = sources.plan(InputConfig(path=[f"{url}/{number:03d}.jsonl" for number in range(200)]))
    assert bucket.requests - before <= 3 * 200 + 5
    assert read(source) == (pairs(records), [])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s3://no-such-bucket/a", "there is no bucket 'no-such-bucket'"),
        (f"s3://{s3_servers.BUCKET}/nowhere", "no file at"),
    ],
)
def test_what_is_not_there_is_told_before_anything_else(bucket, path, told):
    with pytest.raises(SparseError, match=rf"input\.path: .*{told}"):
        plan(path)
