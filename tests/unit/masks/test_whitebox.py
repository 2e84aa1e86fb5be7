import numpy as np
import pytest

from sparse_core.errors import SparseError
from sparse_core.masks import whitebox_mask


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
    assert mask.info.basis == "whitebox"


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
