import base64
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import yaml

from jobs import privatize, sources
from jobs.cli import main
from jobs.config import InputConfig, PrivatizeConfig, load_config
from jobs.stages import usable_vectors
from sparse_core.masks import Mask
from sparse_core.noise import write_new_key
from sparse_core.policy import Policy

CONFIGS = Path(__file__).parents[2] / "configs"
COUNTS = {"job", "policy_hash", "counts", "durations", "protections", "fingerprints"}
PROTECTION = {
    "name",
    "protection",
    "basis",
    "epsilon",
    "epsilon_euclidean",
    "rho",
    "leakage",
    "leakage_concept",
    "leakage_learned",
    "leakage_low",
    "leakage_high",
    "leakage_attack",
    "utility",
    "utility_low",
    "utility_high",
    "utility_task",
    "reidentification",
    "confidence",
    "leakage_unprotected",
    "leakage_floor",
    "leakage_normalized",
    "statistics",
    "policy_membership",
    "policy_membership_low",
    "policy_membership_high",
    "policy_membership_informed",
    "policy_values",
    "policy_values_low",
    "policy_values_high",
    "policy_values_informed",
    "policy_values_floor",
}


@pytest.fixture(scope="module")
def mask(workspace):
    """The directory of a mask learned by train_mask."""
    assert workspace.run("train_mask") == 0
    return workspace.out / "training" / "mask"


@pytest.fixture(scope="module")
def release(workspace, mask):
    """The output of privatize."""
    assert workspace.run("privatize") == 0
    return workspace.out / "release"


@pytest.fixture(scope="module")
def audit(workspace, release):
    """The output of audit."""
    assert workspace.run("audit") == 0
    return workspace.out / "audit"


@pytest.fixture
def copy(release, tmp_path):
    """A copy of the release, to be damaged."""
    return shutil.copytree(release, tmp_path / "copy")


@pytest.fixture(scope="module")
def published(release):
    return pyarrow.dataset.dataset(release / "embeddings").to_table()


@pytest.fixture(scope="module")
def originals(workspace, job_encoder, published):
    """Texts and embeddings of the published rows."""
    text_of = {record["id"]: record["text"] for record in workspace.good}
    texts = [text_of[record] for record in published["id"].to_pylist()]
    return texts, job_encoder.encode(texts)


@pytest.fixture(scope="module")
def quarantine(release):
    return pyarrow.dataset.dataset(release / "quarantine").to_table().to_pylist()


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


def last_run(uri, job):
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("sparse")
    runs = client.search_runs([experiment.experiment_id], f"tags.`sparse.job` = '{job}'", order_by=["start_time DESC"])
    return runs[0]


# What privatize publishes


def test_every_good_row_is_published_once(workspace, published):
    assert sorted(published["id"].to_pylist()) == sorted(record["id"] for record in workspace.good)


def test_embeddings_are_lists_of_384_float32(published):
    assert published.schema.field("embedding").type.equals(pa.list_(pa.float32(), 384))


def test_a_release_has_these_columns_and_no_text(published):
    assert published.column_names == ["id", "embedding", "section", "policy", "releases", "epsilon_spent"]


def test_passthrough_columns_stay_with_their_row(workspace, published):
    sections = dict(zip(published["id"].to_pylist(), published["section"].to_pylist(), strict=True))
    assert sections == {record["id"]: record["section"] for record in workspace.good}


def test_a_release_tells_its_policy_and_what_was_spent(release, published):
    policy = Policy.load(release / "policy")
    assert set(published["policy"].to_pylist()) == {policy.hash[:16]}
    assert set(published["releases"].to_pylist()) == {1}
    assert set(published["epsilon_spent"].to_pylist()) == {policy.guarantee().epsilon_euclidean}


def test_pandas_reads_a_release(release):
    frame = pd.read_parquet(release / "embeddings")
    assert np.stack(frame["embedding"]).shape == (400, 384)
    assert frame["id"].is_unique


