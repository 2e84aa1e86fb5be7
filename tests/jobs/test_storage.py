"""Storage settings, local files, and jobs that read from and write to S3."""

import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import s3_servers

from jobs import lease, privatize, storage, train_mask
from jobs.cli import main
from jobs.config import PrivatizeConfig, StorageConfig, TrainMaskConfig, load_config
from sparse_core.errors import SparseError
from sparse_core.noise import write_new_key

CONFIGS = Path(__file__).parents[2] / "configs"

# Settings


def refused(*overrides: str) -> str:
    required = ("output=x", "input.path=x", "protection={mechanism: none}")
    with pytest.raises(SparseError) as error:
        load_config(PrivatizeConfig, None, [*required, *overrides])
    return str(error.value)


@pytest.mark.parametrize("field", ["key", "secret", "aws_secret_access_key", "token", "password"])
def test_a_configuration_has_no_field_for_credentials(field):
    message = refused(f"storage.{field}=hunter2")
    assert f"storage.{field}: no such field" in message and "hunter2" not in message


def test_an_endpoint_with_a_password_is_refused_without_repeating_it():
    message = refused("storage.endpoint=https://me:hunter2@minio.internal:9000")
    assert "storage.endpoint: carries a user name or password" in message and "hunter2" not in message


@pytest.mark.parametrize("endpoint", ["minio.internal:9000", "s3://bucket", "https://"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint):
    assert "storage.endpoint: is not an address" in refused(f"storage.endpoint={endpoint}")


def test_an_anonymous_reader_has_no_profile():
    assert "anonymous takes no profile" in refused("storage={anonymous: true, profile: mine}")


@pytest.mark.parametrize("url", ["s3://AKIA:hunter2@bucket/a", "https://me:hunter2@host/a"])
def test_a_url_with_a_password_is_refused_without_repeating_it(url):
    with pytest.raises(SparseError, match="carries a user name or password") as error:
        storage.filesystem(url)
    assert "hunter2" not in str(error.value)


def test_settings_reach_every_library_that_opens_a_url_through_fsspec(credentials):
    import fsspec

    settings = StorageConfig(endpoint="http://127.0.0.1:1/", region="eu-west-1", attempts=4, read_timeout=7)
    storage.configure(settings)
    fs = fsspec.filesystem("s3")
    assert fs is storage.filesystem("s3://bucket/a")[0]
    assert fs.endpoint_url == "http://127.0.0.1:1" and fs.client_kwargs == {"region_name": "eu-west-1"}
    assert fs.config_kwargs["retries"] == {"mode": "standard", "total_max_attempts": 4}
    assert fs.config_kwargs["read_timeout"] == 7
    storage.configure(StorageConfig(anonymous=True))
    assert fsspec.filesystem("s3").anon and fsspec.filesystem("s3").endpoint_url is None


def test_settings_travel_to_other_processes(credentials):
    import pickle

    settings = pickle.loads(pickle.dumps(StorageConfig(endpoint="http://127.0.0.1:1")))
    storage.configure(settings)
    assert storage.object_store_options()["aws_endpoint"] == "http://127.0.0.1:1"


# Local files


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    storage.write_bytes(f"{tmp_path}/a", b"before")
    with pytest.raises(ZeroDivisionError), storage.writing(f"{tmp_path}/a") as file:
        file.write(b"half")
        file.write(bytes(1 // (len(b"x") - 1)))
    assert (tmp_path / "a").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_is_told():
    explained = storage.explained("/dev/full", field="output", write=True)
    with pytest.raises(SparseError) as told, explained, open("/dev/full", "wb", buffering=0) as file:
        file.write(b"a")
    assert str(told.value) == "output: /dev/full cannot be written to (No space left on device)."


def test_a_file_written_may_be_read_by_those_the_user_lets(tmp_path):
    storage.write_bytes(f"{tmp_path}/a", b"a")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o666 & ~mask


def test_one_of_many_local_writers_creates_a_file(tmp_path):
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        return storage.create_exclusive(f"{tmp_path}/new/lease", f"writer {number}".encode())

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert (tmp_path / "new" / "lease").read_bytes() == f"writer {won.index(True)}".encode()
    assert os.listdir(tmp_path / "new") == ["lease"]
    storage.remove(f"{tmp_path}/new/lease")
    storage.remove(f"{tmp_path}/new/lease")
    assert storage.create_exclusive(f"{tmp_path}/new/lease", b"next")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FileNotFoundError(2, "x"), "input.path: there is no file at /data/a."),
        (PermissionError(13, "x"), "input.path: /data/a may not be read by this user."),
        (OSError(5, "x"), "input.path: /data/a cannot be read (Input/output error)."),
    ],
)
def test_what_goes_wrong_with_a_local_file_is_told(error, sentence):
    with pytest.raises(SparseError) as told, storage.explained("/data/a", field="input.path"):
        raise error
    assert str(told.value) == sentence


