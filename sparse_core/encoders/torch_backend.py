"""PyTorch: loading a sentence-transformers model and running it on padded batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain

import numpy as np

from sparse_core.encoders.identity import has_fast_tokenizer, hash_architecture, hash_tokenizer, hash_weights
from sparse_core.errors import SparseError

# Batches given to a GPU before the first result is waited for: it computes while the next ones are prepared.
_IN_FLIGHT = 8


def load_model(path: str, *, revision: str | None, device: str | None, local: bool):
    """A SentenceTransformer in evaluation mode.

    Raises
    ------
    OSError or ValueError
        If there is none.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    return SentenceTransformer(path, revision=revision, device=device, local_files_only=local).eval()


class TorchBackend:
    """A SentenceTransformer; see `sparse_core.encoders.encoder.Backend`."""

    def __init__(self, model, *, dtype: str = "float32"):
        import torch

        self.model = model.float()
        self._on_cpu = model.device.type == "cpu"
        if dtype != "float32":
            model[0].to(getattr(torch, dtype))

    def run(self, token_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Vectors of one padded batch: float32, shape (n_rows, dimension)."""
        return self._start(token_ids, attention_mask).cpu().numpy()

    def map(self, batches: Iterable[tuple], *, threads: int) -> Iterator[tuple[list[int], np.ndarray]]:
        """Run batches side by side on `threads` threads of a CPU, or queue them on a GPU."""
        batches = iter(batches)
        first = next(batches, None)
        if first is None:
            return
        if len(first) == 2:
            for rows, texts in (first, *batches):
                yield rows, self.model.encode(texts, batch_size=32, show_progress_bar=False)
            return
        if not self._on_cpu:
            yield from self._queued((first, *batches))
            return

        def forward(batch):
            rows, token_ids, mask = batch
            return rows, self.run(token_ids, mask)[: len(rows)]

        second = next(batches, None)
        every = chain([first], [] if second is None else [second], batches)
        if threads == 1 or second is None:
            with _one_torch_thread():
                yield from map(forward, every)
            return
        # Batches side by side, each on one thread: small matrices gain little from many threads, and waiting for each
        # other on a busy machine costs them dear.
        with _one_torch_thread() as pool_options, ThreadPoolExecutor(threads, **pool_options) as pool:
            yield from pool.map(forward, every)

    def _queued(self, batches: Iterable[tuple]) -> Iterator[tuple[list[int], np.ndarray]]:
        running: deque = deque()
        for rows, token_ids, mask in batches:
            running.append((rows, self._start(token_ids, mask)))
            if len(running) > _IN_FLIGHT:
                done, vectors = running.popleft()
                yield done, vectors[: len(done)].cpu().numpy()
        for done, vectors in running:
            yield done, vectors[: len(done)].cpu().numpy()

    def _start(self, token_ids: np.ndarray, attention_mask: np.ndarray):
        import torch

        features = {"input_ids": torch.from_numpy(token_ids), "attention_mask": torch.from_numpy(attention_mask)}
        if self.model.device.type == "cuda":
            # From pinned memory the copy does not wait for the batches before it.
            features = {name: tensor.pin_memory() for name, tensor in features.items()}
        features = {name: tensor.to(self.model.device, non_blocking=True) for name, tensor in features.items()}
        with torch.inference_mode():
            transformer, *rest = self.model
            features = transformer(features)
            # Sums over tokens in half precision would lose what the transformer computed.
            features = {
                name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
                for name, value in features.items()
            }
            for module in rest:
                features = module(features)
            return features["sentence_embedding"].float()


@contextmanager
def _one_torch_thread():
    """Options of a pool whose threads use one core each; the caller's setting comes back afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield {"initializer": torch.set_num_threads, "initargs": (1,)}
    finally:
        torch.set_num_threads(before)


def pooling_of(model) -> str:
    """Name of the pooling, or of the last module."""
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.get_config_dict()["pooling_mode"]
            return mode if isinstance(mode, str) else "+".join(mode)
    return type(model[-1]).__name__.lower()


def describe(model) -> dict:
    """What an encoder needs to know of a model beside its weights; kept with an exported one."""
    fast = has_fast_tokenizer(model)
    tokenizer = model.tokenizer if fast else None
    return {
        "weights_sha256": hash_weights(model),
        "tokenizer_sha256": hash_tokenizer(model),
        "architecture_sha256": hash_architecture(model),
        "dimension": int(model.get_embedding_dimension()),
        "pooling": pooling_of(model),
        "normalizes": any(type(module).__name__ == "Normalize" for module in model),
        "max_tokens": model.max_seq_length,
        "tokenizer": tokenizer.backend_tokenizer.to_str() if fast else None,
        "pad_id": (tokenizer.pad_token_id or 0) if fast else 0,
        "pad_left": fast and tokenizer.padding_side == "left",
        "cut_left": fast and tokenizer.truncation_side == "left",
    }


def choose_dtype(asked: str, *, device: str, fast: bool) -> str:
    """The precision for ``encoder.dtype``: what is asked for, or bfloat16 on CUDA and float32 elsewhere.

    Raises
    ------
    SparseError
        If bfloat16 is asked for where it does not go.
    """
    if asked == "auto":
        return "bfloat16" if device == "cuda" and fast else "float32"
    if asked == "bfloat16" and not fast:
        raise SparseError("encoder.dtype: bfloat16 needs a transformer with a fast tokenizer; choose float32.")
    return asked
