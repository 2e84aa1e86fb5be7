"""Subjects: whose records are, what noise and budget they share, and what copies of a text give away.

Actors work in this process: what is tested is what they do, not how Ray hands them their units.
"""

import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import budget, ledger, outputs, privatize, sources, spending, units
from jobs.config import PrivatizeConfig
from jobs.inspect_dataset import inspect
from jobs.planning import policy_of
from jobs.stages import RememberingEncoder
from sparse_core.budget import Charge, Releases, compose, subject_numbers
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.noise import Key, write_new_key

# Whose note it is, and the note; `p1` says the same three times, and `p2` once.
NOTES = (
    ("p1", "Mother has asthma."),
    ("p1", "Mother has asthma."),
    ("p2", "Mother has asthma."),
    ("p1", "Father had a stroke."),
    ("p3", "No family history."),
    (None, "Nobody's note."),
    ("p1", "Mother has asthma."),
)
PRICE = 192.0


@pytest.fixture(scope="module")
def run(tmp_path_factory, encoder):
    """Privatize a table of this module's room with actors in this process; its configuration and summary."""
    room = tmp_path_factory.mktemp("subjects")
    write_new_key(room / "key")
    remembering = RememberingEncoder(encoder)

    def in_process(config, work, todo, *, verbose):
        actor = units.UnitActor(work)
        for unit in todo:
            (record,) = actor({"unit": [unit]})["record"]
            if "refused" in record:
                raise SparseError(record["refused"])
            yield record

    def go(name, table, **fields):
        path = room / f"{name}.parquet"
        if not path.exists():
            pq.write_table(pa.table(table), path)
        settings = {
            "input": {"path": str(path)},
            "output": str(room / name),
            "protection": {"mechanism": "laplace", "epsilon": PRICE, "read_out": "none"},
            "key": {"file": str(room / "key")},
            "budget": {"subject": "patient"},
            "tracking": {"enabled": False},
        }
        config = PrivatizeConfig(**settings | fields)
        return config, privatize.run(config, encoder=remembering)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privatize, "stream", in_process)
        patch.setattr(units, "load_configured", lambda *_, **__: encoder)
        yield go


def notes(rows=NOTES):
    patients, texts = zip(*rows, strict=True)
    return {"id": [f"n{row}" for row in range(len(rows))], "patient": list(patients), "text": list(texts)}


@pytest.fixture(scope="module")
def first(run):
    return run("first", notes())


def published(config):
    return {row["id"]: row for row in pq.read_table(f"{config.output}/embeddings").to_pylist()}


def test_identical_texts_of_a_subject_are_one_vector_and_of_two_subjects_two(first):
    vectors = {record: row["embedding"] for record, row in published(first[0]).items()}
    assert vectors["n0"] == vectors["n1"] == vectors["n6"]
    assert vectors["n0"] != vectors["n2"]


def test_releases_and_epsilon_are_counted_by_subject_and_a_vector_once(first):
    config, summary = first
    counted = {record: (row["releases"], row["epsilon_spent"]) for record, row in published(config).items()}
    twice, once = (2, pytest.approx(2 * PRICE)), (1, pytest.approx(PRICE))
    assert counted == {"n0": twice, "n1": twice, "n2": once, "n3": twice, "n4": once, "n6": twice}
    figures = summary.details["budget"]
    assert (figures["subjects"], figures["releases_max"]) == (3, 2)
    assert figures["epsilon_spent_max"] == pytest.approx(2 * PRICE)
    spent = compose(ledger.read([config.output]))
    assert spent.releases[spent.positions(subject_numbers(["p1", "p2", "p3"]))].tolist() == [2, 1, 1]
    assert "1: 2 subjects, 2: 1 subjects" in budget.report([config.output])


def test_a_row_of_nobody_is_quarantined(first):
    config, summary = first
    assert summary.quarantined == {"null_subject": 1}
    (row,) = pq.read_table(f"{config.output}/quarantine").to_pylist()
    assert (row["id"], row["reason"]) == ("n5", "null_subject")


def test_subjects_are_published_only_where_they_are_asked_for(run, first):
    assert "patient" not in published(first[0])["n2"]
    config, _ = run("with-patient", notes(), passthrough=["patient"])
    assert published(config)["n2"]["patient"] == "p2"


