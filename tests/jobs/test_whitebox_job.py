"""Masks made from an attacker's attributions, from the job that makes them to the audit."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from jobs import audit, train_mask
from jobs.cli import main
from jobs.config import AuditConfig, ConceptConfig, SplitConfig, TrainMaskConfig
from jobs.stages import RememberingEncoder, divide
from sparse_core.attacks import PublicKnowledge, build_attack
from sparse_core.concepts import concept_tokens, find_spans
from sparse_core.evaluation import token_labels
from sparse_core.evaluation.leakage import micro_leakage
from sparse_core.masks import Mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

pytest.importorskip("captum")
TERMS = Path(__file__).parents[2] / "configs" / "concepts" / "patient.txt"
CONCEPT = ConceptConfig(name="patient", terms_file=str(TERMS))
BASES = ("whitebox", "whitebox-label")


@dataclass(frozen=True)
class Attacked:
    """The attacker that the job trains, and records for the test of it."""

    attacker: object
    ids: list
    texts: list
    embeddings: np.ndarray
    labels: np.ndarray

    def leakage(self, mechanism: str, mask: Mask, **options) -> float:
        """What the attacker recovers although it has not seen protected vectors before."""
        policy = Policy.build(encoder=mask.info.encoder, mechanism=mechanism, mask=mask, **options)
        key = Key(bytes(range(32)))
        return self.recovered(policy.release(self.embeddings, ids=self.ids, contents=self.texts, key=key))

    def recovered(self, vectors: np.ndarray) -> float:
        return micro_leakage(self.attacker.scores(vectors), self.labels)


@pytest.fixture(scope="module")
def remembering(encoder):
    return RememberingEncoder(encoder)


@pytest.fixture(scope="module")
def common(clinical, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whitebox")
    having = np.array([bool(found) for found in find_spans(clinical["text"].to_pylist(), CONCEPT.build())])
    rows = np.concatenate([np.flatnonzero(having)[::2], np.flatnonzero(~having)[::8]])
    pq.write_table(clinical.take(np.sort(rows)), folder / "records.parquet")
    uri = f"sqlite:///{folder}/mlflow.db"
    return folder, {
        "input": {"path": str(folder / "records.parquet")},
        "concept": CONCEPT.model_dump(exclude_defaults=True),
        "tracking": {"uri": uri},
    }


@pytest.fixture(scope="module")
def trained(common, remembering):
    """Directories of the masks that train_mask writes, by basis."""
    folder, settings = common
    for basis in BASES:
        config = TrainMaskConfig(**settings, output=str(folder / basis), mask={"basis": basis})
        train_mask.run(config, encoder=remembering)
    return {basis: folder / basis for basis in BASES}


@pytest.fixture(scope="module")
def attacked(common, remembering):
    records = pq.read_table(common[0] / "records.parquet").to_pylist()
    texts = [record["text"] for record in records]
    spans = find_spans(texts, CONCEPT.build())
    tokens = [concept_tokens(text, found) for text, found in zip(texts, spans, strict=True)]
    roles = divide(texts, SplitConfig())
    labels = token_labels(tokens, train=roles.mask, min_count=5).labels
    embeddings = remembering.encode(texts, title="Encoding")
    attacker = build_attack("mlc").fit(embeddings[roles.mask], labels[roles.mask], public=PublicKnowledge(), seed=0)
    ids, kept = [records[row]["id"] for row in roles.test], [texts[row] for row in roles.test]
    return Attacked(attacker, ids, kept, embeddings[roles.test], labels[roles.test])


@pytest.mark.parametrize("basis", BASES)
def test_the_mask_names_its_basis_and_tells_how_much_was_covered(trained, basis):
    mask = Mask.load(trained[basis] / "mask")
    assert mask.info.basis == basis
    metrics = json.loads((trained[basis] / "summary.json").read_text())["mask_metrics"]
    assert metrics == mask.info.metrics
    assert metrics["attribution_open"] >= {"whitebox": 0.9, "whitebox-label": 0.5}[basis]
    assert 0 < metrics["directions_open"] == np.count_nonzero(mask.values) < 384
    assert metrics["attacker_leakage"] > 0.5


def test_whitebox_masks_the_encoders_coordinates(trained):
    np.testing.assert_array_equal(Mask.load(trained["whitebox"] / "mask").basis, np.eye(384))


def test_a_run_tells_mlflow_of_the_attributions(common, trained):
    client = mlflow.MlflowClient(tracking_uri=common[1]["tracking"]["uri"])
    runs = client.search_runs([client.get_experiment_by_name("sparse").experiment_id])
    found = {run.data.params["mask.basis"]: run.data.metrics for run in runs if "mask.basis" in run.data.params}
    for basis in BASES:
        metrics = Mask.load(trained[basis] / "mask").info.metrics
        assert {name: found[basis][f"mask/{name}"] for name in metrics} == pytest.approx(metrics)


def test_the_attacker_finds_less_under_a_mask_of_what_it_reads_than_under_laplace(trained, attacked):
    mask = Mask.load(trained["whitebox-label"] / "mask")
    assert attacked.recovered(attacked.embeddings) > 0.6
    for options in ({"rho": 1}, {"rho": 2}, {"rho": 1, "read_out": "none"}, {"rho": 2, "read_out": "none"}):
        masked = attacked.leakage("mahalanobis", mask, floor=0.03, **options)
        assert masked < attacked.leakage("laplace", mask, **options) - 0.1, options


def test_a_mask_of_coordinates_hides_from_the_attacker_no_less_than_laplace(trained, attacked):
    mask, options = Mask.load(trained["whitebox"] / "mask"), {"rho": 2, "read_out": "none"}
    masked = attacked.leakage("mahalanobis", mask, floor=0.03, **options)
    assert masked < attacked.leakage("laplace", mask, **options) + 0.1
    assert masked < attacked.recovered(attacked.embeddings) - 0.1


def test_an_audit_takes_such_masks_as_any_other(common, trained, remembering):
    folder, settings = common
    compare = [
        {
            "name": basis,
            "protection": {"mechanism": "mahalanobis", "rho": 2},
            "mask": str(trained[basis] / "mask"),
        }
        for basis in BASES
    ]
    config = AuditConfig(**settings, output=str(folder / "audit"), compare=compare, attacks=("ridge",))
    rows = audit.run(config, encoder=remembering).protections
    assert [row.basis for row in rows] == list(BASES)
    assert all(0 < row.leakage_low <= row.leakage <= row.leakage_high for row in rows)
    assert rows[1].leakage < rows[1].leakage_unprotected


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_without_captum_the_job_names_the_extra_before_it_loads_anything(
    common, tmp_path, capsys, monkeypatch, options
):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setattr(RememberingEncoder, "load", lambda config: pytest.fail("the encoder was loaded"))
    settings = common[1] | {"output": str(tmp_path / "out"), "mask": {"basis": "whitebox"}}
    (tmp_path / "train_mask.yaml").write_text(yaml.safe_dump(settings))
    assert main(["train_mask", "--config", str(tmp_path / "train_mask.yaml"), *options]) == 2
    assert "extra 'whitebox'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_dry_run_tells_what_is_covered(common, tmp_path, capsys):
    settings = common[1] | {"output": str(tmp_path / "out"), "mask": {"basis": "whitebox", "share": 0.8}}
    (tmp_path / "train_mask.yaml").write_text(yaml.safe_dump(settings))
    assert main(["train_mask", "--config", str(tmp_path / "train_mask.yaml"), "--dry-run"]) == 0
    assert "basis whitebox, 0.8 of what an mlc attacker reads" in capsys.readouterr().out
