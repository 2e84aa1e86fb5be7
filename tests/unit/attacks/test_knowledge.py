import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge, estimate_knowledge
from sparse_core.attacks.coordinates import fit_coordinates, joint_directions
from sparse_core.errors import SparseError


def test_whitened_coordinates_have_variance_one(gaussian):
    coordinates = fit_coordinates(gaussian.protected, gaussian.public)
    assert coordinates.features(gaussian.protected, "whitened").var(axis=0) == pytest.approx(np.ones(24))


def test_faithful_coordinates_shrink_by_the_correlation_noise_leaves(gaussian):
    faithful = fit_coordinates(gaussian.protected, gaussian.public).features(gaussian.protected, "faithful")
    known = gaussian.public
    assert faithful.var(axis=0) == pytest.approx(known.variance / (known.variance + known.noise_variance))


def test_readout_coordinates_estimate_the_unprotected_vectors(gaussian):
    truth = gaussian.unprotected @ gaussian.public.basis
    read = fit_coordinates(gaussian.protected, gaussian.public).features(gaussian.protected, "readout")
    raw = gaussian.protected @ gaussian.public.basis
    assert ((read - truth) ** 2).mean() < 0.3 * ((raw - truth) ** 2).mean()


def test_joint_directions_are_uncorrelated_in_signal_and_in_noise():
    generator = np.random.default_rng(0)
    signal = np.cov(generator.standard_normal((5, 40)) * np.arange(1, 6)[:, None])
    basis = np.linalg.qr(generator.standard_normal((5, 5)))[0]
    noise_variance = np.array([4.0, 1.0, 1.0, 0.25, 0.25])
    noise = basis * noise_variance @ basis.T
    directions = joint_directions(signal + noise, basis, noise_variance)
    for covariance in (signal, noise):
        seen = directions.T @ covariance @ directions
        assert seen == pytest.approx(np.diag(np.diag(seen)), abs=1e-8)
    fidelity = np.diag(directions.T @ (signal + noise) @ directions)
    assert (fidelity > 0).all() and (fidelity < 1).all()


def test_knowledge_without_noise_is_about_unprotected_vectors(gaussian):
    clean = gaussian.public.without_noise()
    assert not clean.noise_variance.any()
    assert (clean.basis == gaussian.public.basis).all()
    assert PublicKnowledge().without_noise().noise_variance is None


def test_an_undocumented_noise_law_shows_in_known_pairs(gaussian):
    rows = gaussian.train
    known = estimate_knowledge(gaussian.unprotected[rows], gaussian.protected[rows])
    covariance = known.basis * known.noise_variance @ known.basis.T
    truth = gaussian.public.basis * gaussian.public.noise_variance @ gaussian.public.basis.T
    assert np.linalg.norm(covariance - truth) < 0.15 * np.linalg.norm(truth)


def test_contradictory_knowledge_is_refused():
    with pytest.raises(SparseError, match="not orthogonal"):
        PublicKnowledge(basis=np.ones((3, 3)))
    with pytest.raises(SparseError, match="noise_variance has shape"):
        PublicKnowledge(basis=np.eye(3), noise_variance=np.ones(2))
    with pytest.raises(SparseError, match="variance is negative in direction 1"):
        PublicKnowledge(variance=np.array([1.0, -1.0]))
