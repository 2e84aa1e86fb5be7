"""Canonical shapes: vectors that do not depend on how the texts were batched.

A float32 matrix product may round differently for another matrix shape, so the same text encoded in another batch
would differ in its last bits, and a re-run would publish another vector. The model therefore runs on *canonical
shapes* only: every text is padded to the next multiple of a step, and every batch of one padded length has one fixed
number of rows, the last one filled up with copies. The padding is masked out, so a row of the result depends on its
own text alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shapes:
    """Which shapes a model runs in.

    Attributes
    ----------
    step : int
        Padded lengths are its multiples. Small steps pad little, but leave more batches to fill up.
    tokens_per_batch : int
        Rows of a batch times their padded length, at most (but for a single row).
    pad_id : int
    pad_left : bool
        Whether padding stands before the text, as for models that pool the last token.
    """

    step: int
    tokens_per_batch: int
    pad_id: int = 0
    pad_left: bool = False

    def batches(self, ids: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
        """Cut texts into batches, longest first.

        Parameters
        ----------
        ids : sequence of sequence of int
            Token ids of each text.

        Yields
        ------
        rows : list of int
            Which texts are in the batch, in its first rows.
        token_ids, attention_mask : int64 arrays, shape (n_rows, padded length)
        """
        by_length: dict[int, list[int]] = {}
        for row, text in enumerate(ids):
            by_length.setdefault(max(1, -(-len(text) // self.step)) * self.step, []).append(row)
        for length, members in sorted(by_length.items(), reverse=True):
            size = max(1, self.tokens_per_batch // length)
            for at in range(0, len(members), size):
                rows = members[at : at + size]
                token_ids = np.full((size, length), self.pad_id, dtype=np.int64)
                mask = np.zeros((size, length), dtype=np.int64)
                for place, row in enumerate(rows + rows[:1] * (size - len(rows))):
                    text = ids[row]
                    span = slice(length - len(text), None) if self.pad_left else slice(0, len(text))
                    token_ids[place, span] = text
                    mask[place, span] = 1
                yield rows, token_ids, mask
