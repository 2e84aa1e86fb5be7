import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from sparse_core.attacks import dictionary_attack, substituted_candidates, unknown_context
from sparse_core.attacks.candidates import (
    candidate_log_likelihoods,
    candidate_posterior,
    candidate_ranks,
    top1_hits,
)
from sparse_core.concepts import Span
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.evaluation.metrics import unit_rows
from sparse_core.masks import Mask, MaskInfo
from sparse_core.mechanisms import Gaussian, Laplace, Mahalanobis, NoMechanism, Purkayastha
from sparse_core.noise import Key
from sparse_core.policy import Policy

N, CANDIDATES = 24, 6
SPEC = EncoderSpec("made-up", None, "a" * 64, N, "mean", True, 64)


def draws(seed=0):
    return np.random.default_rng(seed)


def orthogonal(seed=0, n=N):
    return np.linalg.qr(draws(seed).standard_normal((n, n)))[0]


def concentrated(rho, *, basis=None, n_open=6, floor=0.03):
    basis = orthogonal() if basis is None else basis
    weights = (np.arange(len(basis)) < n_open).astype(float)
    return Mahalanobis(weights=weights, basis=basis, floor=floor, rho=rho)


LAWS = {
    "laplace": Laplace(dimension=N, rho=2),
    "mahalanobis": concentrated(10.0),
    "gaussian": Gaussian(dimension=N, rho=2),
    "purkayastha": Purkayastha(dimension=N, rho=1.2),
}


def released(law, embeddings, seed=0):
    return law.release(embeddings, draws(seed).random((len(embeddings), law.uniforms_per_record)))


def records(n=3000, seed=1):
    """Unit vectors of every candidate, and a true one drawn evenly."""
    generator = draws(seed)
    candidates = unit_rows(generator.standard_normal((n * CANDIDATES, N))).reshape(n, CANDIDATES, N)
    truth = generator.integers(0, CANDIDATES, n)
    return candidates, truth, candidates[np.arange(n), truth]


def attack(noised, candidates, truth, *, law, **options):
    return dictionary_attack(noised, candidates, truth, law=law, n_bootstrap=300, generator=draws(), **options)


def assert_calibrated(posterior, truth, n_bins=5):
    guess, claimed = posterior.argmax(axis=1), posterior.max(axis=1)
    for rows in np.array_split(np.argsort(claimed), n_bins):
        p = claimed[rows]
        error = np.mean(guess[rows] == truth[rows]) - p.mean()
        assert abs(error) < 4 * np.sqrt((p * (1 - p)).sum() + 0.25) / len(rows)


@pytest.mark.parametrize("name", LAWS)
def test_records_with_posterior_p_are_right_in_a_share_p(name):
    candidates, truth, embeddings = records()
    law = LAWS[name]
    posterior = candidate_posterior(candidate_log_likelihoods(released(law, embeddings), candidates, law=law))
    assert 0.3 < posterior.max(axis=1).mean() < 0.95
    assert posterior.max(axis=1).std() > 0.05
    assert_calibrated(posterior, truth)


def test_the_posterior_of_a_gaussian_mixture_is_the_closed_form():
    candidates, _, embeddings = records(200)
    law = LAWS["gaussian"]
    noised = released(law, embeddings)
    squares = ((noised[:, None] - candidates) ** 2).sum(axis=2)
    posterior = candidate_posterior(candidate_log_likelihoods(noised, candidates, law=law))
    np.testing.assert_allclose(posterior, softmax(-squares / (2 * law.sigma**2), axis=1), atol=1e-9)


def test_the_attacker_expects_what_it_gets_unless_it_is_wrong_about_the_noise():
    candidates, truth, embeddings = records()
    law = LAWS["laplace"]
    noised = released(law, embeddings)
    right = attack(noised, candidates, truth, law=law)
    assert right.claimed.value == pytest.approx(right.top1.value, abs=0.03)
    wrong = attack(noised, candidates, truth, law=Laplace(dimension=N, rho=0.5))
    assert wrong.claimed.low > wrong.top1.high + 0.1