def test_published_vectors_are_what_the_policy_releases(workspace, job_encoder, release, published, originals):
    texts, embeddings = originals
    policy = Policy.load(release / "policy", encoder=job_encoder.spec)
    expected = policy.release(embeddings, ids=published["id"].to_pylist(), contents=texts, key=workspace.key)
    np.testing.assert_array_equal(np.stack(published["embedding"].to_pylist()).astype(np.float32), expected)


def test_no_published_vector_is_its_embedding(published, originals):
    moved = np.linalg.norm(np.stack(published["embedding"].to_pylist()) - originals[1], axis=1)
    assert moved.min() > 0.1


def test_the_manifest_names_the_files_and_the_policy(release):
    manifest = json.loads((release / "manifest.json").read_text())
    listed = {file["path"] for file in manifest["files"]}
    assert listed == {f"embeddings/{path.name}" for path in (release / "embeddings").iterdir()}
    assert manifest["policy_hash"] == Policy.load(release / "policy").hash
    assert (manifest["rows"], manifest["dimension"]) == (400, 384)


def test_bad_rows_are_quarantined_with_reason_and_position(workspace, quarantine):
    assert {row["reason"]: row["id"] for row in quarantine} == {
        "null_text": "bad-1",
        "empty_text": "bad-2",
        "blank_text": "bad-3",
        "null_id": None,
        "malformed_json": None,
        "invalid_utf8": None,
    }
    parquet, lines = workspace.corpus / "a.parquet", workspace.corpus / "b.jsonl"
    assert {row["position"] for row in quarantine if row["reason"] != "null_id"} > {
        f"{parquet}: row 300",
        f"{parquet}: row 301",
        f"{parquet}: row 302",
    }
    assert all(row["position"].startswith((f"{parquet}: row ", f"{lines}: byte ")) for row in quarantine)


def test_the_quarantine_holds_no_text(quarantine):
    assert {tuple(row) for row in quarantine} == {("id", "reason", "position")}
    assert "Brindlemoor" not in str(quarantine) and "Zorvath" not in str(quarantine)


def test_a_vector_that_is_nan_infinite_or_zero_is_unusable():
    vectors = np.array([[0.6, 0.8], [np.nan, 1], [np.inf, 0], [0, 0], [0, 1e-9]])
    assert usable_vectors(vectors).tolist() == [True, False, False, False, True]


# Summaries


@pytest.mark.parametrize("job", ["mask", "release", "audit"])
def test_rows_in_are_rows_out_and_quarantined(request, workspace, job):
    directory = request.getfixturevalue(job)
    counts = summary_of(directory.parent if job == "mask" else directory)["counts"]
    assert counts["rows_in"] == 406
    assert counts["quarantined"] == workspace.quarantined
    if job != "mask":
        assert counts["rows_out"] == counts["rows_in"] - sum(counts["quarantined"].values())


def test_the_summary_of_train_mask_has_the_documented_names(mask):
    summary = summary_of(mask.parent)
    assert set(summary) == COUNTS | {"concept_rows", "pairs", "mask_metrics", "registered"}
    assert (summary["job"], summary["policy_hash"], summary["protections"]) == ("train_mask", None, [])


def test_the_summary_of_privatize_has_the_documented_names(release):
    summary = summary_of(release)
    names = {"guarantee", "key_identifier", "truncated", "first_row", "budget", "registered_masks"}
    names |= {"copies", "unforeseen_releases"}
    assert set(summary) == COUNTS | names
    assert (summary["job"], summary["policy_hash"]) == ("privatize", Policy.load(release / "policy").hash)
    assert summary["guarantee"]["rho"] == pytest.approx(1.5)


