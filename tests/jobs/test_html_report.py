"""The page of a real audit, of a study put together from real runs, and of what is damaged or half finished."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs import audit, storage, train_mask
from jobs.cli import main
from jobs.config import AuditConfig, TrainMaskConfig
from jobs.html_report.content import interval
from jobs.html_report.drawing import as_png, looks
from jobs.html_report.facts import overview
from jobs.html_report.overlap import overlap
from jobs.html_report.page import render
from jobs.html_report.points import front
from jobs.html_report.reading import read
from jobs.html_report.shapes import Row
from jobs.stages import RememberingEncoder
from jobs.tracking.runs import place_of
from sparse_core.errors import SparseError
from sparse_core.masks import Mask

TERMS = ("he", "she", "male", "female", "hypertension", "diabetes", "asthma", "depression")
EVIL = "<script>alert(1)</script> & \"quoted\" _$x^2$ 'onerror='"
TRIED = ("lambda", "basis", "rho", "floor", "read_out", "removal", "seed", "encoder", "concept", "mechanism")


@pytest.fixture(scope="module")
def remembering(job_encoder):
    return RememberingEncoder(job_encoder)


@pytest.fixture(scope="module")
def runs(clinical, remembering, tmp_path_factory):
    """Two masks and a seed more of one, and an audit of what they and laplace protect, recorded in MLflow."""
    folder = tmp_path_factory.mktemp("report")
    pq.write_table(clinical.take(np.arange(0, len(clinical), 6)), folder / "corpus.parquet")
    common = {
        "input": {"path": str(folder / "corpus.parquet")},
        "concept": {"name": "person & co", "terms": TERMS},
    }
    for penalty, seed in ((0.1, 0), (0.1, 1), (1.0, 0)):
        config = TrainMaskConfig(
            **common,
            tracking={"enabled": False},
            output=str(folder / f"mask-{penalty}-{seed}"),
            mask={"basis": "label", "penalty": penalty, "seed": seed, "epochs": 8},
        )
        train_mask.run(config, encoder=remembering)
    rows = [{"name": EVIL, "protection": {"mechanism": "none"}}]
    for rho, tried in ((1, ((0.1, 0),)), (3, ((0.1, 0), (0.1, 1), (1.0, 0)))):
        for penalty, seed in tried:
            rows.append(
                {
                    "name": f"mask {penalty} {seed} {rho}",
                    "protection": {"mechanism": "mahalanobis", "rho": rho, "floor": 0.03},
                    "mask": str(folder / f"mask-{penalty}-{seed}" / "mask"),
                }
            )
        laplace = {"mechanism": "laplace", "rho": rho, "read_out": "none"}
        rows.append({"name": f"laplace {rho}", "protection": laplace})
    config = AuditConfig(
        **common,
        tracking={"uri": f"sqlite:///{folder}/mlflow.db"},
        output=str(folder / "audit"),
        compare=rows,
        attacks=("ridge", "neighbour"),
        draws=0,
        min_token_count=3,
        utility={"label": "section"},
        similar_tokens=False,
    )
    audit.run(config, encoder=remembering)
    return folder


@pytest.fixture(scope="module")
def summary(runs):
    return json.loads((runs / "audit" / "summary.json").read_text())


@pytest.fixture(scope="module")
def page(runs):
    """The audit's, with its masks."""
    masks = [str(runs / name) for name in ("mask-0.1-0", "mask-1.0-0")]
    return render(read(str(runs / "audit"), masks=masks))


@pytest.fixture(scope="module")
def study(runs, summary, tmp_path_factory):
    """A study's directory, as the job leaves it in the middle: its rows and masks are those of the audit."""
    folder = tmp_path_factory.mktemp("study")
    write_study(folder, runs, summary)
    return folder


@pytest.fixture(scope="module")
def study_page(study):
    return render(read(str(study))).html


