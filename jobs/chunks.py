"""Long texts as several records: pieces of so many tokens that overlap, cut where sentences and words end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from jobs.sources import Rows
from sparse_core.encoders import TextTokenizer
from sparse_core.errors import SparseError


class Chunker:
    """Cuts texts with the splitter of the package ``semantic-text-splitter``.

    Parameters
    ----------
    tokenizer : TextTokenizer
        ``Encoder.tokenizer``: its prompt and special tokens count too.
    tokens : int
        Most tokens of a chunk.
    overlap : int
        Most tokens that a chunk repeats from the one before; it repeats whole sentences or words, and so often less.
    max_tokens : int, optional
        Of the encoder, which `tokens` may not exceed.

    Raises
    ------
    SparseError
        If the numbers do not fit each other, or the package is not installed.
    """

    def __init__(self, tokenizer: TextTokenizer, *, tokens: int, overlap: int = 0, max_tokens: int | None = None):
        try:
            import semantic_text_splitter
        except ImportError:
            raise SparseError("chunk: it needs the extra 'sparse-embeddings[chunk]'.") from None
        if max_tokens is not None and tokens > max_tokens:
            raise SparseError(f"chunk.tokens: the encoder reads {max_tokens} tokens, not {tokens}; choose fewer.")
        around = tokenizer.lengths([""])[0]
        if overlap < 0 or tokens - around <= overlap:
            raise SparseError(
                f"chunk: {tokens} tokens, {around} of them special or of the prompt, leave no room beside an "
                f"overlap of {overlap}; choose more tokens or less overlap."
            )
        self._library = semantic_text_splitter
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._overlap = overlap
        self._capacity = tokens - around
        # The splitter takes time in proportion to the square of a text's length, so that it gets long ones in windows.
        self._window = max(8192, 32 * tokens)
        self._longest_whole = 64 * tokens

    def split(self, text: str) -> list[str]:
        """The chunks of a text, at least one, in order; a text that fits is its own only chunk.

        No chunk is longer than the tokens allowed. The same text is always cut the same way.
        """
        if len(text) <= self._longest_whole and self._fit([text]):
            return [text]
        chunks = self._cut(text, self._capacity)
        if not self._fit(chunks):
            chunks = [piece for chunk in chunks for piece in self._fitting(chunk)]
        return chunks or [text]

    def _fitting(self, chunk: str) -> list[str]:
        """A chunk, or pieces of it: beside a prompt it may take a token or two more than the splitter counted."""
        pieces, capacity = [chunk], self._capacity
        while not self._fit(pieces) and capacity > self._overlap + 1:
            capacity -= 1
            pieces = self._cut(chunk, capacity)
        return pieces

    def _cut(self, text: str, capacity: int) -> list[str]:
        splitter = self._library.TextSplitter.from_huggingface_tokenizer(
            self._tokenizer.whole, capacity, overlap=self._overlap
        )
        chunks: list[str] = []
        at, window = 0, self._window
        while at + window < len(text):
            found = splitter.chunk_indices(text[at : at + window])
            if len(found) < 2:
                window *= 2
                continue
            # The last one ends where the window does: the next window starts with it.
            chunks += [chunk for _, chunk in found[:-1]]
            at, window = at + found[-1][0], self._window
        return chunks + splitter.chunks(text[at:])

    def _fit(self, texts: list[str]) -> bool:
        return max(self._tokenizer.lengths(texts), default=0) <= self._tokens


@dataclass
class ChunkedRows(Rows):
    """Rows whose texts are chunks of others.

    Attributes
    ----------
    parents : list
        Id of the row that each chunk comes from.
    chunks : list of int
        Number of each chunk within it, from 0.
    """

    parents: list = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)

    def take(self, rows: np.ndarray) -> ChunkedRows:
        """Some of the good rows, without the bad ones."""
        taken = super().take(rows)
        return ChunkedRows(
            **vars(taken), parents=[self.parents[row] for row in rows], chunks=[self.chunks[row] for row in rows]
        )


def chunked(rows: Rows, chunker: Chunker) -> ChunkedRows:
    """Rows with their texts cut into chunks; ``parent#n`` is the id of chunk n, and `columns` are repeated.

    No two chunks share an id where no two rows do: what stands after the last ``#`` is the number.
    """
    pieces = [chunker.split(text) for text in rows.texts]
    origin = np.repeat(np.arange(len(rows)), [len(piece) for piece in pieces])
    numbers = [number for piece in pieces for number in range(len(piece))]
    parents = [rows.ids[row] for row in origin]
    return ChunkedRows(
        ids=[f"{parent}#{number}" for parent, number in zip(parents, numbers, strict=True)],
        texts=[text for piece in pieces for text in piece],
        vectors=None,
        columns=rows.columns.take(pa.array(origin, pa.int64())),
        positions=[rows.positions[row] for row in origin],
        subjects=[rows.subjects[row] for row in origin],
        rejected=rows.rejected,
        parents=parents,
        chunks=numbers,
    )
