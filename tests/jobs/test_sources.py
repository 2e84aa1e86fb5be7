import csv
import gzip
import io
import json
import os
import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import sources
from jobs.config import InputConfig
from sparse_core.errors import SparseError

RECORDS = [
    {"id": f"r{row}", "text": text, "section": "ROS" if row % 2 else "CC"}
    for row, text in enumerate(
        [
            "He denies chest pain, fever, or chills.",
            'She said "never better", then left.',
            "Two lines\nof one text, with a comma",
            "Ærøskøbing, 東京, 🩺 and e\u0301",
            "  leading and trailing blanks  ",
            "\ufeffstarts with a byte order mark",
            "a\tb",
        ]
    )
]


def as_parquet(records) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), buffer, row_group_size=3)
    return buffer.getvalue()


def as_csv(records) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue().encode()


def as_jsonl(records, *, ascii=False) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=ascii).encode() + b"\n" for record in records)


WRITERS = {
    "a.parquet": as_parquet,
    "a.csv": as_csv,
    "a.jsonl": as_jsonl,
    "a.ndjson": as_jsonl,
    "a.csv.gz": lambda records: gzip.compress(as_csv(records)),
    "a.jsonl.gz": lambda records: gzip.compress(as_jsonl(records)),
}


@pytest.fixture
def put(tmp_path):
    """Write a file; its path."""

    def put(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    return put


def plan(path, *, columns=(), **options):
    return sources.plan(InputConfig(path=str(path), **options), columns=columns)


def read(source, units=None):
    """Good rows as (id, text) pairs, and rejected rows, in order."""
    batches = [rows for unit in (source.units if units is None else units) for rows in sources.read(source, unit)]
    good = [pair for rows in batches for pair in zip(rows.ids, rows.texts, strict=True)]
    return good, [rejected for rows in batches for rejected in rows.rejected]


def pairs(records):
    return [(record["id"], record["text"]) for record in records]


# Formats and places


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_texts_as_they_are(put, name):
    assert read(plan(put(name, WRITERS[name](RECORDS)))) == (pairs(RECORDS), [])


def test_escaped_json_gives_the_texts_as_they_are(put):
    assert read(plan(put("a.jsonl", as_jsonl(RECORDS, ascii=True)))) == (pairs(RECORDS), [])


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_byte_order_mark_at_the_start_of_a_file_is_no_content(put, name):
    assert read(plan(put(name, b"\xef\xbb\xbf" + WRITERS[name](RECORDS)))) == (pairs(RECORDS), [])


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_file_may_end_without_a_newline_and_have_blank_lines(put, name):
    content = WRITERS[name](RECORDS).rstrip() + b"\n\n" + WRITERS[name](RECORDS[:1]).splitlines()[-1]
    good, rejected = read(plan(put(name, content)))
    assert (len(good), rejected) == (len(RECORDS) + 1, [])


@pytest.mark.parametrize("name", WRITERS)
def test_further_columns_come_along(put, name):
    source = plan(put(name, WRITERS[name](RECORDS)), columns=("section",))
    (rows,) = [rows for unit in source.units for rows in sources.read(source, unit)]
    assert rows.columns["section"] == [record["section"] for record in RECORDS]


def test_a_folder_is_all_its_files_but_hidden_ones(put, tmp_path):
    put("in/a.jsonl", as_jsonl(RECORDS[:3]))
    put("in/deeper/b.parquet", as_parquet(RECORDS[3:5]))
    put("in/deeper/c.csv", as_csv(RECORDS[5:]))
    for hidden in ("in/.d.csv", "in/_units/e.json", "in/deeper/_SUCCESS", "in/.git/f.csv"):
        put(hidden, b"not data")
    good, _ = read(plan(tmp_path / "in"))
    assert sorted(good) == sorted(pairs(RECORDS))


def test_a_hidden_folder_above_hides_nothing(put, tmp_path):
    put(".cache/_in/a.jsonl", as_jsonl(RECORDS))
    assert read(plan(tmp_path / ".cache" / "_in"))[0] == pairs(RECORDS)


def test_a_glob_is_the_files_it_matches(put, tmp_path):
    put("in/a1.csv", as_csv(RECORDS[:3]))
    put("in/a2.csv", as_csv(RECORDS[3:]))
    put("in/b1.csv", as_csv(RECORDS))
    assert read(plan(tmp_path / "in" / "a*.csv"))[0] == pairs(RECORDS)


def test_ids_may_be_integers(put):
    records = [{"id": row, "text": "words"} for row in range(3)]
    assert [record for record, _ in read(plan(put("a.jsonl", as_jsonl(records))))[0]] == [0, 1, 2]


@pytest.mark.parametrize("name", WRITERS)
def test_without_an_id_column_ids_are_unique_and_the_same_every_time(put, name):
    path = put(name, WRITERS[name](RECORDS))
    once, again = (read(plan(path, id=None))[0] for _ in range(2))
    assert once == again
    assert len({record for record, _ in once}) == len(RECORDS)


# Bad rows


BAD_ROWS = {
    "null in Parquet": ("a.parquet", [{"id": "x", "text": None}], "null_text", "x", "row 1"),
    "empty in Parquet": ("a.parquet", [{"id": "x", "text": ""}], "empty_text", "x", "row 1"),
    "blank in Parquet": ("a.parquet", [{"id": "x", "text": "\u2003\t\n "}], "blank_text", "x", "row 1"),
    "null id in Parquet": ("a.parquet", [{"id": None, "text": "secret"}], "null_id", None, "row 1"),
    "empty in CSV": ("a.csv", [{"id": "x", "text": ""}], "empty_text", "x", "line 3"),
    "blank in CSV": ("a.csv", [{"id": "x", "text": "  "}], "blank_text", "x", "line 3"),
    "empty id in CSV": ("a.csv", [{"id": "", "text": "secret"}], "null_id", None, "line 3"),
    "ragged CSV, long": ("a.csv", b"x,secret,more\n", "ragged_row", None, "line 3"),
    "ragged CSV, short": ("a.csv", b"secret\n", "ragged_row", None, "line 3"),
    "open quote in CSV": ("a.csv", b'x,"secret\n', "malformed_csv", None, "line 3"),
    "not UTF-8 in CSV": ("a.csv", b"x,secret \xff\n", "invalid_utf8", None, "line 3"),
    "null in JSON": ("a.jsonl", b'{"id": "x", "text": null}\n', "null_text", "x", "byte 33"),
    "absent in JSON": ("a.jsonl", b'{"id": "x"}\n', "null_text", "x", "byte 33"),
    "empty in JSON": ("a.jsonl", b'{"id": "x", "text": ""}\n', "empty_text", "x", "byte 33"),
    "blank in JSON": ("a.jsonl", b'{"id": "x", "text": " \\n"}\n', "blank_text", "x", "byte 33"),
    "number in JSON": ("a.jsonl", b'{"id": "x", "text": 5550172}\n', "text_not_a_string", "x", "byte 33"),
    "list in JSON": ("a.jsonl", b'{"id": "x", "text": ["secret"]}\n', "text_not_a_string", "x", "byte 33"),
    "null id in JSON": ("a.jsonl", b'{"id": null, "text": "secret"}\n', "null_id", None, "byte 33"),
    "id of another type": ("a.jsonl", b'{"id": 7, "text": "secret"}\n', "unfit_value", "7", "byte 33"),
    "id that is a list": ("a.jsonl", b'{"id": ["x"], "text": "secret"}\n', "unfit_value", None, "byte 33"),
    "half a JSON object": ("a.jsonl", b'{"id": "x", "text": "secret\n', "malformed_json", None, "byte 33"),
    "JSON but no object": ("a.jsonl", b'["x", "secret"]\n', "malformed_json", None, "byte 33"),
    "endless JSON": ("a.jsonl", b"[" * 100_000 + b"\n", "malformed_json", None, "byte 33"),
    "not UTF-8 in JSON": ("a.jsonl", b'{"id": "x", "text": "secret \xff"}\n', "invalid_utf8", None, "byte 33"),
    "half a surrogate pair": ("a.jsonl", b'{"id": "x", "text": "secret \\ud800"}\n', "invalid_utf8", "x", "byte 33"),
}


@pytest.mark.parametrize(("name", "bad", "reason", "record", "position"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_set_apart_with_reason_and_position(put, name, bad, reason, record, position):
    good_row = [{"id": "good", "text": "fine, really"}]
    content = WRITERS[name](good_row) + bad if isinstance(bad, bytes) else WRITERS[name](good_row + bad)
    path = put(name, content)
    good, rejected = read(plan(path))
    assert good == [("good", "fine, really")]
    position = position.replace("33", str(len(as_jsonl(good_row))))
    assert rejected == [sources.Rejected(record, reason, f"{path}: {position}")]


def test_rows_after_a_bad_row_are_read(put):
    content = as_jsonl(RECORDS[:2]) + b"{\n" + b'{"id": "\xff"}\n' + as_jsonl(RECORDS[2:])
    assert read(plan(put("a.jsonl", content)))[0] == pairs(RECORDS)
    content = as_csv(RECORDS[:2]) + b"x\n" + b'"a"b,c,d\n' + as_csv(RECORDS[2:]).split(b"\n", 1)[1]
    assert read(plan(put("a.csv", content)))[0] == pairs(RECORDS)


def test_text_in_parquet_that_is_not_utf8_is_set_apart(put):
    texts = pa.array([b"fine", b"secret \xff", b"fine too"]).view(pa.string())
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2, 3], "text": texts}), buffer)
    path = put("a.parquet", buffer.getvalue())
    good, rejected = read(plan(path))
    assert good == [(1, "fine"), (3, "fine too")]
    assert rejected == [sources.Rejected(None, "invalid_utf8", f"{path}: row 1")]


