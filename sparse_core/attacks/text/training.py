"""Training a decoder on texts whose vectors the attacker holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparse_core.attacks.text.base import Progress, TrainingLog
from sparse_core.attacks.text.decoder import PrefixedDecoder

Shown = Callable[[np.ndarray, int], tuple[np.ndarray, list[list[int]] | None]]
_WARM_UP = 0.05
_BATCHES_SORTED = 16
_CLIP = 1.0


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    Parameters
    ----------
    epochs, patience : int
        At most so many passes, and so many without a lower validation loss.
    batch_size : int
    learning_rate : float
        At its highest, of networks trained from scratch; falls to 0 along half a cosine.
    pretrained_learning_rate : float
        The same of a pretrained language model, or of its low-rank updates.
    weight_decay : float
    """

    epochs: int
    patience: int
    batch_size: int
    learning_rate: float
    pretrained_learning_rate: float
    weight_decay: float


def train_decoder(
    decoder: PrefixedDecoder,
    ids: Sequence[Sequence[int]],
    shown: Shown,
    *,
    fit: np.ndarray,
    judged: np.ndarray,
    schedule: Schedule,
    pretrained: bool,
    generator: np.random.Generator,
    progress: Progress | None = None,
) -> TrainingLog:
    """Minimise the negative log-likelihood of texts given what is shown of them.

    Dropout draws from torch's global generator, which the caller seeds and guards.

    Parameters
    ----------
    decoder : PrefixedDecoder
        Left with the weights of the lowest validation loss, in evaluation mode.
    ids : sequence of (sequence of int), length n_records
        Texts.
    shown : callable
        From rows and the number of the epoch to conditions, float32 array (n_rows, n_features), and hypotheses.
    fit, judged : int array
        Rows to learn from and rows to stop on.
    schedule : Schedule
    pretrained : bool
        Whether the language model brings weights of its own.
    generator : numpy.random.Generator
        Order of the records.
    progress : callable, optional
        Called as ``progress(epoch, epochs)``.

    Returns
    -------
    TrainingLog
    """
    started = time.process_time()
    rate = schedule.pretrained_learning_rate if pretrained else schedule.learning_rate
    language = [p for p in decoder.language_model.parameters() if p.requires_grad]
    own = [p for name, p in decoder.named_parameters() if not name.startswith("language_model.")]
    optimizer = torch.optim.AdamW(
        [{"params": language, "lr": rate}, {"params": own, "lr": schedule.learning_rate}],
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    lengths = np.array([len(row) for row in ids])
    n_steps = schedule.epochs * -(-len(fit) // schedule.batch_size)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step, n_steps))
    losses: list[float] = []
    steps = epoch = 0
    kept: dict[str, torch.Tensor] = {}
    for epoch in range(1, schedule.epochs + 1):
        decoder.train()
        for rows in _batches(fit, lengths, schedule.batch_size, generator):
            total, count = _loss(decoder, ids, shown, rows, epoch)
            optimizer.zero_grad(set_to_none=True)
            (total / count).backward()
            torch.nn.utils.clip_grad_norm_([*language, *own], _CLIP)
            optimizer.step()
            falling.step()
            steps += 1
        losses.append(_validation_loss(decoder, ids, shown, judged, lengths, schedule.batch_size))
        if losses[-1] == min(losses):
            learned = ((name, value) for name, value in decoder.named_parameters() if value.requires_grad)
            kept = {name: value.detach().clone() for name, value in learned}
        if progress is not None:
            progress(epoch, schedule.epochs)
        if epoch - (1 + int(np.argmin(losses))) >= schedule.patience:
            break
    decoder.load_state_dict(kept, strict=False)
    decoder.eval()
    improving = int(np.argmin(losses)) == len(losses) - 1
    return TrainingLog(len(fit), epoch, steps, time.process_time() - started, tuple(losses), improving)


def _factor(step: int, n_steps: int) -> float:
    warm = max(1, round(_WARM_UP * n_steps))
    return (step + 1) / warm if step < warm else 0.5 * (1 + np.cos(np.pi * (step - warm) / max(1, n_steps - warm)))


def _batches(rows: np.ndarray, lengths: np.ndarray, size: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Random batches of texts of similar length, which need little padding."""
    order = generator.permutation(rows)
    batches = []
    for start in range(0, len(order), size * _BATCHES_SORTED):
        part = order[start : start + size * _BATCHES_SORTED]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += np.array_split(part, -(-len(part) // size))
    return [batches[place] for place in generator.permutation(len(batches))]


def _loss(decoder: PrefixedDecoder, ids, shown: Shown, rows: np.ndarray, epoch: int):
    conditions, hypotheses = shown(rows, epoch)
    return decoder.loss(torch.from_numpy(conditions).to(decoder.device), hypotheses, [ids[row] for row in rows])


@torch.inference_mode()
def _validation_loss(decoder: PrefixedDecoder, ids, shown: Shown, rows, lengths, size: int) -> float:
    decoder.eval()
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    parts = [_loss(decoder, ids, shown, part, 0) for part in np.array_split(rows, -(-len(rows) // size))]
    return float(sum(total for total, _ in parts)) / sum(count for _, count in parts)
