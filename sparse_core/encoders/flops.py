"""How much arithmetic a transformer does, to tell how much of a machine's peak is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def forward_flops(config: Any, lengths: Sequence[int]) -> float:
    """Floating-point operations of encoding texts with a BERT-like encoder, its matrix products alone.

    A layer multiplies every token by four h x h matrices (query, key, value, output) and by two h x f ones (the
    feed-forward), and attention takes two products of n tokens by n tokens over h numbers; two operations for each
    multiplication. Padding does not count: it is work, but nobody asked for it.

    Parameters
    ----------
    config : transformers configuration
        With ``hidden_size``, ``intermediate_size`` and ``num_hidden_layers``.
    lengths : sequence of int
        Tokens of each text, as cut by the encoder.
    """
    h, f = config.hidden_size, config.intermediate_size
    per_layer = sum(n * (8 * h * h + 4 * h * f) + 4 * n * n * h for n in lengths)
    return float(config.num_hidden_layers * per_layer)
