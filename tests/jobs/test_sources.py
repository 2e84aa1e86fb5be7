"""Reading a corpus: formats, bad rows, and what is refused."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import RECORDS, WRITERS, as_csv, as_jsonl, as_parquet, pairs, plan, read

from jobs import sources
from sparse_core.errors import SparseError

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
    assert rows.columns["section"].to_pylist() == [record["section"] for record in RECORDS]


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


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_the_rest_of_a_file_cut_short_is_set_apart(put, clinical, name, ending):
    records = clinical.to_pylist()[:4000]
    content = WRITERS[name + ending](records)
    path = put(name + ending, content[: len(content) * 3 // 4])
    good, rejected = read(plan(path))
    assert 1000 < len(good) < 4000
    assert good == pairs(records[: len(good)])
    (lost,) = rejected
    assert lost.reason == "unreadable_rest" and lost.position.startswith(f"{path}: ")


def corrupted(content: bytes, start: int) -> bytes:
    return content[:start] + bytes(byte ^ 255 for byte in content[start : start + 40]) + content[start + 40 :]


def test_rows_of_a_damaged_row_group_are_set_apart_and_the_others_read(put, clinical):
    buffer = io.BytesIO()
    pq.write_table(clinical.slice(0, 3000), buffer, row_group_size=1000, use_dictionary=False, write_page_checksum=True)
    column = pq.read_metadata(buffer).row_group(1).column(1)
    path = put("a.parquet", corrupted(buffer.getvalue(), column.data_page_offset + column.total_compressed_size // 2))
    good, rejected = read(plan(path))
    expected = pairs(clinical.to_pylist()[:3000])
    assert good == expected[:1000] + expected[2000:]
    assert [(row.reason, row.position) for row in rejected] == [
        ("unreadable_rows", f"{path}: row {row}") for row in range(1000, 2000)
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("b.parquet", b"PAR1 and no more", "unreadable_file"),
        ("b.jsonl.gz", b"no gzip at all", "unreadable_file"),
        ("b.parquet", b"", "empty_file"),
        ("b.csv", b"", "empty_file"),
        ("b.jsonl.gz", b"", "empty_file"),
    ],
)
def test_one_file_of_many_that_cannot_be_read_is_set_apart_as_a_whole(put, tmp_path, name, content, reason):
    put("in/a.parquet", as_parquet(RECORDS[:3]))
    bad = put(f"in/{name}", content)
    put("in/c.jsonl", as_jsonl(RECORDS[3:]))
    good, rejected = read(plan(tmp_path / "in"))
    assert good == pairs(RECORDS)
    assert rejected == [sources.Rejected(None, reason, bad)]


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_over_the_limit_is_set_apart_and_one_of_ten_megabytes_is_read(put, name):
    ten_megabytes = "Denies fever. " * (10_000_000 // 14)
    records = [*RECORDS[:2], {"id": "long", "text": ten_megabytes, "section": "CC"}, *RECORDS[2:]]
    path = put(name, WRITERS[name](records))
    good, rejected = read(plan(path))
    assert (good, [(row.id, row.reason) for row in rejected]) == (pairs(RECORDS), [("long", "text_too_long")])
    assert read(plan(path, max_characters=len(ten_megabytes))) == (pairs(records), [])


def test_a_line_longer_than_memory_should_hold_is_passed_over(put, monkeypatch):
    monkeypatch.setattr("jobs.sources.jsonl.LONGEST_LINE", 1000)
    long = b'{"id": "long", "text": "%s"}\n' % (b"x" * 5000)
    good, rejected = read(plan(put("a.jsonl", as_jsonl(RECORDS[:2]) + long + as_jsonl(RECORDS[2:]))))
    assert good == pairs(RECORDS)
    assert [row.reason for row in rejected] == ["text_too_long"]


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


@pytest.mark.parametrize("name", ["a.parquet", "a.csv.gz", "a.jsonl.gz", "a.csv.zst", "a.jsonl.zst"])
def test_a_file_that_is_not_what_its_name_says_is_told_by_name(put, name):
    with pytest.raises(SparseError, match=name):
        plan(put(name, b"something else entirely"))


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