def test_the_summary_of_audit_has_the_documented_names(audit):
    summary = summary_of(audit)
    assert set(summary) == COUNTS | {
        "train_records",
        "test_records",
        "tokens_attacked",
        "tokens_coverage",
        "concept_test_records",
        "attacks",
        "concepts",
        "reidentification",
        "dictionary",
        "dictionary_share",
        "averaging",
        "policy_alone",
        "reconstruction",
        "token_groups",
        "utilities",
        "masks_learned_elsewhere",
        "registered_masks",
    }
    assert [set(row) for row in summary["protections"]] == [PROTECTION] * 3


def test_mask_attackers_and_test_share_the_rows_among_them(mask, audit):
    learned, audited = summary_of(mask.parent), summary_of(audit)
    shares = [learned["counts"]["rows_out"], audited["train_records"], audited["test_records"]]
    assert sum(shares) == 400 and min(shares) > 80


def test_every_stage_has_a_duration(mask, release, audit):
    for directory in (mask.parent, release, audit):
        durations = summary_of(directory)["durations"]
        assert durations and all(seconds >= 0 for seconds in durations.values())


def test_an_audit_compares_what_it_was_told_to(audit, release):
    rows = {row["name"]: row for row in summary_of(audit)["protections"]}
    assert list(rows) == ["released", "laplace", "unprotected"]
    assert rows["released"]["epsilon"] == Policy.load(release / "policy").epsilon
    assert (rows["laplace"]["basis"], rows["unprotected"]["epsilon"]) == ("isotropic", None)


def test_an_attack_finds_more_in_vectors_without_protection(audit):
    rows = {row["name"]: row for row in summary_of(audit)["protections"]}
    assert rows["unprotected"]["leakage"] > rows["released"]["leakage"]
    assert rows["unprotected"]["reidentification"] == 1


def test_the_report_has_a_row_for_every_protection(audit):
    report = (audit / "report.md").read_text()
    assert all(f"| {name} | " in report for name in ("released", "laplace", "unprotected"))


# MLflow


@pytest.mark.parametrize(("fixture", "job"), [("mask", "train_mask"), ("release", "privatize"), ("audit", "audit")])
def test_a_run_is_recorded_as_finished_with_settings_and_versions(request, workspace, fixture, job):
    request.getfixturevalue(fixture)
    run = last_run(workspace.database, job)
    assert run.info.status == "FINISHED"
    assert run.data.params["input.path"] == str(workspace.corpus)
    assert run.data.params["version.torch"] and run.data.params["version.ray"]
    assert len(run.data.params["fingerprint.data"]) == 64


@pytest.mark.parametrize(("fixture", "job"), [("release", "privatize"), ("audit", "audit")])
def test_metrics_are_the_figures_of_the_summary(request, workspace, fixture, job):
    summary = summary_of(request.getfixturevalue(fixture))
    metrics = last_run(workspace.database, job).data.metrics
    assert metrics["rows_in"] == summary["counts"]["rows_in"]
    assert metrics["quarantined/null_text"] == 1
    expected = {f"guarantee/{name}": value for name, value in summary.get("guarantee", {}).items()}
    for row in summary["protections"]:
        expected |= {f"{row['name']}/{name}": value for name, value in row.items()}
    numbers = {name: value for name, value in expected.items() if isinstance(value, float)}
    assert {name: metrics.get(name) for name in numbers} == pytest.approx(numbers)


def test_a_privatize_run_tells_epsilon_in_every_metric(workspace, release):
    metrics = last_run(workspace.database, "privatize").data.metrics
    assert {"guarantee/epsilon", "guarantee/epsilon_euclidean", "guarantee/rho"} <= set(metrics)


def test_a_privatize_run_tells_the_policy_hash(workspace, release):
    run = last_run(workspace.database, "privatize")
    assert run.data.params["policy_hash"] == run.data.tags["sparse.policy_hash"] == summary_of(release)["policy_hash"]