def write_study(folder, runs, summary):
    for row in summary["protections"]:
        values = dict.fromkeys(TRIED) | {"seed": 0, "encoder": "model", "concept": "person", "rho": row["rho"] or None}
        values |= {"mechanism": row["protection"], "read_out": "wiener"}
        folder_of, mask, place = "trials", None, None
        if row["protection"] == "mahalanobis":
            _, penalty, seed, _ = row["name"].split()
            values |= {"lambda": float(penalty), "seed": int(seed), "basis": "label", "floor": 0.03}
            place = f"masks/{penalty}-{seed}"
            learned = Mask.load(runs / f"mask-{penalty}-{seed}" / "mask")
            learned.save(folder / place)
            mask = {"values": learned.values.tolist(), "sparsity": float((learned.values == 0).mean())}
            mask |= learned.info.metrics
        elif row["protection"] == "none":
            folder_of = "references"
        name = f"{len(list(folder.glob('*/*.json'))):012x}"
        record = {
            "trial": name,
            "status": "done",
            "reason": None,
            "parameters": values,
            "row": row | {"name": name},
            "attacks": summary["attacks"][row["name"]],
            "utilities": summary["utilities"][row["name"]],
            "mask": mask,
            "mask_path": place,
            "durations": {"attack": 1.5},
        }
        storage.write_json(str(folder / folder_of / f"{name}.json"), record)
    failed = {"trial": "failed1", "status": "failed", "reason": f"no gate stayed open {EVIL}", "row": None}
    failed |= {"parameters": dict.fromkeys(TRIED) | {"encoder": "model", "concept": "person", "mechanism": "laplace"}}
    storage.write_json(str(folder / "trials" / "failed1.json"), failed)
    described = {"job": "study", "fingerprint": "f" * 64, "settings": {"seed": "0"}, "concept": "person"}
    storage.write_json(str(folder / "study.json"), described)


class _Parsed(HTMLParser):
    """Headings, images and tables in their order; each table belongs to the image or heading before it."""

    def __init__(self, html):
        super().__init__()
        self.headings, self.images, self.tables, self.tags = [], [], [], []
        self._text, self.after = None, {}
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "img":
            self.images.append(dict(attributes))
        elif tag == "table":
            self.tables.append([])
            self.after[len(self.tables) - 1] = len(self.images) - 1
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th", "h2", "li", "p"):
            self._text = ""

    def handle_data(self, data):
        if self._text is not None:
            self._text += data

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._text is not None:
            self.tables[-1][-1].append(self._text)
        elif tag == "h2":
            self.headings.append(self._text)
        if tag in ("td", "th", "h2", "li", "p"):
            self._text = None


def svgs(html):
    return [base64.b64decode(found).decode() for found in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]


def table_of(parsed, chart):
    """Rows of a figure's data, by column, without the figure."""
    at = next(i for i, image in enumerate(parsed.images) if image["alt"].startswith(chart))
    header, *rows = parsed.tables[next(table for table, image in parsed.after.items() if image == at)]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_real_audit_has_every_section_it_has_data_for(page):
    parsed = _Parsed(page.html)
    assert {
        "In short",
        "Privacy against utility",
        "What more noise buys",
        "Attack by attack",
        "Lambda: sparsity and accuracy",
        "Masks, direction by direction",
        "Overlap between masks",
        "Sensitivity spectrum",
        "What is guaranteed",
        "What is not guaranteed",
        "How long it took",
        "Not on this page",
    } <= set(parsed.headings)
    for limit in ("Re-identification", "Unlisted concepts", "Membership"):
        assert f"<li>{limit}:" in page.html
    assert "What attackers wrote: no attack that writes texts" in page.html


def test_figures_come_with_the_summarys_numbers(page, summary):
    parsed = _Parsed(page.html)
    rows = {row["name"]: row for row in summary["protections"]}
    pareto = {row["name"]: row for row in table_of(parsed, "Scatter")}
    assert set(pareto) == set(rows)
    for name, row in rows.items():
        assert pareto[name]["leakage"] == interval(row["leakage"], row["leakage_low"], row["leakage_high"])
        assert pareto[name]["utility"] == interval(row["utility"], row["utility_low"], row["utility_high"])
    found = {}
    for at, image in enumerate(parsed.images):
        if image["alt"].startswith("Bars of leakage"):
            header, *cells = parsed.tables[next(t for t, i in parsed.after.items() if i == at)]
            found |= {(row[0], row[1]): dict(zip(header, row, strict=True)) for row in cells}
    assert set(found) == {(name, kind) for name, each in summary["attacks"].items() for kind in each}
    for (name, kind), cells in found.items():
        one = summary["attacks"][name][kind]
        assert cells["verdict"] == one["verdict"]
        for figure in ("protected", "unprotected", "floor"):
            assert cells[figure] == interval(**one[figure])


