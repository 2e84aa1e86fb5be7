"""What protection costs beside encoding the same rows; prints ratios, measured side by side in one run."""

import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from threadpoolctl import threadpool_limits

from sparse_core.concepts import Concept, concept_tokens, contrast_pairs, find_spans
from sparse_core.encoders import load_encoder
from sparse_core.evaluation import token_labels
from sparse_core.masks import learn_mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

pytestmark = pytest.mark.benchmark
ROWS = 1024
ROUNDS = 20


def cpu_seconds(work):
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


def test_release_costs_at_most_five_percent_of_encoding_and_mahalanobis_at_most_a_quarter_more_than_laplace():
    texts = pq.read_table("configs/data/clinical_sentences.parquet", columns=["text"])["text"].to_pylist()[:ROWS]
    encoder = load_encoder(threads=1)
    encoder.encode(texts[:64])
    encoding, embeddings = cpu_seconds(lambda: encoder.encode(texts))
    concept = Concept("diagnosis", terms=("hypertension", "diabetes", "cancer", "stroke", "asthma", "female", "male"))
    spans = find_spans(texts, concept)
    pairs = contrast_pairs(texts, spans)
    tokens = token_labels(
        [concept_tokens(t, s) for t, s in zip(texts, spans, strict=True)], train=np.arange(len(texts))
    )
    mask = learn_mask(
        positive=embeddings[pairs.index],
        negative=encoder.encode(pairs.negative),
        embeddings=embeddings,
        token_labels=tokens.labels,
        concepts=("diagnosis",),
        basis="blend",
        concept_fingerprint="",
        salt="",
        encoder=encoder.spec,
    )
    key = Key(bytes(range(32)))
    policies = {
        "laplace, no read-out": Policy.build(encoder=encoder.spec, mechanism="laplace", rho=1.5, read_out="none"),
        "laplace": Policy.build(encoder=encoder.spec, mechanism="laplace", mask=mask, rho=1.5),
        "mahalanobis": Policy.build(encoder=encoder.spec, mechanism="mahalanobis", mask=mask, rho=1.5),
    }
    seconds = {name: [] for name in policies}
    for number in range(-1, ROUNDS):
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        for name, policy in policies.items():
            spent, _ = cpu_seconds(
                lambda policy=policy, ids=ids: policy.release(embeddings, ids=ids, contents=texts, key=key)
            )
            if number >= 0:
                seconds[name].append(spent)
    print()
    releasing = {name: float(np.median(each)) for name, each in seconds.items()}
    for name, spent in releasing.items():
        print(
            f"{name}: release takes {spent / ROWS * 1e6:.1f} us/vector, {spent / encoding:.2%} of encoding, "
            f"x {spent / releasing['laplace']:.2f}"
        )
        assert spent < 0.05 * encoding
    assert releasing["mahalanobis"] <= 1.25 * releasing["laplace"]
