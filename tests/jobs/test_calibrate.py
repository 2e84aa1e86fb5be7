"""A calibration's policy is within its limits where it is measured again, or there is none and that is said."""

import re
import shutil
from dataclasses import replace
from itertools import pairwise

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import COMMON

from jobs import audit, calibrate, noise_search, privatize, storage
from jobs.cli import main
from jobs.config import AuditConfig, CalibrateConfig, PrivatizeConfig, TrackingConfig, load_config
from jobs.stages import RememberingEncoder
from jobs.study.trial import prepare
from sparse_core.masks import Mask
from sparse_core.policy import Policy

LIMIT = 0.6


@pytest.fixture(scope="module")
def room(tmp_path_factory, clinical, mlflow_database):
    """A corpus in which many sentences hold the concept, and a configuration."""
    room = tmp_path_factory.mktemp("calibration")
    terms = re.compile(rf"\b({'|'.join(COMMON)})\b", re.IGNORECASE)
    records = clinical.to_pylist()
    holding = [bool(terms.search(record["text"])) for record in records]
    chosen = [record for record, holds in zip(records, holding, strict=True) if holds]
    chosen += [record for record, holds in zip(records, holding, strict=True) if not holds][::24]
    pq.write_table(pa.Table.from_pylist(chosen), room / "corpus.parquet")
    shutil.copy(mlflow_database, room / "mlflow.db")
    settings = {
        "output": str(room / "out"),
        "input": {"path": str(room / "corpus.parquet")},
        "concept": {"name": "patient", "terms": list(COMMON)},
        "encoder": {"device": "cpu"},
        "split": {"test_share": 0.4, "attack_share": 0.3},
        "max_leakage": LIMIT,
        "penalty": [0.1, 0.8],
        "rho": {"low": 0.25, "high": 8},
        "steps": 2,
        "attacks": ["ridge"],
        "draws": 0,
        "min_token_count": 3,
        "utility": {"label": "section"},
        "cache": str(room / "embeddings"),
        "tracking": {"uri": f"sqlite:///{room}/mlflow.db"},
        "mask": {"epochs": 20, "basis": "erasure"},
    }
    (room / "calibrate.yaml").write_text(yaml.safe_dump(settings))
    return room


def configured(room, *overrides) -> CalibrateConfig:
    return load_config(CalibrateConfig, str(room / "calibrate.yaml"), list(overrides))


@pytest.fixture(scope="module")
def loaded(job_encoder):
    return RememberingEncoder(job_encoder)


@pytest.fixture(scope="module")
def found(room, loaded):
    """The summary of a calibration that finds a policy, and registers its mask."""
    calibrate.run(configured(room, "registry.name=calibrated"), encoder=loaded)
    return storage.read_json(f"{room}/out/summary.json")


def test_the_policy_found_is_within_the_limit_on_records_that_did_not_choose_it(found):
    row = {row["name"]: row for row in found["protections"]}["calibrated"]
    assert row["leakage_high"] <= LIMIT and found["chosen"]["leakage_high"] == row["leakage_high"]
    assert found["chosen_on_other_records"] and found["concept_test_records"] >= 20


def test_no_policy_within_the_limit_that_was_tried_is_more_useful_than_the_first_one_looked_at(found):
    within = [tried["utility"] for tried in found["tried"] if tried["leakage_high"] <= LIMIT]
    first = next(t for t in found["tried"] if all(t[k] == found["looks"][0][k] for k in ("lambda", "epsilon")))
    assert first["utility"] == max(within)


def test_for_every_mask_the_noise_closes_in_on_the_limit(found):
    for penalty in (0.1, 0.8):
        tried = [t for t in found["tried"] if t["lambda"] == penalty]
        assert tried[0]["rho"] == pytest.approx(8, rel=1e-3)
        for before, after in pairwise(tried[1:]):
            assert (after["rho"] < before["rho"]) == (before["leakage_high"] <= LIMIT)


def test_an_audit_of_the_policy_finds_its_upper_bound_within_the_limit(room, found, loaded):
    config = configured(room)
    row = {"name": "again", "mask": f"{room}/out/policy/mask"}
    row["protection"] = {"mechanism": "mahalanobis", "epsilon": found["chosen"]["epsilon"], "floor": config.floor}
    shared = config.model_dump(include={"input", "concept", "encoder", "split", "attacks", "draws", "min_token_count"})
    audited = AuditConfig(
        **shared, output=f"{room}/audit", tracking={"enabled": False}, compare=[row], similar_tokens=False
    )
    (again,) = audit.run(audited, encoder=loaded).protections
    assert again.leakage_high <= LIMIT and again.epsilon == pytest.approx(found["chosen"]["epsilon"])


