import sys
from dataclasses import dataclass

import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge, build_attack
from sparse_core.errors import SparseError
from sparse_core.evaluation.leakage import micro_leakage
from sparse_core.masks import label_basis, whitebox_mask
from sparse_core.noise import Key
from sparse_core.policy import Policy


def reads(weights):
    """A linear attacker that scores each token by its own direction."""
    import torch

    attacker = torch.nn.Linear(weights.shape[1], weights.shape[0])
    attacker.weight.data = torch.tensor(weights, dtype=torch.float32)
    return attacker


@pytest.fixture
def whitebox(corpus, spec):
    pytest.importorskip("captum")

    def whitebox(attacker, **changes):
        given = {
            "embeddings": corpus.embeddings,
            "token_labels": corpus.token_labels,
            "concepts": ("planted",),
            "concept_fingerprint": "f" * 16,
            "salt": "5a17",
            "encoder": spec,
        }
        return whitebox_mask(attacker, **(given | changes))

    return whitebox


def test_only_coordinates_that_the_attacker_reads_are_masked(whitebox):
    weights = np.zeros((5, 32))
    weights[:, [3, 7, 11]] = 1.0
    mask = whitebox(reads(weights), share=0.999)
    assert set(np.flatnonzero(mask.values)) == {3, 7, 11}


def test_attributions_follow_the_basis(whitebox):
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((32, 32)))
    mask = whitebox(reads(np.tile(basis[:, 4], (5, 1))), basis=basis, share=0.9)
    assert list(np.flatnonzero(mask.values)) == [4]


def test_a_mask_tells_the_basis_it_was_attributed_to(whitebox, corpus):
    attacker = reads(corpus.token_directions)
    named = whitebox(attacker, basis=np.eye(32)[:, ::-1], basis_name="label")
    assert (whitebox(attacker).info.basis, named.info.basis) == ("whitebox", "whitebox-label")


def test_the_label_basis_starts_with_what_tells_tokens_and_is_orthogonal(corpus):
    basis = label_basis(corpus.embeddings, corpus.token_labels)
    np.testing.assert_allclose(basis.T @ basis, np.eye(32), atol=1e-10)
    crossed = (corpus.embeddings - corpus.embeddings.mean(axis=0)).T @ (corpus.token_labels - 0.12)
    assert np.abs(basis[:, 5:].T @ crossed).max() < 1e-6 * np.abs(basis[:, :5].T @ crossed).max()


def test_a_larger_share_masks_more(whitebox, corpus):
    attacker = reads(corpus.token_directions)
    fewer, more = (whitebox(attacker, share=s).info.metrics["directions_open"] for s in (0.5, 0.95))
    assert fewer < more


def test_an_attacker_that_reads_nothing_is_refused(whitebox):
    with pytest.raises(SparseError, match="do not depend"):
        whitebox(reads(np.zeros((5, 32))))


def test_records_without_tokens_are_refused(whitebox, corpus):
    with pytest.raises(SparseError, match="all false"):
        whitebox(reads(corpus.token_directions), token_labels=np.zeros((2000, 5), dtype=bool))


def test_without_captum_the_extra_is_named(corpus, spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(SparseError, match="extra 'whitebox'"):
        whitebox_mask(
            reads(corpus.token_directions),
            embeddings=corpus.embeddings,
            token_labels=corpus.token_labels,
            concepts=("planted",),
            concept_fingerprint="f" * 16,
            salt="5a17",
            encoder=spec,
        )


# Against the attacker that was attributed


@dataclass
class Attacked:
    """A trained attacker, records it has not seen, and a mask of what it reads."""

    mask: object
    attacker: object
    embeddings: np.ndarray
    labels: np.ndarray

    def leakage(self, mechanism, **options):
        ids = list(range(len(self.embeddings)))
        policy = Policy.build(
            encoder=self.mask.info.encoder, mechanism=mechanism, mask=self.mask, read_out="none", **options
        )
        key = Key(bytes(range(32)))
        noised = policy.release(self.embeddings, ids=ids, contents=[""] * len(ids), key=key)
        return micro_leakage(self.attacker.scores(noised), self.labels)


@pytest.fixture(scope="module")
def attacked(corpus, spec):
    """Tokens that show in six coordinates of an encoder whose coordinates mean something."""
    pytest.importorskip("captum")
    directions = np.zeros_like(corpus.token_directions)
    directions[:, 4:10] = corpus.token_directions[:, 4:10]
    meaning = np.random.default_rng(3).standard_normal((len(corpus.token_labels), 32)) / 2
    embeddings = meaning + corpus.token_labels @ directions
    embeddings /= np.linalg.norm(embeddings, axis=1).mean()
    attacker = build_attack("mlc", epochs=20)
    attacker.fit(embeddings[:1200], corpus.token_labels[:1200], public=PublicKnowledge(), seed=0)
    mask = whitebox_mask(
        attacker.as_module(),
        embeddings=embeddings[:1200],
        token_labels=corpus.token_labels[:1200],
        concepts=("planted",),
        concept_fingerprint="f" * 16,
        salt="5a17",
        encoder=spec,
        share=0.6,
    )
    return Attacked(mask, attacker, embeddings[1200:], corpus.token_labels[1200:])


def test_the_module_of_an_attacker_is_what_it_scores_with(attacked):
    import torch

    with torch.no_grad():
        logits = attacked.attacker.as_module()(torch.tensor(attacked.embeddings, dtype=torch.float32)).double()
    np.testing.assert_allclose(torch.sigmoid(logits).numpy(), attacked.attacker.scores(attacked.embeddings), atol=1e-4)


def test_of_a_trained_attacker_only_coordinates_that_tokens_show_in_are_masked(attacked):
    assert set(np.flatnonzero(attacked.mask.values)) <= set(range(4, 10))


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
def test_the_attacker_finds_less_than_under_isotropic_noise_of_the_same_length(attacked, rho):
    assert attacked.leakage("none") > 0.8
    assert attacked.leakage("mahalanobis", rho=rho, floor=0.03) < attacked.leakage("laplace", rho=rho) - 0.03
