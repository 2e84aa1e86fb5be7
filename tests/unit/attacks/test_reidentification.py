import numpy as np
import pytest

from sparse_core.attacks import PublicKnowledge, reidentification
from sparse_core.attacks.reidentification import self_ranks
from sparse_core.errors import SparseError
from sparse_core.evaluation.metrics import unit_rows


def draws(seed=0):
    return np.random.default_rng(seed)


def unit_vectors(n=400, dimension=32):
    return unit_rows(draws(7).standard_normal((n, dimension)))


def noised(vectors, noise_variance, basis, seed=0):
    return vectors + draws(seed).standard_normal(vectors.shape) * np.sqrt(noise_variance) @ basis.T


def test_unprotected_records_are_all_linked():
    vectors = unit_vectors()
    found = reidentification(vectors, vectors, generator=draws())
    assert (found.top1.value, found.mrr, found.strategy) == (1, 1, "cosine")
    assert found.top1.low == pytest.approx(0.025 ** (1 / 400))
    assert found.top1_whitened is None


def test_noise_in_few_directions_hides_nothing_from_who_knows_them():
    vectors, basis = unit_vectors(), np.linalg.qr(draws(1).standard_normal((32, 32)))[0]
    variance = np.where(np.arange(32) < 16, 4.0, 4e-6)
    public = PublicKnowledge(basis=basis, noise_variance=variance)
    found = reidentification(noised(vectors, variance, basis), vectors, public=public, generator=draws())
    assert found.top1_cosine.high < 0.1
    assert found.top1 == found.top1_whitened
    assert found.top1.value > 0.99
    assert found.strategy == "whitened"


def test_isotropic_noise_makes_both_metrics_agree():
    vectors = unit_vectors()
    variance = np.full(32, 0.05)
    protected = noised(vectors, variance, np.eye(32))
    found = reidentification(protected, vectors, public=PublicKnowledge(noise_variance=variance), generator=draws())
    assert found.top1_whitened.value == pytest.approx(found.top1_cosine.value, abs=0.01)
    assert 0.1 < found.top1.value < 0.99
    assert found.top1.value < found.mrr < 1


def test_unrelated_vectors_are_linked_no_more_than_by_chance():
    found = reidentification(unit_vectors(), draws(3).standard_normal((400, 32)), generator=draws())
    assert found.top1.value < 0.02
    assert found.mrr == pytest.approx(np.mean(1 / np.arange(1, 401)), abs=0.01)


def test_ranks_count_nearer_candidates_whatever_the_blocks():
    records, candidates = draws().standard_normal((2, 60, 5))
    distance = ((records[:, None] - candidates[None]) ** 2).sum(axis=2)
    expected = 1 + (distance < np.diag(distance)[:, None]).sum(axis=1)
    for cells in (60 * 7, 10**6, 1):
        ranks = self_ranks(records, candidates, np.arange(60), block_cells=cells)
        assert ranks.tolist() == expected.tolist()


def test_copies_of_a_record_do_not_hide_it():
    vectors = np.repeat(unit_vectors(50), 2, axis=0)
    assert reidentification(vectors, vectors, generator=draws()).top1.value == 1


def test_vectors_without_information_are_not_linked():
    assert reidentification(np.zeros((400, 32)), unit_vectors(), generator=draws()).top1.value == 0


def test_records_may_be_fewer_than_candidates():
    vectors = unit_vectors()
    rows = np.array([5, 17, 300])
    found = reidentification(vectors[rows], vectors, rows=rows, generator=draws())
    assert (found.top1.value, found.n_records, found.n_candidates) == (1, 3, 400)


def test_unusable_input_is_refused():
    vectors = unit_vectors()
    with pytest.raises(SparseError, match="protected has 3"):
        reidentification(vectors[:3], vectors, generator=draws())
    with pytest.raises(SparseError, match="one of the 400 candidates"):
        reidentification(vectors[:2], vectors, rows=np.array([0, 400]), generator=draws())
    with pytest.raises(SparseError, match="protected has dimension 31"):
        reidentification(vectors[:, 1:], vectors, generator=draws())
