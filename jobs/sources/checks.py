"""Telling good rows from bad, and making texts and ids where no column holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.config import InputConfig
from jobs.sources.rows import Raw, Rejected, Rows, Source, without_columns
from jobs.sources.vectors import decoded
from sparse_core.noise import Key
from sparse_core.noise.keys import length_prefixed

_ID_PURPOSE = b"record-id.v1"
_ID_BYTES = 16


def sorted_out(source: Source, raw: Raw, key: Key | None) -> Rows:
    """The good rows of a batch, and the bad ones with a reason each."""
    config, rejected = source.input, list(raw.rejected)
    columns, places = valid_rows(source, raw, rejected)
    n_rows = len(places)
    texts = vectors = None
    if config.embedding is not None:
        vectors, with_vector, unfit = decoded(columns[config.embedding], source.dimension)
    else:
        texts, unfit = _texts(columns, config)
    ids = [None] * n_rows
    if config.id is not None:
        ids = columns[config.id].to_pylist()
        unfit |= {row: "null_id" for row, record in enumerate(ids) if row not in unfit and _is_blank(record)}
    subjects = None if source.subject is None else columns[source.subject].to_pylist()
    unfit |= {
        row: "null_subject" for row, subject in enumerate(subjects or ()) if row not in unfit and _is_blank(subject)
    }
    for row in sorted(unfit):
        named = None if _is_blank(ids[row]) else str(ids[row])
        rejected.append(Rejected(named, unfit[row], f"{raw.piece.url}: {raw.word} {places[row]}"))
    good = [row for row in range(n_rows) if row not in unfit]
    whole = len(good) == n_rows
    kept = without_columns(n_rows)
    if source.kept:
        kept = pa.RecordBatch.from_arrays([columns[name] for name in source.kept], list(source.kept))
    if vectors is not None and len(good) < len(with_vector):
        vectors = vectors[np.isin(with_vector, good)]
    rows = Rows(
        ids=ids if whole else [ids[row] for row in good],
        texts=None if texts is None else texts if whole else [texts[row] for row in good],
        vectors=vectors,
        columns=kept if whole else kept.take(pa.array(good, pa.int64())),
        positions=[f"{raw.piece.url}: {raw.word} {places[row]}" for row in good],
        subjects=[],
        rejected=rejected,
    )
    if config.id is None:
        rows.ids = _made_ids([f"{raw.piece.name}: {raw.word} {places[row]}" for row in good], rows, key)
    # 1 and "1" are one subject, in the budget and therefore in the noise.
    rows.subjects = [str(record) for record in (rows.ids if subjects is None else [subjects[row] for row in good])]
    return rows


def valid_rows(source: Source, raw: Raw, rejected: list[Rejected]) -> tuple[dict[str, pa.Array], Sequence[int]]:
    """All columns of the source, of the rows whose text is UTF-8."""
    partition = dict(raw.piece.partition)
    columns: dict[str, pa.Array] = {}
    broken: set[int] = set()
    for field in source.schema:
        if field.name in raw.columns:
            column = raw.columns[field.name]
            broken.update(_broken_rows(column))
        elif field.name in partition:
            column = pa.array([partition[field.name]] * len(raw.places))
        else:
            # A Delta table's older files lack the columns that were added later.
            column = pa.nulls(len(raw.places), field.type)
        columns[field.name] = column
    places = raw.places
    if broken:
        where = f"{raw.piece.url}: {raw.word}"
        rejected += [Rejected(None, "invalid_utf8", f"{where} {places[row]}") for row in sorted(broken)]
        good = [row for row in range(len(places)) if row not in broken]
        columns = {name: column.take(pa.array(good, pa.int64())) for name, column in columns.items()}
        places = [places[row] for row in good]
    for field in source.schema:
        # Vectors are decoded whatever lists they come in.
        if field.name != source.input.embedding:
            columns[field.name] = _as(columns[field.name], field.type)
    return columns, places


def _broken_rows(column: pa.Array) -> list[int]:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return [row for row in range(len(column)) if not _is_valid(column.slice(row, 1))]
    return []


def _is_valid(column: pa.Array) -> bool:
    try:
        pa.concat_arrays([column]).take(pa.array([0])).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray) and not isinstance(kind, pa.BaseExtensionType):
        column = column.storage
    return column if column.type == kind else column.cast(kind)


def _texts(columns: dict[str, pa.Array], config: InputConfig) -> tuple[list[str], dict[int, str]]:
    if config.template is None:
        texts = columns[config.text].to_pylist()
        reasons = [_unfit_text(text, config.max_characters) for text in texts]
        return texts, {row: reason for row, reason in enumerate(reasons) if reason}
    names = config.text_columns
    texts, unfit = [], {}
    for row, values in enumerate(zip(*(columns[name].to_pylist() for name in names), strict=True)):
        parts = {name: "" if value is None else str(value) for name, value in zip(names, values, strict=True)}
        # Nothing but what stands between the fields is no text.
        said = None if all(value is None for value in values) else "".join(parts.values())
        text = config.template.format(**parts)
        texts.append(text)
        if reason := _unfit_text(said, config.max_characters) or _unfit_text(text, config.max_characters):
            unfit[row] = reason
    return texts, unfit


def _unfit_text(text: str | None, max_characters: int) -> str | None:
    if text is None:
        return "null_text"
    if not text:
        return "empty_text"
    if text.isspace():
        return "blank_text"
    return "text_too_long" if len(text) > max_characters else None


def _is_blank(record: Any) -> bool:
    return record is None or (isinstance(record, str) and (not record or record.isspace()))


def _made_ids(places: list[str], rows: Rows, key: Key | None) -> list[str]:
    if key is None:
        return places
    root, ids = key.hasher(_ID_PURPOSE), []
    for place, content in zip(places, rows.contents, strict=True):
        state = root.copy()
        said = content if isinstance(content, bytes) else content.encode("utf-8")
        state.update(length_prefixed(place.encode("utf-8", "surrogateescape")))
        state.update(length_prefixed(hashlib.sha256(said).digest()))
        ids.append(state.hexdigest(_ID_BYTES))
    return ids
