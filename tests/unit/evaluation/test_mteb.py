"""The utility scores beside those that the mteb package itself gives for the same vectors, through its own tasks."""

import socket
from pathlib import Path

import numpy as np
import pytest

from sparse_core.evaluation import classification, clustering, retrieval, sts

SHARED = Path(__file__).parents[4] / "shared" / "data"
CLOSE = 1e-3


def draws():
    return np.random.default_rng(0)


class StoredVectors:
    """What mteb takes for a model: 'encodes' by looking up the vector of a text, that of a query among queries."""

    def __init__(self, texts, vectors, queries=(), query_vectors=()):
        from mteb.models import ModelMeta

        self.mteb_model_meta = ModelMeta.create_empty()
        self._vectors = dict(zip(texts, vectors, strict=True))
        self._queries = dict(zip(queries, query_vectors, strict=True))

    def encode(self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **kwargs):
        known = self._queries if prompt_type == "query" else self._vectors
        return np.array([known[text] for batch in inputs for text in batch["text"]])

    def similarity(self, embeddings1, embeddings2):
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1, embeddings2):
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)


@pytest.fixture
def run(monkeypatch):
    """The main score of one of mteb's abstract tasks, on data that is given and vectors that are stored."""
    import mteb  # noqa: F401 - before connections are refused, which importing does not need either

    def refuse(*_):
        raise AssertionError("mteb asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    def run(base, dataset, model, **settings):
        from mteb.abstasks.task_metadata import TaskMetadata

        kind, score = {
            "AbsTaskSTS": ("STS", "cosine_spearman"),
            "AbsTaskClassification": ("Classification", "accuracy"),
            "AbsTaskClustering": ("Clustering", "v_measure"),
            "AbsTaskRetrieval": ("Retrieval", "ndcg_at_10"),
        }[base.__name__]
        metadata = TaskMetadata(
            name=f"Local{kind}",
            description="Data at hand.",
            dataset={"path": "none", "revision": "none"},
            type=kind,
            category="t2t",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score=score,
        )
        task = type(f"Local{kind}", (base,), {"metadata": metadata, **settings})()
        task.dataset, task.data_loaded = dataset, True
        return task.evaluate(model, "test", encode_kwargs={"batch_size": 256})["default"]["main_score"]

    return run


def mteb_sts(run, left, right, gold):
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    sides = [[f"{side} {row}" for row in range(len(gold))] for side in ("left", "right")]
    rows = Dataset.from_dict({"sentence1": sides[0], "sentence2": sides[1], "score": gold})
    model = StoredVectors(sides[0] + sides[1], np.concatenate([left, right]))
    return run(AbsTaskSTS, DatasetDict(test=rows), model)


def mteb_classification(run, train, train_labels, test, test_labels):
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.classification import AbsTaskClassification

    texts = {
        "train": [f"train {row}" for row in range(len(train))],
        "test": [f"test {row}" for row in range(len(test))],
    }
    splits = {
        "train": Dataset.from_dict({"text": texts["train"], "label": list(train_labels)}),
        "test": Dataset.from_dict({"text": texts["test"], "label": list(test_labels)}),
    }
    model = StoredVectors(texts["train"] + texts["test"], np.concatenate([train, test]))
    return run(AbsTaskClassification, DatasetDict(splits), model)


def mteb_clustering(run, vectors, labels):
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.clustering import AbsTaskClustering

    texts = [f"text {row}" for row in range(len(vectors))]
    rows = Dataset.from_dict({"sentences": texts, "labels": list(labels)})
    settings = {"max_fraction_of_documents_to_embed": None}
    return run(AbsTaskClustering, DatasetDict(test=rows), StoredVectors(texts, vectors), **settings)


def mteb_retrieval(run, queries, documents, answers):
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    # Ids that sort as rows do: mteb breaks ties by id, and we by row.
    records, asked = (
        [f"{kind}{row:06}" for row in range(n)] for kind, n in (("d", len(documents)), ("q", len(queries)))
    )
    data = {
        "corpus": Dataset.from_dict({"id": records, "text": records}),
        "queries": Dataset.from_dict({"id": asked, "text": asked}),
        "relevant_docs": {
            query: {records[row]: score for row, score in found.items()}
            for query, found in zip(asked, answers, strict=True)
        },
        "top_ranked": None,
    }
    model = StoredVectors(records, documents, asked, queries)
    return run(AbsTaskRetrieval, {"default": {"test": data}}, model)


# Bundled data


@pytest.fixture(scope="module")
def notes(clinical, encoder):
    """Sentences with their vectors, and their sections, of those that have 20 sentences."""
    rows = clinical.to_pylist()[::5]
    sections = np.array([row["section"] for row in rows])
    names, counts = np.unique(sections, return_counts=True)
    kept = np.flatnonzero(np.isin(sections, names[counts >= 20]))
    texts = [rows[row]["text"] for row in kept]
    return texts, encoder.encode(texts), sections[kept]


def test_similarity_is_mtebs(run, notes):
    texts, vectors, _ = notes
    words = [set(text.lower().split()) for text in texts]
    left, right = np.random.default_rng(1).integers(0, len(texts), size=(2, 400))
    # Five grades, hence many ties, as people's scores have.
    gold = [round(5 * len(words[a] & words[b]) / len(words[a] | words[b])) for a, b in zip(left, right, strict=True)]
    ours = sts(vectors[left], vectors[right], np.array(gold), generator=draws())
    assert ours.score == pytest.approx(mteb_sts(run, vectors[left], vectors[right], gold), abs=CLOSE)


def test_classification_is_mtebs(run, notes):
    _, vectors, sections = notes
    split = vectors[::2], sections[::2], vectors[1::2], sections[1::2]
    assert classification(*split, generator=draws()).score == pytest.approx(mteb_classification(run, *split), abs=CLOSE)


def test_clustering_is_mtebs(run, notes):
    _, vectors, sections = notes
    expected = mteb_clustering(run, vectors, sections)
    assert clustering(vectors, sections, generator=draws()).score == pytest.approx(expected, abs=CLOSE)


def test_retrieval_is_mtebs(run, notes, encoder):
    texts, vectors, _ = notes
    words = [set(text.lower().split()) for text in texts]
    asked = np.random.default_rng(2).choice(len(texts), 80, replace=False)
    queries = encoder.encode([" ".join(texts[row].split()[:3]) for row in asked])
    answers = []
    for row in asked:
        likeness = [len(words[row] & other) / len(words[row] | other) for other in words]
        near = np.argsort(likeness)[::-1][:8]
        answers.append({int(other): round(5 * likeness[other]) for other in near})
    ours = retrieval(queries, vectors, answers, generator=draws())
    assert 0.2 < ours.score < 0.95
    assert ours.score == pytest.approx(mteb_retrieval(run, queries, vectors, answers), abs=CLOSE)


# Public data, where it is at hand


def table(*parts):
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared/data/{'/'.join(parts)} is not here")
    return pytest.importorskip("pandas").read_parquet(path)


@pytest.mark.slow
def test_sts12_is_mtebs(run, encoder):
    pairs = table("sts12", "sts12.parquet").query("split == 'test'")
    left, right = (encoder.encode(list(pairs[column])) for column in ("sentence1", "sentence2"))
    ours = sts(left, right, pairs.score.to_numpy(), generator=draws())
    assert ours.score == pytest.approx(mteb_sts(run, left, right, list(pairs.score)), abs=CLOSE)
    assert ours.score == pytest.approx(0.7237, abs=CLOSE)  # published


@pytest.mark.slow
def test_banking77_is_mtebs(run, encoder):
    rows = table("banking77", "banking77.parquet")
    train = rows[rows.split == "train"].groupby("label").head(20)
    test = rows[rows.split == "test"].iloc[::3]
    vectors = {len(part): encoder.encode(list(part.text)) for part in (train, test)}
    split = vectors[len(train)], list(train.label), vectors[len(test)], list(test.label)
    ours = classification(*split, generator=draws())
    assert 0.7 < ours.score < 0.9
    assert ours.score == pytest.approx(mteb_classification(run, *split), abs=CLOSE)


@pytest.mark.slow
def test_stackoverflow_is_mtebs(run, encoder):
    rows = table("stackoverflow_clustering", "stackoverflow.parquet").iloc[::10]
    vectors = encoder.encode(list(rows.text))
    ours = clustering(vectors, list(rows.label), generator=draws())
    assert ours.score > 0.4
    assert ours.score == pytest.approx(mteb_clustering(run, vectors, list(rows.label)), abs=CLOSE)


@pytest.mark.slow
def test_scifact_is_mtebs(run, encoder):
    asked = table("scifact", "queries.parquet").query("split == 'test'").iloc[:100]
    judged = table("scifact", "qrels.parquet").query("split == 'test'")
    judged = judged[judged.query_id.isin(asked.query_id)]
    corpus = table("scifact", "corpus.parquet")
    others = corpus[~corpus.doc_id.isin(judged.doc_id)].iloc[:300]
    corpus = pytest.importorskip("pandas").concat([corpus[corpus.doc_id.isin(judged.doc_id)], others])
    documents = encoder.encode(list(corpus.title + " " + corpus.text))
    row_of = {record: row for row, record in enumerate(corpus.doc_id)}
    answers = [
        {row_of[record]: int(score) for record, score in zip(found.doc_id, found.score, strict=True)}
        for found in (judged[judged.query_id == query] for query in asked.query_id)
    ]
    queries = encoder.encode(list(asked.text))
    ours = retrieval(queries, documents, answers, generator=draws())
    assert 0.6 < ours.score < 1
    assert ours.score == pytest.approx(mteb_retrieval(run, queries, documents, answers), abs=CLOSE)