def test_a_damaged_file_is_not_taken_for_storage_that_fails(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing of the kind PAR1")
    with pytest.raises(pa.ArrowException), storage.explained(f"{tmp_path}/a.parquet"):
        pq.read_table(tmp_path / "a.parquet")


# Jobs

TERMS = ("hypertension", "diabetes", "female", "male", "woman", "man", "asthma", "depression", "heart disease")
# A fifth of all requests fail in one way or another.
FAULTS = {"throttled": 0.07, "failed": 0.03, "reset": 0.03, "lost": 0.02, "cut": 0.05, "delayed": 0.02, "seed": 11}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, clinical, encoder):
    """300 real sentences and their vectors in two files, bad rows among them, and a key."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = clinical.to_pylist()[::17][:300]
    vectors = encoder.encode([row["text"] for row in rows])
    rows = [row | {"vector": vector.tolist()} for row, vector in zip(rows, vectors, strict=True)]
    bad = [{"id": "bad-1", "text": None, "vector": None}, {"id": "bad-2", "text": " ", "vector": [float("nan")] * 384}]
    (folder / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:160] + bad), folder / "in" / "a.parquet", row_group_size=50)
    pq.write_table(pa.Table.from_pylist(rows[160:]), folder / "in" / "b.parquet")
    write_new_key(folder / "secret.key")
    return folder


def release_vectors(corpus, place: str, settings: StorageConfig) -> str:
    """Privatize the vectors of the corpus at a place; where the release is."""
    return _release(corpus, place, settings, mask=None, input={"path": f"{place}/in", "embedding": "vector"})


def release_texts(corpus, place: str, settings: StorageConfig) -> str:
    """Learn a mask of the corpus at a place and privatize its texts there; where the release is."""
    training = {
        "input": {"path": f"{place}/in"},
        "output": f"{place}/training",
        "encoder": {"device": "cpu"},
        "concept": {"name": "patient", "terms": list(TERMS)},
        "mask": {"epochs": 5},
        "tracking": {"enabled": False},
        "storage": settings.model_dump(),
    }
    train_mask.run(TrainMaskConfig.model_validate(training))
    return _release(corpus, place, settings, mask=f"{place}/training/mask", input=training["input"])


def _release(corpus, place: str, settings: StorageConfig, *, mask: str | None, input: dict) -> str:
    release = {
        "input": input,
        "output": f"{place}/release",
        "encoder": {"device": "cpu"} if mask else "none",
        "mask": mask,
        "protection": {"rho": 1.5} if mask else {"mechanism": "laplace", "rho": 1.5, "read_out": "none"},
        "passthrough": ["section"],
        "key": {"file": str(corpus / "secret.key")},
        "workers": {"actors": 1},
        "tracking": {"enabled": False},
        "storage": settings.model_dump(),
    }
    privatize.run(PrivatizeConfig.model_validate(release))
    return release["output"]


def rows_of(folder: str) -> list[tuple]:
    """Rows of a folder of Parquet files, as a sorted list of comparable values; vectors as bytes."""
    with storage.local_directory(folder) as local:
        table = pyarrow.dataset.dataset(local, format="parquet").to_table()
    if "embedding" in table.column_names:
        vectors = [np.asarray(vector, np.float32).tobytes() for vector in table["embedding"].to_pylist()]
        table = table.set_column(table.column_names.index("embedding"), "embedding", pa.array(vectors))
    return sorted(tuple(row.values()) for row in table.to_pylist())


def all_rows(release: str) -> dict[str, list[tuple]]:
    rows = {name: rows_of(f"{release}/{name}") for name in ("embeddings", "ledger", "quarantine")}
    # A quarantined row tells where it came from.
    rows["quarantine"] = [row[:2] for row in rows["quarantine"]]
    return rows


def on_local_disk(corpus, folder, release) -> dict[str, list[tuple]]:
    shutil.copytree(corpus / "in", folder / "in")
    rows = all_rows(release(corpus, str(folder), StorageConfig()))
    assert len(rows["embeddings"]) == len(rows["ledger"]) == 300 and len(rows["quarantine"]) == 2
    return rows


@pytest.fixture(scope="module")
def vectors_undisturbed(corpus, tmp_path_factory):
    """What privatize makes of the corpus' vectors on local disk."""
    return on_local_disk(corpus, tmp_path_factory.mktemp("vectors"), release_vectors)


@pytest.fixture(scope="module")
def texts_undisturbed(corpus, tmp_path_factory):
    """What train_mask and privatize make of the corpus' texts on local disk."""
    return on_local_disk(corpus, tmp_path_factory.mktemp("texts"), release_texts)


