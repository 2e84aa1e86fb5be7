"""Utility tasks of an audit: reading their files, refusing bad ones, and measuring rows of every kind."""

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr

from jobs import audit
from jobs.baselines import dropped, redacted, rotation
from jobs.compared import Protected
from jobs.config import AuditConfig, Compared, UtilityTasks
from jobs.measuring import Material
from jobs.stages import RememberingEncoder
from jobs.utility_tasks import check_utilities, encode_queries, measure_utilities, plan_utilities, utility_columns
from sparse_core.concepts import Concept, find_spans
from sparse_core.encoders import load_encoder
from sparse_core.errors import SparseError
from sparse_core.evaluation import classification, retrieval
from sparse_core.noise import Key
from sparse_core.policy import Policy

KEY = Key(bytes(range(32)))
CONCEPT = Concept(name="person", terms=("he", "she", "his", "her", "male", "female", "patient"))
RHOS = (0, 1, 3, 12)


@pytest.fixture(scope="module")
def remembering(job_encoder):
    return RememberingEncoder(job_encoder)


@pytest.fixture(scope="module")
def material(clinical, remembering):
    rows = clinical.to_pylist()[::6]
    texts = [row["text"] for row in rows]
    test = np.sort(np.random.default_rng(0).permutation(len(rows))[: len(rows) // 4])
    return Material(
        [row["id"] for row in rows],
        texts,
        remembering.encode(texts, title="Encoding"),
        {},
        np.setdiff1d(np.arange(len(rows)), test),
        test,
        {"section": [row["section"] for row in rows]},
    )


@pytest.fixture(scope="module")
def pairs(material):
    """Pairs of sentences, as similar as the words they share: left, right, score."""
    words = [set(text.lower().split()) for text in material.texts]
    generator, found = np.random.default_rng(1), []
    while len(found) < 300:
        left, right = generator.integers(0, len(words), size=2)
        shared = len(words[left] & words[right]) / len(words[left] | words[right])
        if left != right and (shared > 0.1 or len(found) % 2):
            found.append((material.ids[left], material.ids[right], round(5 * shared, 1)))
    return found


@pytest.fixture(scope="module")
def queries(material):
    """The first words of long sentences, each with its sentence: query_id, text, doc_id."""
    long = [row for row, text in enumerate(material.texts) if len(text.split()) > 9][::4]
    return [(f"q{row}", " ".join(material.texts[row].split()[:6]), material.ids[row]) for row in long]


@pytest.fixture(scope="module")
def files(tmp_path_factory, pairs, queries):
    """Paths of pairs, queries, and judgements."""
    folder = tmp_path_factory.mktemp("utility")
    written = {
        "pairs": (("left", "right", "score"), pairs),
        "queries": (("query_id", "text", "doc_id"), queries),
        "qrels": (("query_id", "doc_id", "score"), [(query, record, 1) for query, _, record in queries]),
    }
    for name, (columns, rows) in written.items():
        table = pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, folder / f"{name}.parquet")
    return {name: str(folder / f"{name}.parquet") for name in written}


@pytest.fixture(scope="module")
def tasks(files):
    return parsed(
        {"label": "section"},
        {"task": "clustering", "label": "section"},
        {"task": "sts", "path": files["pairs"]},
        {"task": "retrieval", "queries": files["queries"], "qrels": files["qrels"]},
        {"task": "retrieval", "queries": files["queries"], "document": "doc_id", "text": "text", "sides": "trusted"},
    )


def parsed(*tasks):
    return TypeAdapter(UtilityTasks).validate_python(tasks)


def planned(tasks, material):
    return plan_utilities(tasks, ids=material.ids, columns=material.columns, test=material.test)


def simulated(material, policy):
    published = policy.release(material.vectors, ids=material.ids, contents=material.texts, key=KEY)
    row = Compared.model_construct(name=policy.mechanism)
    return Protected(row, policy, published, policy.undo_read_out(published), (policy.public_knowledge(),), "none")


def baseline(name, published, mask=None, **settings):
    row = Compared.model_construct(name=name, baseline=name, **settings)
    return Protected(row, None, published, published, (), "none", mask)


@pytest.fixture
def measure(tasks, material, remembering):
    """Scores of all tasks on a row, by name; or of others."""

    def measure(row, others=None, **settings):
        settings = {"encoder": remembering, "key": KEY, "seed": 0, "concepts": (CONCEPT,)} | settings
        found = measure_utilities(planned(others or tasks, material), row, material, **settings)
        return {one.name: one.result.score if one.result else one.skipped for one in found}

    return measure


@pytest.fixture(scope="module")
def unprotected(material, job_encoder):
    return simulated(material, Policy.build(encoder=job_encoder.spec, mechanism="none"))


@pytest.fixture(scope="module")
def mask(principal_mask, material, job_encoder):
    return principal_mask(material.vectors, job_encoder.spec)


# What is measured


def test_more_noise_leaves_less_of_every_task(measure, material, job_encoder):
    scores = []
    for rho in RHOS:
        law = {"mechanism": "laplace", "rho": rho, "read_out": "none"} if rho else {"mechanism": "none"}
        scores.append(measure(simulated(material, Policy.build(encoder=job_encoder.spec, **law))))
    for name in scores[0]:
        falling = [found[name] for found in scores]
        assert falling == sorted(falling, reverse=True), name
        assert falling[0] > falling[1] > falling[-1], name


@pytest.mark.parametrize("read_out", ["none", "wiener"])
def test_trusted_queries_find_more_than_protected_ones(measure, tasks, material, mask, job_encoder, read_out):
    for rho in (1, 2):
        policy = Policy.build(
            encoder=job_encoder.spec, mechanism="mahalanobis", mask=mask, rho=rho, floor=0.1, read_out=read_out
        )
        found = measure(simulated(material, policy), tasks[3:])
        assert found["retrieval, trusted queries"] > found["retrieval"]


def test_unprotected_rows_are_searched_alike_from_either_side(measure, tasks, unprotected):
    found = measure(unprotected, tasks[3:])
    assert found["retrieval"] == found["retrieval, trusted queries"] > 0.7


def test_similarity_is_scipys_rank_correlation_of_cosines(measure, tasks, material, pairs, unprotected, job_encoder):
    policy = Policy.build(encoder=job_encoder.spec, mechanism="laplace", rho=1, read_out="none")
    row_of = {record: row for row, record in enumerate(material.ids)}
    for row in (unprotected, simulated(material, policy)):
        vectors = row.published
        cosines = [1 - cosine(vectors[row_of[left]], vectors[row_of[right]]) for left, right, _ in pairs]
        expected = spearmanr(cosines, [score for *_, score in pairs]).statistic
        assert measure(row, tasks[2:3])["sts"] == pytest.approx(expected, abs=1e-4)


def test_classification_learns_from_all_records_that_are_not_tested_on(measure, tasks, material, unprotected):
    sections = np.array(material.columns["section"])
    learning = np.setdiff1d(np.arange(len(sections)), material.test)
    names, counts = np.unique(sections[learning], return_counts=True)
    usable = np.isin(sections, names[counts >= 20])
    train, test = learning[usable[learning]], material.test[usable[material.test]]
    expected = classification(
        material.vectors[train],
        sections[train],
        material.vectors[test],
        sections[test],
        samples_per_label=None,
        generator=np.random.default_rng(0),
    )
    assert measure(unprotected, tasks[:1])["classification of section"] == expected.score


def test_records_without_a_label_count_in_no_class(material, unprotected):
    some = np.random.default_rng(0).random(len(material.ids)) < 0.3
    labels = [None if left else label for left, label in zip(some, material.columns["section"], strict=True)]
    without = replace(material, columns={"section": labels})
    (task,) = planned(parsed({"task": "clustering", "label": "section"}), without)
    (found,) = measure_utilities([task], unprotected, without, encoder=None, key=KEY, seed=0)
    assert found.result.n_records == len(material.test) - some[material.test].sum()


def test_how_long_vectors_are_does_not_count_where_the_encoder_makes_unit_vectors(measure, tasks, unprotected):
    longer = replace(unprotected, published=unprotected.published * 0.05)
    assert measure(longer, tasks[:2]) == pytest.approx(measure(unprotected, tasks[:2]))


def test_a_query_with_a_records_id_and_text_has_noise_of_its_own(files, material, job_encoder, remembering, tmp_path):
    """Else it would lie on its record, however much noise there is."""
    rows = {"query_id": material.ids[:50], "text": material.texts[:50], "doc_id": material.ids[:50]}
    pq.write_table(pa.table(rows), tmp_path / "same.parquet")
    tasks = parsed({"task": "retrieval", "queries": str(tmp_path / "same.parquet"), "document": "doc_id"})
    policy = Policy.build(encoder=job_encoder.spec, mechanism="laplace", rho=20, read_out="none")
    (found,) = measure_utilities(
        planned(tasks, material), simulated(material, policy), material, encoder=remembering, key=KEY, seed=0
    )
    assert found.result.score < 0.2


def test_query_vectors_serve_as_well_as_texts(measure, tasks, queries, unprotected, remembering, tmp_path):
    vectors = remembering.encode([text for _, text, _ in queries], title="Encoding")
    rows = {"query_id": [query for query, *_ in queries], "vector": list(vectors), "doc_id": [r for *_, r in queries]}
    pq.write_table(pa.table(rows), tmp_path / "queries.parquet")
    task = {"task": "retrieval", "queries": str(tmp_path / "queries.parquet"), "embedding": "vector"}
    found = measure(unprotected, parsed(task | {"document": "doc_id"}), encoder=None)
    assert found["retrieval"] == measure(unprotected, tasks[3:4])["retrieval"]


def test_queries_may_have_a_prompt_of_their_own(files, material, remembering, queries):
    settings = {"queries": files["queries"], "document": "doc_id", "prompt": "query: "}
    (task,) = encode_queries(
        planned(parsed({"task": "retrieval", **settings}), material), remembering, dimension=remembering.spec.dimension
    )
    prompted = load_encoder(device="cpu", threads=1, backend="auto", prompt="query: ")
    assert np.array_equal(task.data.vectors, prompted.encode([text for _, text, _ in queries]))


# Rows without a policy


def test_a_rotation_known_to_who_searches_costs_nothing(measure, tasks, material, unprotected):
    turned = material.vectors @ rotation(material.vectors.shape[1], seed=0)
    found, expected = measure(baseline("rotation", turned), tasks[2:]), measure(unprotected, tasks[2:])
    assert found == pytest.approx(expected, abs=1e-3)


def test_dropping_is_done_to_protected_queries_and_not_to_trusted_ones(
    measure, tasks, material, mask, queries, remembering
):
    published = dropped(material.vectors, mask)
    found = measure(baseline("dropping", published, mask), tasks[3:])
    asked = remembering.encode([text for _, text, _ in queries], title="Encoding")
    row_of = {record: row for row, record in enumerate(material.ids)}
    answers = [{row_of[record]: 1.0} for *_, record in queries]
    for name, vectors in (("retrieval", dropped(asked, mask)), ("retrieval, trusted queries", asked)):
        expected = retrieval(vectors, published, answers, generator=np.random.default_rng(0))
        assert found[name] == expected.score


def test_redaction_takes_the_concept_out_of_protected_queries_too(measure, tasks, material, queries, remembering):
    texts = redacted(material.texts, find_spans(material.texts, CONCEPT), how="delete", seed=0)
    published = remembering.encode(texts, title="Encoding")
    found = measure(baseline("redaction", published, removal="delete"), tasks[3:])
    asked = [text for _, text, _ in queries]
    without = redacted(asked, find_spans(asked, CONCEPT), how="delete", seed=0)
    assert without != asked
    row_of = {record: row for row, record in enumerate(material.ids)}
    answers = [{row_of[record]: 1.0} for *_, record in queries]
    expected = retrieval(
        remembering.encode(without, title="Encoding"), published, answers, generator=np.random.default_rng(0)
    )
    assert found["retrieval"] == pytest.approx(expected.score)


def test_vectors_that_nobody_describes_are_searched_by_trusted_queries_only(measure, tasks, unprotected):
    unknown = Compared.model_construct(name="other tool", vectors=True)
    row = Protected(unknown, None, unprotected.published, unprotected.noised, (), "unknown")
    found = measure(row, tasks[3:])
    assert "nobody states how" in found["retrieval"]
    assert found["retrieval, trusted queries"] > 0.7


def test_redaction_of_queries_that_are_vectors_is_skipped_with_the_reason(material, tasks, unprotected):
    dimension = material.vectors.shape[1]
    (task,) = planned(tasks[3:4], material)
    data = replace(task.data, texts=None, vectors=np.ones((len(task.data.ids), dimension)))
    row = baseline("redaction", unprotected.published, removal="delete")
    (found,) = measure_utilities(
        [replace(task, data=data)], row, material, encoder=None, key=KEY, seed=0, concepts=(CONCEPT,)
    )
    assert found.result is None and "queries are vectors" in found.skipped
    assert found.as_record() == {
        "name": "retrieval",
        "task": "retrieval",
        "metric": "ndcg_at_10",
        **dict.fromkeys(("score", "low", "high", "n_records")),
        "skipped": found.skipped,
        "left_out": 0,
    }


# Files


@pytest.mark.parametrize("form", ["csv", "jsonl", "jsonl.gz"])
def test_pairs_and_queries_may_come_in_any_text_format(tmp_path, files, pairs, queries, material, tasks, form):
    found = []
    for name, columns, rows in (
        ("pairs", ("left", "right", "score"), pairs),
        ("queries", ("query_id", "text", "doc_id"), queries),
    ):
        path = tmp_path / f"{name}.{form}"
        if form == "csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([columns, *rows])
        else:
            lines = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
            path.write_bytes(gzip.compress(lines.encode()) if form.endswith("gz") else lines.encode())
        found.append(str(path))
    read = planned(
        parsed(
            {"task": "sts", "path": found[0]},
            {"task": "retrieval", "queries": found[1], "document": "doc_id", "sides": "trusted"},
        ),
        material,
    )
    expected = planned((tasks[2], tasks[4]), material)
    assert (read[0].data.left, read[0].data.right) == (expected[0].data.left, expected[0].data.right)
    assert read[0].data.gold.tolist() == expected[0].data.gold.tolist()
    assert (read[1].data.texts, read[1].data.answers) == (expected[1].data.texts, expected[1].data.answers)


def test_ids_may_be_numbers_in_one_file_and_text_in_the_other(tmp_path):
    pq.write_table(pa.table({"left": [1, 2, 3], "right": [2, 3, 4], "score": [1, 2, 3]}), tmp_path / "pairs.parquet")
    tasks = parsed({"task": "sts", "path": str(tmp_path / "pairs.parquet")})
    (task,) = plan_utilities(tasks, ids=["1", "2", "3", "4"], columns={}, test=np.array([0]))
    assert task.data.left == ("1", "2", "3")


def test_pairs_and_judgements_of_other_records_are_left_out_and_counted(material, tasks, pairs, queries, measure):
    gone = set(material.ids[::7])
    rows = np.array([row for row, record in enumerate(material.ids) if record not in gone])
    fewer = [material.ids[row] for row in rows]
    sections = {"section": [material.columns["section"][row] for row in rows]}
    found = plan_utilities(tasks, ids=fewer, columns=sections, test=np.flatnonzero(np.isin(rows, material.test)))
    assert found[2].left_out == sum(bool({left, right} & gone) for left, right, _ in pairs) > 0
    assert found[3].left_out == found[4].left_out == sum(record in gone for *_, record in queries) > 0
    assert f"{found[2].left_out} pairs name no audited record" in found[2].warning and found[0].warning is None
    assert len(found[2].data.gold) == len(pairs) - found[2].left_out


def test_a_query_asked_twice_has_both_answers(tmp_path):
    rows = {"query_id": ["a", "a", "b"], "text": ["who", "who", "what"], "doc_id": ["1", "2", "3"]}
    pq.write_table(pa.table(rows), tmp_path / "queries.parquet")
    tasks = parsed({"task": "retrieval", "queries": str(tmp_path / "queries.parquet"), "document": "doc_id"})
    (task,) = plan_utilities(tasks, ids=["1", "2", "3"], columns={}, test=np.array([0]))
    assert task.data.answers == ({"1": 1.0, "2": 1.0}, {"3": 1.0})


def test_lines_that_cannot_be_read_are_left_out_and_counted(tmp_path):
    lines = [b'{"left": "1", "right": "%d", "score": %d}' % (number, number) for number in range(2, 6)]
    (tmp_path / "pairs.jsonl").write_bytes(b"\n".join([*lines, b'{"left": "1", "rig', b'{"left": "\xff"}']))
    tasks = parsed({"task": "sts", "path": str(tmp_path / "pairs.jsonl")})
    (task,) = plan_utilities(tasks, ids=list(range(6)), columns={}, test=np.array([0]))
    assert (task.data.right, task.left_out) == (("2", "3", "4", "5"), 2)


def test_only_columns_that_tasks_name_are_read(tasks):
    assert utility_columns(tasks) == ("section",)
    assert utility_columns(()) == ()


# Bad input: all of it is told before anything is encoded


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        ({"a": ["1"], "b": ["2"], "score": [1.0]}, {}, "has no column 'left'; it has 'a', 'b', 'score'"),
        (
            {"left": ["x", "y", "1"], "right": ["1", "2", "3"], "score": [1.0, 2.0, 3.0]},
            {},
            "2 of 3 pairs name a record that is not there",
        ),
        ({"left": ["1", "2"], "right": ["2", "3"], "score": [1.0, 2.0]}, {}, "2 pairs of audited records"),
        ({"left": ["1"] * 4, "right": ["2"] * 4, "score": [3.0] * 4}, {}, "with 1 different scores"),
        (
            {"left": ["1", "2", "3"], "right": ["2", "3", "4"], "score": ["much", "1", None]},
            {},
            "column 'score': 2 of 3 values are not finite numbers",
        ),
        ({"left": [], "right": [], "score": []}, {}, "holds no rows"),
    ],
)
def test_pairs_that_cannot_be_used_are_told(tmp_path, rows, settings, told):
    pq.write_table(pa.table(rows), tmp_path / "pairs.parquet")
    tasks = parsed({"task": "sts", "path": str(tmp_path / "pairs.parquet"), **settings})
    with pytest.raises(SparseError, match="utility 'sts': ") as refused:
        plan_utilities(tasks, ids=["1", "2", "3", "4"], columns={}, test=np.array([0]))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        ({"query_id": ["a"], "text": ["who"]}, {"document": "doc_id"}, "has no column 'doc_id'"),
        ({"query": ["a"], "text": ["who"]}, {"qrels": "QRELS"}, "has no column 'query_id'"),
        ({"query_id": ["a"], "text": [None], "doc_id": ["1"]}, {"document": "doc_id"}, "none of the 1 rows"),
        (
            {"query_id": ["a", "a"], "text": ["who", "what"], "doc_id": ["1", "2"]},
            {"document": "doc_id"},
            "two queries of",
        ),
        (
            {"query_id": ["a", "b"], "text": ["who", "what"], "doc_id": ["8", "9"]},
            {"document": "doc_id"},
            "2 of 2 judgements name a query or a record that is not there",
        ),
        ({"query_id": ["a"], "text": ["who"]}, {"qrels": "QRELS"}, "no query has an audited record"),
        ({"query_id": ["z"], "text": ["who"]}, {"qrels": "QRELS"}, "1 of 1 judgements name a query or a record"),
    ],
)
def test_queries_that_cannot_be_used_are_told(tmp_path, rows, settings, told):
    pq.write_table(pa.table(rows), tmp_path / "queries.parquet")
    pq.write_table(pa.table({"query_id": ["a"], "doc_id": ["1"], "score": [0]}), tmp_path / "qrels.parquet")
    settings = {
        name: str(tmp_path / "qrels.parquet") if value == "QRELS" else value for name, value in settings.items()
    }
    tasks = parsed({"task": "retrieval", "queries": str(tmp_path / "queries.parquet"), **settings})
    with pytest.raises(SparseError, match="utility 'retrieval': ") as refused:
        plan_utilities(tasks, ids=["1", "2"], columns={}, test=np.array([0]))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("task", "labels", "told"),
    [
        ({"label": "section"}, ["a"] * 100, "has 1 classes with 20 training records or more"),
        ({"label": "section", "min_class_size": 80}, ["a", "b"] * 50, "has 0 classes with 80"),
        ({"label": "section"}, [None] * 100, "has 0 classes"),
        ({"task": "clustering", "label": "section"}, ["a"] * 50 + ["b"] * 50, "has 1 classes on the 25 test records"),
    ],
)
def test_a_label_that_tells_no_classes_apart_is_told(task, labels, told):
    with pytest.raises(SparseError, match="column 'section'") as refused:
        plan_utilities(parsed(task), ids=list(range(100)), columns={"section": labels}, test=np.arange(25))
    assert told in str(refused.value)