def test_a_value_its_column_cannot_hold_sets_the_row_apart(put):
    records = [{"id": 1, "text": "fine", "age": 40}, {"id": 2, "text": "secret", "age": 2**70}]
    padding = [{"id": 10 + row, "text": "fine", "age": row} for row in range(1000)]
    source = plan(put("a.jsonl", as_jsonl(padding + records)), columns=("age",))
    good, rejected = read(source)
    assert len(good) == 1001
    assert [(row.id, row.reason) for row in rejected] == [("2", "unfit_value")]


def test_a_long_field_is_no_bad_row(put):
    records = [{"id": "1", "text": "word " * 100_000}]
    assert read(plan(put("a.csv", as_csv(records))))[0] == pairs(records)


def test_a_file_without_one_good_line_is_set_apart_line_by_line(put, tmp_path):
    put("in/a.jsonl", as_jsonl(RECORDS))
    put("in/b.jsonl", b"{\n[1]\n")
    good, rejected = read(plan(tmp_path / "in"))
    assert good == pairs(RECORDS)
    assert [row.reason for row in rejected] == ["malformed_json"] * 2


def test_all_good_rows_are_in_memory_once_with_bad_ones_counted(put):
    content = as_jsonl(RECORDS) + b"{\n" + b'{"id": "x", "text": ""}\n' + as_jsonl(RECORDS[:2])
    corpus = sources.read_all(plan(put("a.jsonl", content), columns=("section",)))
    assert list(zip(corpus.ids, corpus.texts, strict=True)) == pairs(RECORDS)
    assert corpus.columns["section"] == [record["section"] for record in RECORDS]
    assert corpus.quarantined == {"malformed_json": 1, "empty_text": 1, "duplicate_id": 2}