@pytest.mark.parametrize("name", ["laplace", "mahalanobis", "purkayastha"])
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_no_output_moves_the_odds_of_two_candidates_by_more_than_the_guarantee(name, seed, scale):
    law, generator = LAWS[name], draws(seed)
    candidates = unit_rows(generator.standard_normal((4, N)))
    noised = generator.standard_normal((1, N)) * scale
    likelihoods = candidate_log_likelihoods(noised, candidates[None], law=law)[0]
    odds = np.abs(likelihoods[:, None] - likelihoods)
    bound = law.privacy_map(law.distance(candidates[:, None], candidates[None]))
    assert (odds <= bound * (1 + 1e-9) + 1e-9 * np.abs(likelihoods).max()).all()


def test_the_guarantee_is_reached_by_an_output_beyond_a_candidate():
    law = LAWS["mahalanobis"]
    near, far = records(1)[0][0, :2]
    likelihoods = candidate_log_likelihoods((near + 3 * (near - far))[None], np.stack([near, far])[None], law=law)[0]
    assert likelihoods[0] - likelihoods[1] == pytest.approx(law.epsilon * law.distance(near, far))


def test_the_exact_law_beats_cosine_where_noise_is_concentrated():
    candidates, truth, embeddings = records(1000)
    law = concentrated(4.0)
    found = attack(released(law, embeddings), candidates, truth, law=law)
    assert found.top1.low > found.top1_cosine.high + 0.1
    assert found.mrr.value > found.top1.value


@pytest.mark.parametrize("name", LAWS)
def test_unprotected_vectors_give_every_value_away(name):
    candidates, truth, embeddings = records(300)
    found = attack(released(LAWS[name], embeddings), candidates, truth, law=LAWS[name])
    assert (found.unprotected.value, found.verdict) == (1, "ok")
    assert attack(embeddings, candidates, truth, law=LAWS[name]).top1.value == 1


def test_a_release_without_noise_is_read_with_certainty():
    candidates, truth, embeddings = records(300)
    law = NoMechanism(dimension=N)
    found = attack(released(law, embeddings), candidates, truth, law=law)
    assert (found.top1.value, found.mrr.value) == (1, 1)
    assert found.confidence.value == pytest.approx(1)


def test_huge_noise_leaves_chance():
    candidates, truth, embeddings = records(2000)
    law = Laplace(dimension=N, rho=1e4)
    found = attack(released(law, embeddings), candidates, truth, law=law)
    assert found.floor == pytest.approx(1 / CANDIDATES)
    assert found.top1.low < found.floor < found.top1.high
    assert found.confidence.value == pytest.approx(found.floor, abs=1e-3)
    assert found.mrr.value == pytest.approx(np.mean(1 / np.arange(1, CANDIDATES + 1)), abs=0.02)


def test_known_frequencies_are_used_and_raise_the_floor():
    candidates, _, _ = records()
    prior = np.array([20.0, 4, 2, 1, 1, 1])
    truth = draws(4).choice(CANDIDATES, size=len(candidates), p=prior / prior.sum())
    law = Laplace(dimension=N, rho=4)
    noised = released(law, candidates[np.arange(len(truth)), truth])
    plain = attack(noised, candidates, truth, law=law)
    informed = attack(noised, candidates, truth, law=law, prior=prior)
    assert informed.floor == np.mean(truth == 0)
    assert informed.top1.value > max(informed.floor, plain.top1.value + 0.1)
    assert informed.claimed.value == pytest.approx(informed.top1.value, abs=0.03)


def test_likelihoods_of_several_releases_multiply():
    candidates, truth, embeddings = records(800)
    law = LAWS["laplace"]
    noised = np.stack([released(law, embeddings, seed) for seed in range(4)], axis=1)
    together = candidate_log_likelihoods(noised, candidates, law=law)
    apart = sum(candidate_log_likelihoods(noised[:, j], candidates, law=law) for j in range(4))
    np.testing.assert_allclose(together, apart)
    assert_calibrated(candidate_posterior(together), truth)
    first, all_four = (attack(given, candidates, truth, law=law) for given in (noised[:, 0], noised))
    assert all_four.top1.low > first.top1.high


