"""ONNX Runtime: running an exported model on padded batches, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"


class OnnxBackend:
    """An exported model; see `sparse_core.encoders.encoder.Backend`.

    Every run takes one thread, that of the caller, so that actors on one machine do not get in each other's way.
    """

    def __init__(self, model: Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(model),
            options,
            providers=["CPUExecutionProvider"],
            # The fused kernel is slower than addition and LayerNormalization by a tenth of the whole model.
            disabled_optimizers=["SkipLayerNormFusion"],
        )

    def run(self, token_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Vectors of one padded batch: float32, shape (n_rows, dimension)."""
        return self._session.run([OUTPUT], dict(zip(INPUTS, (token_ids, attention_mask), strict=True)))[0]

    def map(self, batches: Iterable[tuple], *, threads: int) -> Iterator[tuple[list[int], np.ndarray]]:
        """Run batches on `threads` threads side by side."""

        def forward(batch):
            rows, token_ids, mask = batch
            return rows, self.run(token_ids, mask)[: len(rows)]

        if threads == 1:
            yield from map(forward, batches)
            return
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(forward, batches)
