"""Ray: join the cluster that is there, or start one on this machine for the time of the job."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.config import WorkersConfig

_OBJECT_STORE_BYTES = 256 << 20
_SPARE_CPUS = 2


@contextmanager
def ray_session(config: WorkersConfig, *, verbose: bool) -> Iterator[None]:
    """Connect to Ray; shut down what was started here.

    A local cluster is given two logical CPUs more than actors: Ray Data's reading tasks need them, and wait for ever
    if the actors hold all.
    """
    # Ray writes an authentication token into the home directory unless told not to.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not verbose:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    from ray.data import DataContext

    address = config.address or os.environ.get("RAY_ADDRESS")
    quiet = {} if verbose else {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(
            address="local",
            num_cpus=(config.actors or cpu_cores()) + _SPARE_CPUS,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **quiet,
        )
    context = DataContext.get_current()
    context.enable_progress_bars = verbose
    if not verbose:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


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
