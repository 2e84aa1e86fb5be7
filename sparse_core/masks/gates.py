"""The training loop behind `learn_mask`."""

import math

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from sparse_core.errors import SparseError
from sparse_core.masks.hardconcrete import HardConcreteGates

HIDDEN = 64
BATCH = 512
WARM_UP = 5  # epochs with open gates: closing them before the classifier has learned would be arbitrary
PATIENCE = 10


def train_gates(
    *,
    positive,
    negative,
    held_out,
    strength,
    cost,
    weight,
    penalty,
    seed,
    epochs,
    learning_rate,
    gate_learning_rate,
    temperature,
    device,
    progress,
) -> tuple[np.ndarray, dict[str, float]]:
    """Train gates on the coordinates of pairs along concept directions; other parameters as in `learn_mask`.

    Parameters
    ----------
    positive, negative : float array, shape (n_pairs, k)
    held_out : bool array, shape (n_pairs,)
    strength : float array, shape (k,)
        Share of the concept's energy along each direction; zeros train with the classifier alone.
    cost : float array, shape (k,)
        Share of utility that hiding each direction costs.
    weight : float
        Of the classifier's loss in bits.

    Returns
    -------
    gates : float64 array, shape (k,)
        Without noise.
    metrics : dict
        ``accuracy`` on the held-out pairs, ``expected_l0``, ``epochs``.
    """
    generator = torch.Generator().manual_seed(seed)
    train, targets, test, test_targets = _contrast(positive, negative, held_out, device)
    gates = HardConcreteGates(train.shape[1], temperature=temperature).to(device)
    classifier = _classifier(train.shape[1], generator).to(device)
    energy, price = (torch.tensor(a, dtype=torch.float32, device=device) for a in (strength, penalty * cost))
    optimizer = torch.optim.Adam(
        [
            {"params": classifier.parameters(), "lr": learning_rate},
            {"params": gates.parameters(), "lr": gate_learning_rate},
        ]
    )
    best_accuracy, stable_l0, last_change = 0.0, math.inf, 0
    for epoch in range(1, epochs + 1):
        gates.log_alpha.requires_grad_(epoch > WARM_UP)
        for rows in torch.randperm(len(train), generator=generator).split(BATCH):
            uniforms = torch.rand((len(rows), train.shape[1]), generator=generator).clamp(1e-6, 1 - 1e-6)
            opened = gates.sample(uniforms.to(device))
            logits = classifier(train[rows] * opened)
            bits = binary_cross_entropy_with_logits(logits, targets[rows]) / math.log(2)
            probability = gates.expected_l0()
            closed_energy = (energy * (1 - probability)).sum()
            loss = bits * weight + closed_energy + (price * probability).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            correct = (classifier(test * gates.values()) > 0) == (test_targets > 0)
            accuracy, expected_l0 = correct.double().mean().item(), gates.expected_l0().sum().item()
        if not (math.isfinite(loss.item()) and math.isfinite(expected_l0)):
            raise SparseError("training diverged: lower learning_rate or gate_learning_rate")
        metrics = {"accuracy": accuracy, "expected_l0": expected_l0, "epochs": float(epoch)}
        if progress is not None:
            progress(epoch, epochs, metrics)
        if accuracy > best_accuracy or abs(expected_l0 - stable_l0) > 0.01 * expected_l0:
            best_accuracy, stable_l0, last_change = max(accuracy, best_accuracy), expected_l0, epoch
        if epoch >= max(last_change, WARM_UP) + PATIENCE:
            break
    return gates.values().detach().double().cpu().numpy(), metrics


def _contrast(positive, negative, held_out, device):
    train, test = (np.vstack([positive[rows], negative[rows]]) for rows in (~held_out, held_out))
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-12
    tensors = []
    for rows in (train, test):
        targets = np.repeat([1.0, 0.0], len(rows) // 2)
        tensors += [(rows - mean) / deviation, targets]
    return [torch.tensor(array, dtype=torch.float32, device=device) for array in tensors]


def _classifier(count, generator):
    layers = torch.nn.Linear(count, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1), torch.nn.Flatten(0)
    for layer in layers[0], layers[2]:
        bound = layer.in_features**-0.5
        layer.weight.data = (torch.rand(layer.weight.shape, generator=generator) * 2 - 1) * bound
        layer.bias.data.zero_()
    return torch.nn.Sequential(*layers)