def test_candidates_may_come_as_an_array_a_template_or_a_callable():
    template = records(1)[0][0]
    truth = draws(2).integers(0, CANDIDATES, 150)
    law = LAWS["laplace"]
    noised = released(law, template[truth])
    repeated = np.repeat(template[None], 150, axis=0)
    expected = attack(noised, repeated, truth, law=law)
    asked = []

    def some(rows):
        asked.append(rows)
        return repeated[rows]

    assert attack(noised, template, truth, law=law) == expected == attack(noised, some, truth, law=law)
    assert [(rows.start, rows.stop) for rows in asked] == [(0, 64), (64, 128), (128, 150)]


def test_equal_candidates_share_the_guess():
    scores = np.array([[2.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    assert top1_hits(scores, np.array([0, 0])).tolist() == [0.5, 0]
    assert candidate_ranks(scores, np.array([0, 0])).tolist() == [1.5, 3]
    same = np.ones((CANDIDATES, N))
    found = attack(np.ones((30, N)), same, np.zeros(30, dtype=int), law=LAWS["laplace"])
    assert found.top1.value == pytest.approx(found.floor)
    assert found.verdict == "attack failed"


def test_candidates_that_do_not_resemble_the_records_are_a_failed_attack():
    candidates, truth, _ = records(500)
    others = unit_rows(draws(9).standard_normal((500, N)))
    found = attack(others, candidates, truth, law=LAWS["laplace"], unprotected=others)
    assert found.verdict == "attack failed"


def test_values_are_put_where_the_span_is_in_its_letter_case():
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return np.array([[len(text), 0.0] for text in texts])

    texts = ["ASTHMA since 1999.", "She has asthma."]
    candidates = substituted_candidates(texts, [Span(0, 6), Span(8, 14)], ["Gout", "Asthma"], encode=encode)
    assert candidates(slice(0, 2)).shape == (2, 2, 2)
    assert encoded == ["GOUT since 1999.", "ASTHMA since 1999.", "She has gout.", "She has asthma."]


def spread_policy(*, least=0.2, **changes):
    """Embeddings of falling variance in one basis, noise in some directions of another, and a little elsewhere."""
    mask = Mask(
        values=np.where(np.arange(N) < 6, 1.0, 0.0),
        basis=orthogonal(),
        mean=draws(3).standard_normal(N) / 10,
        covariance=orthogonal(1) @ np.diag(np.geomspace(1, least, N) / N) @ orthogonal(1).T,
        info=MaskInfo(("made-up",), "f" * 16, "5a17", SPEC, "label", 0.02, 0, {}),
    )
    options = {"encoder": SPEC, "mechanism": "mahalanobis", "mask": mask, "rho": 3, "floor": 0.03}
    return Policy.build(**(options | changes))


def test_a_read_out_is_no_obstacle():
    candidates, _, embeddings = records(300)
    policy, key = spread_policy(), Key(bytes(range(32)))
    raw = spread_policy(read_out="none")
    noised = [released(law, embeddings) for law in (policy.law, raw.law)]
    undone = policy.undo_read_out(policy.reader.apply(noised[0]).astype(np.float32))
    posteriors = [
        candidate_posterior(candidate_log_likelihoods(y, candidates, law=raw.law)) for y in (undone, noised[1])
    ]
    np.testing.assert_allclose(*posteriors, atol=2e-3)
    published = policy.release(embeddings, ids=range(300), contents=["?"] * 300, key=key)
    truth = np.zeros(300, dtype=int)
    by_cosine = attack(policy.undo_read_out(published), candidates, truth, law=policy.law, published=published)
    assert by_cosine.top1_cosine == attack(published, candidates, truth, law=policy.law).top1_cosine


def test_who_does_not_know_the_rest_of_the_text_takes_it_for_spread():
    policy = spread_policy(least=1e-2, floor=1e-4)
    generator, mask = draws(5), policy.mask
    shifts = unit_rows(generator.standard_normal((CANDIDATES, N))) * 0.2
    truth = generator.integers(0, CANDIDATES, 2000)
    covariance = mask.basis @ mask.covariance @ mask.basis.T
    embeddings = generator.multivariate_normal(mask.mean, covariance, 2000) + shifts[truth]
    noised = released(policy.law, embeddings)
    contexts = generator.multivariate_normal(mask.mean, covariance, 10)[:, None] + shifts
    exact = attack(noised, contexts[0], truth, law=policy.law, unprotected=embeddings)
    candidates, law = unknown_context(policy, contexts)
    spread = attack(noised, candidates, truth, law=law, unprotected=embeddings)
    assert exact.claimed.value > 0.95 > exact.top1.value + 0.2
    assert spread.top1.low > max(exact.top1.high, spread.top1_cosine.high)
    assert spread.claimed.value == pytest.approx(spread.top1.value, abs=0.04)
    assert spread.verdict == "ok"
    with pytest.raises(SparseError, match="no mask"):
        unknown_context(Policy.build(encoder=SPEC, mechanism="laplace", rho=1, read_out="none"), contexts)
    with pytest.raises(SparseError, match="contexts have shape"):
        unknown_context(policy, contexts[:, :, 1:])


VALUES = ("asthma", "diabetes", "cancer", "stroke", "pneumonia", "depression", "gout", "anemia")


@pytest.fixture(scope="module")
def diagnoses(encoder, sentences):
    """Real sentences with each of eight diagnoses in turn: float array, shape (n_records, 8, 384)."""
    found = [(text, text.index(value)) for text in sentences for value in VALUES if text.split().count(value)][:12]
    spans = [Span(start, start + len(text[start:].split()[0])) for text, start in found]
    candidates = substituted_candidates([text for text, _ in found], spans, VALUES, encode=encoder.encode)
    return candidates(slice(0, len(found))).astype(np.float64)


@pytest.mark.parametrize("name", ["laplace", "mahalanobis"])
def test_the_posterior_is_calibrated_on_real_vectors(name, diagnoses):
    differences = (diagnoses - diagnoses.mean(axis=1, keepdims=True)).reshape(-1, 384)
    basis = np.linalg.svd(differences)[2].T
    law = Laplace(dimension=384, rho=4) if name == "laplace" else concentrated(4.0, basis=basis, n_open=40)
    candidates = np.tile(diagnoses, (120, 1, 1))
    truth = draws(6).integers(0, len(VALUES), len(candidates))
    noised = released(law, candidates[np.arange(len(truth)), truth], seed=7)
    posterior = candidate_posterior(candidate_log_likelihoods(noised, candidates, law=law))
    assert 0.3 < posterior.max(axis=1).mean() < 0.98
    assert_calibrated(posterior, truth)


def test_unusable_input_is_refused():
    candidates, truth, embeddings = records(10)
    law = LAWS["laplace"]
    with pytest.raises(SparseError, match="truth must be the index of one of the 6"):
        attack(embeddings, candidates, truth + 6, law=law)
    with pytest.raises(SparseError, match="truth must be the index"):
        attack(embeddings, candidates, truth / 2, law=law)
    with pytest.raises(SparseError, match="noised has 10, truth has 9"):
        attack(embeddings, candidates, truth[:9], law=law)
    with pytest.raises(SparseError, match="candidates has 9"):
        attack(embeddings, candidates[:9], truth, law=law)
    with pytest.raises(SparseError, match="candidates of records 0 to 9 have shape"):
        attack(embeddings, candidates[:, :, 1:], truth, law=law)
    with pytest.raises(SparseError, match="at least 2"):
        attack(embeddings, candidates[:, :1], truth * 0, law=law)
    with pytest.raises(SparseError, match="not finite"):
        attack(embeddings, np.full_like(candidates, np.nan), truth, law=law)
    with pytest.raises(SparseError, match="no record to attack"):
        attack(embeddings[:0], candidates[:0], truth[:0], law=law)
    with pytest.raises(SparseError, match="the prior must be 6 positive numbers"):
        attack(embeddings, candidates, truth, law=law, prior=np.array([1, 1, 1, 1, 1, 0]))
    with pytest.raises(SparseError, match="unprotected has dimension 23"):
        attack(embeddings, candidates, truth, law=law, unprotected=embeddings[:, 1:])
