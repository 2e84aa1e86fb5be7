"""Every mechanism from a configuration to a release and an audit."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from sparse_core.masks import Mask
from sparse_core.mechanisms import MECHANISMS, build_mechanism
from sparse_core.noise import Key, record_uniforms
from sparse_core.policy import Policy

RHO, FLOOR, DELTA = 1.2, 0.05, 1e-5
PROTECTIONS = {
    "laplace": f"{{mechanism: laplace, rho: {RHO}}}",
    "mahalanobis": f"{{mechanism: mahalanobis, rho: {RHO}, floor: {FLOOR}}}",
    "purkayastha": f"{{mechanism: purkayastha, rho: {RHO}}}",
    "gaussian": f"{{mechanism: gaussian, rho: {RHO}, delta: {DELTA}}}",
    "none": "{mechanism: none}",
}


@dataclass(frozen=True)
class Released:
    """What privatize made of 200 records under one mechanism, and what is to be expected of it."""

    folder: Path
    mechanism: str
    mask: Mask
    policy: Policy
    ids: list
    texts: list
    embeddings: np.ndarray
    published: np.ndarray
    key: Key

    @property
    def noised(self) -> np.ndarray:
        """What the mechanism made of the embeddings, before the read-out."""
        law = self.policy.law
        uniforms = record_uniforms(
            self.key,
            subjects=self.ids,
            contents=self.texts,
            embeddings=law.on_grid(self.embeddings),
            policy_hash=self.policy.hash,
            count=law.uniforms_per_record,
        )
        return law.release(self.embeddings, uniforms)

    def error(self, vectors: np.ndarray) -> float:
        """Mean squared distance of vectors from the embeddings."""
        return float(((vectors - self.embeddings) ** 2).sum(axis=1).mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mechanisms")


@pytest.fixture(scope="module")
def mask(workspace, folder):
    assert workspace.run("train_mask", f"output={folder}/training", "tracking.enabled=false") == 0
    return folder / "training" / "mask"


@pytest.fixture(scope="module", params=MECHANISMS)
def released(request, workspace, folder, mask, job_encoder):
    name = request.param
    records = workspace.good[:200]
    pq.write_table(pa.Table.from_pylist(records), folder / "records.parquet")
    overrides = (
        f"input.path={folder}/records.parquet",
        f"output={folder}/{name}",
        f"mask={mask}",
        f"protection={PROTECTIONS[name]}",
        "tracking.enabled=false",
    )
    assert workspace.run("privatize", *overrides) == 0
    table = pyarrow.dataset.dataset(folder / name / "embeddings").to_table()
    text_of = {record["id"]: record["text"] for record in records}
    texts = [text_of[record] for record in table["id"].to_pylist()]
    return Released(
        folder / name,
        name,
        Mask.load(mask),
        Policy.load(folder / name / "policy", encoder=job_encoder.spec),
        table["id"].to_pylist(),
        texts,
        job_encoder.encode(texts),
        np.stack(table["embedding"].to_pylist()).astype(np.float32),
        workspace.key,
    )


def test_published_vectors_are_what_the_policy_releases(released):
    expected = released.policy.release(released.embeddings, ids=released.ids, contents=released.texts, key=released.key)
    assert len(released.ids) == 200
    np.testing.assert_array_equal(released.published, expected)


def test_the_guarantee_told_is_the_mechanisms_own(released):
    strength = {} if released.mechanism == "none" else {"rho": RHO}
    shape = {"mask": released.mask, "floor": FLOOR} if released.mechanism == "mahalanobis" else {}
    delta = {"delta": DELTA} if released.mechanism == "gaussian" else {}
    law = build_mechanism(released.mechanism, dimension=384, **strength, **shape, **delta)
    # JSON knows no infinity, which is the epsilon of no noise.
    expected = {name: None if value == np.inf else value for name, value in asdict(law.guarantee()).items()}
    told = json.loads((released.folder / "summary.json").read_text())["guarantee"]
    assert list(told) == list(expected)
    for name, value in expected.items():
        assert told[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)
    assert told["delta"] == delta.get("delta", 0)


def test_the_ledger_charges_the_price_of_the_mechanism(released):
    rows = pq.read_table(released.folder / "ledger").to_pylist()
    law = released.policy.law
    prices = {(row["epsilon"], row["epsilon_euclidean"], row["delta"]) for row in rows}
    assert len(rows) == 200 and prices == {(law.epsilon, law.epsilon_euclidean, law.delta)}


def test_the_noise_is_as_long_as_asked_for(released):
    median = np.median(np.linalg.norm(released.noised - released.embeddings, axis=1))
    assert median == pytest.approx(0 if released.mechanism == "none" else RHO, rel=0.03, abs=1e-3)


def test_the_read_out_brings_vectors_nearer_to_the_originals(released):
    before, after = released.error(released.noised), released.error(released.published)
    if released.mechanism == "none":
        assert max(before, after) < 1e-6
    else:
        assert after < 0.7 * before
        assert after < released.error(released.mask.mean)


def test_one_audit_compares_all_mechanisms(workspace, folder, mask):
    rows = ", ".join(f"{{name: {name}, mask: {mask}, protection: {fields}}}" for name, fields in PROTECTIONS.items())
    assert workspace.run("audit", f"output={folder}/audit", f"compare=[{rows}]", "tracking.enabled=false") == 0
    summary = json.loads((folder / "audit" / "summary.json").read_text())
    found = {row["name"]: row for row in summary["protections"]}
    assert list(found) == list(PROTECTIONS)
    assert {name: row["protection"] for name, row in found.items()} == {name: name for name in PROTECTIONS}
    noised = [row for name, row in found.items() if name != "none"]
    assert [row["rho"] for row in noised] == pytest.approx([RHO] * 4, rel=1e-3)
    assert all(found[name]["leakage"] < found["none"]["leakage"] for name in ("mahalanobis", "purkayastha"))
    assert all(row["epsilon_euclidean"] >= row["epsilon"] for row in noised)
    report = (folder / "audit" / "report.md").read_text()
    assert "the angular norm" in report and "plus a probability of 1e-05" in report
