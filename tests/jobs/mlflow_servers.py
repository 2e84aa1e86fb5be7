"""A real MLflow server on loopback: a SQLite store behind it, artifacts in a folder that it serves."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MlflowServer:
    uri: str
    database: str
    artifacts: Path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def mlflow_server(folder: Path):
    """Start the server, with its own command line, on the store ``server.db`` in a folder."""
    database, port = f"sqlite:///{folder}/server.db", free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, start_new_session=True, **quiet) as server:
        try:
            _wait(server, f"http://127.0.0.1:{port}/health")
            yield MlflowServer(f"http://127.0.0.1:{port}", database, folder / "artifacts")
        finally:
            # The server has workers of its own.
            os.killpg(server.pid, signal.SIGKILL)


def _wait(server: subprocess.Popen, address: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no MLflow server at {address}")
