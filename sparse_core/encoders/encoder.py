"""The encoder: texts in, vectors out, whatever computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Protocol

import numpy as np

from sparse_core.encoders.shapes import Shapes
from sparse_core.encoders.spec import EncoderSpec
from sparse_core.encoders.tokens import TextTokenizer
from sparse_core.positions import by_position

Advance = Callable[[int, int], None]


class Backend(Protocol):
    """What computes. Made by the modules `torch_backend` and `onnx_backend`."""

    def run(self, token_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Vectors of one padded batch: float32, shape (n_rows, dimension)."""

    def map(self, batches: Iterable[tuple], *, threads: int) -> Iterator[tuple[list[int], np.ndarray]]:
        """Run batches as `Shapes.batches` makes them; yield their rows and the vectors of these."""


class Encoder:
    """A loaded model behind `encode`. Made by `load_encoder`.

    Attributes
    ----------
    spec : EncoderSpec
    tokenizer : TextTokenizer or None
        None for models without a fast tokenizer, which go through ``SentenceTransformer.encode``.
    fallback : str or None
        Why the backend ``auto`` did not take ONNX Runtime, where it would have been the choice.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        backend: Backend,
        *,
        tokenizer: TextTokenizer | None,
        shapes: Shapes | None,
        threads: int,
        fallback: str | None = None,
    ):
        self.spec = spec
        self.tokenizer = tokenizer
        self.fallback = fallback
        self._backend = backend
        self._shapes = shapes
        self._threads = threads

    def encode(self, texts: Sequence[str], *, progress: Advance | None = None) -> np.ndarray:
        """Encode texts.

        Parameters
        ----------
        texts : sequence of str, length n_texts
        progress : callable, optional
            Called as ``progress(texts_done, n_texts)`` after each batch.

        Returns
        -------
        ndarray of float32, shape (n_texts, dimension)
            Unit Euclidean norm when ``spec.normalize``. A row depends on its text alone: it is
            bit-for-bit the same for any batch the text arrives in (for models with a fast tokenizer;
            others go through ``SentenceTransformer.encode``).
        """
        texts = by_position(texts, "texts")
        return self._vectors(texts, self._prepare(texts), progress)

    def encode_stream(self, blocks: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Encode blocks of texts one after the other, tokenizing each while the one before is computed.

        Worth it on a GPU, which tokenization would otherwise keep waiting; on a CPU it takes about 1% of the time.

        Parameters
        ----------
        blocks : iterable of sequence of str
            Read one block ahead.

        Yields
        ------
        ndarray of float32, shape (n_texts, dimension)
            The same as `encode` gives for the block.
        """
        with ThreadPoolExecutor(1) as ahead:
            waiting = None
            for block in blocks:
                texts = by_position(block, "texts")
                following = texts, ahead.submit(lambda texts=texts: list(self._prepare(texts)))
                if waiting is not None:
                    yield self._vectors(waiting[0], waiting[1].result(), None)
                waiting = following
            if waiting is not None:
                yield self._vectors(waiting[0], waiting[1].result(), None)

    def with_prompt(self, prompt: str) -> Encoder:
        """The same model, sharing its weights, with another prompt before every text."""
        other = copy(self)
        other.spec = replace(self.spec, prompt=prompt)
        if self.tokenizer is not None:
            other.tokenizer = copy(self.tokenizer)
            other.tokenizer.prompt = prompt
        return other

    def count_truncated(self, texts: Sequence[str]) -> int:
        """Number of texts longer than ``spec.max_tokens``, of which the encoder sees only the start."""
        texts = by_position(texts, "texts")
        if self.tokenizer is None or self.spec.max_tokens is None or not texts:
            return 0
        return sum(length > self.spec.max_tokens for length in self.tokenizer.lengths(texts))

    def _prepare(self, texts: list[str]) -> Iterable[tuple]:
        if self.tokenizer is not None:
            return self._shapes.batches(self.tokenizer.ids(texts))
        step = 256
        groups = [list(range(at, min(at + step, len(texts)))) for at in range(0, len(texts), step)]
        return [(rows, [self.spec.prompt + texts[row] for row in rows]) for rows in groups]

    def _vectors(self, texts: list[str], batches: Iterable[tuple], progress: Advance | None) -> np.ndarray:
        out = np.zeros((len(texts), self.spec.dimension), dtype=np.float32)
        done = 0
        for rows, vectors in self._backend.map(batches, threads=self._threads):
            out[rows] = vectors
            done += len(rows)
            if progress is not None:
                progress(done, len(texts))
        if self.spec.normalize:
            norms = np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64))
            out /= np.where(norms > 0, norms, 1)[:, None].astype(np.float32)
        return out
