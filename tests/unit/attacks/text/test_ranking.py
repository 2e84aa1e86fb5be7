import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge
from sparse_core.attacks.text.ranking import Ranking

N_RECORDS, N_CANDIDATES, DIMENSION = 200, 5, 12
# Loud noise in the first half of the directions, next to none in the others.
NOISE = np.where(np.arange(DIMENSION) < DIMENSION // 2, 4.0, 1e-6)


def law(outputs, embeddings):
    return -np.sum((outputs - embeddings) ** 2 / NOISE, axis=1) / 2


@pytest.fixture
def victims():
    """Records, their noised vectors, and candidates whose words are the more wrong the further they are off."""
    generator = np.random.default_rng(0)
    embeddings = generator.standard_normal((N_RECORDS, DIMENSION))
    off = np.arange(N_CANDIDATES)[None, :, None] * generator.choice([-0.2, 0.2], (N_RECORDS, N_CANDIDATES, DIMENSION))
    order = np.argsort(generator.random((N_RECORDS, N_CANDIDATES)), axis=1)
    candidates = np.take_along_axis(embeddings[:, None] + off, order[:, :, None], axis=1)
    noised = embeddings + generator.standard_normal(embeddings.shape) * np.sqrt(NOISE)
    return embeddings, noised, candidates, 1 - order / N_CANDIDATES


def hits(ranking, noised, candidates, similarities):
    return (ranking.scores(noised, candidates).argmax(axis=1) == similarities.argmax(axis=1)).mean()


def test_a_known_law_finds_the_text_itself_among_candidates(victims):
    embeddings, noised, candidates, similarities = victims
    ranking = Ranking(PublicKnowledge(noise_variance=NOISE), law)
    ranking.fit(noised[:100], embeddings[:100], candidates[:100], similarities[:100])
    assert hits(ranking, noised[100:], candidates[100:], similarities[100:]) > 0.95


def test_an_unknown_law_is_estimated_and_beats_plain_distance(victims):
    embeddings, noised, candidates, similarities = victims
    ranking = Ranking(PublicKnowledge(), None)
    ranking.fit(noised[:100], embeddings[:100], candidates[:100], similarities[:100])
    assert ranking.rule == "metric"
    near = np.linalg.norm(candidates[100:] - noised[100:, None], axis=2).argmin(axis=1)
    plain = (near == similarities[100:].argmax(axis=1)).mean()
    assert hits(ranking, noised[100:], candidates[100:], similarities[100:]) > plain + 0.3


def test_the_metric_takes_over_where_the_law_hears_only_silent_directions():
    """No candidate is the text itself: all differ a little in the silent directions, by chance."""
    generator = np.random.default_rng(1)
    embeddings = generator.standard_normal((400, DIMENSION))
    wrong = np.arange(N_CANDIDATES) * 1.5
    off = 0.3 * generator.standard_normal((400, N_CANDIDATES, DIMENSION))
    off[:, :, : DIMENSION // 2] += wrong[None, :, None]
    noised = embeddings + generator.standard_normal(embeddings.shape) * np.sqrt(NOISE)
    candidates = embeddings[:, None] + off
    similarities = np.broadcast_to(1 - wrong / wrong.max(), (400, N_CANDIDATES))
    # In random order, so that to keep to the first is no help.
    order = np.argsort(generator.random((400, N_CANDIDATES)), axis=1)
    candidates = np.take_along_axis(candidates, order[:, :, None], axis=1)
    similarities = np.take_along_axis(similarities, order, axis=1)
    ranking = Ranking(PublicKnowledge(noise_variance=NOISE), law)
    ranking.fit(noised[:200], embeddings[:200], candidates[:200], similarities[:200])
    assert ranking.rule == "metric"
    reached = hits(ranking, noised[200:], candidates[200:], similarities[200:])
    ranking.rule = "law"
    assert reached > hits(ranking, noised[200:], candidates[200:], similarities[200:]) + 0.15


def test_vectors_turned_by_a_secret_rotation_leave_the_decoders_first_text(victims):
    embeddings, _, candidates, similarities = victims
    turned = embeddings @ np.linalg.qr(np.random.default_rng(2).standard_normal((DIMENSION, DIMENSION)))[0]
    best_first = np.argsort(-similarities, axis=1)
    candidates = np.take_along_axis(candidates, best_first[:, :, None], axis=1)
    similarities = np.take_along_axis(similarities, best_first, axis=1)
    ranking = Ranking(PublicKnowledge(), None).fit(turned, embeddings, candidates, similarities)
    assert ranking.rule == "first"
    assert (ranking.scores(turned, candidates).argmax(axis=1) == 0).all()