def test_the_mask_is_an_artifact_of_its_run(workspace, mask, tmp_path):
    run = last_run(workspace.database, "train_mask")
    client = mlflow.MlflowClient(tracking_uri=workspace.database)
    stored = client.download_artifacts(run.info.run_id, "mask", str(tmp_path))
    np.testing.assert_array_equal(Mask.load(stored).values, Mask.load(mask).values)


@pytest.fixture(scope="module")
def everything_written(workspace, audit):
    """All that the three jobs wrote, as it lies on disk and, for Parquet, as it reads."""
    written = {str(path): path.read_bytes() for path in workspace.out.rglob("*") if path.is_file()}
    for path in workspace.out.rglob("*.parquet"):
        table = pq.read_table(path)
        table = table.drop_columns([name for name in ("embedding",) if name in table.column_names])
        written[f"{path} as text"] = str(table.to_pylist()).encode()
    assert any(name.endswith("mlflow.db") for name in written)
    return written


def test_the_key_is_nowhere_in_what_is_written(workspace, everything_written):
    secret = bytes.fromhex(workspace.key_file.read_text().split()[1])
    shapes = [secret, secret.hex().encode(), secret.hex().upper().encode(), base64.b64encode(secret)[:40]]
    assert not [name for name, content in everything_written.items() for shape in shapes if shape in content]


@pytest.mark.parametrize("term", ["zorvath", "quexlington", "brindlemoor", "brindlem[o]{2}r"])
def test_a_term_of_the_concept_is_nowhere_in_what_is_written(everything_written, term):
    assert not [name for name, content in everything_written.items() if term.encode() in content.lower()]


def test_no_sentence_is_in_what_is_written(workspace, everything_written):
    texts = [record["text"].encode() for record in workspace.good]
    assert not [name for name, content in everything_written.items() for text in texts if text in content]


# Running again


def test_running_again_does_nothing_and_says_so(workspace, release, tree, capsys):
    before = tree(workspace.out)
    assert workspace.run("privatize") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert tree(workspace.out) == before


def test_running_again_tells_the_same_counts(workspace, release):
    config = load_config(PrivatizeConfig, str(workspace.folder / "privatize.yaml"), [])
    assert privatize.run(config).as_dict()["counts"] == summary_of(release)["counts"]


def test_a_lost_unit_is_done_again_to_the_byte(workspace, release, copy, tree):
    unit = sorted((copy / "_units").iterdir())[0]
    unit.unlink()
    (copy / "embeddings" / f"part-{unit.stem}.parquet").unlink()
    assert workspace.run("privatize", f"output={copy}") == 0
    for part in ("embeddings", "quarantine", "ledger", "_units", "policy"):
        assert tree(copy / part) == tree(release / part)


def test_a_killed_run_is_continued_to_the_byte(workspace, release, copy, tree):
    for path in [*(copy / "_units").iterdir(), copy / "manifest.json", copy / "summary.json"]:
        path.unlink()
    (copy / "embeddings" / ".tmp0a1b").write_bytes(b"PAR1 cut sho")
    (copy / "_units" / ".tmp2c3d").write_bytes(b'{"unit": "cut sho')
    assert workspace.run("privatize", f"output={copy}", "workers.actors=2") == 0
    assert (copy / "manifest.json").read_bytes() == (release / "manifest.json").read_bytes()
    assert pyarrow.dataset.dataset(copy / "embeddings").to_table().num_rows == 400
    for part in ("quarantine", "ledger", "policy"):
        assert tree(copy / part) == tree(release / part)
    assert tree(copy / "embeddings") == tree(release / "embeddings")
    assert tree(copy / "_units") == tree(release / "_units")


@pytest.mark.parametrize("lost", [["manifest.json"], ["summary.json"], ["manifest.json", "summary.json"]])
def test_a_run_killed_while_it_finished_is_finished(workspace, release, copy, lost):
    for name in lost:
        (copy / name).unlink()
    assert workspace.run("privatize", f"output={copy}") == 0
    assert (copy / "manifest.json").read_bytes() == (release / "manifest.json").read_bytes()
    assert summary_of(copy)["counts"] == summary_of(release)["counts"]


