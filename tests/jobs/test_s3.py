"""Storage against S3-compatible servers on loopback, with and without faults."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from s3_servers import (
    BUCKET,
    READER,
    READER_SECRET,
    Faults,
    Server,
    create_bucket,
    environment,
    error_body,
    fault_proxy,
    free_ports,
)

from jobs import storage
from jobs.config import InputConfig, StorageConfig
from jobs.sources.files import list_input
from sparse_core.errors import SparseError

MEBI = 1 << 20
# A quarter of all requests fail in one way or another.
MIXED = {"throttled": 0.08, "failed": 0.04, "reset": 0.04, "lost": 0.03, "cut": 0.06, "seed": 7}


def content(name: str) -> bytes:
    with s3fs_open(name) as file:
        return file.read()


def s3fs_open(url: str):
    fs, path = storage.filesystem(url)
    return fs.open(path, "rb")


def found(url: str) -> list[str]:
    fs, path = storage.filesystem(url)
    return sorted(fs.unstrip_protocol(name) for name in fs.find(path))


def uploads_left(url: str) -> list[str]:
    fs, path = storage.filesystem(url)
    uploads = fs.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads") or []
    return [upload["Key"] for upload in uploads if f"{BUCKET}/{upload['Key']}".startswith(path)]


# Reading and writing


def test_what_is_written_is_read_back_and_found(s3):
    storage.write_bytes(f"{s3}/deep/a.bin", b"\x00\xff")
    storage.write_json(f"{s3}/b.json", {"b": 1})
    storage.write_bytes(f"{s3}/_hidden/c.bin", b"c")
    assert content(f"{s3}/deep/a.bin") == b"\x00\xff"
    assert storage.read_json(f"{s3}/b.json") == {"b": 1}
    assert found(s3) == [f"{s3}/_hidden/c.bin", f"{s3}/b.json", f"{s3}/deep/a.bin"]
    assert storage.exists(f"{s3}/deep") and storage.exists(f"{s3}/deep/a.bin") and storage.exists(f"s3://{BUCKET}")


def test_what_is_absent_is_told_to_be(s3):
    assert storage.read_json(f"{s3}/none.json") is None
    assert not storage.exists(f"{s3}/none.json")
    storage.remove(f"{s3}/none.json")
    with pytest.raises(SparseError, match=r"input\.path: there is no file at s3://"):
        list_input(InputConfig(path=f"{s3}/none"))


def test_another_process_s_file_is_seen_at_once(s3):
    storage.write_bytes(f"{s3}/a", b"a")
    assert found(s3) == [f"{s3}/a"]
    other = s3fs.S3FileSystem(endpoint_url=storage.filesystem(s3)[0].endpoint_url, skip_instance_cache=True)
    other.pipe_file(f"{s3}/b".removeprefix("s3://"), b"b")
    assert storage.exists(f"{s3}/b") and found(s3) == [f"{s3}/a", f"{s3}/b"]


def test_directories_go_up_and_come_down(s3):
    with storage.upload_directory(f"{s3}/folder") as local:
        (local / "inner").mkdir()
        (local / "inner" / "a.bin").write_bytes(b"a" * MEBI)
    with storage.local_directory(f"{s3}/folder") as local:
        assert (local / "inner" / "a.bin").read_bytes() == b"a" * MEBI


def test_a_parquet_file_of_20_mb_goes_up_in_parts_and_comes_down_the_same(s3):
    table = pa.table({"id": np.arange(40_000), "vector": list(np.random.default_rng(0).random((40_000, 64)))})
    with storage.writing(f"{s3}/large.parquet") as file, pq.ParquetWriter(file, table.schema) as writer:
        for start in range(0, len(table), 4000):
            writer.write_table(table.slice(start, 4000))
    fs, path = storage.filesystem(f"{s3}/large.parquet")
    info = fs.info(path)
    assert info["size"] > 20_000_000 and int(info["ETag"].strip('"').rpartition("-")[2]) >= 2
    with s3fs_open(f"{s3}/large.parquet") as file:
        assert pq.read_table(file).equals(table)


def test_a_write_that_fails_leaves_nothing(s3):
    with pytest.raises(ZeroDivisionError), storage.writing(f"{s3}/half") as file:
        file.write(bytes(12 * MEBI))
        file.write(bytes(1 // (len(s3) - len(s3))))
    assert not storage.exists(f"{s3}/half")
    assert uploads_left(s3) == []


@pytest.fixture
def many():
    """moto's server with 5,000 objects, in this process so that they need not be sent to it one by one."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        create_bucket(Server("moto", f"http://{host}:{port}"))
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for number in range(5000):
            backend.put_object(BUCKET, f"many/{number % 7}/part-{number:05}.parquet", b"x" * (number % 11))
        yield Server("moto", f"http://{host}:{port}")
    finally:
        server.stop()


