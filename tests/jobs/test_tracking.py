"""Runs are recorded wherever MLflow keeps them, and whatever happens to the process none stays RUNNING."""

import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import mlflow
import numpy as np
import pytest

from jobs.config import JobConfig
from jobs.summary import Summary
from jobs.tracking import check_tracking, tracked, tracked_study
from jobs.tracking.store import opened
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks import Mask, MaskInfo

STUDY = {"fingerprint": "5eed" * 16, "fingerprints": {"data": "da7a" * 16}}


@pytest.fixture
def database(tmp_path, mlflow_database) -> str:
    """An empty SQLite store."""
    shutil.copy(mlflow_database, tmp_path / "runs.db")
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def local(tmp_path, monkeypatch, mlflow_database):
    """A configuration whose runs are recorded in the output."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "out").mkdir()
    shutil.copy(mlflow_database, tmp_path / "out" / "mlflow.db")
    return JobConfig(output=str(tmp_path / "out"))


@pytest.fixture(params=["sqlite", "folder", "server"])
def stored(request, tmp_path, monkeypatch):
    """A configuration for each kind of place."""
    if request.param == "folder":
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = str(tmp_path / "mlruns")
    elif request.param == "sqlite":
        uri = request.getfixturevalue("database")
    else:
        uri = request.getfixturevalue("mlflow_server").uri
    tracking = {"uri": uri, "experiment": request.node.name}
    return JobConfig(output=str(tmp_path / "out"), tracking=tracking)


def with_tracking(config: JobConfig, **fields) -> JobConfig:
    return config.model_copy(update={"tracking": config.tracking.model_copy(update=fields)})


def written_mask(folder: Path) -> Mask:
    spec = EncoderSpec("none", None, "", 12, "", normalize=True, max_tokens=None)
    info = MaskInfo(("patient",), "f" * 16, "5a17", spec, "label", 0.02, 0, {"accuracy": 0.9})
    values = (np.arange(12) < 4).astype(float)
    mask = Mask(values=values, basis=np.eye(12), mean=np.zeros(12), covariance=np.eye(12), info=info)
    mask.save(folder)
    return mask


def trial(name: str, **fields) -> dict:
    """A trial's record."""
    numbers = {"value": 0.2, "low": 0.1, "high": 0.3}
    figures = dict.fromkeys(("unprotected", "protected", "floor", "leakage_normalized"), numbers)
    row = {"name": name, "basis": "label", "epsilon": 191.0, "epsilon_euclidean": 912.5, "rho": 2.0, "leakage": 0.2}
    return {
        "trial": name,
        "status": "done",
        "reason": None,
        "parameters": {"lambda": 0.02, "basis": "label", "rho": 2.0, "epsilon": None, "seed": 0},
        "row": row | {"utility": 0.81, "leakage_high": 0.3},
        "attacks": {attack: {"verdict": "ok", **figures, "confidence": 0.4} for attack in ("mlc", "ridge")},
        "utilities": [{"name": "by section", "score": 0.81, "low": 0.7, "high": None}],
        "mask": {"values": [1.0, 0.0], "sparsity": 0.5},
        "mask_path": "masks/first",
        "durations": {"mask": 3.5, "attack": 2.0},
    } | fields


FAILED_TRIAL = {"status": "failed", "reason": "Every gate stays open.", "row": None, "attacks": {}, "mask": None}
FAILED_TRIAL |= {"utilities": [], "mask_path": None}


def study(config, *records) -> str:
    """Record a study; the run of it."""
    with tracked_study(config, Summary("study", durations={"trials": 9.0}), STUDY) as run:
        for record in records:
            run.log_trial(record)
    return run.run_id


def all_runs(config, uri=None) -> list:
    client = mlflow.MlflowClient(tracking_uri=uri or config.tracking.uri)
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    return client.search_runs([experiment.experiment_id])


def children(config) -> dict:
    return {run.data.tags["sparse.trial"]: run for run in all_runs(config) if "sparse.trial" in run.data.tags}


# A study


def test_a_study_is_a_run_with_a_child_for_every_trial(stored):
    mask = written_mask(Path(stored.output, "masks", "first"))
    parent = study(stored, trial("a"), trial("b"), trial("c", **FAILED_TRIAL))
    found = children(stored)
    assert len(all_runs(stored)) == 4 and {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent}
    assert [found[name].info.status for name in "abc"] == ["FINISHED", "FINISHED", "FAILED"]
    assert found["c"].data.tags["mlflow.note.content"] == "Every gate stays open."
    run = found["a"].data
    assert run.params["lambda"] == "0.02" and run.params["fingerprint.data"] == STUDY["fingerprints"]["data"]
    expected = {"epsilon": 191.0, "epsilon_euclidean": 912.5, "rho": 2.0, "leakage": 0.2, "utility": 0.81}
    expected |= {"attack/ridge/protected/high": 0.3, "attack/mlc/confidence": 0.4, "utilities/by section/score": 0.81}
    expected |= {"mask/sparsity": 0.5, "seconds/mask": 3.5}
    assert {name: run.metrics.get(name) for name in expected} == expected
    assert "utilities/by section/high" not in run.metrics and run.tags["sparse.verdict.ridge"] == "ok"
    client = mlflow.MlflowClient(tracking_uri=stored.tracking.uri)
    folder = client.download_artifacts(found["b"].info.run_id, "mask")
    np.testing.assert_array_equal(Mask.load(folder).values, mask.values)