def test_the_front_holds_what_nothing_beats(page, summary):
    on_front = {row["name"] for row in table_of(_Parsed(page.html), "Scatter") if row["on the front"] == "yes"}
    rows = {row["name"]: row for row in summary["protections"]}
    for name, row in rows.items():
        others = [o for o in rows.values() if (o["protection"], o["basis"]) == (row["protection"], row["basis"])]
        beaten = any(
            o["leakage"] <= row["leakage"]
            and o["utility"] >= row["utility"]
            and (o["leakage"], o["utility"]) != (row["leakage"], row["utility"])
            for o in others
        )
        assert (name in on_front) == (not beaten), name


def test_the_front_of_random_points_is_not_dominated():
    draws = np.random.default_rng(0).integers(0, 8, (40, 2)) / 8
    points = [
        SimpleNamespace(measured=True, row=Row(name=str(i), protection="laplace", basis="", leakage=x, utility=y))
        for i, (x, y) in enumerate(draws)
    ]
    found = {(p.row.leakage, p.row.utility) for p in front(points)}
    best = {(x, y) for x, y in draws if not any(u <= x and v >= y and (u, v) != (x, y) for u, v in draws)}
    assert found == best


def test_the_page_asks_nothing_of_the_network(page):
    outside = re.sub(r"base64,[A-Za-z0-9+/=]+", "", page.html)
    assert not re.search(r"https?:|//\w", outside.split("</style>")[1].replace("</script>", ""))
    assert "default-src 'none'" in outside
    for tag, attributes in _Parsed(page.html).tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    for svg in svgs(page.html):
        assert set(re.findall(r"https?://[^\"'<> ]+", svg)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
            "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd",
        }


def test_names_are_escaped_and_terms_are_nowhere(page, study_page):
    for html in (page.html, study_page):
        assert html.count("<script") == 1
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        for svg in svgs(html):
            assert "<script" not in svg
        text = html + "".join(svgs(html))
        assert not [term for term in TERMS if re.search(rf"\b{term}\b", text, re.IGNORECASE)]


def test_every_figure_is_described_and_has_its_data(page):
    parsed = _Parsed(page.html)
    assert len(parsed.images) == len(page.charts) == len({chart.name for chart in page.charts}) >= 7
    for at, image in enumerate(parsed.images):
        assert len(image["alt"]) > 60
        tables = [parsed.tables[table] for table, before in parsed.after.items() if before == at]
        assert len(tables[0]) > 1
    # Folded by a script only: without scripts, and in print, tables are open.
    assert all("open" in attributes for tag, attributes in parsed.tags if tag == "details")
    assert "beforeprint" in page.html


def test_series_differ_by_more_than_colour():
    found = looks([str(number) for number in range(30)]).values()
    assert len({(look.marker, look.line) for look in found}) == 30
    assert len({(look.colour, look.hatch) for look in list(found)[:7]}) == 7


def test_the_same_run_makes_the_same_page(runs, page):
    masks = [str(runs / name) for name in ("mask-0.1-0", "mask-1.0-0")]
    again = render(read(str(runs / "audit"), masks=masks))
    assert again.html == page.html
    assert as_png(again.charts[0].figure) == as_png(page.charts[0].figure)


def test_a_studys_seeds_are_averaged_and_its_trials_listed(study_page, summary):
    parsed = _Parsed(study_page)
    pareto = {row["name"]: row for row in table_of(parsed, "Scatter")}
    seeds = [row for row in summary["protections"] if row["name"] in ("mask 0.1 0 3", "mask 0.1 1 3")]
    mean = {name: sum(row[name] for row in seeds) / 2 for name in ("leakage", "leakage_low", "leakage_high")}
    assert pareto["label λ\u00a00.1 ρ\u00a03"]["leakage"] == interval(*mean.values())
    assert "unprotected" in pareto
    assert len(pareto) == 6
    trials = next(table for table in parsed.tables if table[0][:2] == ["trial", "policy"])
    assert len(trials) == 1 + 7
    failed = next(table for table in parsed.tables if table[0] == ["trial", "status", "parameters", "reason"])
    assert failed[1][0] == "failed1" and "no gate stayed open" in failed[1][3]
    assert {"Lambda: sparsity and accuracy", "Masks, direction by direction"} <= set(parsed.headings)
    assert "This study has not finished" in study_page


