"""A study tries every policy once, whatever happens to it, and says the same of each whenever it is asked."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import COMMON, MADE_UP

from jobs import storage, study
from jobs.cli import main
from jobs.config import load_config
from jobs.embedding_cache import CachedEncoder
from jobs.stages import RememberingEncoder
from jobs.study.results import best, read_records, record_url, score_of, unfinished
from jobs.study.space import Parameters, Proposals, by_mask, evened, grid
from jobs.study.trial import find, measure_reference, prepare, run_trial
from sparse_core.encoders import Encoder
from sparse_core.masks import Mask

CLOSES_ALL = 1e6
TRIALS = 6


STUDIES = sorted((Path(__file__).parents[2] / "configs/studies").glob("*.yaml"))


@pytest.fixture(scope="module")
def room(tmp_path_factory, workspace):
    """A folder with the configuration of a small grid: two masks that serve, one that cannot be learned, no utility."""
    room = tmp_path_factory.mktemp("study")
    settings = {
        "output": str(room / "out"),
        "input": {"path": str(workspace.corpus)},
        "concepts": {"name": "patient", "terms": [*MADE_UP, *COMMON]},
        "encoders": {"device": "cpu"},
        "space": {"rho": [1, 4], "penalty": [0.2, 0.8, CLOSES_ALL], "floor": 0.05},
        "mask": {"epochs": 20, "gate_learning_rate": 0.5},
        "attacks": "ridge",
        "draws": 1,
        "min_token_count": 3,
        "utility": {"label": "section"},
        "cache": str(room / "embeddings"),
        "workers": {"actors": 2},
        "tracking": {"enabled": False},
    }
    (room / "study.yaml").write_text(yaml.safe_dump(settings))
    return room


def configured(room, *overrides):
    return load_config(study.CONFIG, str(room / "study.yaml"), list(overrides))


def run(room, *overrides):
    return main(["study", "--config", str(room / "study.yaml"), *overrides])


@contextmanager
def counted_encodings():
    """Every text that a real encoder is asked to encode."""
    texts, original = [], Encoder.encode

    def encode(self, given, **options):
        texts.extend(given)
        return original(self, given, **options)

    patch = pytest.MonkeyPatch()
    patch.setattr(Encoder, "encode", encode)
    try:
        yield texts
    finally:
        patch.undo()


@pytest.fixture(scope="module")
def finished(room):
    """The grid, run; the texts that were encoded for it."""
    with counted_encodings() as texts:
        assert run(room) == 0
    return room / "out", texts


def summary_of(output):
    return json.loads((output / "summary.json").read_text())


def test_every_combination_has_a_record_and_those_done_a_row(finished):
    output, _ = finished
    records = read_records(str(output))
    done = {name for name, record in records.items() if record["status"] == "done"}
    summary = summary_of(output)
    assert len(records) == TRIALS
    assert {row["name"] for row in summary["protections"]} == done == set(summary["parameters"])
    for name in done:
        record = records[name]
        assert record["row"]["rho"] == pytest.approx(record["parameters"]["rho"])
        assert 0 <= record["row"]["leakage"] <= record["row"]["leakage_unprotected"]
        assert record["attacks"]["ridge"]["verdict"] == "ok"
        assert record["utilities"][0]["score"] == record["row"]["utility"]


def test_a_trial_that_fails_is_recorded_with_its_reason_and_the_others_go_on(finished):
    output, _ = finished
    failed = [record for record in read_records(str(output)).values() if record["status"] == "failed"]
    assert [record["parameters"]["lambda"] for record in failed] == [CLOSES_ALL] * 2
    assert all("every gate closed" in record["reason"] for record in failed)
    assert summary_of(output)["trials"] == {"done": 4, "stopped": 0, "failed": 2}


def test_trials_that_differ_in_strength_only_share_a_mask(finished):
    output, _ = finished
    records = [record for record in read_records(str(output)).values() if record["status"] == "done"]
    assert len({record["mask_path"] for record in records}) == 2 == len(list((output / "masks").iterdir()))
    for record in records:
        mask = Mask.load(output / record["mask_path"])
        assert mask.info.penalty == record["parameters"]["lambda"]
        np.testing.assert_array_equal(record["mask"]["values"], mask.values)


def test_more_noise_leaks_less(finished):
    output, _ = finished
    leakage = {}
    for record in read_records(str(output)).values():
        if record["status"] == "done":
            leakage.setdefault(record["parameters"]["lambda"], {})[record["parameters"]["rho"]] = record["row"][
                "leakage"
            ]
    assert all(found[4] < found[1] for found in leakage.values())


def test_no_text_is_encoded_twice_and_another_study_encodes_none(finished, room):
    _, texts = finished
    assert len(texts) == len(set(texts)) > 400
    with counted_encodings() as again:
        config = configured(room, f"output={room / 'another'}")
        cached = CachedEncoder(RememberingEncoder.load(config.encoders[0]), config.cache)
        prepared = prepare(config, cached, found=find(config, config.concepts[0]), bases=["substitution"])
    assert again == []
    assert len(prepared.material.ids) == 400


def test_the_same_command_finishes_only_what_is_missing(finished, room, monkeypatch):
    output, _ = finished
    before = {path.name: path.read_bytes() for path in (output / "trials").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("jobs.cluster.ray_session", lambda *_, **__: pytest.fail("Ray was started"))
        assert run(room) == 0
    missing = next(name for name, record in read_records(str(output)).items() if record["status"] == "done")
    (output / "trials" / f"{missing}.json").unlink()
    assert run(room) == 0
    after = {path.name: path.read_bytes() for path in (output / "trials").iterdir()}
    assert {name for name in before if before[name] != after[name]} <= {f"{missing}.json"}
    timeless = [json.loads(content[f"{missing}.json"]) for content in (before, after)]
    for record in timeless:
        for name in ("durations", "cpu_seconds"):
            del record[name]
    assert timeless[0] == timeless[1]


def test_a_trial_without_ray_comes_to_the_same(finished, room):
    output, _ = finished
    config = configured(room)
    cached = CachedEncoder(RememberingEncoder.load(config.encoders[0]), config.cache)
    prepared = prepare(config, cached, found=find(config, config.concepts[0]), bases=["substitution"])
    record = next(r for r in read_records(str(output)).values() if r["status"] == "done")
    parameters = Parameters.of_record(record["parameters"])
    reference = measure_reference(prepared, encoder=parameters.encoder, seed=0)
    alone = run_trial(prepared, parameters, name=record["trial"], reference=reference)
    numbers, words = ({}, {}), ({}, {})
    for place, row in enumerate((alone["row"], record["row"])):
        for name, value in row.items():
            (numbers if isinstance(value, float) else words)[place][name] = value
    assert words[0] == words[1]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)
    assert alone["mask"]["values"] == pytest.approx(record["mask"]["values"], abs=1e-6)


def test_nothing_written_tells_a_term_or_a_text(finished, workspace):
    output, _ = finished
    text = workspace.good[1]["text"].encode()
    for path in output.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(term.encode() in content for term in (*MADE_UP, "Brindlem[o]")), path
            assert text not in content, path


def test_embeddings_are_for_their_owner_only(finished, room):
    assert (room / "embeddings").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("space.rho=[1, 5]", "space.rho was '[1.0, 4.0]' and is '[1.0, 5.0]'"),
        ("min_token_count=4", "min_token_count"),
        ("concepts.terms=[hypertension, diabetes]", "terms or patterns of the concept 'patient'"),
    ],
)
def test_the_directory_of_another_study_is_refused_with_what_differs(finished, room, capsys, override, named):
    assert run(room, override) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert named in told and "Choose another output directory" in told


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("space.rho=[]", "space.rho.values: is empty"),
        ("space.rho=[1, 0]", "space.rho.values.1"),
        ("space={epsilon: -2}", "space.epsilon.values.0"),
        ("space={penalty: 1}", "exactly one of rho and epsilon"),
        ("space.basis=[nonsense]", "space.basis.0"),
        ("attacks=[crystal ball]", "attacks.0"),
        ("space.rho={low: 1, high: 2}", "a range, which a grid cannot try"),
        ("mask.penalty=1", "list its values in space.penalty"),
        ("space.mechanism=purkayastha", "choose a rho below 1.41"),
        ("trials=3", "belongs to the search 'optuna'"),
        ("concepts.terms=[Grzegorzewicz]", "Grz"),
        ("utility={label: nowhere}", "nowhere"),
        ("early_stopping=true", "a first look takes 20"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused_before_anything_is_computed(room, capsys, override, named):
    output = room / "refused"
    with counted_encodings() as texts:
        assert run(room, f"output={output}", override) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (named in told) != (named == "Grz")
    assert texts == [] and not (output / "trials").exists()


def test_embeddings_and_records_are_kept_on_object_storage_too(s3, encoder):
    texts = ["A first sentence.", "A second one."]
    kept = CachedEncoder(RememberingEncoder(encoder), f"{s3}/embeddings").encode(texts, title="first")
    with counted_encodings() as again:
        fetched = CachedEncoder(RememberingEncoder(encoder), f"{s3}/embeddings").encode(texts, title="again")
        CachedEncoder(RememberingEncoder(encoder), f"{s3}/embeddings").encode(texts[::-1], title="another list")
    np.testing.assert_array_equal(kept, fetched)
    assert sorted(again) == sorted(texts)
    assert read_records(s3) == {}
    parameters = Parameters(mechanism="laplace", rho=2.0, encoder="e", concept="c")
    record = unfinished("f00d", parameters, "failed", "why")
    storage.write_json(record_url(s3, "f00d"), record)
    assert read_records(s3) == {"f00d": record}


def test_a_damaged_file_of_embeddings_is_made_anew(tmp_path, encoder):
    texts = ["A first sentence.", "A second one."]
    whole = CachedEncoder(RememberingEncoder(encoder), str(tmp_path)).encode(texts, title="first")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    again = CachedEncoder(RememberingEncoder(encoder), str(tmp_path)).encode(texts, title="again")
    np.testing.assert_array_equal(whole, again)


def test_a_reason_quotes_our_own_words_only():
    from jobs.study.worker import reason_of

    def caught(call):
        try:
            call()
        except Exception as error:
            return reason_of(error)

    assert caught(lambda: Mask.load("/nowhere")).startswith("no mask in")
    place = "TypeError at jobs/study/space.py"
    assert caught(lambda: Parameters.of_record({"lambda": 1, "Zorvath": 2})).startswith(place)
    assert "Zorvath" not in caught(lambda: Parameters.of_record({"lambda": 1, "Zorvath": 2}))
    assert "Zorvath" not in caught(lambda: int("Zorvath"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_every_study_in_the_repository_is_valid_and_tells_its_command(path):
    assert f"sparse study --config configs/studies/{path.name}" in path.read_text()
    load_config(study.CONFIG, str(path), [])


def test_what_has_no_part_in_a_policy_is_not_varied(room):
    config = configured(room, "space.mechanism=[laplace, mahalanobis]", "space.seed=[0, 1]")
    trials = grid(config)
    assert len(trials) == len(set(trials)) == 2 * (3 * 2 + 2)
    assert {p.penalty for p in trials if p.mechanism == "laplace"} == {None}
    assert all(len({p.mask_id("") for p in group}) == 1 for group in by_mask(trials))


def test_the_last_groups_are_split_so_that_workers_end_together(room):
    config = configured(room, "space.rho=[1, 2, 3, 4]", "space.seed=[0, 1, 2]")
    groups = by_mask(grid(config))
    pieces = evened(groups, workers=2)
    assert sorted(map(repr, itertools.chain(*pieces))) == sorted(map(repr, grid(config)))
    assert pieces[: len(groups) - 4] == groups[:-4] and {len(piece) for piece in pieces[-16:]} == {1}
    masks = [piece[0].mask_id("") for piece in pieces]
    assert len(set(masks[: len(groups)])) == len(groups)


def test_a_trial_is_named_by_its_parameters_and_its_study():
    parameters = Parameters(mechanism="laplace", rho=2.0, encoder="e", concept="c")
    assert parameters.trial_id("a") == Parameters.of_record(parameters.as_record()).trial_id("a")
    others = [
        parameters.trial_id("b"),
        Parameters(mechanism="laplace", rho=2.5, encoder="e", concept="c").trial_id("a"),
    ]
    assert parameters.trial_id("a") not in others


def test_a_proposed_policy_is_one_that_could_have_been_proposed(room):
    config = configured(room, "search=optuna", "trials=3", "space.rho={low: 1, high: 4}", "space.seed=[3, 4]")
    proposals = Proposals(config.space, ("e",), "patient")
    policy = proposals.policy({"rho": 2.5, "penalty": 0.2})
    assert [p.seed for p in policy] == [3, 4]
    assert proposals.point(policy[0]) == {"rho": 2.5, "penalty": 0.2}


def test_the_best_policy_is_that_of_the_best_mean_over_seeds():
    def record(rho, seed, score):
        parameters = Parameters(mechanism="laplace", rho=rho, seed=seed, encoder="e", concept="c")
        return {"status": "done", "parameters": parameters.as_record(), "score": score}

    lucky, steady = [record(1.0, 0, 0.9), record(1.0, 1, 0.1)], [record(2.0, 0, 0.6), record(2.0, 1, 0.6)]
    assert best([*lucky, *steady]) == steady
    assert best([]) == []


def test_a_leakage_that_nobody_could_measure_counts_as_whole():
    reference = {"utility": 0.8}
    unmeasured = {"leakage_normalized": None, "utility": 0.4}
    assert score_of(unmeasured, reference, leakage_weight=2.0) == pytest.approx(0.5 - 2.0)
    assert score_of({"leakage_normalized": -0.1, "utility": 0.8}, reference, leakage_weight=2.0) == pytest.approx(1.0)


def family(process):
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def killed_once(command, output, kind):
    """Run a study, kill its driver or a worker with SIGKILL after its first record, and wait for the end."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        driver, seen, killed = psutil.Process(child.pid), [], False
        while child.poll() is None:
            seen += [process for process in family(driver) if process not in seen]
            if not killed and len(list((output / "trials").glob("*.json"))) >= 1:
                workers = [p for p in seen if p.is_running() and "TrialWorker" in " ".join(p.cmdline() or [])]
                victim = driver if kind == "driver" else next(iter(workers), None)
                if victim is not None:
                    os.kill(victim.pid, signal.SIGKILL)
                    killed = True
            time.sleep(0.05)
        error = child.stderr.read().decode()
        for process in seen:
            # Ray's processes outlive a killed driver for a while; the next run must not meet them.
            if process.is_running():
                process.kill()
    assert killed
    return child.returncode, error


