import numpy as np
import pytest
from scipy import sparse

from sparse_core.errors import SparseError
from sparse_core.masks.bases import BASES, concept_directions, fine_distinctions, noise_shape


@pytest.fixture(scope="module")
def covariance(corpus):
    return np.cov(corpus.embeddings, rowvar=False, bias=True)


def directions_of(basis, corpus, covariance, **options):
    given = {
        "embeddings": corpus.embeddings,
        "positive": corpus.positive,
        "negative": corpus.negative,
        "token_labels": corpus.token_labels,
        "substitutions": corpus.substitutions,
    }
    return concept_directions(basis, covariance=covariance, **(given | options))


def explained_label_variance(corpus, covariance, noise):
    """What the best linear attacker who knows the noise explains of the standardised token indicators."""
    labels = corpus.token_labels.astype(float)
    labels = (labels - labels.mean(axis=0)) / labels.std(axis=0)
    crossed = (corpus.embeddings - corpus.embeddings.mean(axis=0)).T @ labels / len(labels)
    return np.trace(crossed.T @ np.linalg.solve(covariance + noise, crossed))


def signal_kept(covariance, noise):
    """Share of the whitened signal left to a linear reader."""
    return np.trace(np.linalg.solve(covariance + noise, covariance)) / len(covariance)


def noise_along(directions, covariance, *, strength=1e6, graded=True):
    values, basis = noise_shape(directions, np.ones(len(directions.strength)), covariance, graded=graded)
    return strength * (basis * values) @ basis.T


@pytest.mark.parametrize("basis", BASES)
def test_filters_read_exactly_one_pattern_each(basis, corpus, covariance):
    found = directions_of(basis, corpus, covariance)
    np.testing.assert_allclose(found.filters.T @ found.patterns, np.eye(len(found.strength)), atol=1e-8)
    assert found.strength.sum() == pytest.approx(1)
    assert (np.diff(found.strength) <= 1e-12).all()


@pytest.mark.parametrize("basis", ["label", "erasure"])
def test_drowning_all_label_directions_leaves_a_linear_attacker_nothing(basis, corpus, covariance):
    noise = noise_along(directions_of(basis, corpus, covariance), covariance)
    before = explained_label_variance(corpus, covariance, np.zeros_like(covariance))
    assert explained_label_variance(corpus, covariance, noise) < 1e-3 * before
    assert signal_kept(covariance, noise) == pytest.approx(27 / 32, abs=1e-3)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_erasure_hides_at_least_as_much_as_label_with_the_same_number_of_directions(limit, corpus, covariance):
    left = {
        basis: explained_label_variance(
            corpus, covariance, noise_along(directions_of(basis, corpus, covariance, limit=limit), covariance)
        )
        for basis in ("label", "erasure")
    }
    assert left["erasure"] <= left["label"] + 1e-9


def test_as_many_random_directions_hide_little(corpus, covariance):
    random, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((32, 5)))
    before = explained_label_variance(corpus, covariance, np.zeros_like(covariance))
    assert explained_label_variance(corpus, covariance, 1e6 * random @ random.T) > 0.5 * before


def test_shift_directions_span_what_removal_takes_away(corpus, covariance):
    found = directions_of("shift", corpus, covariance)
    inside = found.patterns.T @ corpus.token_directions.T
    np.testing.assert_allclose((inside**2).sum(axis=0), (corpus.token_directions**2).sum(axis=1))
    assert len(found.strength) == 5


def test_graded_noise_leaves_every_hidden_direction_the_same_signal_to_noise_ratio(corpus, covariance):
    found = directions_of("erasure", corpus, covariance, limit=4)
    noise = noise_along(found, covariance, strength=1.0)
    ratios = np.diag(found.filters.T @ covariance @ found.filters) / np.diag(found.filters.T @ noise @ found.filters)
    np.testing.assert_allclose(ratios, ratios[0])


def test_graded_noise_follows_the_signal_given_what_stays_clear(corpus, covariance):
    found = directions_of("label", corpus, covariance, limit=4)
    values, basis = noise_shape(found, np.ones(4), covariance, graded=True)
    hidden, clear = basis[:, :4], basis[:, 4:]
    c_hidden, c_clear, crossed = (a.T @ covariance @ b for a, b in [(hidden, hidden), (clear, clear), (hidden, clear)])
    given_clear = c_hidden - crossed @ np.linalg.solve(c_clear, crossed.T)
    np.testing.assert_allclose(given_clear / given_clear.max(), np.diag(values[:4]), atol=1e-8)


@pytest.mark.parametrize("graded", [True, False])
def test_the_mask_basis_is_orthogonal_and_its_complement_uncorrelated(graded, corpus, covariance):
    found = directions_of("erasure", corpus, covariance)
    values, basis = noise_shape(found, np.array([1, 0, 1, 0.5, 1]), covariance, graded=graded)
    np.testing.assert_allclose(basis.T @ basis, np.eye(32), atol=1e-10)
    assert np.count_nonzero(values) == 4 and values.max() == 1
    clear = basis[:, 4:].T @ covariance @ basis[:, 4:]
    np.testing.assert_allclose(clear, np.diag(np.diag(clear)), atol=1e-10)


def test_sparse_token_labels_give_the_directions_of_dense_ones(corpus, covariance):
    dense = directions_of("erasure", corpus, covariance)
    thin = directions_of("erasure", corpus, covariance, token_labels=sparse.csr_array(corpus.token_labels))
    np.testing.assert_allclose(thin.strength, dense.strength)