def test_a_folder_of_5000_files_is_listed_with_sizes_in_a_few_requests(many, credentials):
    with fault_proxy(many) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        files = list_input(InputConfig(path=f"s3://{BUCKET}/many"))
        assert len(files) == 5000 and sum(file.size for file in files) == sum(n % 11 for n in range(5000))
        assert proxy.requests < 12


# Writing what is not there yet


def test_one_of_many_writers_creates_a_file(s3):
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        return storage.create_exclusive(f"{s3}/lease", f"writer {number}".encode())

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert content(f"{s3}/lease") == f"writer {won.index(True)}".encode()


def test_one_of_many_writers_creates_a_file_where_storage_knows_no_conditions(moto, credentials):
    barrier = threading.Barrier(4)

    def create(number: int) -> bool:
        barrier.wait()
        return storage.create_exclusive(f"s3://{BUCKET}/unconditional/lease", f"writer {number}".encode())

    with fault_proxy(moto) as proxy, ThreadPoolExecutor(4) as pool:
        proxy.without = ("if-none-match",)
        storage.configure(StorageConfig(endpoint=proxy.url))
        assert list(pool.map(create, range(4))).count(True) == 1
        assert not storage.create_exclusive(f"s3://{BUCKET}/unconditional/lease", b"later")


def test_a_writer_whose_answer_is_lost_still_knows_its_file(s3, s3_server):
    with fault_proxy(s3_server) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        proxy.lose["PUT", "lease"] = 1
        assert storage.create_exclusive(f"{s3}/lease", b"mine")
        assert not storage.create_exclusive(f"{s3}/lease", b"yours")
        assert proxy.injected["lost"] == 1


# Faults


def test_nothing_is_lost_of_50_objects_where_a_quarter_of_requests_fail(s3, s3_server, record_property):
    written = {f"{s3}/{number}": os.urandom(1000 + 20_000 * (number % 8)) for number in range(50)}
    with fault_proxy(s3_server, Faults(**MIXED)) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(storage.write_bytes, written, written.values()))
            read = dict(zip(written, pool.map(content, written), strict=True))
        assert found(s3) == sorted(written)
        kinds = proxy.injected
    assert read == written
    assert {"throttled", "failed", "reset", "lost", "cut"} == set(kinds) and kinds.total() >= 20
    print(f"{s3_server.name}: {len(written)} objects, {proxy.requests} requests, {dict(kinds)}")


def test_a_stream_that_breaks_in_the_middle_is_read_to_its_end(s3, s3_server):
    table = pa.table({"value": np.random.default_rng(1).random(600_000)})
    with storage.writing(f"{s3}/a.parquet") as file:
        pq.write_table(table, file, row_group_size=50_000)
    with fault_proxy(s3_server, Faults(cut=0.4, seed=3)) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        with s3fs_open(f"{s3}/a.parquet") as file:
            assert pq.read_table(file).equals(table)
        with storage.local_directory(s3) as local:
            assert pq.read_table(local / "a.parquet").equals(table)
        assert proxy.injected["cut"] > 0


def test_an_upload_in_parts_that_fails_for_good_is_told(s3, s3_server):
    with fault_proxy(s3_server) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url, attempts=1))
        with pytest.raises(SparseError, match=r"cannot be reached|broke"), storage.writing(f"{s3}/large") as file:
            file.write(bytes(9 * MEBI))
            proxy.faults = Faults(reset=1)
            file.write(bytes(9 * MEBI))
    storage.configure(StorageConfig(endpoint=s3_server.url))
    assert not storage.exists(f"{s3}/large")