def command_for(room, output, *overrides):
    given = [f"output={output}", "space={rho: [1, 2, 4], penalty: [0.2, 0.8]}", *overrides]
    return [sys.executable, "-m", "jobs.cli", "study", "--config", str(room / "study.yaml"), *given]


@pytest.mark.slow
def test_a_study_whose_driver_was_killed_is_finished_by_the_same_command(room, tmp_path):
    output = tmp_path / "killed"
    command = command_for(room, output)
    status, _ = killed_once(command, output, "driver")
    assert status == -signal.SIGKILL
    before = {path.name: path.read_bytes() for path in (output / "trials").glob("*.json")}
    assert 0 < len(before) < TRIALS
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    after = {path.name: path.read_bytes() for path in (output / "trials").glob("*.json")}
    assert len(after) == TRIALS and {name: after[name] for name in before} == before
    assert summary_of(output)["trials"] == {"done": TRIALS, "stopped": 0, "failed": 0}


@pytest.mark.slow
def test_a_lost_worker_costs_one_trial_which_can_be_repeated(room, tmp_path):
    output = tmp_path / "lost"
    status, _ = killed_once(command_for(room, output), output, "worker")
    assert status == 0
    assert summary_of(output)["trials"] == {"done": TRIALS - 1, "stopped": 0, "failed": 1}
    assert "worker ended" in next(iter(summary_of(output)["failed"].values()))
    subprocess.run(command_for(room, output, "retry_failed=true"), check=True, timeout=300, capture_output=True)
    assert summary_of(output)["trials"] == {"done": TRIALS, "stopped": 0, "failed": 0}