def test_a_corpus_without_a_good_row_is_refused_with_reasons(put):
    path = put("a.parquet", as_parquet([{"id": "1", "text": ""}, {"id": "2", "text": None}]))
    with pytest.raises(SparseError, match=r"none of the rows .*1 empty_text, 1 null_text"):
        sources.read_all(plan(path))


# Units


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
in_one_folder = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@in_one_folder
@given(st.lists(texts, min_size=1, max_size=12), st.lists(st.integers(0, 600), max_size=6), st.booleans())
def test_json_lines_cut_at_any_byte_give_every_row_once(words, cuts, newline_at_end):
    records = [{"id": row, "text": text} for row, text in enumerate(words)]
    content = as_jsonl(records) if newline_at_end else as_jsonl(records)[:-1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
        units = [sources.Unit(str(path), "jsonl", start, stop, "") for start, stop in pairwise(edges)]
        assert read(plan(path), units) == (pairs(records), [])


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n\n"], ids=["LF", "CRLF", "blank lines"])
def test_json_lines_cut_at_every_byte_in_turn_give_every_row_once(put, newline):
    content = as_jsonl(RECORDS[:4]).replace(b"\n", newline)
    path = put("a.jsonl", content)
    source = plan(path)
    for cut in range(1, len(content)):
        units = [sources.Unit(path, "jsonl", *edges, "") for edges in ((0, cut), (cut, len(content)))]
        assert read(source, units) == (pairs(RECORDS[:4]), []), cut


@in_one_folder
@given(st.integers(1, 40), st.integers(1, 15), st.lists(st.integers(1, 39), max_size=6))
def test_parquet_cut_at_any_row_gives_every_row_once(n_rows, row_group_size, cuts):
    records = [{"id": row, "text": f"text {row}" if row % 5 else ""} for row in range(n_rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=row_group_size)
        edges = sorted({0, n_rows, *(cut for cut in cuts if cut < n_rows)})
        units = [sources.Unit(str(path), "parquet", start, stop, "") for start, stop in pairwise(edges)]
        good, rejected = read(plan(path), units)
        assert good == pairs(record for record in records if record["text"])
        assert [row.position for row in rejected] == [f"{path}: row {row}" for row in range(0, n_rows, 5)]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_large_file_is_cut_into_units_that_give_every_row_once(put, name):
    records = [{"id": row, "text": f"{row} 東京 " + "words " * 400} for row in range(5000)]
    source = plan(put(name, WRITERS[name](records)))
    assert len(source.units) > 1
    assert read(source) == (pairs(records), [])


def test_a_unit_is_read_in_batches(put):
    records = [{"id": row, "text": "words"} for row in range(2 * sources.BATCH_ROWS + 1)]
    source = plan(put("a.csv", as_csv(records)))
    (unit,) = source.units
    assert [len(rows.ids) for rows in sources.read(source, unit)] == [sources.BATCH_ROWS, sources.BATCH_ROWS, 1]


def test_planning_again_plans_the_same_units(put):
    path = put("a.parquet", as_parquet([{"id": row, "text": "words"} for row in range(1000)]))
    assert plan(path).units == plan(path).units
    assert plan(path).fingerprint == plan(path).fingerprint


def test_every_unit_has_a_name_of_its_own(put, tmp_path):
    for name in ("a", "b"):
        put(f"in/{name}.parquet", as_parquet([{"id": row, "text": "words"} for row in range(1000)]))
    units = plan(tmp_path / "in").units
    assert len(units) > 2
    assert len({unit.name for unit in units}) == len(units)


def test_a_changed_file_has_another_fingerprint(put):
    path = put("a.jsonl", as_jsonl(RECORDS))
    before = plan(path).fingerprint
    put("a.jsonl", as_jsonl(RECORDS[::-1]))
    os.utime(path, (0, 0))
    assert plan(path).fingerprint != before


def test_a_further_file_changes_the_fingerprint_and_no_other_unit(put, tmp_path):
    put("in/b.jsonl", as_jsonl(RECORDS[:3]))
    before = plan(tmp_path / "in")
    put("in/a.jsonl", as_jsonl(RECORDS[3:]))
    after = plan(tmp_path / "in")
    assert before.fingerprint != after.fingerprint
    assert set(before.units) < set(after.units)


def test_rows_are_counted_where_the_format_tells(put):
    assert plan(put("a.parquet", as_parquet(RECORDS))).n_rows == len(RECORDS)
    assert plan(put("a.jsonl", as_jsonl(RECORDS))).n_rows is None


# What is refused


def test_a_missing_file_is_told_by_name(tmp_path):
    with pytest.raises(SparseError, match=r"input\.path: there is no file at .*nowhere\.csv"):
        plan(tmp_path / "nowhere.csv")


def test_an_empty_folder_and_a_glob_without_match_are_told_so(tmp_path):
    for path in (tmp_path, tmp_path / "*.csv"):
        with pytest.raises(SparseError, match="there is no file"):
            plan(path)


EMPTY = {
    "a.csv": b"id,text\n",
    "b.csv": b"",
    "c.csv": b"id,text\n\n\n",
    "a.jsonl": b"",
    "b.jsonl": b"\n\n",
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_rows_is_told_so(put, name):
    with pytest.raises(SparseError, match="holds no rows"):
        plan(put(name, EMPTY[name]))


def test_a_parquet_file_without_rows_is_told_so(put, tmp_path):
    pq.write_table(
        pa.table({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}), tmp_path / "a.parquet"
    )
    with pytest.raises(SparseError, match="holds no rows"):
        plan(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.csv.gz", "a.jsonl.gz"])
def test_a_file_that_is_not_what_its_name_says_is_told_by_name(put, name):
    with pytest.raises(SparseError, match=name):
        plan(put(name, b"something else entirely"))


def test_a_file_cut_short_is_told_by_name(put):
    with pytest.raises(SparseError, match=r"a\.jsonl\.gz cannot be read"):
        plan(put("a.jsonl.gz", gzip.compress(as_jsonl(RECORDS))[:-12]))


def test_a_file_without_one_json_object_is_told_so(put):
    with pytest.raises(SparseError, match="no JSON object"):
        plan(put("a.jsonl", b"one\ntwo\n"))


def test_an_unknown_format_is_told_with_those_there_are(put):
    with pytest.raises(SparseError, match=r"notes\.docx has none of the endings \.parquet"):
        plan(put("notes.docx", b"x"))


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"text": "note"}, r"input\.text: .* no column 'note'"),
        ({"id": "key"}, r"input\.id: .* no column 'key'"),
        ({"annotations": "spans"}, r"input\.annotations: .* no column 'spans'"),
        ({"columns": ("ward",)}, r"no column 'ward'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_absent_column_is_told_with_the_columns_there_are(put, name, options, told):
    with pytest.raises(SparseError, match=rf"{told}; it has 'id', 'text', 'section'"):
        plan(put(name, WRITERS[name](RECORDS)), **options)


def test_a_text_column_of_numbers_is_refused_naming_its_type(put):
    with pytest.raises(SparseError, match=r"input\.text: column 'id' .* is int64, not text"):
        plan(put("a.parquet", as_parquet([{"id": 1, "text": "x"}])), text="id")


def test_an_id_column_of_fractions_is_refused_naming_its_type(put):
    with pytest.raises(SparseError, match=r"input\.id: column 'id' .* is double"):
        plan(put("a.parquet", as_parquet([{"id": 1.5, "text": "x"}])))


def test_files_of_unequal_types_are_refused_naming_both(put, tmp_path):
    put("in/a.parquet", as_parquet([{"id": 1, "text": "x"}]))
    put("in/b.jsonl", as_jsonl([{"id": "1", "text": "x"}]))
    with pytest.raises(SparseError, match=r"'id' is int64 in .*a\.parquet and string in .*b\.jsonl"):
        plan(tmp_path / "in")


def test_a_csv_file_with_a_column_twice_is_refused(put):
    with pytest.raises(SparseError, match="column 'text' twice"):
        plan(put("a.csv", b"id,text,text\n1,x,y\n"))


def test_unknown_storage_is_told_by_its_address():
    with pytest.raises(SparseError, match="nosuch://bucket/key"):
        plan("nosuch://bucket/key.csv")
