"""Ray: join the cluster that is there, or start one on this machine for the time of the job.

Who may submit to a cluster runs code as its user: it reads texts, vectors and the key. A cluster that is started here
listens on loopback only, asks for a token drawn for this run, and keeps its files (sockets, logs, spilled objects) in a
directory of mode 700 that goes with it. A cluster that asks for no token is joined only if the user says so.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.config import WorkersConfig
from sparse_core.errors import SparseError

_OBJECT_STORE_BYTES = 256 << 20
_SPARE_CPUS = 2
_SECONDS_TO_ANSWER = 10
# The default of $TMPDIR on macOS is too long for the names of sockets.
_FOLDER_OF_SOCKETS = "/tmp"


@contextmanager
def ray_session(config: WorkersConfig, *, verbose: bool) -> Iterator[None]:
    """Connect to Ray; shut down what was started here, and leave the environment as it was.

    A local cluster is given two logical CPUs more than actors: Ray Data's reading tasks need them, and wait for ever
    if the actors hold all.

    Raises
    ------
    SparseError
        If the cluster to join cannot be reached, or asks for no token and the user did not allow that; or if Ray runs
        in this process already.
    """
    quiet = {} if verbose else {"log_to_driver": False, "logging_level": logging.ERROR}
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if not verbose:
        settings["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    with _environment({name: os.environ.get(name, value) for name, value in settings.items()}):
        address = cluster_address(config)
        with _joined(config, address, quiet) if address else _started(config, quiet):
            _set_data_logging(verbose)
            yield


def cluster_address(config: WorkersConfig) -> str | None:
    """Address of the cluster to join; None where one is started on this machine."""
    address = config.address or os.environ.get("RAY_ADDRESS")
    return None if address == "local" else address or None


def check_cluster(config: WorkersConfig) -> None:
    """Refuse, before anything runs, a cluster that lets in anyone, unless the user allowed that.

    Raises
    ------
    SparseError
        As `ray_session`.
    """
    address = cluster_address(config)
    if address is None or config.allow_unauthenticated:
        return
    # Of a cluster behind Ray's client server nothing is known but what it answers to the client.
    if address.startswith("ray://") or _lets_in_anyone(address):
        raise SparseError(
            f"workers.address: the Ray cluster at {address} is not known to ask for a token, so whoever reaches it can "
            "read the texts and the key of this job. Start it with RAY_AUTH_MODE=token, or, if you trust everyone who "
            "can reach it, set workers.allow_unauthenticated=true."
        )


@contextmanager
def _joined(config: WorkersConfig, address: str, quiet: dict) -> Iterator[None]:
    check_cluster(config)
    given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    mode = "token" if given or not config.allow_unauthenticated else "disabled"
    with _authentication({"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", mode)}):
        import ray
        from ray.exceptions import AuthenticationError

        _refuse_a_second(ray)
        try:
            ray.init(address=address, **quiet)
        except AuthenticationError:
            raise SparseError(
                f"workers.address: the Ray cluster at {address} asks for a token. Give it in RAY_AUTH_TOKEN, or name "
                "the file that holds it in RAY_AUTH_TOKEN_PATH."
            ) from None
        except ConnectionError:
            raise _unreachable(address) from None
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _started(config: WorkersConfig, quiet: dict) -> Iterator[None]:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_AUTH_TOKEN_PATH": None}
    place = os.environ.get("RAY_TMPDIR", _FOLDER_OF_SOCKETS)
    with (
        tempfile.TemporaryDirectory(prefix="sparse-ray-", dir=place, ignore_cleanup_errors=True) as folder,
        _authentication(token),
    ):
        import ray

        _refuse_a_second(ray)
        with _loopback_only():
            ray.init(
                address="local",
                num_cpus=(config.actors or cpu_cores()) + _SPARE_CPUS,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                # Ray opens the directory it is given to everyone; not the one around it.
                _temp_dir=os.path.join(folder, "ray"),
                **quiet,
            )
        try:
            if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
                raise SparseError("Ray does not stay on this machine's loopback address; use a tested Ray (2.60).")
            yield
        finally:
            ray.shutdown()


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Ray's servers bind to the node's address, which is loopback only where clusters of several nodes are off.

    On macOS and Windows that is the default. Ray turns an explicit `_node_ip_address` of 127.0.0.1 into the outer one.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _authentication(settings: dict[str, str | None]) -> Iterator[None]:
    """Environment variables that say how Ray authenticates, also to a Ray that this process has loaded already."""
    with _environment(settings):
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
        yield


def _lets_in_anyone(address: str) -> bool:
    """Whether the cluster answers somebody without a token."""
    with _authentication({"RAY_AUTH_MODE": "disabled"}):
        from ray._private.services import canonicalize_bootstrap_address
        from ray._raylet import GcsClient
        from ray.exceptions import AuthenticationError

        try:
            known = canonicalize_bootstrap_address(address)
            host, _, port = known.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
            GcsClient(address=known).internal_kv_keys(b"", None, timeout=_SECONDS_TO_ANSWER)
        except AuthenticationError:
            return False
        except Exception as error:
            raise _unreachable(address) from error
        return True


def _unreachable(address: str) -> SparseError:
    return SparseError(f"workers.address: no Ray cluster answers at {address}.")


def _refuse_a_second(ray) -> None:
    if ray.is_initialized():
        raise SparseError(
            "Ray runs in this process already, and a job starts or joins its own. Call ray.shutdown() first; to "
            "work on that cluster, run the job in another process and name the address in workers.address."
        )


@contextmanager
def _environment(settings: dict[str, str | None]) -> Iterator[None]:
    """Environment variables for a while; None takes one away."""
    before = {name: os.environ.get(name) for name in settings}
    _set_environment(settings)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(settings: dict[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _set_data_logging(verbose: bool) -> None:
    from ray.data import DataContext

    DataContext.get_current().enable_progress_bars = verbose
    if not verbose:
        logging.getLogger("ray.data").setLevel(logging.ERROR)


def actor_count(config: WorkersConfig) -> tuple[int, int]:
    """GPUs of the cluster, and how many actors to run: as configured, else one per GPU, else one per CPU core."""
    import ray

    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    cores = int(resources.get("CPU", 1))
    default = gpus or max(1, cores - _SPARE_CPUS)
    return gpus, config.actors or default


def cpu_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep torch and BLAS to one thread per caller, for work that is spread over cores already."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