def test_a_number_and_its_text_are_one_subject_in_budget_and_noise(run):
    as_number, _ = run("number", {"id": [1, 2], "patient": [7, 8], "text": ["asthma", "stroke"]})
    as_text, summary = run(
        "text",
        {"id": ["a", "b"], "patient": ["7", "8"], "text": ["asthma", "stroke"]},
        budget={"subject": "patient", "include": [as_number.output]},
    )
    assert summary.details["budget"]["subjects_released_anew"] == 0
    vectors = [[row["embedding"] for row in published(config).values()] for config in (as_number, as_text)]
    assert vectors[0] == vectors[1]


def test_without_a_column_each_record_is_a_subject_of_its_own(run):
    config, summary = run("own", notes(), budget={})
    rows = published(config)
    assert len({tuple(row["embedding"]) for row in rows.values()}) == len(rows) == 7
    assert {row["releases"] for row in rows.values()} == {1}
    assert summary.details["budget"]["subjects"] == 7


def test_a_whole_text_and_its_chunks_add_up(run):
    pytest.importorskip("semantic_text_splitter")
    long = " ".join(f"The patient came for visit {number} and was well." for number in range(60))
    table = {"id": ["long", "short"], "text": [long, "Well."]}
    whole, _ = run("whole", table, budget={})
    config, _ = run("chunks", table, budget={"include": [whole.output]}, chunk={"tokens": 64, "overlap": 0})
    chunks = [row for row in published(config).values() if row["parent"] == "long"]
    assert len(chunks) > 5
    assert {row["releases"] for row in chunks} == {len(chunks) + 1}
    # A text that is its own only chunk is the same vector, and costs nothing.
    (short,) = (row for row in published(config).values() if row["parent"] == "short")
    assert (short["releases"], short["embedding"]) == (1, published(whole)["short"]["embedding"])


def test_a_limit_counts_all_records_of_a_subject(run, first):
    with pytest.raises(SparseError, match="1 of 3 subjects would go over the limit of 200"):
        run("limited", notes(), budget={"subject": "patient", "max_epsilon_per_subject": 200})
    run("limited", notes(), budget={"subject": "patient", "max_epsilon_per_subject": 384.1})


def test_datasets_that_count_other_subjects_do_not_add_up_and_are_refused(run, first):
    by_record, _ = run("by-record", notes(), budget={})
    with pytest.raises(SparseError, match="was counted by the id of each row, this run by patient"):
        run("mixed", notes(), budget={"subject": "patient", "include": [by_record.output]})
    with pytest.raises(SparseError, match="was counted by patient, this run by the id of each row"):
        run("mixed", notes(), budget={"include": [first[0].output]})
    people = {"patient": ["p1", "p4"], "text": ["Mother has asthma.", "Well."]}
    path = first[0].input.path.replace("first", "people")
    _, summary = run("people", people, input={"path": path, "id": "patient"}, budget={"include": [first[0].output]})
    assert summary.details["budget"]["subjects_released_anew"] == 1


def test_a_column_that_holds_no_subjects_is_refused(run):
    with pytest.raises(SparseError, match=r"budget\.subject: column 'patient' of .* is double; subjects are strings"):
        run("weight", {"id": [1], "patient": [1.5], "text": ["asthma"]})
    with pytest.raises(SparseError, match=r"budget\.subject: .* has no column 'patient'"):
        run("nobody", {"id": [1], "text": ["asthma"]})


def test_an_output_belongs_to_the_column_it_was_counted_by(run, first):
    with pytest.raises(SparseError, match=r"another budget\.subject"):
        run("first", notes(), budget={})


# Copies of a text.


def test_copies_of_a_text_under_several_subjects_are_told(first, capsys):
    config, summary = first
    assert summary.details["copies"] == {"texts": 1, "most": 2}
    assert inspect(config.output)["copies"] == {"texts": 1, "most": 2}


def test_copies_within_a_subject_are_none(run):
    _, summary = run("alike", {"id": [1, 2, 3], "patient": ["a"] * 3, "text": ["asthma"] * 3})
    assert summary.details["copies"] == {"texts": 0, "most": 1}


