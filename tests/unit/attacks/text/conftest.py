from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge
from sparse_core.concepts import Concept, concept_tokens, find_spans
from sparse_core.evaluation import Split, TokenLabels, split_records, token_labels

TERMS = Path(__file__).parents[4] / "configs" / "concepts" / "patient.txt"
N_BEARING, N_OTHERS, RHO = 450, 100, 2.0
QUICK = {
    "width": 64,
    "layers": 1,
    "vocabulary": 1500,
    "epochs": 8,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "candidates": 3,
    "max_tokens": 20,
}


@dataclass(frozen=True)
class Clinic:
    """Short clinical sentences, their MiniLM vectors, and these under isotropic noise of a known law."""

    texts: list[str]
    vectors: np.ndarray
    protected: np.ndarray
    tokens: TokenLabels
    split: Split
    public: PublicKnowledge
    encode: object

    @property
    def material(self):
        return {
            "unprotected": self.vectors,
            "protected": self.protected,
            "texts": self.texts,
            "labels": self.tokens.labels,
            "vocabulary": self.tokens.vocabulary,
            "train": self.split.train,
            "test": self.split.test,
            "public": self.public,
            "encode": self.encode,
            "seed": 0,
        }

    @staticmethod
    def log_likelihood(outputs, embeddings):
        return -np.sum((outputs - embeddings) ** 2, axis=1) / (2 * RHO**2 / outputs.shape[1])


@pytest.fixture(scope="session")
def clinic(encoder, sentences):
    generator = np.random.default_rng(0)
    terms = tuple(line.strip() for line in TERMS.read_text().splitlines() if line.strip())
    short = [text for text in sentences if 3 <= len(text.split()) <= 10]
    found = [
        concept_tokens(text, spans)
        for text, spans in zip(short, find_spans(short, Concept("patient", terms=terms)), strict=True)
    ]
    bearing = np.array([bool(tokens) for tokens in found])
    chosen = np.concatenate(
        [
            generator.permutation(np.flatnonzero(bearing))[:N_BEARING],
            generator.permutation(np.flatnonzero(~bearing))[:N_OTHERS],
        ]
    )
    texts = [short[row] for row in chosen]
    vectors = encoder.encode(texts)
    split = split_records(texts, test_share=0.2, seed=0)
    noise_variance = np.full(vectors.shape[1], RHO**2 / vectors.shape[1])
    return Clinic(
        texts,
        vectors,
        vectors + generator.standard_normal(vectors.shape) * np.sqrt(noise_variance),
        token_labels([found[row] for row in chosen], train=split.train, min_count=6),
        split,
        PublicKnowledge(noise_variance=noise_variance),
        encoder.encode,
    )


@pytest.fixture(scope="session")
def quick():
    """Options with which an attack trains in seconds."""
    return dict(QUICK)
