"""How long an audit of 20,000 records takes, whose embeddings are there already.

    pytest -m benchmark -s tests/benchmarks/test_audit_speed.py

Attacks: mlc, ridge, neighbour, dictionary, averaging and re-identification, on two protections, each with its control
and floor. The concept is the names in the texts: words that are capitalized within sentences and never stand there in
lower case. What is encoded is only what an attacker would encode: texts with each value of the dictionary in turn.
Shares of the whole are printed stage by stage. SPARSE_BENCHMARK_ROWS asks for fewer than 20,000 texts.
"""

import re
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_encoding_speed import texts_to_encode

from jobs import audit, train_mask
from jobs.config import AuditConfig, TrainMaskConfig
from jobs.stages import RememberingEncoder
from sparse_core.masks import Mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

pytestmark = pytest.mark.benchmark

TERMS = 400


def names(texts):
    """The most frequent words that are always capitalized, judged where no sentence begins."""
    inside = Counter(word for text in texts for word in re.findall(r"(?<=[a-z,] )[A-Za-z]{3,}", text))
    lower = {word for text in texts for word in re.findall(r"\b[a-z]{3,}\b", text)}
    ranked = sorted((-count, word) for word, count in inside.items() if word[0].isupper() and word.lower() not in lower)
    return [word for _, word in ranked[:TERMS]]


def test_an_audit_of_many_records(sentences, job_encoder, tmp_path):
    texts = texts_to_encode(sentences)
    vectors = job_encoder.encode(texts)
    ids = [f"r{row}" for row in range(len(texts))]
    shared = {
        "input": {"path": str(tmp_path / "texts.parquet")},
        "concept": {"name": "names", "terms": names(texts)},
        "tracking": {"enabled": False},
    }
    pq.write_table(pa.table({"id": ids, "text": texts}), tmp_path / "texts.parquet")
    encoder = RememberingEncoder(job_encoder)
    mask = train_mask.run(TrainMaskConfig(**shared, output=str(tmp_path / "mask")), encoder=encoder)
    assert isinstance(mask, Mask)
    rows = []
    for mechanism in ("mahalanobis", "laplace"):
        policy = Policy.build(encoder=job_encoder.spec, mechanism=mechanism, mask=mask, rho=2, floor=0.03)
        policy.save(tmp_path / f"policy-{mechanism}")
        published = policy.release(vectors, ids=ids, contents=texts, key=Key.ephemeral())
        store(tmp_path / f"{mechanism}.parquet", ids, published)
        stored = {"path": str(tmp_path / f"{mechanism}.parquet")}
        rows.append({"name": mechanism, "vectors": stored, "policy": str(tmp_path / f"policy-{mechanism}")})
    store(tmp_path / "unprotected.parquet", ids, vectors)
    config = AuditConfig(
        **shared,
        output=str(tmp_path / "out"),
        unprotected={"path": str(tmp_path / "unprotected.parquet")},
        compare=rows,
        dictionary={},
        averaging={},
        similar_tokens=False,
    )
    started = time.monotonic()
    summary = audit.run(config, encoder=RememberingEncoder(job_encoder))
    took = time.monotonic() - started
    print(f"\n{len(texts):,} records, {summary.details['tokens_attacked']} tokens: {took:.0f} s")
    for stage, seconds in summary.durations.items():
        print(f"  {stage:<18} {seconds:7.1f} s  {seconds / took:5.1%}")


def store(path, ids, vectors):
    dimension = vectors.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).ravel()), dimension)
    pq.write_table(pa.table({"id": ids, "embedding": column}), path)
