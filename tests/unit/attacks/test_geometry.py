"""What a mask tells of its terms to whoever has the encoder and a list of guesses."""

import numpy as np
import pytest

from sparse_core.attacks import geometry_confirmation, separation
from sparse_core.concepts import Concept, contrast_pairs, find_spans, value_substitutions
from sparse_core.masks import learn_mask

TERMS = ("hypertension", "asthma", "stroke", "pneumonia", "anemia", "migraine", "dementia", "hepatitis")
NEAR = (
    "diabetes",
    "depression",
    "arthritis",
    "cancer",
    "seizure",
    "hernia",
    "bronchitis",
    "eczema",
    "gout",
    "glaucoma",
)
FAR = ("window", "bicycle", "river", "guitar", "lawyer", "kitchen", "football", "newspaper", "candle", "garden")
GUESSED_IN = ("She has {}.", "There is no sign of {}.", "He was seen for {} last year.", "We talked about {} again.")


@pytest.fixture(scope="module")
def shares(encoder, sentences):
    """Of every term and decoy, in a mask learned from the bundled corpus."""
    spans = find_spans(sentences, Concept(name="diagnosis", terms=TERMS))
    holding = [row for row, found in enumerate(spans) if found]
    texts, spans = [sentences[row] for row in holding], [spans[row] for row in holding]
    pairs = contrast_pairs(texts, spans, generator=np.random.default_rng(0))
    put = value_substitutions(texts, spans, values=TERMS, generator=np.random.default_rng(0))
    mask = learn_mask(
        positive=encoder.encode(pairs.positive),
        negative=encoder.encode(pairs.negative),
        embeddings=encoder.encode(sentences[::4]),
        substitutions=put.shaped(encoder.encode(put.texts)),
        concepts=("diagnosis",),
        encoder=encoder.spec,
        **FINGERPRINT,
    )
    guesses = (*TERMS, *NEAR, *FAR)
    moved = np.stack([encoder.encode([one.format(guess) for guess in guesses]) for one in GUESSED_IN]).mean(axis=0)
    return geometry_confirmation(mask.values, mask.basis, moved - moved.mean(axis=0))


FINGERPRINT = {"concept_fingerprint": "0", "salt": "0"}


def test_terms_of_a_mask_are_told_from_near_and_far_decoys(shares):
    true = shares[: len(TERMS)]
    for decoys in (shares[len(TERMS) : -len(FAR)], shares[-len(FAR) :]):
        auc, _ = separation(true, decoys, generator=np.random.default_rng(0))
        assert auc.low > 0.85


def test_the_geometry_of_another_turn_of_the_space_confirms_nothing():
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.normal(size=(64, 64)))[0]
    shares = geometry_confirmation(np.arange(64) < 20, basis, generator.normal(size=(400, 64)))
    auc, _ = separation(shares[:200], shares[200:], generator=generator)
    assert auc.low < 0.5 < auc.high