def test_a_resumed_study_is_the_same_run_and_no_trial_is_recorded_twice(stored):
    first = study(stored, trial("a", mask_path=None))
    assert study(stored, trial("a", mask_path=None), trial("b", mask_path=None)) == first
    assert {run.info.status for run in all_runs(stored)} == {"FINISHED"} and len(all_runs(stored)) == 3


def test_a_trial_that_failed_and_was_repeated_takes_its_run_over(stored):
    first = study(stored, trial("a", **FAILED_TRIAL))
    failed = children(stored)["a"]
    assert study(stored, trial("a", mask_path=None)) == first
    (again,) = children(stored).values()
    assert (failed.info.status, again.info.status) == ("FAILED", "FINISHED")
    assert again.info.run_id == failed.info.run_id and again.data.metrics["epsilon"] == 191.0
    assert not again.data.tags["mlflow.note.content"]


def test_a_study_of_another_output_is_another_run(stored, tmp_path):
    first = study(stored, trial("a", mask_path=None))
    second = study(stored.model_copy(update={"output": str(tmp_path / "moved")}), trial("a", mask_path=None))
    assert first != second and len(all_runs(stored)) == 4


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (SparseError, "FAILED")])
def test_a_study_that_breaks_off_is_not_left_running_and_can_be_resumed(local, database, error, status):
    config = with_tracking(local, uri=database)
    with pytest.raises(error), tracked_study(config, Summary("study"), STUDY) as run:
        run.log_trial(trial("a", mask_path=None))
        raise error
    assert {found.info.run_id: found.info.status for found in all_runs(config)}[run.run_id] == status
    assert study(config) == run.run_id
    assert {found.info.status for found in all_runs(config)} == {"FINISHED"}


def test_a_trial_that_was_being_recorded_when_its_process_was_killed_is_completed(stored):
    parent = study(stored)
    client = mlflow.MlflowClient(tracking_uri=stored.tracking.uri)
    experiment = client.get_run(parent).info.experiment_id
    for name in ("a", "never finished"):
        client.create_run(experiment, tags={"mlflow.parentRunId": parent, "sparse.trial": name})
    study(stored, trial("a", mask_path=None))
    found = children(stored)
    assert (found["a"].info.status, found["never finished"].info.status) == ("FINISHED", "KILLED")
    assert found["a"].data.metrics["epsilon"] == 191.0 and len(found) == 2


def log_trials(studies: bytes, output: str, fresh: str, name: str) -> None:
    """What a worker does: open a store that all create at once, and record trials of its own."""
    assert opened(JobConfig(output=output, tracking={"uri": fresh})) is not None
    for run in pickle.loads(studies):
        for number in range(4):
            run.log_trial(trial(f"{name} {number}"))


def wait_for_the_end(output: str, uri: str, ready) -> None:
    """A job that is not going to finish by itself."""
    with tracked(JobConfig(output=output, tracking={"uri": uri}), Summary("audit")):
        ready.send("started")
        time.sleep(120)


@pytest.fixture(scope="module")
def processes():
    """Makes processes that share nothing with this one, imports aside."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "jobs.tracking", Path(__file__).stem])
    return context


def test_trials_are_recorded_from_several_processes_at_once(processes, tmp_path, database, mlflow_server):
    written_mask(tmp_path / "out" / "masks" / "first")
    uris = (database, mlflow_server.uri)
    configs = [JobConfig(output=str(tmp_path / "out"), tracking={"uri": uri, "experiment": "both"}) for uri in uris]
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    with ExitStack() as stack:
        studies = [stack.enter_context(tracked_study(config, Summary("study"), STUDY)) for config in configs]
        workers = [
            processes.Process(target=log_trials, args=(pickle.dumps(studies), str(tmp_path / "out"), fresh, name))
            for name in "xyz"
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    expected = {f"{name} {number}" for name in "xyz" for number in range(4)}
    for config in configs:
        assert set(children(config)) == expected and len(all_runs(config)) == 13
        assert {run.info.status for run in all_runs(config)} == {"FINISHED"}


def test_no_run_is_left_running_by_a_process_that_is_ended(processes, tmp_path, database):
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    running = []
    for number in signals:
        here, there = processes.Pipe()
        process = processes.Process(target=wait_for_the_end, args=(str(tmp_path / number.name), database, there))
        process.start()
        running.append((process, here, number))
    for process, here, number in running:
        assert here.recv() == "started"
        os.kill(process.pid, number)
    for process, _, _ in running:
        process.join(60)
        assert process.exitcode not in (0, None)
    config = JobConfig(output=str(tmp_path / "SIGKILL"), tracking={"uri": database})
    # Nobody can say a last word after SIGKILL.
    assert sorted(run.info.status for run in all_runs(config)) == ["KILLED", "KILLED", "RUNNING"]
    with tracked(config, Summary("audit")):
        pass
    assert sorted(run.info.status for run in all_runs(config)) == ["FINISHED", "KILLED", "KILLED", "KILLED"]


# Where a run is recorded


def closed(extra: str = "") -> str:
    """Address of a server that is not there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://{extra}127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("job", ["train_mask", "privatize", "audit"])
