"""Vectors computed already, texts from a template, and generated ids."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import RECORDS, WRITERS, as_jsonl, as_parquet, plan, read

from jobs import sources
from jobs.config import InputConfig
from sparse_core.errors import SparseError
from sparse_core.mechanisms import round_to_grid
from sparse_core.noise import Key


@pytest.fixture(scope="module")
def vectors(sentences):
    """Vectors of real sentences: how often each letter stands in them."""
    counts = [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwx"] for text in sentences[:3000]]
    return np.array(counts) / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)


def ray_tensors(numbers, dimension):
    from ray.data.extensions import ArrowTensorArray

    return ArrowTensorArray.from_numpy(numbers.to_numpy(zero_copy_only=False).reshape(-1, dimension))


def fixed_shape(numbers, dimension):
    kind = pa.fixed_shape_tensor(numbers.type, [dimension])
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(numbers, dimension))


SHAPES = {
    "list": lambda x, d: pa.ListArray.from_arrays(np.arange(0, len(x) + 1, d, dtype=np.int32), x),
    "large_list": lambda x, d: pa.LargeListArray.from_arrays(np.arange(0, len(x) + 1, d), x),
    "fixed_size_list": pa.FixedSizeListArray.from_arrays,
    "fixed_shape_tensor": fixed_shape,
    "ray": ray_tensors,
}


def write(path, array, **columns):
    pq.write_table(pa.table({"id": range(len(array)), "v": array} | columns), path, row_group_size=1000)
    return path


def batches(source, **options):
    return [rows for unit in source.units for rows in sources.read(source, unit, **options)]


def gathered(source):
    found = batches(source)
    return np.concatenate([rows.vectors for rows in found]), [bad for rows in found for bad in rows.rejected]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("precision", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_come_as_they_are_stored(tmp_path, vectors, shape, precision):
    stored = vectors[vectors.any(axis=1)].astype(precision)
    array = SHAPES[shape](pa.array(stored.ravel()), stored.shape[1])
    source = plan(write(tmp_path / "a.parquet", array), embedding="v")
    found, rejected = gathered(source)
    assert (source.dimension, rejected) == (24, [])
    assert found.dtype == np.float64 and np.array_equal(found, stored.astype(np.float64))
    assert all(rows.texts is None for rows in batches(source))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_vectors_in_json_lines_come_as_they_are_stored(put, vectors, name):
    records = [{"id": row, "v": vector} for row, vector in enumerate(vectors[:500].tolist())]
    records[3]["v"] = [int(number > 0) for number in records[3]["v"]]
    source = plan(put(name, WRITERS[name](records)), embedding="v")
    found, rejected = gathered(source)
    assert (source.dimension, rejected) == (24, [])
    assert np.array_equal(found, [record["v"] for record in records])


UNFIT = {
    "null_vector": None,
    "wrong_length_vector": [1.0, 2.0],
    "non_finite_vector": [1.0, float("nan"), 0.0],
    "zero_vector": [0.0, -0.0, 0.0],
    "out_of_range_vector": [1e30, 0.0, 0.0],
}


is_fixed = pa.types.is_fixed_size_list


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 3)])
def test_vectors_that_cannot_be_protected_are_set_apart(tmp_path, kind):
    bad = {
        reason: vector for reason, vector in UNFIT.items() if not (is_fixed(kind) and reason == "wrong_length_vector")
    }
    good = [[0.1, 0.2, 0.3], [1.0, 0.0, -1.0], [0.0, 0.0, 1e-30]]
    values = [good[0], *bad.values(), [None, 1.0, 1.0], [float("inf")] * 3, *good[1:]]
    path = write(tmp_path / "a.parquet", pa.array(values, kind))
    found, rejected = gathered(plan(path, embedding="v"))
    assert np.allclose(found, good, rtol=1e-6, atol=0)
    assert sorted((int(row.id), row.reason) for row in rejected) == list(
        enumerate([*bad, "non_finite_vector", "non_finite_vector"], start=1)
    )
    assert {row.position for row in rejected} == {f"{path}: row {row}" for row in range(1, len(rejected) + 1)}


def test_bad_vectors_in_json_lines_are_set_apart(put):
    lines = [json.dumps({"id": reason, "v": vector}) for reason, vector in UNFIT.items()]
    lines += [
        '{"id": "unfit_value", "v": ["x", 1, 2]}',
        '{"id": "unfit_value", "v": 7}',
        '{"id": "good", "v": [1, 2, 3]}',
    ]
    lines += ['{"id": "null_vector"}', '{"id": "also good", "v": [1, 2.5, 3]}']
    found, rejected = gathered(plan(put("a.jsonl", "\n".join(lines).encode()), embedding="v"))
    assert found.tolist() == [[1, 2, 3], [1, 2.5, 3]]
    assert [row.reason for row in rejected] and all(row.reason == row.id for row in rejected)


def test_the_dimension_is_that_of_most_of_the_first_rows(tmp_path):
    array = pa.array([[], None, [1.0], [1.0, 2.0], [3.0, 4.0]])
    source = plan(write(tmp_path / "a.parquet", array), embedding="v")
    assert source.dimension == 2
    assert [row.reason for row in gathered(source)[1]] == ["wrong_length_vector", "null_vector", "wrong_length_vector"]


def test_contents_are_vectors_in_steps_of_the_release_grid(tmp_path, vectors):
    source = plan(write(tmp_path / "a.parquet", SHAPES["list"](pa.array(vectors[:9].ravel()), 24)), embedding="v")
    (rows,) = batches(source)
    steps = np.frombuffer(b"".join(rows.contents), "<i8").reshape(9, 24)
    assert np.array_equal(steps * 2.0**-20, round_to_grid(vectors[:9]))
    nearly = replace(rows, vectors=rows.vectors + 1e-12)
    assert nearly.contents == rows.contents
    assert replace(rows, vectors=rows.vectors + 1e-5).contents != rows.contents
    coarse = [replace(rows, vectors=round_to_grid(rows.vectors, 0.25) + shift) for shift in (0, 0.1)]
    assert coarse[0].contents_on(0.25) == coarse[1].contents_on(0.25)
    assert coarse[0].contents != coarse[1].contents
    assert rows.take(np.array([4, 2])).contents == [rows.contents[4], rows.contents[2]]


def test_further_columns_stay_with_their_vectors(tmp_path):
    array = pa.array([[1.0, 2.0], None, [3.0, 4.0]])
    source = plan(write(tmp_path / "a.parquet", array, text=["a", "b", "c"]), embedding="v", columns=("text",))
    (rows,) = batches(source)
    assert (rows.ids, rows.columns["text"].to_pylist()) == ([0, 2], ["a", "c"])


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (["x", "y"], r"input\.embedding: column 'v' of .* is string, not lists of numbers"),
        ([["x"], ["y"]], r"input\.embedding: column 'v' .*list"),
        ([None, None], "holds no vectors"),
        (pa.array([[], []], pa.list_(pa.float32())), "holds no vectors"),
    ],
)
def test_a_column_without_vectors_is_refused(tmp_path, column, told):
    with pytest.raises(SparseError, match=told):
        plan(write(tmp_path / "a.parquet", pa.array(column)), embedding="v")


def test_files_with_vectors_of_two_dimensions_are_refused_naming_both(tmp_path):
    for name, dimension in (("a", 3), ("b", 4)):
        write(tmp_path / f"{name}.parquet", pa.array([[1.0] * dimension], pa.list_(pa.float32(), dimension)))
    with pytest.raises(SparseError, match=r"'v' is .*\[3\] in .*a\.parquet and .*\[4\] in .*b\.parquet"):
        plan(tmp_path, embedding="v")


def test_vectors_may_come_in_lists_of_several_kinds(tmp_path):
    write(tmp_path / "a.parquet", pa.array([[1.0, 2.0]], pa.list_(pa.float16())))
    write(tmp_path / "b.parquet", pa.array([[3.0, 4.0]], pa.list_(pa.float32(), 2)))
    write(tmp_path / "c.parquet", pa.array([[5.0, 6.0]], pa.large_list(pa.float64())))
    assert gathered(plan(tmp_path, embedding="v"))[0].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_the_vectors_themselves_are_not_passed_through(tmp_path):
    with pytest.raises(SparseError, match="'v' holds the vectors that are to be protected"):
        plan(write(tmp_path / "a.parquet", pa.array([[1.0]])), embedding="v", columns=("v",))


def test_a_corpus_of_vectors_has_no_texts_to_learn_from(tmp_path):
    with pytest.raises(SparseError, match="this job needs texts"):
        sources.read_all(plan(write(tmp_path / "a.parquet", pa.array([[1.0]])), embedding="v"))


# Templates


def titled(title, body):
    return {"id": "x", "title": title, "body": body, "text": "not this"}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv"])
def test_a_template_joins_columns(put, name):
    records = [titled("Chest pain", "He denies fever."), titled("{braces}", "100 % {0} $x")]
    path = put(name, WRITERS[name](records))
    texts = [text for _, text in read(plan(path, template="{title}: {body} {{end}}"))[0]]
    assert texts == ["Chest pain: He denies fever. {end}", "{braces}: 100 % {0} $x {end}"]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_null_field_is_left_empty_and_a_text_of_nothing_else_is_set_apart(put, name):
    records = [titled("A", None), titled(None, "b"), titled(None, None), titled("", None), titled(" ", "\n")]
    good, rejected = read(plan(put(name, WRITERS[name](records)), template="{title}. {body}"))
    assert [text for _, text in good] == ["A. ", ". b"]
    assert [row.reason for row in rejected] == ["null_text", "empty_text", "blank_text"]


def test_integers_may_stand_in_a_template(put):
    path = put("a.parquet", as_parquet([{"id": 7, "text": "words"}]))
    assert read(plan(path, template="{id}: {text}"))[0] == [(7, "7: words")]


def test_other_columns_in_a_template_are_refused(put):
    path = put("a.parquet", as_parquet([{"id": 7, "text": "words", "age": 1.5}]))
    with pytest.raises(SparseError, match=r"input\.template: column 'age' .* is double"):
        plan(path, template="{age}: {text}")
    with pytest.raises(SparseError, match=r"input\.template: .* no column 'title'; it has 'id', 'text', 'age'"):
        plan(path, template="{title}: {text}")


@pytest.mark.parametrize(
    "template", ["{a.b}", "{a[0]}", "{}", "{a!r}", "{a:>9}", "{a", "no column", "{a} {b.__class__}"]
)
def test_a_template_says_no_more_than_names(template):
    with pytest.raises(ValueError, match="template"):
        InputConfig(path="x", template=template)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"template": "{a}", "text": "b"}, "template takes the place of text"),
        ({"embedding": "v", "text": "b"}, "embedding takes the place of text"),
        ({"embedding": "v", "template": "{a}"}, "leave one of them out"),
        ({"text": None}, "name the column"),
    ],
)
def test_texts_have_one_origin(options, told):
    with pytest.raises(ValueError, match=told):
        InputConfig(path="x", **options)


def test_text_may_be_null_beside_vectors():
    assert InputConfig(path="x", embedding="v", text=None).text_columns == ()


# Generated ids


def made_ids(source, key):
    return [record for rows in batches(source, key=key) for record in rows.ids]


@pytest.mark.parametrize("name", WRITERS)
def test_generated_ids_are_keyed_hashes_of_place_and_content(put, tmp_path, name):
    key, other = Key.ephemeral(), Key.ephemeral()
    source = plan(put(f"in/{name}", WRITERS[name](RECORDS)), id=None)
    ids = made_ids(source, key)
    assert ids == made_ids(source, key)
    assert len(set(ids)) == len(RECORDS) and all(len(bytes.fromhex(record)) == 16 for record in ids)
    assert set(ids).isdisjoint(made_ids(source, other))
    moved = plan(put(f"elsewhere/{name}", WRITERS[name](RECORDS)), id=None)
    assert made_ids(moved, key) == ids
    changed = [RECORDS[0] | {"text": "He denies chest pain, fever, or chilly."}, *RECORDS[1:]]
    assert made_ids(plan(put(f"elsewhere/{name}", WRITERS[name](changed)), id=None), key)[0] != ids[0]


def test_equal_texts_have_ids_of_their_own(put, tmp_path):
    for folder in ("a/x", "b/x"):
        put(f"{folder}/same.jsonl", as_jsonl(RECORDS[:1] * 3))
    for path in (str(tmp_path), [str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "*")):
        source = sources.plan(InputConfig(path=path, id=None))
        assert len(set(made_ids(source, Key.ephemeral()))) == len(set(made_ids(source, None))) == 6


def test_vectors_may_have_generated_ids(tmp_path, vectors):
    path = write(tmp_path / "a.parquet", SHAPES["list"](pa.array(vectors[:9].ravel()), 24))
    assert len(set(made_ids(plan(path, embedding="v", id=None), Key.ephemeral()))) == 9