def test_a_record_cut_short_does_not_stop_the_next_run(workspace, copy, capsys):
    (copy / "_units" / ".tmp2c3d").write_bytes(b'{"unit": "cut sho')
    assert workspace.run("privatize", f"output={copy}") == 0
    assert "nothing to do" in capsys.readouterr().out


def test_too_many_bad_rows_stop_the_job_until_the_limit_is_raised(workspace, mask, tmp_path, capsys):
    out = tmp_path / "out"
    overrides = [f"input.path={workspace.corpus}/b.jsonl", f"output={out}", f"tracking.uri=sqlite:///{out}/mlflow.db"]
    for _ in range(2):
        assert workspace.run("privatize", *overrides, "limits.max_quarantined=1") == 2
        assert "limits.max_quarantined: 2 of 102 rows were quarantined" in " ".join(capsys.readouterr().err.split())
        assert not (out / "manifest.json").exists() and not (out / "summary.json").exists()
        assert last_run(f"sqlite:///{out}/mlflow.db", "privatize").info.status == "FAILED"
    assert workspace.run("privatize", *overrides, "limits.max_quarantined=2") == 0
    assert summary_of(out)["counts"]["rows_out"] == 100


# What is refused


def refused(workspace, capsys, job, *overrides):
    """Run a job that must be refused; its message on one line."""
    assert workspace.run(job, *overrides) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sparse {job}: ") and "Traceback" not in error
    return " ".join(error.split())


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["protection.rho=3"], "a release of another policy"),
        (["protection.unit_norm=true"], "a release of another policy"),
        (["key.file={other_key}"], "a release of another key"),
        (["input.path={other_input}"], "a release of another input"),
        (["passthrough=[]"], "a release of other passthrough columns"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_output_of_something_else_is_refused_and_left_alone(
    workspace, release, tree, tmp_path, capsys, overrides, told
):
    write_new_key(tmp_path / "other.key")
    shutil.copytree(workspace.corpus, tmp_path / "corpus")
    places = {"other_key": tmp_path / "other.key", "other_input": tmp_path / "corpus"}
    before = tree(workspace.out)
    error = refused(workspace, capsys, "privatize", *(override.format(**places) for override in overrides))
    assert told in error and "Choose another output directory" in error
    assert tree(workspace.out) == before


def test_a_mask_of_another_encoder_is_refused_naming_both(workspace, mask, tmp_path, capsys):
    learned = Mask.load(mask)
    other = dataclasses.replace(learned.info.encoder, model="another-model", weights_sha256="b" * 64)
    dataclasses.replace(learned, info=dataclasses.replace(learned.info, encoder=other)).save(tmp_path / "mask")
    error = refused(workspace, capsys, "privatize", f"mask={tmp_path}/mask", f"output={tmp_path}/out")
    assert "another-model" in error and "all-MiniLM-L6-v2" in error
    assert not (tmp_path / "out").exists()


def test_a_mask_of_another_dimension_is_refused_naming_both(workspace, mask, tmp_path, capsys):
    learned, n = Mask.load(mask), 16
    info = dataclasses.replace(learned.info, encoder=dataclasses.replace(learned.info.encoder, dimension=n))
    Mask(np.arange(n) / n, np.eye(n), np.zeros(n), np.eye(n), info).save(tmp_path / "mask")
    error = refused(workspace, capsys, "privatize", f"mask={tmp_path}/mask", f"output={tmp_path}/out")
    assert "16" in error and "384" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["encoder.normalize=false", "encoder.prompt='passage: '"])
def test_a_mask_of_other_settings_is_refused(workspace, mask, tmp_path, capsys, setting):
    error = refused(workspace, capsys, "privatize", setting, "protection.embedding_norm=1", f"output={tmp_path}/out")
    assert "normalize=True and prompt ''" in error
    assert not (tmp_path / "out").exists()


