"""Results of the paper measured anew: budgets, data, and the table with both figures."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from jobs.cli import main
from jobs.config import load_config
from jobs.config.reproduce import Experiment, ReproduceConfig, rho_of
from jobs.paper.data import located, prepare
from jobs.paper.plan import EXPERIMENTS, names, plan, planned_rows
from jobs.paper.table import compared, render, trade_off_rate
from jobs.reproduce import run
from jobs.summary import ProtectionRow
from sparse_core.attacks.result import FAILED
from sparse_core.errors import SparseError

MINIMAL = {
    "title": "a test",
    "source": "nowhere",
    "data": {"kind": "pairs", "file": "pairs.parquet"},
    "concepts": [{"name": "capital", "terms": ["Paris", "Rome"]}],
    "rows": [{"name": "unprotected", "mechanism": "none"}],
    "budgets": [5, 10],
}
PAIRS = {
    "sentence1": ["Paris is large.", "A dog runs.", "Rome is old.", "It rains."],
    "sentence2": ["Rome is old.", "A cat runs.", "Paris is large.", "It snows."],
    "score": [2.5, 1.0, 2.5, 3.0],
    "split": ["test", "train", "test", "test"],
}


def experiment(**changes) -> Experiment:
    return Experiment.model_validate(MINIMAL | changes)


def folder_in(path: Path) -> Path:
    (path / "prepared").mkdir()
    return path / "prepared"


def error_of(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


# Budgets


@pytest.mark.parametrize("budget, rho", [(5, 3.4), (10, 1.7), (20, 0.85), (34, 0.5)])
def test_rho_is_seventeen_by_the_papers_budget(budget, rho):
    assert rho_of(budget) == pytest.approx(rho)


def test_every_budget_of_a_noisy_row_is_planned_at_its_rho():
    rows, left_out = planned_rows(
        experiment(rows=[{"name": "bare", "mechanism": "none"}, {"name": "l", "mechanism": "laplace"}])
    )
    assert [(one.name, one.budget, one.rho) for one in rows] == [
        ("bare", None, None),
        ("l at 5", 5, pytest.approx(3.4)),
        ("l at 10", 10, pytest.approx(1.7)),
    ]
    assert left_out == []


def test_purkayastha_is_left_out_where_no_direction_is_as_far_and_that_is_said():
    rows, left_out = planned_rows(
        experiment(rows=[{"name": "p", "mechanism": "purkayastha"}], budgets=[5, 12, 12.1, 20])
    )
    assert [one.budget for one in rows] == [12.1, 20]
    (sentence,) = left_out
    assert "p at 5 (rho 3.40), 12 (rho 1.42)" in sentence and "1.41" in sentence


# Experiments


def test_every_experiment_of_the_paper_is_there():
    assert {"sts12", "fiqa", "robustness", "whitebox", "pii", "clinical", "lambda", "redaction"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_experiments_say_how_they_are_run_and_compare_with_unprotected_vectors(name):
    path = EXPERIMENTS / f"{name}.yaml"
    what = load_config(Experiment, str(path), [])
    assert f"sparse reproduce {name}" in path.read_text()
    assert any(row.mechanism == "none" for row in what.rows)
    assert {figure.budget for figure in what.figures} <= {None, *what.budgets}
    concepts = {concept.name for concept in what.concepts}
    assert {figure.concept for figure in what.figures} <= {None, *concepts}
    assert what.cut().rows


def test_a_figure_needs_an_explanation():
    with pytest.raises(ValidationError, match="none speaks of the leakage of row 'unprotected'"):
        experiment(figures=[{"row": "unprotected", "leakage": 60}])


def test_an_explanation_of_a_row_goes_before_that_of_all():
    what = experiment(
        rows=[{"name": "a", "mechanism": "none"}, {"name": "b", "mechanism": "laplace"}],
        explanations=[
            {"measure": "leakage", "rows": ["b"], "text": "b is special"},
            {"measure": "leakage", "text": "another encoder"},
        ],
    )
    assert what.explanation("leakage", "a") == "another encoder"
    assert what.explanation("leakage", "b") == "b is special"
    assert what.explanation("utility", "b") is None


@pytest.mark.parametrize(
    "row, said",
    [
        ({"name": "x", "mechanism": "mahalanobis"}, "name one of masks in mask"),
        ({"name": "x", "mechanism": "laplace", "read_out": "wiener"}, "name one of masks in mask"),
        ({"name": "x", "mechanism": "mahalanobis", "mask": "m"}, "there is no mask 'm'"),
        ({"name": "x"}, "exactly one of mechanism and baseline"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(row, said):
    with pytest.raises(ValidationError, match=said):
        experiment(rows=[row])


# What a user gets wrong


def test_an_unknown_name_lists_those_there_are(capsys, tmp_path):
    assert main(["reproduce", "sts13", f"output={tmp_path}"]) == 2
    told = error_of(capsys)
    assert "no experiment 'sts13'" in told and all(name in told for name in names())


def test_without_a_name_the_experiments_are_listed(capsys):
    assert main(["reproduce", "reduced=true"]) == 2
    assert ", ".join(names()) in error_of(capsys)


def test_help_lists_the_experiments(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    printed = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +\S", printed, flags=re.MULTILINE) for name in names())


def test_data_that_is_needed_and_not_given_is_named_with_its_columns(capsys, tmp_path):
    assert main(["reproduce", "sts12", f"output={tmp_path}"]) == 2
    told = error_of(capsys)
    assert "data=" in told and "sts12/sts12.parquet" in told and "sentence1, sentence2, score, split" in told


def test_a_missing_file_is_named_with_its_columns(capsys, tmp_path):
    assert main(["reproduce", "pii", f"data={tmp_path}", f"output={tmp_path / 'out'}"]) == 2
    told = error_of(capsys)
    assert f"there is no file {tmp_path / 'pii_presidio/pii_presidio.parquet'}" in told and "id, text, spans" in told


def test_missing_columns_are_named_beside_those_there_are(capsys, tmp_path):
    (tmp_path / "sts12").mkdir()
    pq.write_table(pa.table({"sentence1": ["a"], "sentence2": ["b"]}), tmp_path / "sts12/sts12.parquet")
    assert main(["reproduce", "sts12", f"data={tmp_path}", f"output={tmp_path / 'out'}"]) == 2
    assert "has no column score, split; it has sentence1, sentence2" in error_of(capsys)


def test_a_file_that_is_not_parquet_is_named(capsys, tmp_path):
    (tmp_path / "sts12").mkdir()
    (tmp_path / "sts12/sts12.parquet").write_text("sentence1,sentence2\n")
    assert main(["reproduce", "sts12", f"data={tmp_path}", f"output={tmp_path / 'out'}"]) == 2
    assert "cannot be read as a Parquet file" in error_of(capsys)


def test_an_unknown_field_is_named(capsys, tmp_path):
    assert main(["reproduce", "clinical", "reduce=true", f"output={tmp_path}"]) == 2
    assert "did you mean 'reduced'" in error_of(capsys)


def test_encoders_whose_vectors_have_any_norm_are_refused(capsys, tmp_path):
    assert main(["reproduce", "clinical", "encoder.normalize=false", f"output={tmp_path}"]) == 2
    assert "norm 1" in error_of(capsys)


def test_a_dry_run_tells_what_would_be_done_and_writes_nothing(capsys, tmp_path):
    assert main(["reproduce", "clinical", "--dry-run", f"output={tmp_path / 'out'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "sex, disease, symptom" in printed and "left out purkayastha at 10 (rho 1.70)" in printed
    assert not (tmp_path / "out").exists()


# Data


def test_sentences_of_pairs_become_records_once_and_only_scored_pairs_count(tmp_path):
    pq.write_table(pa.table(PAIRS), tmp_path / "pairs.parquet")
    what = experiment()
    prepared = prepare(what, located(what, str(tmp_path)), folder_in(tmp_path), records=None)
    texts = {row["id"]: row["text"] for row in pq.read_table(prepared.input.path).to_pylist()}
    assert sorted(texts.values()) == sorted({*PAIRS["sentence1"], *PAIRS["sentence2"]})
    (task,) = prepared.utility
    pairs = [(texts[row["left"]], texts[row["right"]], row["score"]) for row in pq.read_table(task["path"]).to_pylist()]
    assert task["task"] == "sts" and pairs == [
        ("Paris is large.", "Rome is old.", 2.5),
        ("Rome is old.", "Paris is large.", 2.5),
        ("It rains.", "It snows.", 3.0),
    ]


def test_a_split_that_is_not_there_is_named(tmp_path):
    pq.write_table(pa.table(PAIRS), tmp_path / "pairs.parquet")
    what = experiment(data=MINIMAL["data"] | {"scored": "dev"})
    with pytest.raises(SparseError, match="no row with 'dev' in the column split"):
        prepare(what, located(what, str(tmp_path)), folder_in(tmp_path), records=None)


def test_questions_that_are_queries_stay_out_of_the_pool_they_search(tmp_path):
    tables = {
        "answers": {"doc_id": ["1", "2"], "text": ["Paris.", "In Rome."]},
        "queries": {"query_id": ["a", "b"], "text": ["Which city?", "Where?"], "doc_id": ["1", "2"]},
        "others": {"question_id": [1, 2], "text": ["Where?", "Why?"]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    what = experiment(
        data={"kind": "answers", "file": "answers.parquet", "queries": "queries.parquet", "others": "others.parquet"}
    )
    prepared = prepare(what, located(what, str(tmp_path)), folder_in(tmp_path), records=None)
    texts = {row["id"]: row["text"] for row in pq.read_table(prepared.input.path).to_pylist()}
    assert list(texts.values()) == ["Paris.", "In Rome.", "Why?"]
    (task,) = prepared.utility
    queries = pq.read_table(task["queries"]).to_pylist()
    assert [(row["text"], texts[row[task["document"]]]) for row in queries] == [
        ("Which city?", "Paris."),
        ("Where?", "In Rome."),
    ]


def test_entities_are_annotated_without_their_function_words(tmp_path):
    texts = ["He left the Bank of America for The New York Times.", "Nothing here."]
    spans = [[{"start": 8, "end": 27, "label": "ORG"}, {"start": 32, "end": 50, "label": "ORG"}], []]
    table = pa.table({"id": ["a", "b"], "text": texts, "spans": spans})
    pq.write_table(table, tmp_path / "texts.parquet")
    what = experiment(
        data={"kind": "sentences", "file": "texts.parquet", "spans": "spans"},
        concepts=[{"name": "organization", "entity_types": ["ORG"]}, {"name": "none", "entity_types": ["DATE"]}],
    )
    prepared = prepare(what, located(what, str(tmp_path)), folder_in(tmp_path), records=None)
    rows = pq.read_table(prepared.input.path).to_pylist()
    found = [texts[0][span["start"] : span["end"]] for span in rows[0]["spans"]]
    assert found == ["Bank", "America", "New York Times"]
    assert {span["label"] for span in rows[0]["spans"]} == {"organization"} and rows[1]["spans"] == []
    assert [concept.entity_types for concept in prepared.concepts] == [("organization",), ("none",)]


def test_trade_off_is_the_share_of_leakage_taken_per_share_of_utility_lost():
    assert trade_off_rate(0.25, 0.7) == pytest.approx(2.5)
    assert trade_off_rate(0.25, 1.0) is None and trade_off_rate(None, 0.5) is None


def interval(value: float) -> dict:
    return {"value": value, "low": value - 0.05, "high": value + 0.05}


def attacked(value: float, verdict: str = "ok") -> dict:
    return {"verdict": verdict, "protected": interval(value), "unprotected": interval(0.8)}


def test_every_attack_has_a_line_beside_the_papers_attacker_and_a_failed_one_says_so():
    what = experiment(
        rows=[
            {"name": "bare", "paper": "bare", "mechanism": "none"},
            {"name": "l", "paper": "L", "mechanism": "laplace"},
        ],
        budgets=[10],
        attacks=["mlc", "ridge"],
        each_attack=True,
        figures=[
            {"row": "bare", "attack": "mlc", "leakage": 50},
            {"row": "l", "budget": 10, "attack": "mlc", "leakage": 20},
        ],
        explanations=[
            {"measure": "leakage", "rows": ["l"], "text": "Noise."},
            {"measure": "leakage", "text": "Other."},
        ],
    )
    planned, _ = planned_rows(what)
    absent = dict.fromkeys([field.name for field in fields(ProtectionRow)])
    audit = {
        "protections": [absent | {"name": one.name, "rho": 0.0, "reidentification": 1.0} for one in planned],
        "attacks": {
            "bare": {"mlc": attacked(0.8), "ridge": attacked(0.7)},
            "l at 10": {"mlc": attacked(0.4), "ridge": attacked(0.1, FAILED)},
        },
    }
    lines = compared(what, planned, {"capital": audit})
    assert [(line["protection"], line["attack"]) for line in lines] == [
        ("bare", "mlc"),
        ("bare", "ridge"),
        ("l", "mlc"),
        ("l", "ridge"),
    ]
    noisy = lines[2]
    assert noisy["leakage"]["paper_left"] == pytest.approx(0.4) and noisy["leakage"]["ours_left"] == pytest.approx(0.5)
    assert [line["differs"] for line in lines] == [{"leakage": "Other."}, {}, {"leakage": "Noise."}, {}]
    about = {"name": "x", "encoder": "e", "reduced": False, "seconds": 1, "records": 9, "left_out": [], "masks": []}
    page = render(what, lines, about)
    assert "ridge, failed" in page and "1. Other.\n2. Noise." in page


# End to end


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """The reduced clinical experiment: its page and its output."""
    output = tmp_path_factory.mktemp("paper")
    config = ReproduceConfig(output=str(output), reduced=True)
    (page,) = run([plan("clinical", config)], config)
    return page, output / "clinical-reduced", config


def test_the_table_holds_the_papers_figure_beside_ours(reduced):
    page, output, _ = reduced
    assert (output / "result.md").read_text() == page
    result = json.loads((output / "result.json").read_text())
    lines = {(line["protection"], line["budget"]): line for line in result["lines"]}
    assert set(lines) == {("unprotected", None), ("laplace", 10), ("laplace", 20), ("purkayastha", 20)}
    bare, noisy = lines["unprotected", None], lines["laplace", 10]
    assert bare["leakage"]["paper"] == pytest.approx(0.8276)
    assert bare["leakage"]["low"] <= bare["leakage"]["ours"] <= bare["leakage"]["high"]
    assert noisy["rho"] == pytest.approx(1.7, rel=0.02)
    assert noisy["leakage"]["paper"] is None
    assert noisy["leakage"]["ours"] < bare["leakage"]["ours"]
    assert noisy["leakage"]["ours_left"] == pytest.approx(noisy["leakage"]["ours"] / bare["leakage"]["ours"])
    assert noisy["utility"]["ours_kept"] == pytest.approx(noisy["utility"]["ours"] / bare["utility"]["ours"])
    cells = [
        cell.strip() for cell in next(row for row in page.splitlines() if row.startswith("| unprotected")).split("|")
    ]
    assert "82.76" in cells and any(cell.startswith(f"{100 * bare['leakage']['ours']:.1f} [") for cell in cells)
    assert "n/a" in next(row for row in page.splitlines() if row.startswith("| laplace"))
    assert "purkayastha at 10 (rho 1.70)" in page


def test_an_explanation_stands_below_exactly_where_the_paper_lies_outside_our_interval(reduced):
    page, output, _ = reduced
    bare = json.loads((output / "result.json").read_text())["lines"][0]
    outside = not bare["leakage"]["low"] <= bare["leakage"]["paper"] <= bare["leakage"]["high"]
    assert ("leakage" in bare["differs"]) == outside == ("MIMIC-III may not be shared" in page)


def test_the_corpus_is_not_left_behind(reduced, clinical):
    _, output, _ = reduced
    written = b"".join(path.read_bytes() for path in output.rglob("*") if path.is_file())
    assert all(text.encode() not in written for text in clinical["text"].to_pylist() if len(text) > 60)


def test_a_result_for_the_same_settings_is_shown_and_not_computed_again(reduced, monkeypatch):
    page, _, config = reduced
    monkeypatch.setattr("jobs.reproduce.RememberingEncoder.load", lambda config: pytest.fail("computed again"))
    assert run([plan("clinical", config)], config) == [page]


def test_the_papers_figures_can_be_amended_without_measuring_anew(reduced, monkeypatch):
    page, _, config = reduced
    monkeypatch.setattr("jobs.reproduce.RememberingEncoder.load", lambda config: pytest.fail("computed again"))
    planned = plan("clinical", config)
    figures = tuple(one.model_copy(update={"leakage": 12.34}) for one in planned.experiment.figures)
    amended = replace(planned, experiment=planned.experiment.model_copy(update={"figures": figures}))
    assert "12.34" in run([amended], config)[0] and "12.34" not in page
    assert run([planned], config) == [page]


def test_other_settings_are_another_result(reduced):
    _, _, config = reduced
    other = config.model_copy(update={"encoder": config.encoder.model_copy(update={"prompt": "note: "})})
    assert plan("clinical", other).fingerprint != plan("clinical", config).fingerprint