def test_copies_are_counted_where_ids_are_made_too(run, capsys):
    table = {"text": ["asthma"] * 5 + ["stroke"] * 2 + ["well"]}
    path = str(run("made", notes(), budget={})[0].input.path).replace("made", "without-ids")
    _, summary = run("without-ids", table, input={"path": path, "id": None}, budget={})
    assert summary.details["copies"] == {"texts": 2, "most": 5}
    told = "2 texts stand under several subjects, one of them under 5: each copy has noise of its own"
    assert told in " ".join(capsys.readouterr().out.split())


# Other hardware, which computes other last bits: another vector, with noise of its own.


@pytest.fixture
def elsewhere(first, tmp_path_factory):
    """The first release as it would be, had another kind of processor encoded it: other vectors in the ledger."""
    config, _ = first
    there = shutil.copytree(config.output, tmp_path_factory.mktemp("elsewhere") / "release")
    (part,) = (there / "ledger").iterdir()
    table = pq.read_table(part)
    other = [bytes(byte ^ 255 for byte in vector) for vector in table["vector"].to_pylist()]
    table = table.set_column(2, "vector", pa.array(other, pa.binary(16)))
    pq.write_table(table, part)
    manifest = json.loads((there / "manifest.json").read_text())
    manifest["ledger"][0] |= {"sha256": hashlib.sha256(part.read_bytes()).hexdigest(), "bytes": part.stat().st_size}
    (there / "manifest.json").write_text(json.dumps(manifest))
    return there


def counting(include, **fields):
    return {"budget": {"subject": "patient", "include": [str(include)], **fields}}


def test_a_text_that_comes_to_another_vector_is_charged_as_another_release(run, elsewhere, tmp_path):
    config, summary = run("drifted", notes(), output=str(tmp_path / "out"), **counting(elsewhere))
    assert summary.details["budget"]["subjects_released_anew"] == 0
    assert summary.details["unforeseen_releases"] == 4
    rows = published(config)
    assert (rows["n2"]["releases"], rows["n2"]["epsilon_spent"]) == (2, pytest.approx(2 * PRICE))
    spent = compose(ledger.read([config.output, str(elsewhere)]))
    assert spent.releases[spent.positions(subject_numbers(["p1", "p2", "p3"]))].tolist() == [4, 2, 2]


@pytest.mark.parametrize(
    ("limit", "apart"), [(385, {"n0", "n1", "n3", "n6"}), (577, {"n3"}), (769, set())], ids=["none", "one", "both"]
)
def test_what_would_break_the_limit_is_set_apart_and_not_published(run, elsewhere, tmp_path, limit, apart):
    """`p1` has spent 384 of 385: neither of its texts may come to another vector; at 577 one may, at 769 both."""
    config, summary = run(
        "limited-drift", notes(), output=str(tmp_path / "out"), **counting(elsewhere, max_epsilon_per_subject=limit)
    )
    if apart:
        rows = pq.read_table(f"{config.output}/quarantine").to_pylist()
        assert {row["id"] for row in rows if row["reason"] == "over_budget"} == apart
    assert summary.quarantined.get("over_budget", 0) == len(apart)
    assert published(config).keys() == {"n0", "n1", "n2", "n3", "n4", "n6"} - apart
    assert compose(ledger.read([config.output, str(elsewhere)])).epsilon_euclidean.max() <= limit


def test_under_the_same_vectors_a_limit_that_is_used_up_sets_nothing_apart(run, first, tmp_path):
    config, summary = run(
        "repeated", notes(), output=str(tmp_path / "out"), **counting(first[0].output, max_epsilon_per_subject=384)
    )
    assert summary.details["unforeseen_releases"] == 0 and summary.quarantined == {"null_subject": 1}
    assert published(config)["n0"]["embedding"] == published(first[0])["n0"]["embedding"]


