import dataclasses
import json

import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.masks import Mask


@pytest.fixture
def saved(mask, tmp_path):
    mask.save(tmp_path / "mask")
    return tmp_path / "mask"


def rewrite(directory, **fields):
    path = directory / "mask.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_mask_comes_back_as_it_was_saved(mask, saved, spec):
    loaded = Mask.load(saved, encoder=spec)
    for name in ("values", "basis", "mean", "covariance"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(mask, name))
    assert loaded.info == mask.info


def test_saving_twice_writes_the_same_bytes_and_no_other_file(mask, saved):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    mask.save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert set(before) == {"mask.json", "mask.safetensors"}


def test_the_json_file_says_where_the_mask_is_from(saved):
    told = json.loads((saved / "mask.json").read_text())
    assert told["concepts"] == ["planted"]
    assert told["encoder"]["model"] == "made-up"
    assert set(told) == {
        "basis", "concept_fingerprint", "concepts", "encoder", "learned_from", "metrics", "penalty", "salt",
        "schema_version", "seed", "sha256",
    }  # fmt: skip


def test_the_same_weights_under_another_name_are_the_same_encoder(saved, spec):
    Mask.load(saved, encoder=dataclasses.replace(spec, model="/models/copy", revision="main"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("dimension", 384), ("normalize", False), ("pooling", "cls"), ("weights_sha256", "b" * 64)],
)
def test_a_mask_of_another_encoder_is_refused_naming_both_sides(saved, spec, field, value):
    other = dataclasses.replace(spec, model="another-model", **{field: value})
    with pytest.raises(SparseError, match="made-up") as refused:
        Mask.load(saved, encoder=other)
    for part in ("another-model", field, repr(value), repr(getattr(spec, field))):
        assert part in str(refused.value)


def test_a_directory_without_a_mask_is_told_so(tmp_path):
    with pytest.raises(SparseError, match=r"mask.json is missing"):
        Mask.load(tmp_path)


def test_a_missing_tensor_file_is_told_so(saved):
    (saved / "mask.safetensors").unlink()
    with pytest.raises(SparseError, match=r"mask.safetensors is missing"):
        Mask.load(saved)


def test_a_changed_tensor_file_is_refused(saved):
    path = saved / "mask.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SparseError, match="damaged"):
        Mask.load(saved)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema_version": 2}', "\ufffd"])
def test_a_damaged_json_file_is_refused(saved, content):
    (saved / "mask.json").write_text(content)
    with pytest.raises(SparseError, match="damaged"):
        Mask.load(saved)


def test_an_unknown_schema_version_is_refused_naming_both(saved):
    rewrite(saved, schema_version=99)
    with pytest.raises(SparseError, match=r"schema version 99.*reads version 2"):
        Mask.load(saved)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"basis": np.full((32, 32), 0.1)}, "not orthogonal"),
        ({"values": np.full(32, 1.5)}, r"where \[0, 1\]"),
        ({"mean": np.zeros(31)}, r"mean has shape \(31,\)"),
        ({"covariance": np.full((32, 32), np.inf)}, "covariance has values that are not finite"),
    ],
)
def test_arrays_that_are_no_mask_are_refused(mask, change, problem):
    with pytest.raises(SparseError, match=problem):
        dataclasses.replace(mask, **change)
