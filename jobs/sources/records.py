"""Rows of text formats, which come one at a time and promise no types, made into columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from jobs.config import InputConfig
from jobs.sources.rows import BATCH_BYTES, BATCH_ROWS, Piece, Raw, Rejected


class Collector:
    """Collects rows until there are enough for a batch."""

    def __init__(self, piece: Piece, schema: pa.Schema, config: InputConfig, word: str):
        self._piece, self._schema, self._config, self._word = piece, schema, config, word
        self._absent = {name for name, _ in piece.partition}
        self._start()

    def _start(self) -> None:
        self._records: list[dict] = []
        self._places: list[int] = []
        self._rejected: list[Rejected] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is time for `taken`."""
        return len(self._places) + len(self._rejected) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, record: dict, place: int, size: int) -> None:
        """Add a row of `size` bytes."""
        self._records.append(record)
        self._places.append(place)
        self._bytes += size

    def reject(self, reason: str, place: int) -> None:
        """Set a row apart that could not even be taken apart."""
        self._rejected.append(Rejected(None, reason, self._position(place)))

    def taken(self) -> Raw:
        """The rows so far; a row with a value that its column cannot hold is set apart."""
        unfit: dict[int, str] = {}
        for column in self._schema:
            values = [record.get(column.name) for record in self._records]
            if self._reason(column, values) is not None:
                unfit |= {row: why for row, value in enumerate(values) if (why := self._reason(column, [value]))}
        for row, reason in unfit.items():
            record = self._records[row].get(self._config.id)
            named = isinstance(record, int | str) and not isinstance(record, bool) and is_utf8(str(record))
            position = self._position(self._places[row])
            self._rejected.append(Rejected(str(record) if named else None, reason, position))
        good = [row for row in range(len(self._records)) if row not in unfit]
        columns = {
            column.name: pa.array([self._records[row].get(column.name) for row in good], column.type)
            for column in self._schema
            if column.name not in self._absent or any(column.name in record for record in self._records)
        }
        raw = Raw(self._piece, columns, self._word, [self._places[row] for row in good], self._rejected)
        self._start()
        return raw

    def _position(self, place: int) -> str:
        return f"{self._piece.url}: {self._word} {place}"

    def _reason(self, column: pa.Field, values: list[Any]) -> str | None:
        try:
            pa.array(values, column.type)
        except UnicodeEncodeError:
            return "invalid_utf8"
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return "text_not_a_string" if column.name in self._config.text_columns else "unfit_value"
        return None


def is_utf8(value: str) -> bool:
    """Whether a string can be written as UTF-8: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