def test_an_upload_in_parts_survives_faults(s3, s3_server):
    parts = [os.urandom(9 * MEBI), os.urandom(9 * MEBI), os.urandom(3 * MEBI)]
    with fault_proxy(s3_server, Faults(throttled=0.2, reset=0.1, lost=0.1, seed=2)) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        with storage.writing(f"{s3}/large") as file:
            for part in parts:
                file.write(part)
        assert content(f"{s3}/large") == b"".join(parts)
        assert proxy.injected.total() > 0


def test_an_upload_whose_last_answer_is_lost_is_complete(s3, s3_server):
    with fault_proxy(s3_server) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        proxy.lose["POST", "uploadId="] = 1
        with storage.writing(f"{s3}/large") as file:
            file.write(bytes(9 * MEBI))
            file.write(bytes(9 * MEBI))
        assert proxy.injected["lost"] == 1
    storage.configure(StorageConfig(endpoint=s3_server.url))
    assert content(f"{s3}/large") == bytes(18 * MEBI)


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_storage_that_always_throttles_is_told_after_the_attempts_given(s3, s3_server):
    with fault_proxy(s3_server, Faults(throttled=1)) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url, attempts=1))
        with pytest.raises(SparseError, match=r"kept failing with (SlowDown|503).*storage\.attempts"):
            storage.write_bytes(f"{s3}/a", b"a")
        assert proxy.requests >= 1


# What is told


def told(url: str, **options) -> str:
    started = time.monotonic()
    with pytest.raises(SparseError) as error:
        storage.check(url, **options)
    assert time.monotonic() - started < 15
    return str(error.value)


def test_a_bucket_that_does_not_exist_is_told(s3):
    for options in ({"field": "input.path"}, {"field": "output", "write": True}):
        message = told("s3://no-such-bucket/a", **options)
        assert message.startswith(f"{options['field']}: there is no bucket 'no-such-bucket'")
    with pytest.raises(SparseError, match="no bucket 'no-such-bucket'"):
        storage.read_json("s3://no-such-bucket/a.json")
    with pytest.raises(SparseError, match="no bucket 'no-such-bucket'"):
        storage.write_bytes("s3://no-such-bucket/a", b"a")


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_a_name_that_no_bucket_can_have_is_told(s3):
    assert "not a valid name" in told("s3://No_Bucket!/a", field="output")


def test_writing_without_permission_is_told(seaweedfs, credentials, monkeypatch):
    for name, value in environment(READER, READER_SECRET).items():
        monkeypatch.setenv(name, value)
    storage.configure(StorageConfig(endpoint=seaweedfs.url))
    storage.check(f"s3://{BUCKET}/a", field="input.path")
    message = told(f"s3://{BUCKET}/a", field="output", write=True)
    assert message.startswith("output: ") and "may not be written to" in message and "s3:PutObject" in message
    with pytest.raises(SparseError, match="may not be written to"):
        storage.write_bytes(f"s3://{BUCKET}/a", b"a")


def test_a_place_that_may_be_written_is_left_as_it_was(s3):
    storage.check(f"{s3}/out", field="output", write=True)
    assert not storage.exists(f"{s3}/out")
    assert uploads_left(s3) == []


@pytest.mark.parametrize("access", [("unknown-access-key", "s"), (READER, "not-its-secret")])
def test_credentials_that_are_not_accepted_are_told_without_the_secret(seaweedfs, credentials, monkeypatch, access):
    for name, value in environment(*access).items():
        monkeypatch.setenv(name, value)
    storage.configure(StorageConfig(endpoint=seaweedfs.url))
    message = told(f"s3://{BUCKET}/a", field="input.path")
    assert "does not accept the credentials in use" in message and "not-its-secret" not in message


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_no_credentials_are_told(s3, monkeypatch, s3_server):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3fs.S3FileSystem.clear_instance_cache()
    message = told(s3, field="input.path")
    assert "no credentials" in message and "storage.profile" in message and "storage.anonymous=true" in message


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_a_profile_that_does_not_exist_is_told(s3, s3_server):
    storage.configure(StorageConfig(endpoint=s3_server.url, profile="nobody"))
    assert "nobody" in told(s3, field="input.path")


