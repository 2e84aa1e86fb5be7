"""Two jobs never write to one output at the same time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jobs import lease, storage
from sparse_core.errors import SparseError

HOLD = (
    "import sys, time; from jobs import lease\nwith lease.held(sys.argv[1]): print('held', flush=True); time.sleep(60)"
)


@pytest.fixture(params=["local", "remote"])
def output(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "out")
    return f"memory://{tmp_path.name}/out"


@pytest.fixture
def elsewhere(tmp_path):
    """Another process that holds the lease of a local directory."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    yield str(tmp_path / "out"), holder
    holder.kill()
    holder.wait()


def test_a_second_job_is_refused_and_told_who_is_writing(output):
    with (
        lease.held(output),
        pytest.raises(SparseError, match=rf"process {os.getpid()} on .* is writing"),
        lease.held(output),
    ):
        pass


def test_a_lease_is_free_once_its_job_has_ended(output):
    for _ in range(2):
        with lease.held(output):
            pass
    with pytest.raises(ZeroDivisionError), lease.held(output):
        raise ZeroDivisionError
    with lease.held(output):
        pass


def test_outputs_are_leased_one_by_one(output):
    with lease.held(output), lease.held(output + "2"):
        pass


def test_a_local_lease_ends_with_its_process_however_it_dies(elsewhere):
    output, holder = elsewhere
    with pytest.raises(SparseError, match=f"process {holder.pid} "), lease.held(output):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease.held(output):
        pass


def test_a_directory_made_for_a_refused_job_is_taken_away_again(tmp_path):
    with lease.held(str(tmp_path / "out")):
        assert (tmp_path / "out").is_dir()
    assert not (tmp_path / "out").exists()


def test_a_remote_lease_lapses_after_its_last_sign_of_life(tmp_path):
    output = f"memory://{tmp_path.name}/killed"
    url = storage.join(output, lease.NAME)
    storage.write_bytes(url, json.dumps({"host": "a", "pid": 1, "token": "x", "beat": time.time() - 1}).encode())
    refused = pytest.raises(SparseError, match=r"process 1 on a is writing .* lapses in")
    with refused, lease.held(output, lapse_seconds=60):
        pass
    with lease.held(output, lapse_seconds=0.5):
        assert storage.read_json(url)["token"] != "x"


def test_a_remote_lease_is_renewed_while_its_job_runs(tmp_path):
    output = f"memory://{tmp_path.name}/slow"
    with lease.held(output, lapse_seconds=0.6) as check:
        time.sleep(1.5)
        check()
        with pytest.raises(SparseError, match="is writing to"), lease.held(output, lapse_seconds=0.6):
            pass


def test_a_job_that_lost_its_lease_is_told_before_it_commits(tmp_path):
    output = f"memory://{tmp_path.name}/lost"
    with pytest.raises(SparseError, match="taken over by another job"), lease.held(output, lapse_seconds=0.3) as check:
        taken = json.dumps({"host": "b", "pid": 2, "token": "y", "beat": time.time() + 60}).encode()
        storage.write_bytes(storage.join(output, lease.NAME), taken)
        time.sleep(0.4)
        check()
    assert storage.read_json(storage.join(output, lease.NAME))["token"] == "y"
