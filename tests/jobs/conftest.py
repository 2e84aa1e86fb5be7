import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs.cli import main
from sparse_core.noise import Key, write_new_key

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