def test_lambda_figures_are_the_masks_own(study_page, runs):
    table = {row["mask"]: row for row in table_of(_Parsed(study_page), "Two panels over lambda")}
    assert len(table) == 3
    mask = Mask.load(runs / "mask-1.0-0" / "mask")
    row = table["label λ\u00a01"]
    assert row["open"] == f"{np.count_nonzero(mask.values)} of 384"
    assert float(row["accuracy"]) == pytest.approx(mask.info.metrics["accuracy"], rel=1e-3)


def test_a_damaged_trial_is_left_out_and_named(runs, summary, tmp_path):
    write_study(tmp_path, runs, summary)
    read_whole = read(str(tmp_path))
    trials = sorted((tmp_path / "trials").glob("0*.json"))
    trials[0].write_text('{"trial": "cut')
    trials[1].write_text('{"trial": "x", "status": "done", "parameters": 3}')
    findings = read(str(tmp_path))
    told = [remark for remark in findings.remarks if "left out" in remark]
    assert len(told) == 2 and trials[0].name in told[0] and "parameters" in told[1]
    assert told[0] in overview(findings).points
    assert len(findings.results.protections) < len(read_whole.results.protections)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "no output of a job"),
        ({"mask.json": "{}"}, "--mask"),
        ({"summary.json": "{"}, "not valid JSON"),
        ({"summary.json": "[1]"}, "summary.json is damaged"),
        ({"summary.json": '{"job": "audit", "protections": [{"name": "a"}]}'}, "protections.0.protection"),
        ({"study.json": '{"job": 3}'}, "study.json is damaged: job"),
    ],
)
def test_what_cannot_be_shown_is_told(tmp_path, capsys, files, told):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "report.html").exists()


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SparseError, match="does not exist"):
        read(str(tmp_path / "nowhere"))


def test_a_release_shows_counts_and_guarantee(small, tmp_path):
    small.write(tmp_path / "whole")
    small.write(tmp_path / "half", finished=False)
    whole = _Parsed(render(read(str(tmp_path / "whole"))).html)
    facts = dict(next(table for table in whole.tables if table[0] == ["what", "value"]))
    assert (facts["rows published"], facts["rows read"], facts["quarantined"]) == ("600", "606", "6 empty_text")
    assert {"What is guaranteed", "Sensitivity spectrum"} <= set(whole.headings)
    half = read(str(tmp_path / "half"))
    html = render(half).html
    assert "not finished: 2 units done" in html and "This run has not finished" in html
    assert f"exp({small.policy.guarantee().epsilon:.4g} d)" in html


def test_examples_are_shown_where_there_are_some(summary, tmp_path):
    examples = [{"original": "The ▮ has <b>pain</b>.", "unprotected": "The ▮ hurts.", "protected": "A dog ▮."}]
    score = {"unprotected": {"value": 0.625}, "protected": {"value": 0.125}}
    scores = {name: score for name in ("bleu", "rouge_l", "token_f1", "cosine")}
    found = {"laplace 1": {"inversion": scores | {"n_records": 9, "examples": examples}}}
    storage.write_json(str(tmp_path / "summary.json"), summary | {"reconstruction": found})
    html = render(read(str(tmp_path))).html
    assert "What attackers wrote" in _Parsed(html).headings
    assert "The ▮ has &lt;b&gt;pain&lt;/b&gt;." in html
    scores = next(table for table in _Parsed(html).tables if table[0][2:4] == ["score", "unprotected"])
    assert scores[1] == ["laplace 1", "inversion", "BLEU", "0.625", "0.125", "-"]