def test_absent_files_are_told_without_reading_a_corpus(tmp_path):
    for task in (
        {"task": "sts", "path": str(tmp_path / "none.parquet")},
        {"task": "retrieval", "queries": str(tmp_path / "none.parquet"), "document": "doc_id"},
    ):
        with pytest.raises(SparseError, match=r"utility '.*none\.parquet"):
            check_utilities(parsed(task))


def test_query_vectors_of_another_dimension_and_texts_without_an_encoder_are_told(material, tasks):
    (task,) = planned(tasks[3:4], material)
    with pytest.raises(SparseError, match="queries are texts, and there is no encoder"):
        encode_queries([task], None, dimension=384)
    vectors = replace(task, data=replace(task.data, texts=None, vectors=np.ones((len(task.data.ids), 5))))
    with pytest.raises(SparseError, match="queries have 5 dimensions, records 384"):
        encode_queries([vectors], None, dimension=384)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"task": "retrieval", "queries": "q"}, "say which records answer a query"),
        ({"task": "retrieval", "queries": "q", "document": "d", "qrels": "r"}, "say which records answer a query"),
        ({"task": "retrieval", "queries": "q", "qrels": "r", "query_id": None}, "qrels name queries by their id"),
        (
            {"task": "retrieval", "queries": "q", "document": "d", "text": "t", "embedding": "e"},
            "embedding takes the place of text",
        ),
    ],
)
def test_contradictory_settings_are_told(task, told):
    with pytest.raises(ValueError, match=told):
        parsed(task)


