"""Texts to token ids, with the ``tokenizers`` library alone: no model, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparse_core.positions import by_position

_AT_A_TIME = 512


class TextTokenizer:
    """A model's own tokenizer.

    Parameters
    ----------
    serialized : str
        The tokenizer as ``tokenizers.Tokenizer.to_str`` writes it.
    max_tokens : int, optional
        Texts are cut to this many tokens, special tokens included.
    prompt : str
        Put before every text.
    cut_left : bool
        Whether texts are cut at their start instead of their end.
    """

    def __init__(self, serialized: str, *, max_tokens: int | None, prompt: str = "", cut_left: bool = False):
        from tokenizers import Tokenizer

        self.max_tokens = max_tokens
        self.prompt = prompt
        self.whole = Tokenizer.from_str(serialized)
        """Without padding and truncation, for splitters."""
        self.whole.no_padding()
        self.whole.no_truncation()
        self._cutting = Tokenizer.from_str(serialized)
        self._cutting.no_padding()
        self._cutting.no_truncation()
        if max_tokens is not None:
            self._cutting.enable_truncation(max_tokens, direction="left" if cut_left else "right")

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, prompt and special tokens included, cut to ``max_tokens``."""
        return [found.ids for found in self._encoded(self._cutting, texts)]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text, prompt and special tokens included, before any cut."""
        return [len(found) for found in self._encoded(self.whole, texts)]

    def _encoded(self, tokenizer, texts: Sequence[str]) -> Iterator:
        # What the library tells of every token takes much more memory than its id.
        texts = by_position(texts, "texts")
        for at in range(0, len(texts), _AT_A_TIME):
            yield from tokenizer.encode_batch_fast([self.prompt + text for text in texts[at : at + _AT_A_TIME]])