def test_a_profile_is_followed(seaweedfs, credentials, monkeypatch, tmp_path):
    values = environment()
    (tmp_path / "credentials").write_text(
        f"[warehouse]\naws_access_key_id = {values['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {values['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    storage.configure(StorageConfig(endpoint=seaweedfs.url, profile="warehouse"))
    storage.check(f"s3://{BUCKET}/a", field="output", write=True)
    assert storage.object_store_options()["aws_access_key_id"] == values["AWS_ACCESS_KEY_ID"]


def test_an_anonymous_reader_is_told_that_credentials_are_needed(seaweedfs, credentials):
    storage.configure(StorageConfig(endpoint=seaweedfs.url, anonymous=True))
    assert "storage.anonymous" in told(f"s3://{BUCKET}/a", field="input.path")


def test_an_endpoint_of_the_environment_is_followed(s3_server, credentials, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    storage.configure(StorageConfig())
    storage.write_bytes(f"s3://{BUCKET}/environment", b"e")
    assert storage.exists(f"s3://{BUCKET}/environment")


def test_an_endpoint_that_cannot_be_reached_is_told_within_seconds(credentials):
    [port] = free_ports(1)
    storage.configure(StorageConfig(endpoint=f"http://127.0.0.1:{port}"))
    message = told("s3://bucket/a", field="input.path")
    assert (
        message.startswith(f"input.path: http://127.0.0.1:{port} cannot be reached") and "storage.endpoint" in message
    )


def test_a_server_that_gives_no_answer_is_told(credentials):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        storage.configure(StorageConfig(endpoint=url, read_timeout=1))
        assert f"{url} gives no answer" in told("s3://bucket/a", field="input.path")


@pytest.mark.parametrize(
    ("status", "code", "more"),
    [
        (301, "PermanentRedirect", "<Endpoint>x.s3.eu-west-1.amazonaws.com</Endpoint>"),
        (400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
    ],
)
def test_a_bucket_of_another_region_is_told(moto, credentials, status, code, more):
    with fault_proxy(moto) as proxy:
        headers = {"Content-Type": "application/xml", "x-amz-bucket-region": "eu-west-1"}
        proxy.answer = (status, headers, error_body(code, more=more))
        storage.configure(StorageConfig(endpoint=proxy.url, region="us-east-2"))
        message = told(f"s3://{BUCKET}/a", field="input.path")
    assert "another region than us-east-2" in message and "storage.region=eu-west-1" in message


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_a_passing_failure_does_not_stop_a_plan(s3, s3_server):
    with fault_proxy(s3_server, Faults(throttled=1)) as proxy:
        storage.configure(StorageConfig(endpoint=proxy.url))
        storage.check(s3, field="input.path")
        assert proxy.requests > 0


# Libraries with S3 clients of their own


def test_delta_tables_are_written_and_read_with_the_same_settings(s3):
    deltalake = pytest.importorskip("deltalake")
    table = pa.table({"id": [1, 2], "text": ["a", "b"]})
    deltalake.write_deltalake(f"{s3}/delta", table, storage_options=storage.object_store_options())
    there = deltalake.DeltaTable(f"{s3}/delta", storage_options=storage.object_store_options())
    assert there.to_pyarrow_table().sort_by("id").equals(table)


def test_lance_tables_are_written_and_read_with_the_same_settings(s3):
    lance = pytest.importorskip("lance")
    table = pa.table({"id": [1, 2], "text": ["a", "b"]})
    lance.write_dataset(table, f"{s3}/lance", storage_options=storage.object_store_options())
    there = lance.dataset(f"{s3}/lance", storage_options=storage.object_store_options())
    assert there.to_table().equals(table)


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_what_delta_says_of_a_missing_bucket_is_told_as_of_others(s3):
    deltalake = pytest.importorskip("deltalake")
    url, options = "s3://no-such-bucket/t", storage.object_store_options()
    with (
        pytest.raises(SparseError, match="no bucket 'no-such-bucket'"),
        storage.explained(url, field="output", write=True),
    ):
        deltalake.write_deltalake(url, pa.table({"a": [1]}), storage_options=options)