# The whole job


def test_an_audit_reports_every_task_of_every_row(tmp_path, clinical, files, remembering):
    pq.write_table(clinical.take(np.arange(0, len(clinical), 6)), tmp_path / "corpus.parquet")
    config = AuditConfig(
        input={"path": str(tmp_path / "corpus.parquet")},
        output=str(tmp_path / "out"),
        concept={"name": "person", "terms": CONCEPT.terms},
        tracking={"enabled": False},
        compare=[
            {"name": "unprotected", "protection": {"mechanism": "none"}},
            {"name": "laplace", "protection": {"mechanism": "laplace", "rho": 2, "read_out": "none"}},
        ],
        attacks=["ridge"],
        similar_tokens=False,
        utility=[
            {"task": "sts", "path": files["pairs"]},
            {"label": "section"},
            {"task": "retrieval", "queries": files["queries"], "qrels": files["qrels"]},
        ],
    )
    summary = audit.run(config, encoder=remembering)
    written = json.loads((tmp_path / "out" / "summary.json").read_text())["utilities"]
    for row in summary.protections:
        first, *_ = written[row.name]
        assert (row.utility, row.utility_task) == (first["score"], "sts cosine_spearman")
    plain, noised = (written[name] for name in ("unprotected", "laplace"))
    assert [one["task"] for one in plain] == ["sts", "classification", "retrieval"]
    assert all(one["score"] > other["score"] for one, other in zip(plain, noised, strict=True))
