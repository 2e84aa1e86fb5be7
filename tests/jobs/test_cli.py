import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import JOBS, main
from jobs.config import (
    AuditConfig,
    CalibrateConfig,
    PrivatizeConfig,
    QueryConfig,
    QuickstartConfig,
    StudyConfig,
    TrainMaskConfig,
    describe_fields,
)
from jobs.report.table import markdown
from sparse_core.noise import Key

DATA = Path(__file__).parents[2] / "configs/data/clinical_sentences.parquet"

MODELS = {
    "quickstart": QuickstartConfig,
    "train_mask": TrainMaskConfig,
    "privatize": PrivatizeConfig,
    "query": QueryConfig,
    "audit": AuditConfig,
    "study": StudyConfig,
    "calibrate": CalibrateConfig,
}
PLAIN = "protection={mechanism: laplace, rho: 1, read_out: none}"
every_job = pytest.mark.parametrize("job", JOBS)


def flat(text: str) -> str:
    return " ".join(text.split())


def error_of(capsys) -> str:
    """The error on one line, after checking that it is one paragraph and nothing else was printed."""
    captured = capsys.readouterr()
    assert captured.err.startswith("sparse ") and captured.err.endswith("\n")
    assert "\n\n" not in captured.err and "Traceback" not in captured.err
    assert captured.out == ""
    return flat(captured.err)


@pytest.fixture
def privatize(workspace, tmp_path, capsys):
    """Run privatize without a mask and with one thing wrong; what it said."""

    def privatize(*overrides: str) -> str:
        status = workspace.run("privatize", "mask=null", PLAIN, f"output={tmp_path}/out", *overrides)
        assert status == 2
        assert not (tmp_path / "out").exists()
        return error_of(capsys)

    return privatize


# Help


@every_job
def test_help_lists_every_field_with_its_text(job, capsys):
    with pytest.raises(SystemExit) as left:
        main([job, "--help"])
    printed = flat(capsys.readouterr().out)
    assert left.value.code == 0
    for name, default, text in describe_fields(MODELS[job]):
        assert f"{name} [{default}] {flat(text)}" in printed


@every_job
def test_help_opens_with_what_the_job_is_for(job, capsys):
    with pytest.raises(SystemExit):
        main([job, "--help"])
    assert flat(MODELS[job].__doc__) in flat(capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_a_command_every_command_is_told(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in (*JOBS, "key new", "budget show", "inspect DATASET"))


def test_a_job_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jobs.privatize", "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("usage: sparse privatize ")


def test_a_job_as_a_module_exits_with_status_2_for_a_mistake(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "jobs.train_mask", "--config", str(tmp_path / "nowhere.yaml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sparse train_mask: There is no configuration file")


# Mistakes


def test_an_unknown_command_is_told_with_those_there_are(capsys):
    assert main(["privatise"]) == 2
    error = error_of(capsys)
    assert "'privatise'" in error and "train_mask" in error


def test_a_command_may_be_written_with_a_hyphen(capsys):
    assert main(["train-mask", "--config", "nowhere.yaml"]) == 2
    assert "no configuration file nowhere.yaml" in error_of(capsys)


def test_a_configuration_without_required_fields_is_told(capsys):
    assert main(["privatize"]) == 2
    error = error_of(capsys)
    assert all(f"{name}: Field required" in error for name in ("output", "input", "protection"))


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("ouput=x", "ouput: no such field; did you mean 'output'?"),
        ("protection.roh=1", "protection.roh: no such field; did you mean 'rho'?"),
        ("input.path={tmp}/nowhere.parquet", "input.path: there is no file at {tmp}/nowhere.parquet."),
        ("input.path={tmp}/empty.jsonl", "holds no rows"),
        ("input.path={tmp}/empty.csv", "holds no rows"),
        ("input.text=note", "has no column 'note'; it has 'id', 'text', 'section'."),
        ("input.id=number", "has no column 'number'; it has 'id', 'text', 'section'."),
        ("passthrough=[ward]", "has no column 'ward'; it has 'id', 'text', 'section'."),
        ("mask={tmp}/nowhere", "no mask in {tmp}/nowhere"),
        ("key.file={tmp}/nowhere.key", "There is no key file {tmp}/nowhere.key."),
        ("key.file={tmp}/open.key", "chmod 600"),
        ("key.file={tmp}/short.key", "at least 32 are needed"),
        ("encoder.model={tmp}/nowhere", "encoder.model: there is no folder"),
        ("encoder.model=no-such-owner/no-such-model", "encoder.model: 'no-such-owner/no-such-model'"),
        ("protection.rho=-1", "protection.rho: Input should be greater than 0"),
        ("limits.max_quarantined=many", "limits.max_quarantined: "),
    ],
)
def test_a_mistake_is_told_in_one_paragraph_and_leaves_nothing(privatize, tmp_path, override, told):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "empty.csv").write_text("id,text,section\n")
    (tmp_path / "open.key").write_text("sparse-key-v1 " + bytes(range(32)).hex())
    (tmp_path / "open.key").chmod(0o644)
    (tmp_path / "short.key").write_text("00ff")
    (tmp_path / "short.key").chmod(0o600)
    assert told.format(tmp=tmp_path) in privatize(override.format(tmp=tmp_path))