def test_a_server_that_is_not_there_is_told_before_anything_is_computed(workspace, tmp_path, capsys, job):
    started = time.monotonic()
    overrides = [f"output={tmp_path}/out", f"tracking.uri={closed('me:hunter2@')}"]
    if job == "privatize":
        overrides += ["mask=null", "protection={mechanism: laplace, rho: 1, read_out: none}"]
    if job == "audit":
        overrides += ["compare=[{name: bare, protection: {mechanism: none}}]"]
    assert workspace.run(job, *overrides) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "cannot be reached" in error and "tracking.required=false" in error and "hunter2" not in error
    assert not (tmp_path / "out").exists() and time.monotonic() - started < 20


def test_a_server_that_does_not_answer_is_not_waited_for(local, monkeypatch):
    monkeypatch.setattr("jobs.tracking.reaching._PROBE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = with_tracking(local, uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(SparseError, match=r"cannot be reached \(no answer\)"):
            check_tracking(config)
    assert time.monotonic() - started < 10
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ


def test_a_server_that_is_not_required_is_replaced_by_a_store_in_the_output(local, capsys):
    config = with_tracking(local, uri=closed(), required=False)
    check_tracking(config)
    with tracked(config, Summary("audit", rows_in=7)):
        pass
    told = " ".join(capsys.readouterr().out.split())
    assert "cannot be reached" in told and f"recorded in sqlite:///{local.output}/mlflow.db instead" in told
    (run,) = all_runs(config, f"sqlite:///{local.output}/mlflow.db")
    assert run.info.status == "FINISHED" and run.data.metrics["rows_in"] == 7


def test_without_a_server_and_a_local_output_nothing_is_recorded_and_that_is_told(local, capsys):
    config = with_tracking(local.model_copy(update={"output": "s3://bucket/out"}), uri=closed(), required=False)
    with tracked(config, Summary("audit")) as run:
        run.log_text("page", "report.md")
    assert run.run_id is None and "recorded nowhere" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("required", [True, False])
def test_a_store_that_is_lost_in_mid_run_ends_only_a_job_that_must_be_recorded(local, capsys, required):
    config = with_tracking(local, required=required)
    database = Path(local.output, "mlflow.db")
    recording = tracked(config, Summary("audit"))
    recording.__enter__()
    database.write_bytes(b"no database any more" * 1000)
    if required:
        with pytest.raises(SparseError, match="output is complete, but not all of it is recorded"):
            recording.__exit__(None, None, None)
    else:
        recording.__exit__(None, None, None)
        assert "Not recorded: tracking.uri" in " ".join(capsys.readouterr().out.split())


def test_what_went_wrong_with_the_job_is_told_rather_than_with_the_store(local):
    with pytest.raises(SparseError, match="no usable row"), tracked(local, Summary("audit")):
        Path(local.output, "mlflow.db").write_bytes(b"no database any more" * 1000)
        raise SparseError("There is no usable row.")


def test_a_folder_of_files_is_refused_where_mlflow_refuses_it(local, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    for uri in (str(tmp_path / "mlruns"), (tmp_path / "mlruns").as_uri()):
        with pytest.raises(SparseError, match="is a folder, and the installed MLflow no longer records"):
            check_tracking(with_tracking(local, uri=uri))


def test_a_database_whose_driver_is_not_installed_is_told(local):
    with pytest.raises(SparseError, match="cannot be used") as told:
        check_tracking(with_tracking(local, uri="mssql+nosuchdriver://me:hunter2@server/mlflow"))
    assert "nosuchdriver" in str(told.value) and "hunter2" not in str(told.value)


def test_the_tracking_uri_of_the_environment_counts_where_none_is_configured(local, database, monkeypatch):
    Path(local.output, "mlflow.db").unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    with tracked(local, Summary("audit")):
        pass
    (run,) = all_runs(local, database)
    assert run.info.status == "FINISHED" and not Path(local.output, "mlflow.db").exists()


def test_a_run_in_another_thread_is_recorded_as_well(local):
    def record():
        with tracked(local, Summary("audit")):
            pass

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    (run,) = all_runs(local, f"sqlite:///{local.output}/mlflow.db")
    assert run.info.status == "FINISHED"
