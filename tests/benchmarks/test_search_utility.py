"""Search with trusted queries among protected documents (SciFact); prints nDCG@10 per protection."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparse_core.concepts import Concept, concept_tokens, contrast_pairs, find_spans
from sparse_core.encoders import load_encoder
from sparse_core.evaluation import retrieval, token_labels
from sparse_core.masks import learn_mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

DATA = Path(__file__).parents[2].parent / "shared/data/scifact"
TERMS = Path(__file__).parents[2] / "configs/concepts/patient.txt"
pytestmark = [pytest.mark.benchmark, pytest.mark.skipif(not DATA.is_dir(), reason="SciFact is not here")]


@pytest.fixture(scope="module")
def scifact():
    corpus = pd.read_parquet(DATA / "corpus.parquet")
    qrels = pd.read_parquet(DATA / "qrels.parquet").query("split == 'test'")
    queries = pd.read_parquet(DATA / "queries.parquet").query("split == 'test'")
    encoder = load_encoder()
    texts = (corpus.title + " " + corpus.text).tolist()
    row = {doc: i for i, doc in enumerate(corpus.doc_id)}
    judged = qrels.groupby("query_id")
    relevant = [
        {row[d]: float(s) for d, s in judged.get_group(q)[["doc_id", "score"]].values} for q in queries.query_id
    ]
    return encoder, texts, encoder.encode(texts), encoder.encode(queries.text.tolist()), relevant


@pytest.fixture(scope="module")
def mask(scifact):
    encoder, texts, documents, _, _ = scifact
    concept = Concept("patient", terms=tuple(TERMS.read_text().split("\n")[:-1]))
    spans = find_spans(texts, concept)
    pairs = contrast_pairs(texts, spans)
    chosen = np.random.default_rng(0).choice(len(pairs), 600, replace=False)
    tokens = token_labels(
        [concept_tokens(t, s) for t, s in zip(texts, spans, strict=True)], train=np.arange(len(texts))
    )
    return learn_mask(
        positive=documents[pairs.index[chosen]],
        negative=encoder.encode([pairs.negative[i] for i in chosen]),
        embeddings=documents,
        token_labels=tokens.labels,
        concepts=("patient",),
        basis="blend",
        concept_fingerprint="",
        salt="",
        encoder=encoder.spec,
    )


def test_trusted_queries_find_more_among_read_out_vectors_than_among_raw_releases(scifact, mask):
    encoder, texts, documents, queries, relevant = scifact
    ids, key = list(range(len(texts))), Key(bytes(range(32)))

    def ndcg(name, asked, stored):
        result = retrieval(asked, stored, relevant, generator=np.random.default_rng(0))
        print(f"{name:<58} nDCG@10 {result.score:.3f} [{result.low:.3f}, {result.high:.3f}]")
        return result.score

    unprotected = ndcg("unprotected", queries, documents)
    scores = {}
    for mechanism in ("laplace", "mahalanobis"):
        shared = {"encoder": encoder.spec, "mechanism": mechanism, "mask": mask, "rho": 1.5, "floor": 0.03}
        raw = Policy.build(**shared, read_out="none").release(documents, ids=ids, contents=texts, key=key)
        policy = Policy.build(**shared)
        read = policy.release(documents, ids=ids, contents=texts, key=key)
        scores[mechanism, "raw"] = ndcg(f"{mechanism}, raw release", queries, raw)
        scores[mechanism, "read"] = ndcg(f"{mechanism}, read-out", policy.query_transform(queries), read)
        ndcg(f"{mechanism}, read-out, query shrunk too", policy.reader.apply(queries), read)
        hidden = policy.release(
            queries, ids=[f"q{i}" for i in range(len(queries))], contents=[""] * len(queries), key=key
        )
        ndcg(f"{mechanism}, read-out, query protected too", hidden, read)
    assert scores["mahalanobis", "raw"] < scores["mahalanobis", "read"] <= unprotected + 0.02
    assert scores["laplace", "read"] < scores["mahalanobis", "read"]