def test_the_policy_loads_and_the_configuration_beside_it_publishes_under_it(room, found, loaded):
    policy = Policy.load(room / "out" / "policy", encoder=loaded.spec)
    assert policy.hash == found["policy_hash"] and policy.guarantee().epsilon == found["guarantee"]["epsilon"]
    config = load_config(PrivatizeConfig, f"{room}/out/privatize.yaml", ["key.ephemeral=true"])
    planned = privatize.plan(config)
    assert privatize.policy_of(config, loaded.spec, planned.mask).hash == policy.hash
    assert "sparse privatize --config" in (room / "out" / "privatize.yaml").read_text()


def test_the_mask_found_is_registered_and_the_run_tells_the_figures(room, found):
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{room}/mlflow.db")
    version = client.get_model_version_by_alias("calibrated", "champion")
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED" and run.data.tags["sparse.job"] == "calibrate"
    assert run.data.metrics["calibrated/leakage_high"] == found["chosen"]["leakage_high"]
    assert {"guarantee/epsilon", "guarantee/epsilon_euclidean", "guarantee/rho"} <= set(run.data.metrics)
    mask = Mask.load(client.download_artifacts(version.run_id, "policy/mask"))
    np.testing.assert_array_equal(mask.values, Mask.load(room / "out" / "policy" / "mask").values)


def test_a_limit_nothing_meets_is_told_with_how_near_one_came_and_status_3(room, found, capsys):
    arguments = ["--config", str(room / "calibrate.yaml"), f"output={room}/none", "tracking.enabled=false"]
    assert main(["calibrate", *arguments, "--max-leakage", "2%"]) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "No policy tried keeps the upper bound of leakage within 0.02" in told and "Traceback" not in told
    summary = storage.read_json(f"{room}/none/summary.json")
    assert summary["chosen"] is None and len(summary["tried"]) == 2
    nearest = min(tried["leakage_high"] for tried in summary["tried"])
    assert f"at most {nearest:.3f}" in told and f"at most {nearest:.3f}" in summary["reason"]
    assert not (room / "none" / "policy").exists() and not (room / "none" / "privatize.yaml").exists()


def test_a_loss_nothing_meets_is_told_from_both_sides(room, found, loaded):
    config = configured(room, f"output={room}/lossless", "max_utility_loss=0.1%", "penalty=[0.1]", "steps=1")
    config = config.model_copy(update={"tracking": TrackingConfig(enabled=False)})
    with pytest.raises(calibrate.NoPolicyError, match=r"at most 0\.1% of utility\. Within the leakage, the least"):
        calibrate.run(config, encoder=loaded)


def test_halves_share_no_record_and_no_near_duplicate(room, loaded):
    prepared = prepare(configured(room), loaded)
    first, second = noise_search.halves(prepared, seed=0)
    assert sorted([*first.material.test, *second.material.test]) == sorted(prepared.material.test)
    texts = [{prepared.material.texts[row].casefold() for row in half.material.test} for half in (first, second)]
    assert not texts[0] & texts[1]
    small = replace(prepared, material=replace(prepared.material, test=prepared.material.test[:30]))
    assert noise_search.halves(small, seed=0) == (small, small)


@pytest.mark.parametrize(("given", "share"), [("0.2", 0.2), ("20%", 0.2), ("5.5 %", 0.055)])
def test_limits_are_shares_or_percentages(room, given, share):
    assert configured(room, f"max_leakage={given}").max_leakage == pytest.approx(share)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("max_leakage=0", "max_leakage: Input should be greater than 0"),
        ("max_leakage=120%", "max_leakage: Input should be less than 1"),
        ("max_leakage=a%", "max_leakage: Input should be a valid number"),
        ("max_utility_loss=-5%", "max_utility_loss: Input should be greater than 0"),
        ("penalty=[]", "penalty: is empty"),
        ("penalty=[0.1, 0.1]", "penalty: lists one twice"),
        ("mask.penalty=0.1", "mask.penalty is what is searched"),
        ("mask={basis: whitebox}", "has no lambda to vary"),
        ("utility=[]", "nothing to prefer one policy by"),
        ("attacks=[ridge, telepathy]", "attacks.1: Input should be"),
        ("rho={low: 4, high: 2}", "low must be smaller than high"),
    ],
)
def test_what_cannot_be_searched_is_refused(room, capsys, override, told):
    assert main(["calibrate", "--config", str(room / "calibrate.yaml"), override]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
