"""The training loop behind `learn_mask`: two classifiers that see the embeddings through the same gates."""

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from sparse_core.errors import SparseError
from sparse_core.masks.hardconcrete import HardConcreteGates

HIDDEN = 64
BATCH = 256
PATIENCE = 5


def train_gates(
    *,
    positive,
    negative,
    held_out,
    records,
    token_labels,
    dimension,
    penalty,
    seed,
    epochs,
    learning_rate,
    gate_learning_rate,
    temperature,
    device,
    progress,
) -> tuple[np.ndarray, dict[str, float]]:
    """Train gates on coordinates that are already in the basis; parameters as in `learn_mask`.

    Returns
    -------
    values : float64 array, shape (count,)
        Gates without noise.
    metrics : dict
        ``accuracy`` (held-out pairs), ``expected_l0``, ``epochs`` and, with token labels, ``token_recall``
        (held-out: share of true tokens among as many guesses).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    pairs, pair_targets, test_pairs, test_targets = _contrast(positive, negative, held_out, device)
    count = pairs.shape[1]
    gates = HardConcreteGates(count, temperature=temperature).to(device)
    detector = torch.nn.Sequential(
        torch.nn.Linear(count, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1), torch.nn.Flatten(0)
    ).to(device)
    heads = [_Task(detector, pairs, pair_targets)]
    if token_labels is not None:
        corpus, labels, test_corpus, test_labels = _corpus(
            records, token_labels, held_out.mean(), seed, device
        )
        heads.append(_Task(torch.nn.Linear(count, labels.shape[1]).to(device), corpus, labels))
    for head in heads:
        _initialise(head.model, generator)
    optimizer = torch.optim.Adam(
        [
            {"params": [p for head in heads for p in head.model.parameters()], "lr": learning_rate},
            {"params": gates.parameters(), "lr": gate_learning_rate},
        ]
    )
    best, best_epoch, settled = 0.0, 0, np.inf
    for epoch in range(1, epochs + 1):
        for batches in _epoch(heads, generator):
            loss = penalty * gates.expected_l0().sum() / dimension
            for head, rows in zip(heads, batches, strict=True):
                inputs = head.inputs[rows]
                uniforms = torch.rand(inputs.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(device)
                loss = loss + head.loss(inputs * gates.sample(uniforms), rows) / len(heads)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            values = gates.values()
            accuracy = ((detector(test_pairs * values) > 0) == (test_targets > 0)).double().mean().item()
            expected_l0 = gates.expected_l0().sum().item()
        if not np.isfinite(loss.item()) or not np.isfinite(expected_l0):
            raise SparseError("training diverged: lower learning_rate or gate_learning_rate")
        metrics = {"accuracy": accuracy, "expected_l0": expected_l0, "epochs": float(epoch)}
        if progress is not None:
            progress(epoch, epochs, metrics)
        moved = abs(expected_l0 - settled) > 0.005 * count
        if accuracy > best or moved:
            best, best_epoch, settled = max(best, accuracy), epoch, expected_l0 if moved else settled
        if epoch - best_epoch >= PATIENCE:
            break
    if token_labels is not None:
        with torch.no_grad():
            metrics["token_recall"] = _recall(heads[1].model(test_corpus * values), test_labels)
    return values.double().cpu().numpy(), metrics


class _Task:
    """A classifier, what it sees, and its loss relative to guessing by frequency."""

    def __init__(self, model, inputs, targets):
        self.model, self.inputs, self.targets = model, inputs, targets
        rate = targets.mean(dim=0).clamp(1e-6, 1 - 1e-6)
        self.chance = -(rate * rate.log() + (1 - rate) * (1 - rate).log()).sum()

    def loss(self, gated, rows):
        summed = cross_entropy(self.model(gated), self.targets[rows], reduction="sum")
        return summed / len(rows) / self.chance


def _contrast(positive, negative, held_out, device):
    train = np.vstack([positive[~held_out], negative[~held_out]])
    test = np.vstack([positive[held_out], negative[held_out]])
    scale = _Scale(train)
    targets = [
        torch.tensor(np.repeat([1.0, 0.0], n), dtype=torch.float32, device=device)
        for n in _halves(train, test)
    ]
    return scale(train, device), targets[0], scale(test, device), targets[1]


def _corpus(records, token_labels, share, seed, device):
    labels = np.asarray(token_labels, dtype=np.float32)
    held_out = np.random.default_rng(seed).random(len(records)) < share
    scale = _Scale(records[~held_out])
    tensors = [torch.tensor(labels[rows], device=device) for rows in (~held_out, held_out)]
    return scale(records[~held_out], device), tensors[0], scale(records[held_out], device), tensors[1]


class _Scale:
    def __init__(self, rows):
        self.mean, self.deviation = rows.mean(axis=0), rows.std(axis=0) + 1e-12

    def __call__(self, rows, device):
        return torch.tensor((rows - self.mean) / self.deviation, dtype=torch.float32, device=device)


def _halves(*arrays):
    return [len(array) // 2 for array in arrays]


def _initialise(model, generator):
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            bound = layer.in_features**-0.5
            drawn = torch.rand(layer.weight.shape, generator=generator) * 2 * bound - bound
            layer.weight.data.copy_(drawn)
            layer.bias.data.zero_()


def _epoch(heads, generator):
    """Batches of rows for every head; the shorter data set starts over until the longer is through."""
    steps = max(-(-len(head.inputs) // BATCH) for head in heads)
    orders = []
    for head in heads:
        order = torch.cat(
            [
                torch.randperm(len(head.inputs), generator=generator)
                for _ in range(1 + steps * BATCH // len(head.inputs))
            ]
        )
        orders.append(order)
    for step in range(steps):
        yield [
            order[step * BATCH : (step + 1) * BATCH][: len(head.inputs)]
            for order, head in zip(orders, heads, strict=True)
        ]


def _recall(scores, labels) -> float:
    hits = total = 0
    for row, truth in zip(scores, labels > 0, strict=True):
        guesses = int(truth.sum())
        if guesses:
            hits += int(truth[row.topk(guesses).indices].sum())
            total += guesses
    return hits / total if total else float("nan")
