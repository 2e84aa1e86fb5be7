"""``sparse inspect``: what an output holds and promises, finished, cut short, damaged, or no output at all."""

import json
import shutil
from dataclasses import replace

import pytest

from jobs.cli import main
from jobs.config import OutputConfig
from jobs.inspect_dataset import inspect
from jobs.storage import write_json
from sparse_core.budget import Charge
from sparse_core.errors import SparseError
from sparse_core.policy import Policy


@pytest.fixture(scope="module")
def output(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("output")
    small.write(folder)
    return folder


def shown(capsys, *arguments) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_finished_output_is_told_in_full(small, output, capsys):
    text = shown(capsys, output)
    flat = " ".join(text.split())
    guarantee = small.policy.guarantee()
    for told in (
        "finished; sizes of the files match the manifest",
        "600 published of 606 read",
        "quarantined 6 empty_text",
        "3 parquet files",
        "precision float32",
        "embedding: fixed_size_list<item: float>[384]",
        small.policy.hash,
        "mahalanobis, mask of made-up in the basis label, floor 0.03, read-out wiener",
        "sentence-transformers/all-MiniLM-L6-v2, 384 dimensions",
        f"epsilon {guarantee.epsilon:.4g}, epsilon_euclidean {guarantee.epsilon_euclidean:.4g}, delta 0, rho 1.5",
        f"exp({guarantee.epsilon:.4g} d) times likelier",
        "600 subjects, released 1 times at most",
        "no limit; earlier releases counted from nowhere",
        small.key.identifier,
        *small.corpus["id"].to_pylist()[:5],
    ):
        assert told in flat, told
    assert max(map(len, text.splitlines())) <= 120


def test_it_shows_neither_text_nor_key(small, output, capsys):
    text = shown(capsys, output) + shown(capsys, output, "--json")
    assert not any(sentence in text for sentence in small.corpus["text"].to_pylist())
    assert bytes(range(32)).hex() not in text


@pytest.mark.parametrize("format", ["parquet", "delta", "lance"])
def test_json_has_the_same_figures_for_every_format(small, tmp_path, capsys, format):
    pytest.importorskip({"delta": "deltalake", "lance": "lance"}.get(format, "pyarrow"))
    small.write(tmp_path, OutputConfig(format=format, precision="int8"))
    found = json.loads(shown(capsys, tmp_path, "--json", "--verify"))
    assert found["finished"] and found["checksums_compared"] and found["problems"] == []
    assert (found["rows"], found["rows_read"], found["quarantined"], found["files"]) == (600, 606, {"empty_text": 6}, 3)
    assert (found["format"], found["precision"]) == (format, "int8") and 0 < found["scale"] < 0.01
    assert found["policy"]["hash"] == small.policy.hash
    assert found["guarantee"]["epsilon"] == small.policy.guarantee().epsilon
    assert found["budget"]["epsilon_spent_max"] == small.policy.guarantee().epsilon_euclidean
    assert found["sample_ids"] == small.corpus["id"].to_pylist()[:5]


def test_an_unfinished_output_tells_how_far_it_is_and_how_to_go_on(small, tmp_path, capsys):
    small.write(tmp_path, finished=False)
    text = " ".join(shown(capsys, tmp_path).split())
    assert "not finished: 2 of 3 units are done" in text
    assert "run the command that began it again" in text
    assert "400 published of 404 read" in text and "4 empty_text" in text
    assert small.policy.hash in text


def test_an_output_that_has_only_begun_can_be_inspected(small, tmp_path, capsys):
    small.write(tmp_path, finished=False)
    for folder in ("_units", "embeddings", "ledger"):
        shutil.rmtree(tmp_path / folder)
    text = " ".join(shown(capsys, tmp_path).split())
    assert "0 of 3 units are done" in text and "nothing was released" in text


def test_damaged_files_are_named_and_the_status_says_so(small, tmp_path, capsys):
    files = small.write(tmp_path)
    path = tmp_path / files[1].path
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    assert main(["inspect", str(tmp_path)]) == 0
    assert main(["inspect", str(tmp_path), "--verify"]) == 1
    assert files[1].path in capsys.readouterr().out
    path.unlink()
    assert main(["inspect", str(tmp_path)]) == 1
    assert f"{files[1].path} is missing" in " ".join(capsys.readouterr().out.split())


def test_a_release_without_noise_is_called_what_it_is(small, tmp_path, capsys):
    replace(small, policy=Policy.build(encoder=small.policy.encoder, mechanism="none")).write(tmp_path)
    text = " ".join(shown(capsys, tmp_path).split())
    assert "the vectors are published as they are" in text and "epsilon infinite" in text
    assert json.loads(shown(capsys, tmp_path, "--json"))["guarantee"]["epsilon"] is None


@pytest.mark.parametrize("case", ["nowhere", "empty", "part", "other"])
def test_what_is_no_output_is_said_clearly(small, output, tmp_path, capsys, case):
    folder = {"nowhere": tmp_path / "none", "part": output / "embeddings"}.get(case, tmp_path)
    if case == "other":
        write_json(f"{tmp_path}/summary.json", {"job": "audit"})
    assert main(["inspect", str(folder)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert {
        "nowhere": "does not exist",
        "empty": "neither claim.json nor manifest.json",
        "part": f"is part of the output {output}; name that",
        "other": "holds the output of audit",
    }[case] in error


def test_a_ledger_that_is_missing_does_not_hide_the_rest(small, tmp_path):
    small.write(tmp_path)
    claim = json.loads((tmp_path / "claim.json").read_text()) | {"counted": [str(tmp_path / "gone")]}
    write_json(f"{tmp_path}/claim.json", claim)
    found = inspect(str(tmp_path))
    assert "has no ledger" in found["budget"]["unknown"] and found["rows"] == 600


def test_the_budget_of_a_run_is_told_as_the_run_told_it(small, tmp_path, capsys):
    small.write(tmp_path)
    figures = {"subjects": 7, "releases_max": 3, "epsilon_spent_median": 1.5, "epsilon_spent_max": None}
    figures |= {"delta_spent_max": 1e-6, "max_epsilon_per_subject": 9}
    write_json(f"{tmp_path}/summary.json", {"job": "privatize", "budget": figures})
    told = "7 subjects, released 3 times at most; epsilon_euclidean spent: 1.5 at the median, infinite at most"
    assert f"{told}, delta 1e-06; limit 9" in " ".join(shown(capsys, tmp_path).split())


def test_outputs_on_object_storage_are_inspected_too(small, s3):
    small.write(s3)
    found = inspect(s3, checksums=True)
    assert (found["rows"], found["problems"]) == (600, [])
    assert found["sample_ids"] == small.corpus["id"].to_pylist()[:5]


def test_a_changed_policy_is_refused(small, tmp_path):
    small.write(tmp_path)
    path = tmp_path / "policy" / "policy.json"
    path.write_text(path.read_text().replace('"floor": 0.03', '"floor": 0.3'))
    with pytest.raises(SparseError, match="changed after it was written"):
        inspect(str(tmp_path))


def test_a_damaged_file_is_a_problem_and_not_the_end(small, tmp_path):
    small.write(tmp_path)
    part = sorted((tmp_path / "embeddings").iterdir())[0]
    content = bytearray(part.read_bytes())
    content[200:4000] = b"\0" * 3800
    part.write_bytes(bytes(content))
    problems = inspect(str(tmp_path))["problems"] or inspect(str(tmp_path), checksums=True)["problems"]
    assert problems and part.name in problems[0]


def swapped(small, folder) -> str:
    """An output whose policy was replaced by one that hardly protects; it carries a valid hash of its own."""
    small.write(folder)
    weak = Policy.build(encoder=small.policy.encoder, mechanism="mahalanobis", mask=small.policy.mask, epsilon=1e9)
    shutil.rmtree(folder / "policy")
    weak.save(folder / "policy")
    return weak.hash


def test_another_policy_than_the_one_released_under_is_a_problem(small, tmp_path):
    weak = swapped(small, tmp_path)
    problems = "\n".join(inspect(str(tmp_path), checksums=True)["problems"])
    for told in (
        f"claim.json speaks of the policy {small.policy.hash}, and {weak} lies in policy/",
        f"manifest.json speaks of the policy {small.policy.hash}",
        f"_units/u400.json speaks of the policy {small.policy.hash}",
        "manifest.json promises another guarantee",
        "The ledger tells another policy or price",
    ):
        assert told in problems
    assert main(["inspect", str(tmp_path)]) == 1


def test_a_guarantee_that_the_policy_does_not_give_is_a_problem(small, tmp_path):
    small.write(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["guarantee"]["epsilon_euclidean"] /= 2
    write_json(f"{tmp_path}/manifest.json", manifest)
    assert inspect(str(tmp_path))["problems"] == [
        "manifest.json promises another guarantee than the policy in policy/ gives."
    ]


def test_a_price_that_the_policy_does_not_cost_is_a_problem(small, tmp_path):
    cheap = replace(Charge.of(small.policy, small.key), epsilon_euclidean=1e-3)
    small.write(tmp_path, charge=cheap)
    assert inspect(str(tmp_path))["problems"] == []
    (problem,) = inspect(str(tmp_path), checksums=True)["problems"]
    assert "The ledger tells another policy or price" in problem and "epsilon_euclidean=0.001" in problem


def test_copies_of_texts_are_told_with_what_they_give_away(small, tmp_path, capsys):
    small.write(tmp_path)
    write_json(f"{tmp_path}/summary.json", {"job": "privatize", "copies": {"texts": 5, "most": 1200}})
    told = "copies 5 texts stand under several subjects, one of them under 1,200: each copy has noise of its own"
    assert told in " ".join(shown(capsys, tmp_path).split())
