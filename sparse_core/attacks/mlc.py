"""The multi-label classifier of the paper: a three-layer perceptron over concept tokens.

Song & Raghunathan (2020, section 4.1) invert sentence embeddings into word sets with a multi-label
classifier; arXiv 2602.07090 uses a three-layer perceptron of this kind as its main attacker. Here
it sees coordinates that Sigma makes comparable, and stops when held-out guesses stop improving.
"""

import numpy as np

from sparse_core.attacks.base import check_training, register, validation_rows
from sparse_core.attacks.coordinates import PublicKnowledge, fit_coordinates
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_vectors
from sparse_core.evaluation.leakage import micro_leakage

_RECORDS_PER_BLOCK = 8192


@register
class MlcAttack:
    """Three-layer perceptron, binary cross-entropy, Adam, early stopping on the validation hit rate.

    Parameters
    ----------
    hidden : int
        Units of both hidden layers.
    dropout : float
        Of hidden units.
    learning_rate, weight_decay : float
        Of AdamW.
    batch_size : int
        Records a step.
    epochs, patience : int
        At most so many passes, and so many without a better validation hit rate.
    scale : str
        Input coordinates, among `Coordinates.scales`.
    device : str
        A torch device.
    """

    name = "mlc"

    def __init__(
        self,
        *,
        hidden: int = 384,
        dropout: float = 0.3,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-2,
        batch_size: int = 256,
        epochs: int = 60,
        patience: int = 6,
        scale: str = "faithful",
        device: str = "cpu",
    ):
        self.hidden = hidden
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.scale = scale
        self.device = device

    def fit(self, vectors: np.ndarray, labels: np.ndarray, *, public: PublicKnowledge, seed: int) -> "MlcAttack":
        """See `Attack.fit`. The global random state of torch is left as it was.

        Raises
        ------
        SparseError
            For unusable vectors, an empty vocabulary, fewer than 10 records, or a device that torch
            does not have.
        """
        import torch

        vectors, labels = check_training(vectors, labels)
        device = _device(self.device)
        self._public = public
        vectors = public.undo_readout(vectors)
        self._coordinates = fit_coordinates(vectors, public)
        self._weights = self._coordinates.scales()[self.scale]
        self._weights = self._weights / np.sqrt(np.mean(self._weights**2))
        fit, validation = validation_rows(labels, seed=seed)
        judged = validation[labels[validation].any(axis=1)]
        inputs = torch.from_numpy(self._inputs(vectors[fit])).to(device)
        targets = torch.from_numpy(labels[fit].astype(np.float32)).to(device)
        held_out = self._inputs(vectors[judged])
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            self._network = self._build(vectors.shape[1], labels[fit]).to(device)
            optimizer = torch.optim.AdamW(
                self._network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
            )
            loss_of = torch.nn.BCEWithLogitsLoss(reduction="sum")
            best, waited = -1.0, 0
            for _ in range(self.epochs):
                self._network.train()
                for rows in torch.randperm(len(inputs)).to(device).split(self.batch_size):
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_of(self._network(inputs[rows]), targets[rows]) / len(rows)
                    loss.backward()
                    optimizer.step()
                leakage = micro_leakage(self._logits(held_out), labels[judged]) if len(judged) else 0.0
                waited += 1
                if leakage > best:
                    best, waited = leakage, 0
                    state = {name: value.clone() for name, value in self._network.state_dict().items()}
                if waited >= self.patience:
                    break
        self._network.load_state_dict(state)
        return self

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """See `Attack.scores`. Probabilities are the sigmoid outputs the loss was trained on.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        from scipy.special import expit

        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        return expit(self._logits(self._inputs(self._public.undo_readout(vectors))).astype(np.float64))

    def _inputs(self, vectors: np.ndarray) -> np.ndarray:
        return (self._coordinates.whitened(vectors) * self._weights).astype(np.float32)

    def _build(self, dimension: int, labels: np.ndarray):
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
        network[-1].bias.data.copy_(_tensor(np.log(rate / (1 - rate))))
        return network

    def _logits(self, inputs: np.ndarray) -> np.ndarray:
        import torch

        self._network.eval()
        device = next(self._network.parameters()).device
        with torch.inference_mode():
            blocks = [
                self._network(block.to(device)).cpu().numpy()
                for block in torch.from_numpy(inputs).split(_RECORDS_PER_BLOCK)
            ]
        return np.concatenate(blocks)


def _tensor(values: np.ndarray):
    import torch

    return torch.from_numpy(values.astype(np.float32))


def _device(name: str):
    import torch

    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SparseError(f"device {name} is not available to torch here; use cpu")
    return device
