import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import mlflow_servers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3_servers
import s3fs
import yaml

from jobs import ledger, outputs, storage
from jobs.cli import main
from jobs.config import OutputConfig, StorageConfig
from sparse_core.budget import Charge, subject_numbers
from sparse_core.masks import Mask, MaskInfo
from sparse_core.noise import Key, release_fingerprints, write_new_key
from sparse_core.policy import Policy

# Found nowhere but in the texts of these tests.
MADE_UP = ("Zorvath", "Quexlington", "Brindlemoor")
COMMON = ("hypertension", "diabetes", "female", "male", "woman", "man", "asthma", "depression", "heart disease")


@dataclass(frozen=True)
class Workspace:
    """A corpus with bad rows in two formats, a key, and one configuration a job."""

    folder: Path
    good: list[dict]
    quarantined: dict[str, int]

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def key_file(self) -> Path:
        return self.folder / "secret.key"

    @property
    def key(self) -> Key:
        return Key.from_file(self.key_file)

    @property
    def out(self) -> Path:
        """Where the jobs write."""
        return self.folder / "out"

    @property
    def database(self) -> str:
        return f"sqlite:///{self.out}/mlflow.db"

    def run(self, job: str, *overrides: str) -> int:
        """Run a job of this workspace; its exit status."""
        return main([job, "--config", str(self.folder / f"{job}.yaml"), *overrides])


