from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm

from sparse_core.attacks import PublicKnowledge


@dataclass(frozen=True)
class Gaussian:
    """Records around two centres, one token each, under Gaussian noise: the best attack is known."""

    unprotected: np.ndarray
    protected: np.ndarray
    labels: np.ndarray
    public: PublicKnowledge
    best_unprotected: float
    best_protected: float

    @property
    def train(self):
        return np.arange(len(self.labels) * 2 // 3)

    @property
    def test(self):
        return np.arange(len(self.labels) * 2 // 3, len(self.labels))


def linear_gaussian(
    *, n_records=1200, dimension=24, n_noisy=8, noise=3.0, distance=3.0, signal_in_noise=True, seed=0
) -> Gaussian:
    """Two classes at a Mahalanobis distance, and noise along `n_noisy` random directions only.

    With one token per record and two tokens, leakage is the accuracy of the best linear rule,
    Phi(distance / 2) (Fisher 1936).
    """
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.standard_normal((dimension, dimension)))[0]
    noise_variance = np.where(np.arange(dimension) < n_noisy, noise**2, 1e-4)
    shift = generator.standard_normal(dimension)
    if not signal_in_noise:
        shift[:n_noisy] = 0
    shift *= distance / np.linalg.norm(shift)
    side = generator.integers(0, 2, n_records)
    coordinates = generator.standard_normal((n_records, dimension)) + (side[:, None] - 0.5) * shift
    noised = coordinates + generator.standard_normal(coordinates.shape) * np.sqrt(noise_variance)
    variance = 1 + shift**2 / 4
    return Gaussian(
        unprotected=coordinates @ basis.T,
        protected=noised @ basis.T,
        labels=np.eye(2, dtype=bool)[side],
        public=PublicKnowledge(basis, noise_variance, np.zeros(dimension), variance),
        best_unprotected=norm.cdf(distance / 2),
        best_protected=norm.cdf(np.sqrt((shift**2 / (1 + noise_variance)).sum()) / 2),
    )


@pytest.fixture
def make_gaussian():
    return linear_gaussian


@pytest.fixture(scope="session")
def gaussian():
    return linear_gaussian()


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    import torch

    torch.set_num_threads(1)
