from dataclasses import dataclass

import numpy as np
import pytest

from sparse_core.encoders import EncoderSpec
from sparse_core.masks import learn_mask

DIMENSION = 32


@dataclass
class Corpus:
    """Records with planted concept tokens, each a direction of its own on top of correlated meaning."""

    embeddings: np.ndarray
    token_labels: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    token_directions: np.ndarray
    substitutions: np.ndarray


@pytest.fixture(scope="session")
def spec():
    return EncoderSpec(
        model="made-up",
        revision=None,
        weights_sha256="a" * 64,
        dimension=DIMENSION,
        pooling="mean",
        normalize=True,
        max_tokens=64,
    )


@pytest.fixture(scope="session")
def corpus():
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((DIMENSION, DIMENSION)) * np.linspace(1, 0.2, DIMENSION)
    meaning = rng.standard_normal((2000, DIMENSION)) @ mixing.T / 5
    token_labels = rng.random((2000, 5)) < 0.12
    token_directions = rng.standard_normal((5, DIMENSION))
    embeddings = meaning + token_labels @ token_directions
    rows = token_labels.any(axis=1)
    substitutions = meaning[:6, None] + token_directions
    return Corpus(embeddings, token_labels, embeddings[rows], meaning[rows], token_directions, substitutions)


@pytest.fixture(scope="session")
def learn(corpus, spec):
    """`learn_mask` on the planted corpus; keywords replace what it is given."""

    def learn(**changes):
        given = {
            "positive": corpus.positive,
            "negative": corpus.negative,
            "embeddings": corpus.embeddings,
            "token_labels": corpus.token_labels,
            "substitutions": corpus.substitutions,
            "concepts": ("planted",),
            "concept_fingerprint": "f" * 16,
            "salt": "5a17",
            "encoder": spec,
        }
        return learn_mask(**(given | changes))

    return learn


@pytest.fixture(scope="session")
def mask(learn):
    return learn()
