"""A causal language model that is shown a vector as its prefix (GEIA, Li et al. 2023) and writes the text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutputWithPast

from sparse_core.attacks.text.codec import Codec

_IGNORED = -100
_MOST_LIKELY = 64
# Renamed between versions of transformers.
_CACHE = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"


class PrefixedDecoder(nn.Module):
    """Vectors become soft tokens, a hypothesis may follow them, and then comes the text.

    Parameters
    ----------
    language_model : transformers causal language model
    codec : Codec
    n_features : int
        Entries of a condition: of all its vectors together.
    slots : int
        Soft tokens a condition becomes.
    direct : bool
        Whether the condition is also added to the language model's last hidden states, and so speaks on the choice of
        every word directly. Small models learn within minutes that way which words a vector holds; a pretrained model
        is left as it is.
    dropout : float
        Inside the two networks that read the condition.
    """

    def __init__(self, language_model, codec: Codec, *, n_features: int, slots: int, direct: bool, dropout: float):
        super().__init__()
        self.language_model = language_model
        self.codec = codec
        self.n_slots = slots
        width = language_model.get_input_embeddings().embedding_dim
        self.prefix = nn.Sequential(
            nn.Linear(n_features, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, slots * width)
        )
        self.direct = None
        if direct:
            self.direct = nn.Sequential(
                nn.Linear(n_features, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
            )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.prefix[0].weight.device

    def loss(
        self, conditions: torch.Tensor, hypotheses: Sequence[Sequence[int]] | None, texts: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor, int]:
        """Negative log-likelihood of texts.

        Parameters
        ----------
        conditions : float tensor, shape (n_texts, n_features)
        hypotheses : sequence of (sequence of int), optional
        texts : sequence of (sequence of int)
            Ids without start and end.

        Returns
        -------
        sum : scalar tensor
        count : int
            Tokens summed over, the end of each text among them.
        """
        codec, device = self.codec, self.device
        inputs = _right_padded([[codec.start, *ids] for ids in texts], codec.end, device)
        targets = _right_padded([[*ids, codec.end] for ids in texts], _IGNORED, device)
        present = targets != _IGNORED
        with self._precision():
            prefix, seen = self._prefix(conditions, hypotheses)
            embeds = torch.cat([prefix, self._embed(inputs)], dim=1)
            seen = torch.cat([seen, present], dim=1)
            logits, _ = self._logits(embeds, seen, conditions, wanted=present, use_cache=False)
        return functional.cross_entropy(logits.float(), targets[present], reduction="sum"), int(present.sum())

    @torch.inference_mode()
    def sample(
        self,
        conditions: torch.Tensor,
        hypotheses: Sequence[Sequence[int]] | None,
        *,
        temperature: float,
        max_tokens: int,
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Write one text for each condition.

        Parameters
        ----------
        conditions : float tensor, shape (n_texts, n_features)
        hypotheses : sequence of (sequence of int), optional
        temperature : float
            0 takes the most likely token each time; otherwise tokens are drawn among the 64 most likely.
        max_tokens : int
        generator : torch.Generator
            On the decoder's device.

        Returns
        -------
        list of (list of int)
            Ids without start and end.
        """
        self.eval()
        n_texts = len(conditions)
        with self._precision():
            prefix, seen = self._prefix(conditions, hypotheses)
            token = torch.full((n_texts, 1), self.codec.start, device=self.device)
            embeds = torch.cat([prefix, self._embed(token)], dim=1)
            last = torch.ones((n_texts, 1), dtype=torch.bool, device=self.device)
            cache, written, open_rows = None, [], torch.ones(n_texts, dtype=torch.bool, device=self.device)
            for _ in range(max_tokens):
                seen = torch.cat([seen, torch.ones_like(seen[:, :1])], dim=1)
                logits, cache = self._logits(embeds, seen, conditions, wanted=last, use_cache=True, **{_CACHE: cache})
                token = _drawn(logits.float(), temperature, generator)
                token = torch.where(open_rows, token, self.codec.end)
                open_rows &= token != self.codec.end
                written.append(token)
                if not open_rows.any():
                    break
                embeds = self._embed(token[:, None])
        rows = torch.stack(written, dim=1).cpu().numpy()
        return [row[: _length(row, self.codec.end)].tolist() for row in rows]

    def _prefix(self, conditions: torch.Tensor, hypotheses) -> tuple[torch.Tensor, torch.Tensor]:
        slots = self.prefix(conditions).view(len(conditions), self.n_slots, -1)
        seen = torch.ones(slots.shape[:2], dtype=torch.bool, device=self.device)
        if hypotheses is None:
            return slots, seen
        # Ended, so that an empty hypothesis is one too; padded on the left, next to the slots.
        ended = [[*ids, self.codec.end] for ids in hypotheses]
        longest = max(map(len, ended))
        ids = torch.tensor([[self.codec.end] * (longest - len(row)) + row for row in ended], device=self.device)
        lengths = torch.tensor([len(row) for row in ended], device=self.device)
        present = torch.arange(longest, device=self.device) >= longest - lengths[:, None]
        return torch.cat([slots, self._embed(ids)], dim=1), torch.cat([seen, present], dim=1)

    def _logits(self, embeds, seen, conditions, *, wanted: torch.Tensor, **caching) -> tuple[torch.Tensor, object]:
        """Logits at the wanted ones of the last positions, shape (n_wanted, size), and the model's cache."""
        positions = (seen.long().cumsum(dim=1) - 1).clamp(min=0)[:, -embeds.shape[1] :]
        keep = wanted.shape[1]
        out = self.language_model(
            inputs_embeds=embeds,
            attention_mask=seen.long(),
            position_ids=positions,
            logits_to_keep=keep if self.direct is None else 1,
            output_hidden_states=self.direct is not None,
            **caching,
        )
        if self.direct is None:
            return out.logits[:, -keep:][wanted], getattr(out, _CACHE)
        hidden = out.hidden_states[-1][:, -keep:] + self.direct(conditions)[:, None]
        return self.language_model.get_output_embeddings()(hidden[wanted]), getattr(out, _CACHE)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.language_model.get_input_embeddings()(ids)

    def _precision(self):
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()


def _right_padded(rows: Sequence[Sequence[int]], filling: int, device: torch.device) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in rows], device=device)


def _drawn(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    if temperature == 0:
        return logits.argmax(dim=1)
    values, ids = logits.topk(min(_MOST_LIKELY, logits.shape[1]), dim=1)
    places = torch.multinomial(torch.softmax(values / temperature, dim=1), 1, generator=generator)
    return ids.gather(1, places)[:, 0]


def _length(row: np.ndarray, end: int) -> int:
    ends = np.flatnonzero(row == end)
    return int(ends[0]) if len(ends) else len(row)
