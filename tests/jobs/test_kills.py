"""Whatever is killed and however often, the output holds every row exactly once, as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from jobs import ledger, outputs
from sparse_core.budget import compose
from sparse_core.noise import write_new_key

ROWS = 24_000
VICTIMS = ("driver", "actor", "raylet")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, clinical, encoder):
    """Stored vectors of real sentences, each sentence under many ids; some rows are bad, some ids stand there twice."""
    room = tmp_path_factory.mktemp("kills")
    vectors = encoder.encode(clinical["text"].to_pylist()[:400])
    take = np.random.default_rng(0).integers(0, len(vectors), ROWS)
    ids = [f"record {row}" for row in range(ROWS)]
    ids[100], ids[ROWS - 1] = None, ids[5]
    stored = vectors[take].astype(np.float16)
    stored[200] = np.nan
    for part in range(3):
        rows = slice(part * ROWS // 3, (part + 1) * ROWS // 3)
        column = pa.FixedSizeListArray.from_arrays(pa.array(stored[rows].ravel()), stored.shape[1])
        pq.write_table(pa.table({"id": ids[rows], "vector": column}), room / f"{part}.parquet", row_group_size=2_000)
    (room / "in").mkdir()
    for part in room.glob("*.parquet"):
        part.rename(room / "in" / part.name)
    write_new_key(room / "key")
    return room


def configured(room, name, **fields):
    settings = {
        "input": {"path": str(room / "in"), "embedding": "vector"},
        "encoder": "none",
        "output": str(room / name),
        "protection": {"mechanism": "laplace", "rho": 2.0, "read_out": "none", "embedding_norm": 1.0},
        "key": {"file": str(room / "key")},
        "workers": {"actors": 2},
        "tracking": {"enabled": False},
    }
    (room / f"{name}.yaml").write_text(yaml.safe_dump(settings | fields))
    return [sys.executable, "-m", "jobs.cli", "privatize", "--config", str(room / f"{name}.yaml")]


@pytest.fixture(scope="module")
def undisturbed(corpus):
    started = time.monotonic()
    subprocess.run(configured(corpus, "undisturbed"), check=True, timeout=120, capture_output=True)
    return corpus / "undisturbed", time.monotonic() - started


def rows_of(output):
    """What a reader of the whole folder sees, in order of the ids."""
    table = pq.read_table(output / "embeddings")
    return table.take(pc.sort_indices(table["id"])).combine_chunks()


def family(process):
    """The processes of a run, its Ray's among them."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def victim_of(driver, kind):
    if kind == "driver":
        return driver
    mark = "ray::" if kind == "actor" else "raylet"
    found = []
    for process in family(driver):
        try:
            name = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if ("UnitActor" in name and mark in name) if kind == "actor" else name.split(" ")[0].endswith("/raylet"):
            found.append(process)
    return random.choice(found) if found else None


def disturbed_run(command, output, rng, kinds):
    """Run a job and kill something in it at a random moment after its first unit; what was killed, and the status."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        driver = psutil.Process(child.pid)
        before, killed, seen = _units(output), [], []
        wanted = rng.randint(0, 4)
        pending = list(kinds)
        while child.poll() is None:
            seen += [process for process in family(driver) if process not in seen]
            if pending and _units(output) - before >= wanted:
                time.sleep(rng.uniform(0, 0.3))
                victim = victim_of(driver, pending[0])
                if victim is not None and victim.is_running():
                    os.kill(victim.pid, signal.SIGKILL)
                    killed.append(pending.pop(0))
                    before, wanted = _units(output), rng.randint(1, 4)
            time.sleep(0.02)
        child.communicate()
        for process in seen:
            # Ray's processes outlive a killed driver for a while; the next run must not meet them.
            if process.is_running():
                process.kill()
    return killed, child.returncode


def _units(output):
    folder = output / "_units"
    return sum(1 for name in os.listdir(folder) if name.endswith(".json")) if folder.is_dir() else 0


def disturb_until_done(corpus, name, seed, kills, **fields):
    command, rng, log = configured(corpus, name, **fields), random.Random(seed), []
    output = corpus / name
    for _ in range(4 * kills):
        left = kills - sum(len(killed) for killed, _ in log)
        # Actors can be killed again and again in one run; with its driver or its node a run ends.
        kinds = ["actor"] * rng.randint(0, 2) + [rng.choice(("driver", "driver", "raylet"))]
        killed, status = disturbed_run(command, output, rng, kinds[:left])
        log.append((killed, status))
        if status == 0:
            return output, log
    raise AssertionError(f"not finished after {log}")


def check(corpus, output, expected):
    found = rows_of(output)
    assert found.equals(rows_of(expected))
    assert len(set(found["id"].to_pylist())) == len(found) == ROWS - 3
    assert outputs.verify(str(output), checksums=True) == []
    # One draw of noise per record: the ledger, written before any vector, names one release of each.
    assert (compose(ledger.read([str(output)])).releases == 1).all()
    listed = {path.name for path in (output / "embeddings").iterdir()}
    assert listed == {path.name for path in (expected / "embeddings").iterdir()}
    again = subprocess.run(configured(corpus, output.name), capture_output=True, text=True, timeout=60, check=True)
    assert "nothing to do" in again.stdout


@pytest.mark.parametrize("seed", [1])
def test_a_run_disturbed_by_kills_ends_as_an_undisturbed_one(corpus, undisturbed, seed):
    output, log = disturb_until_done(corpus, f"killed-{seed}", seed, kills=3)
    print(log)
    check(corpus, output, undisturbed[0])


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(corpus, undisturbed):
    log = []
    for seed in range(100, 107):
        output, part = disturb_until_done(corpus, f"killed-{seed}", seed, kills=4)
        log += part
        check(corpus, output, undisturbed[0])
    kills = [kind for killed, _ in log for kind in killed]
    print(
        f"\n{len(kills)} kills ({', '.join(f'{kinds} {kills.count(kinds)}' for kinds in VICTIMS)}) in {len(log)} runs"
    )
    assert len(kills) >= 20 and set(kills) == set(VICTIMS)


@pytest.mark.slow
def test_a_cluster_that_loses_a_node_finishes_the_job(corpus, undisturbed, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    node = {"num_cpus": 2, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        workers = [cluster.add_node(**node) for _ in range(2)]
        cluster.wait_for_nodes()
        output = corpus / "node-lost"
        command = configured(
            corpus, output.name, workers={"actors": 4, "address": cluster.address, "allow_unauthenticated": True}
        )
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
            while _units(output) < 2:
                assert job.poll() is None
                time.sleep(0.05)
            cluster.remove_node(workers[0], allow_graceful=False)
            lost_after = _units(output)
            job.communicate(timeout=180)
        assert job.returncode == 0 and lost_after < _units(output)
    finally:
        cluster.shutdown()
    check(corpus, output, undisturbed[0])


def test_a_second_job_on_one_output_is_refused_while_the_first_runs(corpus):
    command = configured(corpus, "shared")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        while not (corpus / "shared" / "_units").is_dir():
            assert first.poll() is None
            time.sleep(0.05)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        assert f"process {first.pid}" in " ".join(second.stderr.split())
        assert first.wait(timeout=120) == 0
