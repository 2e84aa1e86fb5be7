"""The multi-label classifier of the paper: a three-layer perceptron over concept tokens.

Song & Raghunathan (2020, section 4.1) invert sentence embeddings into word sets with a multi-label
classifier; arXiv 2602.07090 uses a three-layer perceptron of this kind as its main attacker. Here
it sees coordinates that Sigma makes comparable, and stops when held-out guesses stop improving.
"""

import threading
from collections.abc import Sequence

import numpy as np
from scipy.special import expit, logit

from sparse_core.attacks.base import check_training, check_transforms, register, validation_folds
from sparse_core.attacks.coordinates import fit_coordinates
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_vectors
from sparse_core.evaluation.leakage import micro_leakage

_RECORDS_PER_BLOCK = 8192


# Dropout draws from torch's global generator: two trainings at once would disturb each other, and neither could be
# repeated.
TORCH_GENERATOR = threading.Lock()


@register
class MlcAttack:
    """Three-layer perceptron, binary cross-entropy, AdamW, early stopping on the validation hit rate.

    Parameters
    ----------
    hidden : int
        Units of both hidden layers.
    dropout : float
        Of hidden units.
    learning_rate, weight_decay : float
        Of AdamW.
    batch_size : int, optional
        Records a step. By default a 32nd of the training records, at least 64 and at most 512.
    epochs, patience : int
        At most so many passes, and so many without a better validation hit rate.
    transforms : sequence of str, optional
        Candidate input coordinates, keys of `Coordinates.transforms`; the best on validation is kept.
        By default `readout` where the noise law is known, otherwise `plain` and `whitened`.
    device : str
        A torch device.

    Attributes
    ----------
    validation_leakage : float
        Once fitted: share of true tokens recovered from the training records held out to stop on.
    """

    name = "mlc"

    def __init__(
        self,
        *,
        hidden: int = 384,
        dropout: float = 0.3,
        learning_rate: float = 1.5e-3,
        weight_decay: float = 1e-2,
        batch_size: int | None = None,
        epochs: int = 60,
        patience: int = 12,
        transforms: tuple[str, ...] | None = None,
        device: str = "cpu",
    ):
        self.hidden = hidden
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.transforms = None if transforms is None else check_transforms(transforms)
        self.device = device

    def fit(
        self,
        vectors: np.ndarray,
        labels: np.ndarray,
        *,
        public: PublicKnowledge,
        seed: int,
        unprotected: np.ndarray | None = None,
        draws: Sequence[np.ndarray] = (),
    ) -> "MlcAttack":
        """See `Attack.fit`. Each epoch takes the next draw. The global random state of torch is left as it was.

        Raises
        ------
        SparseError
            For unusable vectors, an empty vocabulary, fewer than 10 records, or a device that torch
            does not have.
        """
        vectors, labels, draws = check_training(vectors, labels, draws)
        check_device(self.device)
        self._coordinates = fit_coordinates(vectors, public)
        fit, judged = validation_folds(labels, n_folds=5, seed=seed)[0]
        default = ("plain", "whitened") if public.noise_variance is None else ("readout",)
        best = -1.0
        for name in self.transforms or default:
            features = self._coordinates.features(vectors, name)
            scale = max(float(np.sqrt(np.mean(features**2))), np.finfo(np.float32).tiny)
            inputs = (features / scale).astype(np.float32)
            others = [self._coordinates.features(draw[fit], name) / scale for draw in draws[1:]]
            known = [inputs[fit], *(other.astype(np.float32) for other in others)]
            network, leakage = self._train(known, labels[fit], inputs[judged], labels[judged], seed)
            if leakage > best:
                best, self.transform, self._scale, self._network = leakage, name, scale, network
        self.validation_leakage = best
        return self

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """See `Attack.scores`. Probabilities are the sigmoid outputs the loss was trained on.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        features = self._coordinates.features(vectors, self.transform)
        return expit(_logits(self._network, (features / self._scale).astype(np.float32)).astype(np.float64))

    def as_module(self):
        """The fitted attacker as one torch module, for whoever wants its gradients.

        Returns
        -------
        torch.nn.Module
            Maps float32 vectors (rows, n) to the logits of `scores` (rows, n_tokens).
        """
        import torch

        to_inputs = (self._coordinates.transforms[self.transform] / self._scale).T
        coordinates = torch.nn.Linear(*reversed(to_inputs.shape), device=self.device)
        with torch.no_grad():
            coordinates.weight.copy_(torch.from_numpy(to_inputs))
            coordinates.bias.copy_(torch.from_numpy(-to_inputs @ self._coordinates.center))
        return torch.nn.Sequential(coordinates, self._network)

    def _train(
        self,
        draws: Sequence[np.ndarray],
        labels: np.ndarray,
        held_out: np.ndarray,
        held_out_labels: np.ndarray,
        seed: int,
    ):
        import torch

        device = torch.device(self.device)
        seen = [torch.from_numpy(inputs).to(device) for inputs in draws]
        y = torch.from_numpy(labels.astype(np.float32)).to(device)
        loss_of = torch.nn.BCEWithLogitsLoss(reduction="sum")
        best, waited, state = -1.0, 0, {}
        batch_size = self.batch_size or min(512, max(64, len(y) // 32))
        with TORCH_GENERATOR, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            network = self._build(draws[0].shape[1], labels).to(device)
            optimizer = torch.optim.AdamW(network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
            for epoch in range(self.epochs):
                network.train()
                x = seen[epoch % len(seen)]
                for rows in torch.randperm(len(y)).to(device).split(batch_size):
                    optimizer.zero_grad(set_to_none=True)
                    (loss_of(network(x[rows]), y[rows]) / len(rows)).backward()
                    optimizer.step()
                leakage = micro_leakage(_logits(network, held_out), held_out_labels) if len(held_out) else 0.0
                waited += 1
                if leakage > best:
                    best, waited = leakage, 0
                    state = {name: value.clone() for name, value in network.state_dict().items()}
                if waited >= self.patience:
                    break
        network.load_state_dict(state)
        return network, best

    def _build(self, dimension: int, labels: np.ndarray):
        import torch
        from torch import nn

        network = nn.Sequential(
            nn.Linear(dimension, self.hidden),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, labels.shape[1]),
        )
        rate = (labels.sum(axis=0) + 0.5) / (len(labels) + 1)
        with torch.no_grad():
            network[-1].bias.copy_(torch.from_numpy(logit(rate)))
        return network


def check_device(name: str) -> None:
    """Refuse a device that torch cannot use here.

    Parameters
    ----------
    name : str
        Such as "cpu" or "cuda:0".

    Raises
    ------
    SparseError
        If it is unknown or absent.
    """
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise SparseError(f"device {name} is not available to torch here; use cpu") from None


def _logits(network, inputs: np.ndarray) -> np.ndarray:
    import torch

    network.eval()
    device = next(network.parameters()).device
    with torch.inference_mode():
        blocks = [
            network(block.to(device)).cpu().numpy() for block in torch.from_numpy(inputs).split(_RECORDS_PER_BLOCK)
        ]
    return np.concatenate(blocks)