def test_concepts_that_no_mask_was_told_of_are_shown_apart(summary, tmp_path):
    concepts = {
        name: {"listed": listed, "tokens_attacked": 3, "tokens_coverage": 0.5, "attacks": summary["attacks"]}
        for name, listed in (("person", True), ("drug", False))
    }
    storage.write_json(str(tmp_path / "summary.json"), summary | {"concepts": concepts})
    html = render(read(str(tmp_path))).html
    rows = table_of(_Parsed(html), "Leakage of the strongest attack for 2 concepts")
    assert {row["listed"] for row in rows} == {"listed", "not listed"}
    strongest = max(summary["attacks"]["laplace 3"].values(), key=lambda one: one["protected"]["value"])
    assert [r["leakage"] for r in rows if r["name"] == "laplace 3"] == [interval(**strongest["protected"])] * 2
    assert "Measured here: leakage of “drug”" in html


def test_what_the_policy_alone_gives_is_shown_and_told_among_the_limits(summary, tmp_path):
    (name, found), *_ = summary["policy_alone"].items()
    one = next(one for one in found["membership"] if one["adversary"] == "informed")
    html = render(read_written(summary, tmp_path)).html
    table = next(table for table in _Parsed(html).tables if "adversary" in table[0] and "AUC" in table[0])
    assert [name, found["kind"], "informed", one["score"], one["verdict"], interval(**one["auc"])] in [
        row[:6] for row in table
    ]
    assert "mean and covariance in the policy, without any vector" in html.partition("<li>The policy alone: ")[2]


def test_a_page_of_an_older_audit_says_that_no_policy_was_attacked_alone(summary, tmp_path):
    html = render(read_written({k: v for k, v in summary.items() if k != "policy_alone"}, tmp_path)).html
    assert "The policy alone: no policy with statistics was attacked" in html


def read_written(content, folder):
    storage.write_json(str(folder / "summary.json"), content)
    return read(str(folder))


def test_a_calibration_tells_its_reason_and_what_it_tried(summary, tmp_path):
    tried = {"lambda": 0.25, "directions_open": 17, "rho": 2.5, "epsilon": 99.0, "utility": 0.5, "utility_loss": 0.125}
    tried |= {"leakage": 0.3, "leakage_low": 0.2, "leakage_high": 0.4}
    found = {"job": "calibrate", "reason": "No policy tried keeps the upper bound within 0.1.", "tried": [tried]}
    storage.write_json(str(tmp_path / "summary.json"), summary | found)
    html = render(read(str(tmp_path))).html
    table = next(table for table in _Parsed(html).tables if table[0][:2] == ["lambda", "directions open"])
    assert table[1] == ["0.25", "17", "2.5", "99", "0.300 [0.200,\u00a00.400]", "0.500", "12.5%"]
    assert "<li>No policy tried keeps" in html


def test_a_failed_attack_is_marked_and_not_counted(summary, tmp_path):
    attacks = json.loads(json.dumps(summary["attacks"]))
    attacks["laplace 1"]["ridge"]["verdict"] = "attack failed"
    nothing = dict.fromkeys(("leakage", "leakage_low", "leakage_high", "leakage_attack"))
    rows = [row | (nothing if row["name"] == "laplace 1" else {}) for row in summary["protections"]]
    storage.write_json(str(tmp_path / "summary.json"), summary | {"attacks": attacks, "protections": rows})
    html = render(read(str(tmp_path))).html
    assert any(">failed</text>" in svg for svg in svgs(html))
    assert "laplace 1" not in {row["name"] for row in table_of(_Parsed(html), "Scatter")}


def test_page_and_figures_are_written_and_added_to_the_mlflow_run(runs, capsys):
    import mlflow

    assert main(["report", str(runs / "audit"), "--png"]) == 0
    run = re.search(r"run (\w{32})", capsys.readouterr().out)[1]
    client = mlflow.MlflowClient(f"sqlite:///{runs}/mlflow.db")
    assert client.get_run(run).data.tags["sparse.job"] == "audit"
    figures = {path.name for path in (runs / "audit" / "figures").iterdir()}
    assert {"pareto-1.png", "rho-1.png", "attacks-1.png"} <= figures
    assert all((runs / "audit" / "figures" / name).read_bytes().startswith(b"\x89PNG") for name in figures)
    assert {artifact.path for artifact in client.list_artifacts(run)} >= {"report.html", "figures"}
    assert {artifact.path for artifact in client.list_artifacts(run, "figures")} == {f"figures/{n}" for n in figures}