@pytest.mark.parametrize("basis", ["label", "erasure", "blend"])
def test_a_basis_without_its_token_labels_is_refused(basis, corpus, covariance):
    with pytest.raises(SparseError, match="needs token_labels"):
        directions_of(basis, corpus, covariance, token_labels=None)


def test_an_unknown_basis_is_refused_with_the_names_of_the_known(corpus, covariance):
    with pytest.raises(SparseError, match=r"'surname'.*blend, erasure, label"):
        directions_of("surname", corpus, covariance)


def test_tokens_that_are_everywhere_or_nowhere_are_refused(corpus, covariance):
    with pytest.raises(SparseError, match="constant"):
        directions_of("label", corpus, covariance, token_labels=np.ones((2000, 2), dtype=bool))


def test_pairs_that_removal_leaves_unchanged_are_refused(corpus, covariance):
    with pytest.raises(SparseError, match="does not move"):
        directions_of("shift", corpus, covariance, negative=corpus.positive)


def test_substitution_finds_what_values_do_where_labels_also_catch_the_sentences_they_stand_in():
    rng = np.random.default_rng(1)
    topic, effects = np.eye(32)[0], np.eye(32)[1:4]
    meaning = rng.standard_normal((3000, 32))
    labels = rng.random((3000, 3)) < 0.05 + 0.4 * (meaning[:, :1] > 1)
    embeddings = meaning + labels @ effects
    bearing = labels.any(axis=1)
    given = {
        "embeddings": embeddings,
        "covariance": np.cov(embeddings, rowvar=False),
        "positive": embeddings[bearing],
        "negative": meaning[bearing],
        "token_labels": labels,
        "substitutions": meaning[:8, None] + effects,
    }

    def share_of_topic(basis, **options):
        found = concept_directions(basis, **given | options)
        patterns = found.patterns / np.linalg.norm(found.patterns, axis=0)
        return found.strength @ (patterns.T @ topic) ** 2

    assert share_of_topic("substitution", token_labels=None) < 0.02
    assert share_of_topic("substitution") < 0.6 * share_of_topic("erasure")


def test_substitution_needs_more_than_one_value(corpus, covariance):
    with pytest.raises(SparseError, match="different values"):
        directions_of("substitution", corpus, covariance, substitutions=corpus.substitutions[:, :1])
    with pytest.raises(SparseError, match="different values"):
        directions_of("substitution", corpus, covariance, substitutions=None)


WHITENED = ["erasure", "blend", "substitution"]


@pytest.mark.parametrize("basis", WHITENED)
def test_directions_gain_more_concept_energy_for_the_utility_they_cost_than_any_others(basis, corpus, covariance):
    found = directions_of(basis, corpus, covariance, penalty=0.4)
    plain = directions_of(basis, corpus, covariance)
    variance, axes = np.linalg.eigh(covariance)
    inverse_root = axes / np.sqrt(variance) @ axes.T
    coordinates = inverse_root @ plain.patterns
    utility = fine_distinctions(corpus.embeddings)
    difference = (coordinates * plain.strength) @ coordinates.T - 0.4 * utility / np.trace(utility)
    gain = found.strength - 0.4 * found.cost
    most = np.linalg.eigvalsh(difference)
    assert gain[gain > 0].sum() == pytest.approx(most[most > 0].sum())
    assert (np.diff(gain) <= 1e-12).all()
    assert gain[gain > 0].sum() > np.maximum(plain.strength - 0.4 * cost_of(plain, inverse_root, utility), 0).sum()


def cost_of(directions, inverse_root, utility):
    coordinates = inverse_root @ directions.patterns
    return np.einsum("ik,ij,jk->k", coordinates, utility, coordinates) / np.trace(utility)


@pytest.mark.parametrize("basis", WHITENED)
def test_costs_and_strengths_are_shares(basis, corpus, covariance):
    found = directions_of(basis, corpus, covariance, penalty=0.4)
    assert len(found.cost) == 32 and (found.cost > 0).all()
    assert found.cost.sum() == pytest.approx(1)
    assert found.strength.sum() == pytest.approx(1)


@pytest.mark.parametrize("basis", ["label", "shift", "coordinate"])
def test_bases_that_do_not_weigh_directions_cost_alike(basis, corpus, covariance):
    np.testing.assert_array_equal(directions_of(basis, corpus, covariance, penalty=0.4).cost, 1 / 32)


def test_a_limit_keeps_the_directions_with_most_to_gain(corpus, covariance):
    every, few = (directions_of("blend", corpus, covariance, penalty=0.4, limit=limit) for limit in (None, 3))
    np.testing.assert_allclose(few.patterns, every.patterns[:, :3])


def test_fine_distinctions_are_how_near_sentences_differ_and_not_what_their_topics_are():
    rng = np.random.default_rng(0)
    topics = 10 * rng.standard_normal((40, 1)) * np.eye(8)[0]
    details = rng.standard_normal((40, 50, 8)) * [0, 1, 1, 1, 1, 0.1, 0.1, 0.1]
    records = (topics[:, None] + details).reshape(-1, 8)
    told = np.diag(fine_distinctions(records))
    assert told[1:5].min() > 10 * told[5:].max()
    assert told[0] < told[1:5].min() and np.var(records[:, 0]) > 50 * np.var(records[:, 1])


def test_fine_distinctions_ignore_exact_duplicates(corpus):
    few = corpus.embeddings[:300]
    np.testing.assert_allclose(fine_distinctions(np.vstack([few, few])), fine_distinctions(few), rtol=1e-6)


def test_records_that_are_all_the_same_are_refused():
    with pytest.raises(SparseError, match="records that differ"):
        fine_distinctions(np.ones((20, 4)))