def upload(corpus, place: str) -> None:
    for path in (corpus / "in").iterdir():
        storage.write_bytes(f"{place}/in/{path.name}", path.read_bytes())


def release_amid_faults(corpus, s3, server, release) -> dict[str, list[tuple]]:
    upload(corpus, s3)
    with s3_servers.fault_proxy(server, s3_servers.Faults(**FAULTS)) as proxy:
        release = release(corpus, s3, StorageConfig(endpoint=proxy.url))
    assert proxy.injected.total() > proxy.requests / 20
    storage.configure(StorageConfig(endpoint=server.url))
    rows = all_rows(release)
    print(f"{server.name}: {proxy.requests} requests, {dict(proxy.injected)}, {len(rows['embeddings'])} rows")
    return rows


def test_a_job_loses_nothing_where_a_fifth_of_requests_to_s3_fail(s3, s3_server, corpus, vectors_undisturbed):
    assert release_amid_faults(corpus, s3, s3_server, release_vectors) == vectors_undisturbed


@pytest.mark.slow
def test_jobs_on_s3_publish_what_jobs_on_local_disk_do(s3, s3_server, corpus, texts_undisturbed):
    upload(corpus, s3)
    assert all_rows(release_texts(corpus, s3, StorageConfig(endpoint=s3_server.url))) == texts_undisturbed


@pytest.mark.slow
def test_jobs_lose_nothing_where_a_fifth_of_requests_to_s3_fail(s3, s3_server, corpus, texts_undisturbed):
    assert release_amid_faults(corpus, s3, s3_server, release_texts) == texts_undisturbed


@pytest.mark.parametrize(
    ("field", "overrides"),
    [("input.path", {"input": {"path": "s3://no-such-bucket/in"}}), ("output", {"output": "s3://no-such-bucket/out"})],
)
def test_a_job_tells_of_a_missing_bucket_before_it_starts(s3, s3_server, corpus, field, overrides):
    settings = {
        "input": {"path": str(corpus / "in")},
        "output": f"{s3}/out",
        "protection": {"mechanism": "none"},
        "tracking": {"enabled": False},
        "key": {"file": str(corpus / "secret.key")},
        "storage": {"endpoint": s3_server.url},
    }
    config = PrivatizeConfig.model_validate(settings | overrides)
    with pytest.raises(SparseError, match=rf"^{field}: there is no bucket 'no-such-bucket'"):
        privatize.plan(config)


@pytest.mark.parametrize("s3_server", ["seaweedfs"], indirect=True)
def test_the_example_of_a_warehouse_runs_on_a_server_of_ones_own(s3, s3_server, clinical, monkeypatch):
    rows = [
        {"note_id": record["id"], "title": record["section"], "body": record["text"], "department": "A"}
        for record in clinical.to_pylist()[:40]
    ]
    with storage.writing(f"{s3}/notes/part.parquet") as file:
        pq.write_table(pa.Table.from_pylist(rows), file)
    monkeypatch.setenv("SPARSE_KEY", bytes(range(32)).hex())
    overrides = [f"output={s3}/out", f"input.path={s3}/notes/", f"storage.endpoint={s3_server.url}", "mask=null"]
    overrides += ["protection.mechanism=laplace", "protection.read_out=none", "workers.actors=1"]
    assert main(["privatize", "--config", str(CONFIGS / "warehouse_s3.yaml"), *overrides]) == 0
    manifest = storage.read_json(f"{s3}/out/manifest.json")
    assert (manifest["rows"], manifest["schema"]["department"]) == (40, "string")
    refused = pytest.raises(SparseError, match=r"process \d+ on .* is writing to s3://")
    with lease.held(f"{s3}/out"), refused, lease.held(f"{s3}/out"):
        pass


@pytest.mark.parametrize("umask", [0o022, 0])
def test_private_files_and_folders_are_for_their_owner_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        storage.make_local_directory(tmp_path / "kept", private=True)
        storage.write_bytes(str(tmp_path / "kept" / "vectors"), b"x", private=True)
        storage.write_json(str(tmp_path / "texts.json"), {}, private=True)
        storage.write_json(str(tmp_path / "figures.json"), {})
        with storage.writing(str(tmp_path / "written"), private=True) as file:
            file.write(b"x")
            assert {path.stat().st_mode & 0o777 for path in tmp_path.glob(".*")} == {0o600}
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*tmp_path.iterdir(), tmp_path / "kept" / "vectors")}
    assert modes == {
        "kept": 0o700,
        "vectors": 0o600,
        "texts.json": 0o600,
        "written": 0o600,
        "figures.json": 0o666 & ~umask,
    }