def test_the_mask_of_another_concept_is_not_overwritten(workspace, mask, capsys):
    error = refused(workspace, capsys, "train_mask", "--dry-run", "concept.terms=[fever]", "concept.patterns=[]")
    assert "holds the mask of another concept (patient)" in error


@pytest.mark.parametrize("columns", ["[id]", "[section, section]"])
def test_a_column_is_published_once(workspace, mask, tmp_path, capsys, columns):
    error = refused(workspace, capsys, "privatize", f"passthrough={columns}", f"output={tmp_path}/out", "--dry-run")
    assert error.startswith("sparse privatize: passthrough: ")
    assert not (tmp_path / "out").exists()


def test_no_mask_where_one_is_needed_is_refused(workspace, tmp_path, capsys):
    error = refused(workspace, capsys, "privatize", "mask=null", f"output={tmp_path}/out")
    assert "mask" in error
    assert not (tmp_path / "out").exists()


def test_no_key_is_refused_with_the_way_to_one(workspace, mask, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SPARSE_KEY", raising=False)
    error = refused(workspace, capsys, "privatize", "key.file=null", f"output={tmp_path}/out")
    assert "sparse key new" in error and "key.ephemeral" in error
    assert not (tmp_path / "out").exists()


def test_an_output_inside_the_input_is_refused(workspace, mask, tree, capsys):
    before = tree(workspace.corpus)
    error = refused(workspace, capsys, "privatize", f"output={workspace.corpus}/out")
    assert "lies inside input.path" in error
    assert tree(workspace.corpus) == before


@pytest.mark.parametrize("column", ["embedding", "policy", "releases", "epsilon_spent"])
@pytest.mark.parametrize("use", ["passthrough=[{}]", "input.id={}"])
def test_a_column_that_the_output_has_itself_is_refused(workspace, mask, tmp_path, capsys, column, use):
    pq.write_table(pa.table({"id": ["1"], "text": ["words"], column: ["x"]}), tmp_path / "in.parquet")
    overrides = [f"input.path={tmp_path}/in.parquet", f"output={tmp_path}/out", "passthrough=[]", use.format(column)]
    assert f"a column {column!r} of its own" in refused(workspace, capsys, "privatize", *overrides)
    assert not (tmp_path / "out").exists()


def test_a_column_named_like_the_ids_that_are_made_is_refused(workspace, mask, tmp_path, capsys):
    overrides = ["input.id=null", "passthrough=[id]", f"output={tmp_path}/out"]
    assert "a column 'id' of its own" in refused(workspace, capsys, "privatize", *overrides)


@pytest.mark.parametrize("job", ["train_mask", "audit"])
@pytest.mark.parametrize(
    ("concept", "told"),
    [("{name: patient, terms: [Nowhereman]}", "0 of 400 rows"), ("{name: patient, patterns: ['.']}", "all 400 rows")],
)
def test_a_concept_of_no_row_or_every_row_is_refused(workspace, release, tmp_path, capsys, job, concept, told):
    error = refused(workspace, capsys, job, f"concept={concept}", f"output={tmp_path}/out")
    assert told in error and "Nowhereman" not in error
    assert not (tmp_path / "out").exists()


def test_an_audit_of_no_release_is_refused(workspace, mask, tmp_path, capsys):
    compare = f"compare=[{{name: x, release: {tmp_path}}}]"
    error = refused(workspace, capsys, "audit", compare, f"output={tmp_path}/out")
    assert "not a finished release" in error
    assert not (tmp_path / "out").exists()


def test_an_audit_of_a_release_of_other_records_is_refused(workspace, release, tmp_path, capsys):
    records = [record | {"id": f"other-{record['id']}"} for record in workspace.good]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "other.parquet")
    error = refused(
        workspace,
        capsys,
        "audit",
        f"input.path={tmp_path}/other.parquet",
        f"output={tmp_path}/out",
        "tracking.enabled=false",
    )
    assert "a release of another corpus" in error
    assert not (tmp_path / "out").exists()