def test_a_unit_that_is_done_twice_with_other_vectors_keeps_what_was_seen_in_the_ledger(run, elsewhere, first):
    """Killed after its vectors were published and before its record, and resumed on another kind of processor."""
    for lost in (elsewhere / "manifest.json", next((elsewhere / "_units").iterdir())):
        lost.unlink()
    before = compose(ledger.read([str(elsewhere)]))
    config, summary = run("first", notes(), output=str(elsewhere))
    after = compose(ledger.read([config.output]))
    assert after.releases.tolist() == (2 * before.releases).tolist()
    assert summary.details["unforeseen_releases"] == 4
    assert outputs.verify(config.output, checksums=True) == []


# What units may spend.


def test_units_together_never_spend_more_than_is_left(tmp_path):
    """Whatever a subject wants and could pay for, units share it out without a word to each other."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        of = np.sort(generator.integers(0, 5, generator.integers(1, 20)))
        subjects, of = np.unique(of, return_inverse=True)
        wanted = generator.integers(0, 4, len(of))
        spare = generator.integers(0, 8, len(subjects))
        shared = spending._shared(of, wanted, spare)
        total, all_wanted = np.bincount(of, shared), np.bincount(of, wanted)
        assert (shared >= 0).all() and (shared <= wanted).all()
        assert (total == np.minimum(all_wanted, spare)).all()


def test_one_pass_reads_a_corpus_once_and_plans_as_counting_in_memory_does(run, tmp_path, monkeypatch):
    """Many subjects, texts and doubled ids over several units, against a loop over all rows."""
    generator = np.random.default_rng(1)
    rows = [
        (f"id{generator.integers(0, 2500)}", f"s{generator.integers(0, 300)}", f"text {generator.integers(0, 200)}")
        for _ in range(3000)
    ]
    columns = dict(zip(("id", "patient", "text"), map(list, zip(*rows, strict=True)), strict=True))
    (tmp_path / "in").mkdir()
    for start in range(0, 3000, 1000):
        pq.write_table(pa.table(columns).slice(start, 1000), tmp_path / "in" / f"{start}.parquet")
    config = PrivatizeConfig(
        input={"path": str(tmp_path / "in")},
        output=str(tmp_path / "out"),
        protection={"mechanism": "laplace", "rho": 2.0, "read_out": "none"},
        budget={"subject": "patient"},
    )
    source, key = sources.plan(config.input, subject="patient"), Key(bytes(range(32)))
    policy = policy_of(config, EncoderSpec("m", None, "0" * 64, 384, "mean", True, 128), None)
    read = []
    monkeypatch.setattr(sources, "read", lambda s, u, **k: read.append(u.name) or sources.reading.read(s, u, **k))
    with spending.plan(config.budget, source, policy, key, output=config.output) as costs:
        assert read == [unit.name for unit in source.units]
        noted = costs.write_notes(config.output, source.units)
    once, seen = [], set()
    for row in rows:
        if row[0] not in seen:
            seen.add(row[0])
            once.append(row)
    releases = {patient: {text for _, p, text in once if p == patient} for _, patient, _ in once}
    patients = {text: {p for _, p, t in once if t == text} for _, _, text in once}
    assert costs.duplicates == len(rows) - len(once)
    assert costs.releases == {n: sum(len(t) == n for t in releases.values()) for n in map(len, releases.values())}
    assert costs.copies.texts == sum(len(p) > 1 for p in patients.values())
    assert costs.copies.most == max(map(len, patients.values()))
    charge, again = Charge.of(policy, key), 0
    for unit in source.units:
        assert unit.name in noted
        told = spending.Notes(config.output, unit.name, charge)
        for batch in sources.reading.read(source, unit, key=key):
            repeated = told.repeated(batch.ids)
            again += int(repeated.sum())
            counts, spent = np.ones(len(batch), np.int32), np.full(len(batch), charge.epsilon_euclidean)
            told.fill(subject_numbers(batch.subjects), counts, spent)
            wanted = np.array([len(releases.get(patient, ())) for patient in batch.subjects])
            assert np.array_equal(counts[~repeated], wanted[~repeated])
            assert spent == pytest.approx(counts * charge.epsilon_euclidean)
            nothing = Releases(*(np.arange(3, dtype=np.uint64) for _ in range(3)), np.zeros(3, np.int32), (charge,))
            assert not told.over_budget(nothing).any()
    assert again == costs.duplicates