def test_no_key_is_told_with_the_way_to_one(privatize, monkeypatch):
    monkeypatch.delenv("SPARSE_KEY", raising=False)
    error = privatize("key.file=null")
    assert "SPARSE_KEY is not set" in error and "sparse key new FILE" in error


def test_a_key_of_the_environment_that_is_none_is_refused_and_not_repeated(privatize, monkeypatch):
    monkeypatch.setenv("SPARSE_KEY", "correct horse battery staple")
    error = privatize("key.file=null")
    assert "SPARSE_KEY" in error and "horse" not in error


@pytest.mark.parametrize("below", ["", "/deeper"])
@pytest.mark.parametrize("job", ["train_mask", "privatize"])
def test_an_output_that_is_a_file_is_told(workspace, tmp_path, capsys, job, below):
    (tmp_path / "file").write_text("mine")
    overrides = ["mask=null", PLAIN] if job == "privatize" else []
    assert workspace.run(job, *overrides, f"output={tmp_path}/file{below}", "tracking.uri=null") == 2
    assert "cannot be made a directory to write to" in flat(capsys.readouterr().err)
    assert (tmp_path / "file").read_text() == "mine"


def test_storage_for_the_runs_is_needed_beside_an_output_elsewhere(workspace, capsys):
    assert workspace.run("train_mask", "output=s3://bucket/out", "tracking.uri=null") == 2
    assert "tracking.uri" in flat(capsys.readouterr().err)


def test_a_key_of_the_environment_is_taken_where_no_file_is_named(workspace, tmp_path, monkeypatch, capsys):
    secret = bytes(range(7, 39))
    monkeypatch.setenv("SPARSE_KEY", secret.hex())
    overrides = ["mask=null", PLAIN, "key.file=null", f"output={tmp_path}/out"]
    assert workspace.run("privatize", "--dry-run", *overrides) == 0
    printed = capsys.readouterr().out
    assert Key(secret).identifier in printed and secret.hex() not in printed


def test_a_dry_run_tells_what_would_be_done(workspace, tmp_path, capsys):
    plain = "protection={mechanism: laplace, rho: 1.25, read_out: none}"
    assert workspace.run("privatize", "--dry-run", "mask=null", plain, f"output={tmp_path}/out") == 0
    printed = capsys.readouterr().out
    for part in (str(workspace.corpus), "2 units", "laplace, rho 1.25", workspace.key.identifier, f"{tmp_path}/out"):
        assert part in printed
    assert not (tmp_path / "out").exists()


# Keys


def test_a_new_key_is_for_its_owner_only(tmp_path, capsys):
    assert main(["key", "new", str(tmp_path / "new.key")]) == 0
    assert stat.S_IMODE(os.stat(tmp_path / "new.key").st_mode) == 0o600


def test_a_new_key_is_told_by_its_identifier_and_never_shown(tmp_path, capsys):
    main(["key", "new", str(tmp_path / "new.key")])
    printed = capsys.readouterr().out
    assert Key.from_file(tmp_path / "new.key").identifier in printed
    assert not re.search(r"[0-9a-f]{32}", printed)


def test_a_new_key_is_another_every_time(tmp_path, capsys):
    for name in ("a", "b"):
        main(["key", "new", str(tmp_path / name)])
    assert Key.from_file(tmp_path / "a") != Key.from_file(tmp_path / "b")


def test_a_key_is_never_overwritten(tmp_path, capsys):
    path = tmp_path / "new.key"
    main(["key", "new", str(path)])
    before = path.read_bytes()
    capsys.readouterr()
    assert main(["key", "new", str(path)]) == 2
    assert "exists and is not overwritten" in error_of(capsys)
    assert path.read_bytes() == before


def test_a_key_where_nothing_can_be_written_is_told(tmp_path, capsys):
    assert main(["key", "new", str(tmp_path / "nowhere" / "new.key")]) == 2
    assert "Cannot write the key file" in error_of(capsys)


def test_object_storage_that_cannot_be_reached_is_told_in_one_paragraph(capsys, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    arguments = ["train_mask", "output=x", "concept={name: x, terms: [asthma]}", "input.path=s3://no-such-bucket/k.csv"]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert "no credentials" in told and "s3://no-such-bucket/k.csv" in told and "Traceback" not in told


@pytest.mark.parametrize("job", ["train_mask", "audit"])
def test_a_job_does_not_overwrite_the_output_of_another(job, tmp_path, capsys):
    (tmp_path / "summary.json").write_text('{"job": "privatize"}')
    arguments = [f"output={tmp_path}", "concept={name: x, terms: [asthma]}", f"input.path={DATA}"]
    if job == "audit":
        arguments.append("compare=[{name: none, protection: {mechanism: none}}]")
    assert main([job, *arguments]) == 2
    assert "holds the output of privatize" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "summary.json").read_text() == '{"job": "privatize"}'


def test_a_name_with_a_bar_keeps_the_reports_tables_whole():
    *_, row = markdown(("name", "leakage"), [["masked | x", "0.1"]])
    assert row.replace("\\|", "").count("|") == 3


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sparse-embeddings 0.")