@pytest.fixture(scope="session")
def workspace(tmp_path_factory, clinical):
    folder = tmp_path_factory.mktemp("workspace")
    good = clinical.to_pylist()[::9][:400]
    for number, record in enumerate(good):
        if number % 4 == 0:
            record["text"] = f"{MADE_UP[number // 4 % 3]} was seen today. {record['text']}"
    bad = [
        {"id": "bad-1", "text": None, "section": "CC"},
        {"id": "bad-2", "text": "", "section": "CC"},
        {"id": "bad-3", "text": " \t", "section": "CC"},
        {"id": None, "text": "Brindlemoor has no record number at all.", "section": "CC"},
    ]
    (folder / "corpus").mkdir()
    pq.write_table(pa.Table.from_pylist(good[:300] + bad), folder / "corpus" / "a.parquet", row_group_size=100)
    lines = [json.dumps(record).encode() for record in good[300:]]
    lines[50:50] = [b'{"id": "bad-4", "text": "Zorvath is cut sho', b'{"id": "bad-5", "text": "Zorvath \xff"}']
    (folder / "corpus" / "b.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    write_new_key(folder / "secret.key")

    out = folder / "out"
    common = {
        "input": {"path": str(folder / "corpus")},
        "tracking": {"uri": f"sqlite:///{out}/mlflow.db"},
        "encoder": {"device": "cpu"},
    }
    concept = {"name": "patient", "terms": [*MADE_UP, *COMMON], "patterns": [r"Brindlem[o]{2}r"]}
    settings = {
        "train_mask": common | {"output": str(out / "training"), "concept": concept, "mask": {"epochs": 15}},
        "privatize": common
        | {
            "output": str(out / "release"),
            "mask": str(out / "training" / "mask"),
            "protection": {"rho": 1.5},
            "passthrough": ["section"],
            "key": {"file": str(folder / "secret.key")},
            "workers": {"actors": 1},
        },
        "audit": common
        | {
            "output": str(out / "audit"),
            "concept": concept,
            "compare": [
                {"name": "released", "release": str(out / "release")},
                {
                    "name": "laplace",
                    "protection": {"mechanism": "laplace", "rho": 1.5},
                    "mask": str(out / "training" / "mask"),
                },
                {"name": "unprotected", "protection": {"mechanism": "none"}},
            ],
            "attacks": ["ridge"],
            "min_token_count": 3,
            "utility": {"label": "section"},
        },
    }
    for job, fields in settings.items():
        (folder / f"{job}.yaml").write_text(yaml.safe_dump(fields))
    reasons = ("null_text", "empty_text", "blank_text", "null_id", "malformed_json", "invalid_utf8")
    return Workspace(folder, good, dict.fromkeys(reasons, 1))


def files_below(folder) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def tree():
    return files_below


@pytest.fixture(scope="session")
def moto():
    """moto's server."""
    with s3_servers.moto_server() as server:
        s3_servers.create_bucket(server)
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory):
    """SeaweedFS's server."""
    with s3_servers.seaweed_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        s3_servers.create_bucket(server)
        yield server


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory):
    """An empty SQLite store of MLflow's, to copy: making one takes seconds."""
    import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments(max_results=1)
    return path


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory, mlflow_database):
    """MLflow's server."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(mlflow_database, folder / "server.db")
    with mlflow_servers.mlflow_server(folder) as server:
        yield server


@pytest.fixture(params=["moto", "seaweedfs"])
def s3_server(request):
    """One S3-compatible server after the other."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def credentials(monkeypatch):
    """Credentials of the servers in the environment, nothing else of AWS there, and storage set back afterwards."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_servers.environment().items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()
    storage.configure(StorageConfig())


@pytest.fixture
def s3(s3_server, credentials):
    """URL of a folder of this test's own, on a server that storage is configured for."""
    storage.configure(StorageConfig(endpoint=s3_server.url))
    return f"s3://{s3_servers.BUCKET}/{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class SmallRelease:
    """600 sentences of the corpus, protected, and outputs of them as a job leaves them, without Ray."""

    corpus: pa.Table
    embeddings: np.ndarray
    policy: Policy
    key: Key
    released: np.ndarray

    @staticmethod
    def mask(vectors: np.ndarray, spec) -> Mask:
        """Noise on the leading principal directions of vectors."""
        mean, covariance = vectors.mean(axis=0, dtype=np.float64), np.cov(vectors.T.astype(np.float64))
        basis = np.linalg.eigh(covariance)[1][:, ::-1]
        values = (np.arange(len(mean)) < 80).astype(float)
        info = MaskInfo(("made-up",), "f" * 16, "5a17", spec, "label", 0.02, 0, {})
        return Mask(values=values, basis=basis, mean=mean, covariance=basis.T @ covariance @ basis, info=info)

    def release(self, policy: Policy) -> np.ndarray:
        """Published vectors under another policy."""
        ids, texts = self.corpus["id"].to_pylist(), self.corpus["text"].to_pylist()
        return policy.release(self.embeddings, ids=ids, contents=texts, key=self.key)

    def table(self, precision: str = "float32") -> pa.Table:
        """What is published."""
        scale = outputs.public_scale(self.policy, precision)
        fields = self.corpus.schema
        field = outputs.vector_field(self.released.shape[1], precision, scale)
        policies = pa.array([self.policy.hash[:16]] * len(self.corpus)).dictionary_encode()
        schema = pa.schema([fields.field("id"), field, fields.field("section"), pa.field("policy", policies.type)])
        vectors = outputs.vector_array(self.released, precision, scale)
        return pa.table([self.corpus["id"], vectors, self.corpus["section"], policies], schema=schema)

    def entries(self, rows: pa.Table, embeddings: np.ndarray, charge: Charge) -> pa.Table:
        """What the ledger says of some rows."""
        named = {"subjects": rows["id"].to_pylist(), "contents": rows["text"].to_pylist(), "key": self.key}
        contents = release_fingerprints(policy_hash=self.policy.hash, **named)
        vectors = self.policy.fingerprints(embeddings, **named)
        return ledger.part(charge, subject_numbers(named["subjects"]), contents, vectors)

    def write(
        self, output, config: OutputConfig | None = None, *, finished: bool = True, charge: Charge | None = None
    ) -> list[outputs.FileRecord]:
        """An output of three units, or of the first two where it is not finished, at the policy's price or another."""
        config, output = config or OutputConfig(), str(output)
        charge, table = charge or Charge.of(self.policy, self.key), self.table(config.precision)
        claim = {"key_identifier": self.key.identifier, "source_fingerprint": "f00d", "units": 3, "counted": []}
        storage.write_json(f"{output}/claim.json", claim | {"policy_hash": self.policy.hash})
        with storage.upload_directory(f"{output}/policy") as local:
            self.policy.save(local)
        files = []
        for start in (0, 200, 400) if finished else (0, 200):
            rows = self.corpus.slice(start, 200)
            with outputs.PartWriter(output, config, name=f"u{start}", folder=ledger.FOLDER) as entries:
                entries.write(self.entries(rows, self.embeddings[start : start + 200], charge))
            with outputs.PartWriter(output, config, name=f"u{start}") as part:
                part.write(table.slice(start, 200))
            files.append(part.file)
            record = {"rows_in": 202, "rows_out": 200, "quarantined": {"empty_text": 2}, "file": asdict(part.file)}
            record |= {"unit": f"u{start}", "policy_hash": self.policy.hash, "ledger": entries.file.listed}
            storage.write_json(f"{output}/_units/u{start}.json", record)
        if finished:
            outputs.commit(output, config, files)
            outputs.write_manifest(
                output,
                config,
                files,
                schema=table.schema,
                policy=self.policy,
                scale=outputs.public_scale(self.policy, config.precision),
                source_fingerprint="f00d",
            )
            counts = {"rows_in": 606, "rows_out": 600, "quarantined": {"empty_text": 6}}
            storage.write_json(f"{output}/summary.json", {"job": "privatize", "counts": counts})
        return files


@pytest.fixture(scope="session")
def principal_mask():
    """A mask of vectors, see `SmallRelease.mask`."""
    return SmallRelease.mask


@pytest.fixture(scope="session")
def small(clinical, encoder):
    """A `SmallRelease`."""
    corpus, key = clinical.slice(0, 600), Key(bytes(range(32)))
    vectors = encoder.encode(corpus["text"].to_pylist())
    mask = SmallRelease.mask(vectors, encoder.spec)
    policy = Policy.build(encoder=encoder.spec, mechanism="mahalanobis", mask=mask, rho=1.5, floor=0.03)
    ids, texts = corpus["id"].to_pylist(), corpus["text"].to_pylist()
    return SmallRelease(corpus, vectors, policy, key, policy.release(vectors, ids=ids, contents=texts, key=key))


@pytest.fixture
def put(tmp_path):
    """Write a file; its path."""

    def put(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    return put
