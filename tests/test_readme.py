"""The README's commands and code, as they stand there, on a cut of the bundled data."""

import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA = ROOT / "configs/data/clinical_sentences.parquet"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def sparse_commands(language):
    lines = [line.split("  #")[0].strip() for block in blocks(language) for line in block.splitlines()]
    return [line for line in lines if line.startswith("sparse ")]


@pytest.fixture
def in_repository_copy(tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    pq.write_table(pq.read_table(DATA).slice(0, 1500), tmp_path / "cut.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_runs_in_the_order_of_the_readme(in_repository_copy):
    commands = sparse_commands("bash")
    named = {command.split()[1] for command in commands}
    assert named >= {"train_mask", "key", "privatize", "inspect", "query", "budget", "audit", "report"}
    for command in commands:
        arguments = shlex.split(command)[1:]
        if "--config" in arguments:
            arguments.append("input.path=cut.parquet")
        assert main(arguments) == 0, command
    assert (in_repository_copy / "outputs/release/embeddings").is_dir()
    assert (in_repository_copy / "outputs/audit/report.md").is_file()
    _, readers = blocks("python")
    scope = {}
    exec(compile(readers, "README.md", "exec"), scope)
    assert len(scope["frame"]) == len(scope["table"]) == scope["index"].ntotal == len(scope["matrix"])
    scores = [score for _, score in scope["nearest"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 10


@pytest.mark.slow
def test_every_long_command_runs_in_the_order_of_the_readme(tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    assert main(["key", "new", "sparse.key"]) == 0
    commands = sparse_commands("sh")
    assert {command.split()[1] for command in commands} >= {"calibrate", "study", "report", "reproduce"}
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert (tmp_path / "outputs/calibration/release/embeddings").is_dir()
    assert (tmp_path / "outputs/studies/small/report.html").is_file()
    assert (tmp_path / "outputs/champion/manifest.json").is_file()


def test_the_python_example_runs(in_repository_copy, capsys):
    texts = pq.read_table("cut.parquet", columns=["text"])["text"].to_pylist()
    example, _ = blocks("python")
    scope = {"texts": texts}
    exec(compile(example, "README.md", "exec"), scope)
    assert "epsilon_euclidean" in capsys.readouterr().out
    assert scope["published"].shape == (len(texts), 384)


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {word for block in blocks("bash") for word in re.findall(r"^make (\w+)", block, flags=re.MULTILINE)}
    assert targets == {"quickstart", "test"}
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_every_name_of_the_summary_is_documented():
    from dataclasses import fields

    from jobs.summary import ProtectionRow

    missing = [f.name for f in fields(ProtectionRow) if f.name != "name" and f"`{f.name}`" not in README]
    assert missing == []
