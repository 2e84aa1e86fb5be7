"""Inversion by a decoder: the vector is its soft prefix, and it writes the text (GEIA, Li et al. 2023).

Decoders are sure of the wrong things when trained for minutes. Several texts are drawn, encoded as the victim encodes,
and the one that explains the vector best under the noise law is the answer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from sparse_core.attacks.coordinates import fit_coordinates
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.attacks.mlc import TORCH_GENERATOR, check_device
from sparse_core.attacks.text.base import (
    Encode,
    LogLikelihood,
    Progress,
    Reconstructions,
    check_text_training,
    register_text,
)
from sparse_core.attacks.text.models import check_lora, pretrained_language_model, small_language_model
from sparse_core.attacks.text.ranking import Ranking, embedded_candidates
from sparse_core.attacks.text.scores import word_overlap
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_vectors
from sparse_core.positions import by_position

if TYPE_CHECKING:
    import torch

_HELD_OUT_SHARE, _MOST_HELD_OUT = 0.05, 400
_RANKED = 64


@register_text
class InversionAttack:
    """A decoder that is shown the vector in read-out coordinates.

    Parameters
    ----------
    model : str, optional
        Hub id or folder of a causal language model ("gpt2", "HuggingFaceTB/SmolLM2-135M", a Llama). By default a small
        transformer and its vocabulary are trained from scratch, which takes minutes on a CPU.
    lora_rank : int
        With `model`, train low-rank updates of this rank instead of its weights.
    width, layers, vocabulary : int
        Of the transformer from scratch.
    slots : int
        Soft tokens that a vector becomes.
    dropout : float
        Of everything trained from scratch.
    epochs, patience : int
        At most so many passes over the training records, and so many without a lower loss on held-out ones.
    batch_size : int
        Records a step; as many vectors are attacked at once.
    learning_rate, pretrained_learning_rate, weight_decay : float
        Of AdamW; the second for the weights or low-rank updates of `model`.
    candidates : int
        Texts drawn for each vector, besides the likeliest one; the ranking chooses among all of them.
    temperature : float
        They are drawn at.
    max_tokens : int
        Longer texts are cut, in training and in writing.
    device : str
        A torch device. On CUDA, products are computed in bfloat16.
    """

    name = "inversion"
    n_vectors = 1

    def __init__(
        self,
        *,
        model: str | None = None,
        lora_rank: int = 0,
        width: int = 192,
        layers: int = 2,
        vocabulary: int = 6000,
        slots: int = 2,
        dropout: float = 0.1,
        epochs: int = 8,
        patience: int = 2,
        batch_size: int = 64,
        learning_rate: float = 2e-3,
        pretrained_learning_rate: float = 2e-4,
        weight_decay: float = 1e-2,
        candidates: int = 8,
        temperature: float = 0.7,
        max_tokens: int = 48,
        device: str = "cpu",
    ):
        counts = {"epochs": epochs, "batch_size": batch_size, "candidates": candidates, "max_tokens": max_tokens}
        wrong = [f"{name}={value}" for name, value in counts.items() if value < 1]
        if wrong or temperature <= 0:
            raise SparseError(f"{self.name}: {', '.join(wrong) or f'temperature={temperature}'} must be positive")
        if lora_rank and model is None:
            raise SparseError(f"{self.name}: lora_rank={lora_rank} is for a pretrained model; name one as model")
        self.model, self.lora_rank = model, lora_rank
        self.width, self.layers, self.vocabulary, self.slots, self.dropout = width, layers, vocabulary, slots, dropout
        self.epochs, self.patience, self.batch_size = epochs, patience, batch_size
        self.learning_rate, self.pretrained_learning_rate = learning_rate, pretrained_learning_rate
        self.weight_decay = weight_decay
        self.candidates, self.temperature, self.max_tokens, self.device = candidates, temperature, max_tokens, device

    def check(self) -> None:
        """See `TextAttack.check`: the device, and peft where low-rank updates are asked for."""
        check_device(self.device)
        check_lora(self.lora_rank)

    def shortened(self, share: float) -> Self:
        """See `TextAttack.shortened`."""
        shorter = copy.copy(self)
        shorter.epochs = max(1, math.ceil(self.epochs * share))
        return shorter

    def fit(
        self,
        vectors: np.ndarray,
        texts: Sequence[str],
        *,
        unprotected: np.ndarray,
        public: PublicKnowledge,
        encode: Encode,
        seed: int,
        draws: Sequence[np.ndarray] = (),
        log_likelihood: LogLikelihood | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """See `TextAttack.fit`. Each epoch takes the next draw; torch's global random state is left as it was.

        Raises
        ------
        SparseError
            For unusable input, fewer than 50 records, a device or package that is missing, or a model that cannot be
            loaded.
        """
        import torch

        from sparse_core.attacks.text.decoder import PrefixedDecoder
        from sparse_core.attacks.text.training import Schedule, train_decoder

        self.check()
        texts = by_position(texts, "texts")
        draws = check_text_training(vectors, texts, unprotected, draws)
        self._encode = encode
        self._coordinates = fit_coordinates(draws[0], public)
        self._transform = "plain" if public.noise_variance is None else "readout"
        self._scale = 1.0
        spread = float(np.sqrt(np.mean(self._features(draws[0]) ** 2)))
        self._scale = max(spread, float(np.finfo(np.float32).tiny))
        self._seen = [self._features(draw) for draw in draws]
        order = np.random.default_rng([seed, 0]).permutation(len(texts))
        n_judged = min(_MOST_HELD_OUT, max(10, round(_HELD_OUT_SHARE * len(texts))))
        judged, fit = order[:n_judged], np.sort(order[n_judged:])
        schedule = Schedule(
            self.epochs,
            self.patience,
            self.batch_size,
            self.learning_rate,
            self.pretrained_learning_rate,
            self.weight_decay,
        )
        device = torch.device(self.device)
        with TORCH_GENERATOR, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            language_model, self._codec = self._language_model([texts[row] for row in fit])
            self._decoder = PrefixedDecoder(
                language_model,
                self._codec,
                n_features=self.n_vectors * draws[0].shape[1],
                slots=self.n_vectors * self.slots,
                direct=self.model is None,
                dropout=self.dropout,
            ).to(device)
            self._ids = [ids[: self.max_tokens] for ids in self._codec.encode(list(texts))]
            self._prepare(unprotected, fit, seed)
            self.log = train_decoder(
                self._decoder,
                self._ids,
                self._shown,
                fit=fit,
                judged=judged,
                schedule=schedule,
                pretrained=self.model is not None,
                generator=np.random.default_rng([seed, 1]),
                progress=progress,
            )
        judged = judged[:_RANKED]
        self._ranking = Ranking(public, log_likelihood).fit(
            draws[0][judged],
            unprotected[judged],
            *self._rehearsed(draws[0][judged], [texts[row] for row in judged], seed),
        )
        del self._seen, self._ids
        return self

    def reconstruct(self, vectors: np.ndarray, *, seed: int) -> Reconstructions:
        """See `TextAttack.reconstruct`.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        written = self._written(*self._first(vectors), self._generator(seed), n_drawn=self.candidates)
        scores = self._ranking.scores(vectors, embedded_candidates(written, self._encode))
        texts = [options[place] for options, place in zip(written, scores.argmax(axis=1), strict=True)]
        return Reconstructions(texts, [options[1:] for options in written], [texts])

    def _language_model(self, texts: Sequence[str]):
        if self.model is not None:
            return pretrained_language_model(self.model, lora_rank=self.lora_rank)
        return small_language_model(
            texts,
            vocabulary=self.vocabulary,
            width=self.width,
            layers=self.layers,
            dropout=self.dropout,
            positions=self.n_vectors * self.slots + 2 * self.max_tokens + 4,
        )

    def _prepare(self, unprotected: np.ndarray, fit: np.ndarray, seed: int) -> None:
        """What `_shown` needs; nothing here."""

    def _shown(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, list[list[int]] | None]:
        """What the decoder is shown of training records in an epoch; 0 is validation, on the first draw."""
        return self._seen[max(0, epoch - 1) % len(self._seen)][rows], None

    def _first(self, vectors: np.ndarray) -> tuple[np.ndarray, list[list[int]] | None]:
        """Conditions and hypotheses to write of vectors that nothing is known of yet."""
        return self._features(vectors), None

    def _features(self, vectors: np.ndarray) -> np.ndarray:
        return (self._coordinates.features(vectors, self._transform) / self._scale).astype(np.float32)

    def _generator(self, seed: int) -> torch.Generator:
        import torch

        return torch.Generator(device=self.device).manual_seed(seed)

    def _written(
        self, conditions: np.ndarray, hypotheses, generator: torch.Generator, *, n_drawn: int
    ) -> list[list[str]]:
        """The likeliest text of each condition, then the drawn ones."""
        import torch

        columns: list[list[str]] = []
        for number in range(1 + n_drawn):
            column: list[str] = []
            for start in range(0, len(conditions), 4 * self.batch_size):
                part = slice(start, start + 4 * self.batch_size)
                ids = self._decoder.sample(
                    torch.from_numpy(conditions[part]).to(self._decoder.device),
                    None if hypotheses is None else hypotheses[part],
                    temperature=self.temperature if number else 0.0,
                    max_tokens=self.max_tokens,
                    generator=generator,
                )
                column += self._codec.decode(ids)
            columns.append(column)
        return [list(options) for options in zip(*columns, strict=True)]

    def _rehearsed(self, vectors: np.ndarray, texts: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings of first candidates for known texts, and the share of words they have in common with them."""
        written = self._written(*self._first(vectors), self._generator(seed), n_drawn=self.candidates)
        shared = [
            [word_overlap(text, option) for option in options] for text, options in zip(texts, written, strict=True)
        ]
        return embedded_candidates(written, self._encode), np.array(shared)
