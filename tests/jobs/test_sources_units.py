"""How a corpus is cut into units and read in batches."""

import os
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import RECORDS, WRITERS, as_csv, as_jsonl, as_parquet, one_piece, pairs, plan, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import sources
from jobs.sources.plan import _row_ranges as row_ranges

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
        units = [one_piece(str(path), "jsonl", start, stop) for start, stop in pairwise(edges)]
        assert read(plan(path), units) == (pairs(records), [])


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n\n"], ids=["LF", "CRLF", "blank lines"])
def test_json_lines_cut_at_every_byte_in_turn_give_every_row_once(put, newline):
    content = as_jsonl(RECORDS[:4]).replace(b"\n", newline)
    path = put("a.jsonl", content)
    source = plan(path)
    for cut in range(1, len(content)):
        units = [one_piece(path, "jsonl", *edges) for edges in ((0, cut), (cut, len(content)))]
        assert read(source, units) == (pairs(RECORDS[:4]), []), cut


@in_one_folder
@given(st.integers(1, 40), st.integers(1, 15), st.lists(st.integers(1, 39), max_size=6))
def test_parquet_cut_at_any_row_gives_every_row_once(n_rows, row_group_size, cuts):
    records = [{"id": row, "text": f"text {row}" if row % 5 else ""} for row in range(n_rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=row_group_size)
        edges = sorted({0, n_rows, *(cut for cut in cuts if cut < n_rows)})
        units = [one_piece(str(path), "parquet", start, stop) for start, stop in pairwise(edges)]
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


@pytest.mark.parametrize("name", ["parquet", "csv", "jsonl", "jsonl.gz"])
def test_a_thousand_files_of_one_row_are_a_few_units(put, tmp_path, clinical, name):
    records = clinical.to_pylist()[:1000]
    for number, record in enumerate(records):
        put(f"in/{number:04d}.{name}", WRITERS[f"a.{name}"]([record]))
    source = plan(tmp_path / "in")
    assert 1 < len(source.units) <= 4
    batches = [rows for unit in source.units for rows in sources.read(source, unit)]
    assert len(batches) == len(source.units)
    assert [pair for rows in batches for pair in zip(rows.ids, rows.texts, strict=True)] == pairs(records)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 50_000), max_size=12), st.integers(1, 20_000), st.integers(1, 40))
def test_row_groups_are_cut_into_ranges_that_hold_every_row_once(groups, rows, most_cuts):
    ranges = list(row_ranges(groups, rows, most_cuts))
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])][: len(ranges)]
    assert sum(stop - start for start, stop in ranges) == sum(groups)
    assert all(stop > start for start, stop in ranges)
    largest = max(groups, default=0)
    assert all(stop - start <= max(rows, -(-largest // most_cuts)) for start, stop in ranges)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=8), st.integers(50, 1000), st.sampled_from(["parquet", "jsonl"])
)
def test_files_of_any_size_are_cut_into_units_that_give_every_row_once(sizes, row_group_size, name):
    with tempfile.TemporaryDirectory() as folder:
        records = [{"id": f"{file}-{row}", "text": f"text {row}"} for file, n in enumerate(sizes) for row in range(n)]
        at = 0
        for number, size in enumerate(sizes):
            part, at = records[at : at + size], at + size
            path = Path(folder) / f"{number}.{name}"
            if name == "jsonl":
                path.write_bytes(as_jsonl(part))
            else:
                pq.write_table(pa.Table.from_pylist(part), path, row_group_size=row_group_size)
        source = plan(folder)
        assert read(source) == (pairs(records), [])
        assert len({unit.name for unit in source.units}) == len(source.units) <= len(sizes) + sum(sizes) // 100


def test_a_batch_holds_no_more_rows_than_it_may_bad_ones_included(put):
    lines = [b'{"id": "x", "text": ""}\n' if row % 3 else b"{\n" for row in range(5000)]
    source = plan(put("a.jsonl", as_jsonl(RECORDS) + b"".join(lines)))
    sizes = [len(rows) + len(rows.rejected) for unit in source.units for rows in sources.read(source, unit)]
    assert sum(sizes) == 5000 + len(RECORDS) and max(sizes) <= sources.BATCH_ROWS


def test_some_rows_of_a_batch_are_themselves(put):
    source = plan(put("a.parquet", as_parquet(RECORDS)), columns=("section",))
    (rows,) = [rows for unit in source.units for rows in sources.read(source, unit)]
    some = rows.take(np.array([4, 1]))
    assert list(zip(some.ids, some.texts, strict=True)) == pairs([RECORDS[4], RECORDS[1]])
    assert some.columns["section"].to_pylist() == ["CC", "ROS"]
    assert some.contents == some.texts
    assert some.positions == [rows.positions[4], rows.positions[1]]
    assert len(rows.take(np.array([], int))) == 0


def test_a_bare_source_reads_the_same_records_without_further_columns(put):
    source = plan(put("a.parquet", as_parquet(RECORDS)), columns=("section",))
    assert read(source.bare()) == read(source)
    (rows,) = [rows for unit in source.units for rows in sources.read(source.bare(), unit)]
    assert (rows.columns.num_columns, len(rows.take(np.arange(2)))) == (0, 2)


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


def test_a_further_file_changes_the_fingerprint(put, tmp_path):
    put("in/b.jsonl", as_jsonl(RECORDS[:3]))
    before = plan(tmp_path / "in")
    put("in/a.jsonl", as_jsonl(RECORDS[3:]))
    assert before.fingerprint != plan(tmp_path / "in").fingerprint


def test_rows_are_counted_where_the_format_tells(put):
    assert plan(put("a.parquet", as_parquet(RECORDS))).n_rows == len(RECORDS)
    assert plan(put("a.jsonl", as_jsonl(RECORDS))).n_rows is None


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.csv.gz", "a.jsonl.gz", "a.csv.zst", "a.parquet"])
def test_memory_does_not_grow_with_the_file(put, clinical, name):
    def peak(times):
        records = clinical.to_pylist() * times
        if name == "a.parquet":
            path = put(name, b"")
            pq.write_table(pa.concat_tables([clinical] * times), path)
        else:
            path = put(name, WRITERS[name](records))
        n_records = len(records)
        del records
        source = plan(path)
        stop = n_records if name == "a.parquet" else None
        unit = one_piece(path, source.units[0].pieces[0].format, 0, stop)
        before, arrow, rows = pa.total_allocated_bytes(), 0, 0
        tracemalloc.start()
        for batch in sources.read(source, unit):
            arrow, rows = max(arrow, pa.total_allocated_bytes() - before), rows + len(batch)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert rows == n_records
        return python + arrow

    small, large = peak(1), peak(4)
    assert large < 1.5 * small, (small, large)


def test_vectors_are_read_a_part_of_a_row_group_at_a_time(tmp_path):
    numbers = np.random.default_rng(0).random((60_000, 128), np.float32)
    table = pa.table({"id": np.arange(60_000), "v": pa.FixedSizeListArray.from_arrays(numbers.ravel(), 128)})
    pq.write_table(table, tmp_path / "a.parquet", compression="none")
    source = plan(tmp_path / "a.parquet", embedding="v")
    assert len(source.units) == 4
    del table
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for unit in source.units:
        for batch in sources.read(source, unit):
            rows += len(batch)
            most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 60_000 and most < numbers.nbytes / 2