def test_texts_on_the_page_do_not_go_to_mlflow(runs, summary, tmp_path):
    import mlflow

    examples = [{"original": "The ▮ is cold.", "unprotected": "A ▮ is old.", "protected": "No."}]
    found = {"laplace 1": {"inversion": {"examples": examples}}}
    (tmp_path / "audit").mkdir()
    storage.write_json(str(tmp_path / "audit" / "summary.json"), summary | {"reconstruction": found})
    client = mlflow.MlflowClient(f"sqlite:///{runs}/mlflow.db")
    run = client.search_runs([e.experiment_id for e in client.search_experiments()])[0].info.run_id
    client.set_tag(run, "sparse.output", place_of(str(tmp_path / "audit")))
    try:
        assert main(["report", str(tmp_path / "audit"), "--mlflow", f"sqlite:///{runs}/mlflow.db"]) == 0
    finally:
        client.set_tag(run, "sparse.output", place_of(str(runs / "audit")))
    assert "is cold" in (tmp_path / "audit" / "report.html").read_text()
    recorded = client.download_artifacts(run, "report.html", str(tmp_path))
    assert "What attackers wrote" in Path(recorded).read_text() and "is cold" not in Path(recorded).read_text()


def test_a_named_store_without_the_run_is_told(summary, tmp_path, runs, capsys):
    storage.write_json(str(tmp_path / "summary.json"), summary)
    assert main(["report", str(tmp_path), "--mlflow", f"sqlite:///{runs}/mlflow.db"]) == 2
    assert "knows no run" in capsys.readouterr().err.replace("\n", " ")


def test_a_store_that_cannot_be_opened_keeps_no_page_from_being_written(summary, tmp_path, capsys):
    storage.write_json(str(tmp_path / "summary.json"), summary)
    (tmp_path / "mlflow.db").write_bytes(b"not a database, but longer than a header of one would be" * 20)
    assert main(["report", str(tmp_path)]) == 0
    assert "Not recorded in MLflow" in capsys.readouterr().out
    assert (tmp_path / "report.html").is_file()


def test_a_study_on_object_storage_is_read_and_its_page_written_there(s3, study, study_page):
    fs, path = storage.filesystem(s3)
    fs.put(f"{study}/", f"{path}/", recursive=True)
    assert main(["report", s3]) == 0
    html = fs.cat_file(f"{path}/report.html").decode()
    assert html.replace(s3, "X") == study_page.replace(str(study), "X")


def test_overlap_of_coordinate_masks_is_that_of_their_sets(small):
    first, second = (coordinate_mask(small, seed) for seed in (0, 1))
    opened = [set(np.flatnonzero(mask.values)) for mask in (first, second)]
    found = overlap(first, second)
    assert found.jaccard == pytest.approx(len(opened[0] & opened[1]) / len(opened[0] | opened[1]))
    cosine = first.values @ second.values / np.linalg.norm(first.values) / np.linalg.norm(second.values)
    assert found.cosine == pytest.approx(cosine)


def test_overlap_does_not_depend_on_the_basis(small):
    mask = coordinate_mask(small, 0)
    order = np.random.default_rng(3).permutation(mask.dimension)
    same = Mask(values=mask.values[order], basis=mask.basis[:, order], **_kept(mask))
    assert overlap(mask, same).cosine == pytest.approx(1)
    assert overlap(mask, same).jaccard == pytest.approx(1)
    turned, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(mask.dimension, mask.dimension)))
    chance = overlap(mask, Mask(values=mask.values, basis=turned, **_kept(mask)))
    assert chance.cosine == pytest.approx(chance.cosine_chance, abs=0.02)
    assert chance.jaccard == pytest.approx(chance.jaccard_chance, abs=0.02)


def coordinate_mask(small, seed):
    values = np.random.default_rng(seed).uniform(size=384) * (np.random.default_rng(seed + 9).uniform(size=384) < 0.4)
    mask = small.policy.mask
    return Mask(values=values, basis=np.eye(384), **_kept(mask))


def _kept(mask):
    return {"mean": mask.mean, "covariance": mask.covariance, "info": mask.info}


def test_intervals_read_as_in_the_table_on_the_terminal():
    assert interval(0.25, 0.2, 0.3) == "0.250 [0.200,\u00a00.300]"
    assert interval(None, None, None) == "-"
