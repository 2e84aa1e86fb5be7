"""Masks in MLflow's model registry are masks wherever a configuration names one."""

import shutil
import subprocess
import sys

import mlflow
import numpy as np
import pytest
import yaml
from conftest import COMMON, MADE_UP
from test_study import killed_once

from jobs import audit, registry, storage
from jobs.config import AuditConfig, JobConfig, RegistryConfig, TrackingConfig, load_config
from jobs.summary import Summary
from jobs.tracking import tracked
from sparse_core.errors import SparseError
from sparse_core.masks import Mask


@pytest.fixture(scope="module", params=["sqlite", "server"])
def uri(request, tmp_path_factory):
    if request.param == "server":
        return request.getfixturevalue("mlflow_server").uri
    path = tmp_path_factory.mktemp("registry") / "mlflow.db"
    shutil.copy(request.getfixturevalue("mlflow_database"), path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def masks(small, tmp_path_factory):
    """Directories of two masks for the encoder of the tests."""
    folder = tmp_path_factory.mktemp("masks")
    for name, keep in (("narrow", 40), ("wide", 80)):
        whole = small.policy.mask
        values = np.where(np.arange(whole.dimension) < keep, 1.0, 0.0)
        Mask(values, whole.basis, whole.mean, whole.covariance, whole.info).save(folder / name)
    return folder


def register(uri, directory, output, **fields):
    config = JobConfig(output=str(output), tracking={"uri": uri})
    with tracked(config, Summary("train_mask")) as run:
        return registry.register_mask(run, str(directory), RegistryConfig(**fields))


@pytest.fixture(scope="module")
def registered(uri, masks, tmp_path_factory):
    """Two versions of one mask, the champion the second."""
    out = tmp_path_factory.mktemp("out")
    return [register(uri, masks / name, out, name="patient") for name in ("narrow", "wide")]


def loaded(reference, uri) -> Mask:
    with registry.opened(reference, TrackingConfig(uri=uri)) as folder:
        return Mask.load(folder)


def test_the_alias_points_at_the_mask_registered_last_and_versions_stay(uri, masks, registered):
    assert [found.reference for found in registered] == ["models:/patient/1", "models:/patient/2"]
    assert registry.pinned("models:/patient@champion", TrackingConfig(uri=uri)) == "models:/patient/2"
    for reference, name in (("models:/patient@champion", "wide"), ("models:/patient/1", "narrow")):
        np.testing.assert_array_equal(loaded(reference, uri).values, Mask.load(masks / name).values)


def test_a_version_says_what_it_is_and_where_it_comes_from(uri, registered):
    version = mlflow.MlflowClient(tracking_uri=uri).get_model_version("patient", "1")
    assert version.tags["sparse.basis"] == "label" and "MiniLM" in version.tags["sparse.encoder"]
    assert mlflow.MlflowClient(tracking_uri=uri).get_run(version.run_id).data.tags["sparse.job"] == "train_mask"


def test_the_same_mask_is_not_registered_twice_but_may_get_another_alias(uri, masks, registered, tmp_path):
    again = register(uri, masks / "narrow", tmp_path, name="patient", alias="challenger")
    assert again.reference == "models:/patient/1"
    assert registry.pinned("models:/patient@challenger", TrackingConfig(uri=uri)) == "models:/patient/1"
    assert registry.pinned("models:/patient@champion", TrackingConfig(uri=uri)) == "models:/patient/2"


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("models:/patient@winner", r"patient has the aliases .*champion \(version 2\) and the versions 1, 2"),
        ("models:/patient/7", r"and the versions 1, 2"),
        ("models:/patients@champion", "there are the masks patient"),
        ("models:/patient", "write models:/NAME@ALIAS or models:/NAME/VERSION"),
        ("models:/patient@champion/mask.json", "write models:/NAME@ALIAS or models:/NAME/VERSION"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(uri, registered, reference, told):
    with pytest.raises(SparseError, match=f"mask: .*{told}"):
        registry.pinned(reference, TrackingConfig(uri=uri))


def test_a_registered_model_that_is_no_mask_is_refused(uri, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("none")
    config = JobConfig(output=str(tmp_path / "out"), tracking={"uri": uri})
    with tracked(config, Summary("train_mask")) as run:
        run.log_directory(str(tmp_path / "model"), "model")
        client, source = run.store.client, run.store.client.get_run(run.run_id).info.artifact_uri + "/model"
        client.create_registered_model("other")
        client.create_model_version("other", source, run.run_id)
    with pytest.raises(SparseError, match="is no mask"):
        loaded("models:/other/1", uri)


def test_without_a_registry_to_ask_its_setting_is_named(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(SparseError, match=r"tracking\.uri or MLFLOW_TRACKING_URI"):
        registry.pinned("models:/patient@champion", TrackingConfig())


def test_the_registry_of_the_environment_is_asked_where_none_is_configured(uri, registered, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert registry.pinned("models:/patient@champion", TrackingConfig()) == "models:/patient/2"


# In jobs


@pytest.mark.parametrize("mask", ["mask=models:/patient@champion", "mask=[{path: 'models:/patient@champion'}]"])
def test_privatize_plans_with_the_version_the_alias_points_at(workspace, uri, registered, tmp_path, capsys, mask):
    assert workspace.run("privatize", "--dry-run", mask, f"tracking.uri={uri}", f"output={tmp_path}/out") == 0
    assert "mask        models:/patient/2" in capsys.readouterr().out


def test_privatize_refuses_an_alias_that_is_not_there_before_anything_is_read(
    workspace, uri, registered, tmp_path, capsys
):
    assert (
        workspace.run("privatize", "mask=models:/patient@winner", f"tracking.uri={uri}", f"output={tmp_path}/out") == 2
    )
    assert "champion (version 2)" in " ".join(capsys.readouterr().err.split())


def test_an_audit_plans_with_the_version_the_alias_points_at(workspace, uri, registered, tmp_path):
    row = "{name: champion, mask: 'models:/patient@champion', protection: {mechanism: mahalanobis, rho: 2}}"
    overrides = [f"compare=[{row}]", f"tracking.uri={uri}", f"output={tmp_path}/audit"]
    config = load_config(AuditConfig, str(workspace.folder / "audit.yaml"), overrides)
    assert audit.plan(config).config.compare[0].mask == "models:/patient/2"


@pytest.mark.slow
def test_a_champion_that_train_mask_registered_protects_what_privatize_publishes(workspace, mlflow_server, tmp_path):
    tracking = f"tracking.uri={mlflow_server.uri}"
    assert workspace.run("train_mask", "registry.name=trained", tracking, f"output={tmp_path}/training") == 0
    assert storage.read_json(f"{tmp_path}/training/summary.json")["registered"]["version"] == "1"
    for name, mask in (("by_name", "models:/trained@champion"), ("by_path", f"{tmp_path}/training/mask")):
        assert workspace.run("privatize", f"mask={mask}", tracking, f"output={tmp_path}/{name}") == 0
    manifests = [storage.read_json(f"{tmp_path}/{name}/manifest.json") for name in ("by_name", "by_path")]
    assert [manifest["registered_masks"] for manifest in manifests] == [["models:/trained/1"], []]
    assert manifests[0]["policy_hash"] == manifests[1]["policy_hash"]
    assert manifests[0]["files"] == manifests[1]["files"]
    rows = "compare=[{name: champion, mask: 'models:/trained@champion', protection: {mechanism: mahalanobis, rho: 2}}]"
    assert workspace.run("audit", rows, tracking, f"output={tmp_path}/audit", "similar_tokens=false") == 0
    assert storage.read_json(f"{tmp_path}/audit/summary.json")["registered_masks"] == ["models:/trained/1"]
    client = mlflow.MlflowClient(tracking_uri=mlflow_server.uri)
    experiment = client.get_experiment_by_name("sparse").experiment_id
    for job, param in (("privatize", "mask"), ("audit", "compare.0.mask")):
        found = client.search_runs([experiment], f"tags.`sparse.job` = '{job}'")
        assert "models:/trained/1" in [run.data.params[param] for run in found]


def test_a_mask_of_a_run_that_is_not_recorded_cannot_be_registered(workspace, tmp_path, capsys):
    overrides = ["registry.name=patient", "tracking.enabled=false", f"output={tmp_path}/out"]
    assert workspace.run("train_mask", *overrides) == 2
    assert "set tracking.enabled to true" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_study_killed_and_resumed_is_one_finished_run_whose_best_mask_is_the_champion(
    workspace, mlflow_server, tmp_path
):
    settings = {
        "output": str(tmp_path / "study"),
        "input": {"path": str(workspace.corpus)},
        "concepts": {"name": "patient", "terms": [*MADE_UP, *COMMON]},
        "encoders": {"device": "cpu"},
        "space": {"rho": [1, 2, 4], "penalty": [0.2, 0.8], "floor": 0.05},
        "mask": {"epochs": 20, "gate_learning_rate": 0.5},
        "attacks": "ridge",
        "draws": 0,
        "min_token_count": 3,
        "utility": {"label": "section"},
        "workers": {"actors": 1},
        "tracking": {"uri": mlflow_server.uri, "experiment": "studies"},
        "registry": {"name": "studied"},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "jobs.cli", "study", "--config", str(tmp_path / "study.yaml")]
    killed_once(command, tmp_path / "study", "driver")
    client = mlflow.MlflowClient(tracking_uri=mlflow_server.uri)
    experiment = client.get_experiment_by_name("studies").experiment_id
    (parent,) = client.search_runs([experiment], "tags.`sparse.job` = 'study'")
    assert parent.info.status == "RUNNING"
    for _ in range(2):
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        runs = client.search_runs([experiment])
        assert {run.info.status for run in runs} == {"FINISHED"}
        trials = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        assert len(runs) == 7 and len({run.data.tags["sparse.trial"] for run in trials}) == 6
    summary = storage.read_json(f"{tmp_path}/study/summary.json")
    assert summary["registered"] == {"name": "studied", "version": "1", "alias": "champion"}
    # With so few records several are best.
    score = max(run.data.metrics["score"] for run in trials)
    best = [run.info.run_id for run in trials if run.data.metrics["score"] == score]
    masks = [Mask.load(client.download_artifacts(run_id, "mask")) for run_id in best]
    champion = loaded("models:/studied@champion", mlflow_server.uri)
    assert any(np.array_equal(champion.values, mask.values) for mask in masks)
