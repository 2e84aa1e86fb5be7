"""Who can reach the Ray cluster that a job starts or joins. Each test has Ray processes of its own."""

import os
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import ray

from jobs.cluster import check_cluster, ray_session
from jobs.config import WorkersConfig
from sparse_core.errors import SparseError

pytestmark = pytest.mark.xdist_group("ray")

# Reads a file that only the job's own user may read, as another of the user's processes would over the network.
FOREIGN = textwrap.dedent("""
    import logging, sys
    import ray
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
        print("read", ray.get(ray.remote(num_cpus=0)(lambda path: open(path).read()).remote(sys.argv[2]), timeout=30))
    except Exception as error:
        print("refused", type(error).__name__)
""")


def foreign(address: str, secret: Path, **environment: str) -> str:
    """What a process learns that shares nothing with the job but the machine."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    clean |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"} | environment
    command = [sys.executable, "-c", FOREIGN, address, str(secret)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=90)
    return done.stdout.strip()


def check_refused(address: str, **environment: str) -> str:
    """What `check_cluster` says in a process that is not part of the cluster."""
    code = (
        "import sys; from jobs.cluster import check_cluster; from jobs.config import WorkersConfig\n"
        "try: check_cluster(WorkersConfig(address=sys.argv[1])); print('accepted')\n"
        "except Exception as error: print(error)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    clean |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | environment
    return subprocess.run(
        [sys.executable, "-c", code, address], env=clean, capture_output=True, text=True, timeout=90
    ).stdout.strip()


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("diagnosis")
    return path


def test_a_local_cluster_admits_only_who_has_the_token_of_the_run(secret):
    before, this = dict(os.environ), psutil.Process()
    with ray_session(WorkersConfig(actors=1), verbose=False):
        address, token = ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"]
        started = this.children(recursive=True)
        listening = [
            connection.laddr.ip.removeprefix("::ffff:")
            for process in (this, *started)
            for connection in process.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(listening) > 3 and set(listening) == {"127.0.0.1"}
        assert not any(token in argument for process in started for argument in process.cmdline())
        folder = Path(ray._private.worker._global_node.get_session_dir_path()).parent.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        offered = [{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": each} for each in (token, "f" * 64)]
        with ThreadPoolExecutor() as pool:
            right, wrong, none = pool.map(lambda given: foreign(address, secret, **given), [*offered, {}])
        assert right == "read diagnosis" and wrong.startswith("refused") and none.startswith("refused")
        assert check_refused(address) == "accepted"
    changed = {name for name, _ in os.environ.items() ^ before.items()}
    assert changed <= {"PYTHONBREAKPOINT"} and not folder.exists()


def test_a_cluster_without_authentication_is_joined_only_if_the_user_says_so(secret, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
    try:
        assert foreign(cluster.address, secret) == "read diagnosis"
        said = "is not known to ask for a token"
        assert said in check_refused(cluster.address)
        with pytest.raises(SparseError, match=said):
            check_cluster(WorkersConfig(address=cluster.address))
        with pytest.raises(SparseError, match=said), ray_session(WorkersConfig(address=cluster.address), verbose=False):
            pass
        trusted = WorkersConfig(address=cluster.address, allow_unauthenticated=True)
        with ray_session(trusted, verbose=False):
            assert ray.get_runtime_context().gcs_address == cluster.address
            with pytest.raises(SparseError, match="Ray runs in this process already"):
                ray_session(WorkersConfig(actors=1), verbose=False).__enter__()
    finally:
        cluster.shutdown()


def test_an_address_where_nobody_answers_is_named():
    with pytest.raises(SparseError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        check_cluster(WorkersConfig(address="127.0.0.1:9"))


def test_what_is_behind_a_client_server_is_not_trusted():
    with pytest.raises(SparseError, match="allow_unauthenticated"):
        check_cluster(WorkersConfig(address="ray://head:10001"))
