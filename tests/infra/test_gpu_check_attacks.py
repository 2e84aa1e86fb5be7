import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "infra" / "gpu_check.sh"
SCORES = ["leakage", "bleu", "rouge_l", "token_f1", "cosine"]


def check(*options):
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment.pop("SPARSE_ATTACK_MODEL", None)
    command = [SCRIPT, "attacks", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def test_without_a_gpu_the_attacks_say_so_and_measure_nothing():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = check()
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == "There is no GPU here that torch can use: nothing was measured.\n"


@pytest.mark.slow
def test_the_attacks_print_a_row_for_each_side_and_skip_what_no_time_is_left_for():
    found = check("--device", "cpu", "--records", "1200", "--minutes", "0.01")
    assert found.returncode == 4, found.stderr
    assert found.stderr.splitlines()[-1].startswith("No time was left for inversion, vec2text")
    found = check("--device", "cpu", "--records", "1200", "--minutes", "60")
    assert found.returncode == 0, found.stderr
    table = found.stdout.split("\n\n")[1].splitlines()
    assert table[0].split() == [*SCORES, "seconds", "GiB"]
    sides = [
        ", ".join((attack, side))
        for attack in ("inversion", "vec2text")
        for side in ("unprotected", "protected", "floor")
    ]
    assert [row[:32].strip() for row in table[1:]] == sides
    figures = [[float(figure) for figure in row[32:].split()[: len(SCORES)]] for row in table[1:]]
    for unprotected, _, floor in (figures[:3], figures[3:]):
        assert unprotected[-1] > floor[-1]
