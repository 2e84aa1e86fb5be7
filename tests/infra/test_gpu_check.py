import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "infra" / "gpu_check.sh"


def check(*options):
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment.pop("SPARSE_MPNET", None)
    return subprocess.run([SCRIPT, *options], env=environment, capture_output=True, text=True, timeout=300)


def test_without_a_gpu_it_says_so_and_measures_nothing():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = check()
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == "There is no GPU here that torch can use: nothing was measured.\n"


def test_the_measurement_prints_a_row_for_each_model_with_and_without_protection():
    found = check("--device", "cpu", "--rows", "40")
    assert found.returncode == 0, found.stderr
    table = found.stdout.split("\n\n")[1].splitlines()
    assert table[0].split() == ["rows/s", "tokens/s", "of", "peak", "GPU", "busy"]
    assert [row.split(", float32, ")[1].split("  ")[0] for row in table[1:]] == ["encode", "encode + protect"] * 2
    assert "random weights" in table[3]
    assert all(float(row.split()[-4].replace(",", "")) > 0 for row in table[1:])
