"""Memory of the job, small corpus against large: `pytest -m benchmark -s tests/benchmarks/test_privatize_memory.py`."""

import subprocess
import sys
import time
from collections import defaultdict

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sparse_core.noise import write_new_key

pytestmark = pytest.mark.benchmark

SMALL, LARGE = 20_000, 400_000
SMALL_TEXTS, LARGE_TEXTS = 2_000, 16_000


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    room = tmp_path_factory.mktemp("memory")
    write_new_key(room / "key")
    return room


def write(path, rows, columns):
    """A file of so many rows, written piece by piece; `columns` makes a piece from its range."""
    with pq.ParquetWriter(path, columns(0, 1).schema) as writer:
        for start in range(0, rows, 20_000):
            writer.write_table(columns(start, min(start + 20_000, rows)), row_group_size=20_000)


def peaks(room, name, **fields):
    """Most memory, in MB, of the driver, of one actor, and of Ray around them (its object store included)."""
    settings = {
        "input": {"path": str(room / f"{name}.parquet"), **fields.pop("input", {})},
        "output": str(room / f"out-{name}"),
        "protection": {"mechanism": "laplace", "rho": 2.0, "read_out": "none"},
        "key": {"file": str(room / "key")},
        "workers": {"actors": 2},
        "tracking": {"enabled": False},
    }
    (room / f"{name}.yaml").write_text(yaml.safe_dump(settings | fields))
    command = [sys.executable, "-m", "jobs.cli", "privatize", "--config", str(room / f"{name}.yaml")]
    most, started = defaultdict(float), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        driver = psutil.Process(child.pid)
        while child.poll() is None:
            around = 0.0
            for process in [driver, *driver.children(recursive=True)]:
                try:
                    used, title = process.memory_full_info().uss / 2**20, " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if process == driver:
                    most["driver"] = max(most["driver"], used)
                elif "UnitActor" in title or "MapWorker" in title:
                    most["actor"] = max(most["actor"], used)
                else:
                    around += used
            most["ray"] = max(most["ray"], around)
            time.sleep(0.2)
    assert child.returncode == 0
    return dict(most), time.monotonic() - started


def compare(room, kind, names, rows, **fields):
    found = {name: peaks(room, name, **fields) for name in names}
    print()
    for name, count in zip(names, rows, strict=True):
        memory, seconds = found[name]
        shown = ", ".join(f"{part} {used:,.0f} MB" for part, used in sorted(memory.items()))
        print(f"{kind}, {count:,} rows: {shown} ({seconds:.0f} s)")
    small, large = (found[name][0] for name in names)
    for part in ("driver", "actor"):
        assert large[part] <= 1.2 * small[part] + 20


def test_memory_does_not_grow_with_stored_vectors(room):
    generator = np.random.default_rng(0)
    pool = generator.standard_normal((20_000, 384))
    pool = (pool / np.linalg.norm(pool, axis=1, keepdims=True)).astype(np.float16)

    def columns(start, stop):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(pool[: stop - start].ravel()), 384)
        return pa.table({"id": pa.array(range(start, stop), pa.int64()), "vector": vectors})

    for name, rows in (("few", SMALL), ("many", LARGE)):
        write(room / f"{name}.parquet", rows, columns)
    compare(room, "stored vectors", ("few", "many"), (SMALL, LARGE), input={"embedding": "vector"}, encoder="none")


def test_memory_does_not_grow_with_texts(room, sentences):
    def columns(start, stop):
        texts = [sentences[row % 500] for row in range(start, stop)]
        return pa.table({"id": pa.array(range(start, stop), pa.int64()), "text": texts})

    for name, rows in (("short", SMALL_TEXTS), ("long", LARGE_TEXTS)):
        write(room / f"{name}.parquet", rows, columns)
    compare(room, "texts", ("short", "long"), (SMALL_TEXTS, LARGE_TEXTS))
