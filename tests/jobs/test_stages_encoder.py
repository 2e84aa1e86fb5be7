import logging

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import BoW

from jobs.config import EncoderConfig
from jobs.stages import load_configured, settled


@pytest.fixture(scope="module")
def bag_of_words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "bag"
    SentenceTransformer(modules=[BoW(vocab=["pain", "knee"])], device="cpu").save(str(folder))
    return str(folder)


def test_jobs_take_onnx_on_a_cpu_without_being_asked(encoder):
    chosen = load_configured(EncoderConfig(device="cpu"), threads=1)
    assert chosen.spec.backend == "onnx"
    text = ["a patient with pain in the left knee"]
    np.testing.assert_allclose(chosen.encode(text), encoder.encode(text), atol=1e-6)


def test_a_log_line_says_why_torch_computes(bag_of_words, caplog):
    with caplog.at_level(logging.INFO, logger="sparse"):
        chosen = load_configured(EncoderConfig(model=bag_of_words, device="cpu"))
    assert chosen.spec.backend == "torch"
    assert [record.message for record in caplog.records] == [
        "encoder.backend: torch computes instead of ONNX Runtime, because it has no fast tokenizer over a transformer."
    ]


def test_nothing_is_said_where_torch_was_asked_for(bag_of_words, caplog):
    with caplog.at_level(logging.INFO, logger="sparse"):
        load_configured(EncoderConfig(model=bag_of_words, device="cpu", backend="torch"))
    assert not caplog.records


def test_a_settled_configuration_names_what_auto_came_to():
    config = EncoderConfig(device="cpu")
    spec = load_configured(config, threads=1).spec
    found = settled(config, spec)
    assert (found.backend, found.dtype) == ("onnx", "float32")
    assert load_configured(found, threads=1).spec == spec