def test_a_failed_job_is_recorded_as_failed_and_leaves_no_mask(workspace, tmp_path, capsys):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    closing = [
        f"input.path={workspace.corpus}/b.jsonl",
        "mask.basis=coordinate",
        "mask.penalty=1e6",
        "mask.gate_learning_rate=5",
    ]
    error = refused(workspace, capsys, "train_mask", *closing, f"output={tmp_path}/out", f"tracking.uri={uri}")
    assert "every gate closed: penalty" in error
    assert last_run(uri, "train_mask").info.status == "FAILED"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("job", ["train_mask", "privatize", "audit"])
def test_a_dry_run_prints_the_plan_and_writes_nothing(workspace, release, tree, tmp_path, capsys, job):
    before = tree(workspace.out)
    assert workspace.run(job, "--dry-run", f"output={tmp_path}/out") == 0
    printed = capsys.readouterr().out
    assert str(workspace.corpus) in printed and "nothing was computed or written" in printed
    assert not (tmp_path / "out").exists()
    assert tree(workspace.out) == before


def test_a_dry_run_of_something_wrong_is_refused(workspace, mask, tmp_path, capsys):
    for wrong in ("mask=nowhere", "key.file=nowhere", "input.path=nowhere", "input.text=nowhere"):
        assert "nowhere" in refused(workspace, capsys, "privatize", "--dry-run", wrong, f"output={tmp_path}/out")


# Other ways to run


def test_units_do_not_depend_on_the_number_of_workers(workspace):
    path = workspace.folder / "privatize.yaml"
    script = (
        "from jobs import privatize; from jobs.config import *; import sys;"
        "config = load_config(PrivatizeConfig, sys.argv[1], ['workers.actors=' + sys.argv[2], 'mask=null',"
        "'protection={mechanism: laplace, rho: 1, read_out: none}']);"
        "print(*(unit.name for unit in privatize.plan(config).source.units))"
    )
    planned = {
        subprocess.run(
            [sys.executable, "-c", script, path, actors], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for actors in ("1", "16")
    }
    names = [unit.name for unit in sources.plan(InputConfig(path=str(workspace.corpus))).units]
    assert planned == {" ".join(names) + "\n"}


def test_the_quickstart_ends_with_a_table_and_the_places(clinical, tmp_path, capsys):
    cut = clinical.take(list(range(0, clinical.num_rows, clinical.num_rows // 900))[:900])
    pq.write_table(cut, tmp_path / "cut.parquet")
    settings = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text())
    settings["concept"]["terms_file"] = str(CONFIGS / "concepts" / "patient.txt")
    settings |= {"output": str(tmp_path / "out"), "workers": {"actors": 1}, "attacks": ["ridge"], "min_token_count": 1}
    # A part of the corpus makes fewer steps, of which each must be longer to close a gate.
    settings["masks"]["coordinate"] |= {"penalty": 1.0, "gate_learning_rate": 0.2}
    settings["input"]["path"] = str(tmp_path / "cut.parquet")
    (tmp_path / "quickstart.yaml").write_text(yaml.safe_dump(settings))
    assert main(["quickstart", "--config", str(tmp_path / "quickstart.yaml")]) == 0
    printed = capsys.readouterr().out
    for place in ("release/embeddings", "masks/subspace/mask", "audit/report.md", "mlflow ui"):
        assert place in printed
    summary = summary_of(tmp_path / "out")
    assert [row["name"] for row in summary["protections"]] == [row["name"] for row in settings["compare"]]
    assert all(f"\n{row['name']} " in printed for row in summary["protections"])
    assert summary["counts"]["rows_in"] == summary["counts"]["rows_out"] == 900
    assert summary["masks_learned_elsewhere"] == []