@pytest.mark.slow
def test_optuna_stops_bad_policies_after_a_first_look_and_goes_on_where_it_was(room, tmp_path, clinical):
    pytest.importorskip("optuna")
    records = clinical.slice(0, 1200).to_pylist()
    for number, record in enumerate(records):
        if number % 3 == 0:
            record["text"] = f"{MADE_UP[number // 3 % 3]} was seen today. {record['text']}"
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "more.parquet")
    ranges = "space={rho: {low: 0.3, high: 6}, mechanism: [laplace, mahalanobis], seed: [0, 1]}"
    searched = str(tmp_path / "searched")
    overrides = [f"output={searched}", f"input.path={tmp_path / 'more.parquet'}", ranges, "search=optuna"]
    assert run(room, *overrides, "early_stopping=true", "trials=5") == 0
    first = read_records(searched)
    stopped = [record for record in first.values() if record["status"] == "stopped"]
    assert len(first) == 10 and stopped
    assert all("first look" in record["reason"] and record["score"] is not None for record in stopped)
    assert run(room, *overrides, "early_stopping=true", "trials=6") == 0
    records = read_records(searched)
    assert len(records) == 12
    assert {name: records[name] for name in first} == first


@pytest.mark.slow
def test_a_study_says_nothing_of_the_libraries_underneath(room, tmp_path):
    ran = subprocess.run(command_for(room, tmp_path / "quiet"), check=True, timeout=300, capture_output=True, text=True)
    assert "trials done" in ran.stdout
    for word in ("Tune", "Trial name", "Warning", "WARNING", "ray.tune", "Traceback"):
        assert word not in ran.stdout + ran.stderr
