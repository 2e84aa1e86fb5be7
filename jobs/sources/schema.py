"""Which columns a corpus has, whether they are fit for their roles, and whether files agree on them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from jobs.config import InputConfig
from jobs.sources.files import File, partition_type
from jobs.sources.opening import COMPRESSED
from jobs.sources.vectors import fixed_dimension, vector_type
from sparse_core.errors import SparseError

_COMPRESSION = 4


@dataclass(frozen=True)
class Header:
    """What the start or the footer of a file tells.

    Attributes
    ----------
    schema : pyarrow.Schema or None
        None if nothing tells: a JSON-lines file without an object among its first lines.
    groups : tuple of int or None
        Rows of each row group or fragment; None where nothing tells how many rows there are.
    estimate : int
        Rows, told or estimated.
    inferred : bool
        Whether types are those of a sample, not promised.
    """

    schema: pa.Schema | None
    groups: tuple[int, ...] | None = None
    estimate: int = 0
    inferred: bool = False


def estimated_rows(file: File, *, lines: int, size: int, ended: bool) -> int:
    """Rows of a text file, of which so many lines of so many bytes together were seen."""
    if ended or not lines:
        return lines
    compression = _COMPRESSION if file.url.lower().endswith(COMPRESSED) else 1
    return max(int(file.size * compression * lines / size), lines)


def wanted_columns(
    config: InputConfig, columns: tuple[str, ...], subject: str | None = None
) -> tuple[list[str], tuple[str, ...]]:
    """All columns to read, and those of them that come along with the records."""
    if config.embedding is not None and config.embedding in columns:
        raise SparseError(
            f"passthrough or label: {config.embedding!r} holds the vectors that are to be protected (input.embedding); "
            "leave it out."
        )
    kept = tuple(name for name in dict.fromkeys((config.annotations, *columns)) if name is not None)
    records = (config.id, subject, config.embedding, *config.text_columns)
    return [name for name in dict.fromkeys((*records, *kept)) if name is not None], kept


def common_schema(
    headers: dict[File, Header], wanted: list[str], config: InputConfig, subject: str | None = None
) -> pa.Schema:
    """The columns in use, in types that hold those of every file.

    Raises
    ------
    SparseError
        If a file lacks a column, has one that is unfit for its role, or two files disagree.
    """
    types: dict[str, tuple[pa.DataType, File, bool]] = {}
    for file, header in headers.items():
        if header.schema is None:
            continue
        schema = _with_partition(file, header)
        for name in wanted:
            kind = _fit_type(schema, name, file, config, subject)
            if name not in types:
                types[name] = kind, file, header.inferred
                continue
            so_far, first, inferred = types[name]
            merged = _merged(so_far, kind, name == config.embedding, inferred and header.inferred)
            if merged is None:
                raise SparseError(
                    f"Column {name!r} is {so_far} in {first.url} and {kind} in {file.url}; files read together need "
                    "one type."
                )
            if merged != so_far:
                types[name] = merged, file if pa.types.is_null(so_far) else first, inferred and header.inferred
    return pa.schema([(name, pa.string() if pa.types.is_null(types[name][0]) else types[name][0]) for name in wanted])


def _with_partition(file: File, header: Header) -> pa.Schema:
    schema = header.schema if file.table_schema is None else file.table_schema
    for name, value in file.partition:
        if name not in schema.names:
            schema = schema.append(pa.field(name, partition_type(value)))
    return schema


def _fit_type(schema: pa.Schema, name: str, file: File, config: InputConfig, subject: str | None) -> pa.DataType:
    if name not in schema.names:
        there = ", ".join(map(repr, schema.names))
        raise SparseError(f"{_role(name, config, subject)}: {file.url} has no column {name!r}; it has {there}.")
    kind = schema.field(name).type
    if isinstance(kind, pa.BaseExtensionType) and not kind.extension_name.startswith("arrow."):
        kind = kind.storage_type
    if name == config.embedding:
        if vector_type(kind) is None and not pa.types.is_null(kind):
            raise SparseError(f"input.embedding: column {name!r} of {file.url} is {kind}, not lists of numbers.")
    elif name in config.text_columns or name in (config.id, subject):
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        plain = pa.string() if pa.types.is_string_view(plain) else plain
        fit = _is_text(plain) or pa.types.is_null(plain)
        if name in config.text_columns and config.template is None and not fit:
            raise SparseError(f"input.text: column {name!r} of {file.url} is {kind}, not text.")
        fit = fit or pa.types.is_integer(plain)
        if name in config.text_columns and not fit:
            raise SparseError(f"input.template: column {name!r} of {file.url} is {kind}, neither text nor integers.")
        if name == config.id and not fit:
            raise SparseError(f"input.id: column {name!r} of {file.url} is {kind}; ids are strings or integers.")
        if name == subject and not fit:
            raise SparseError(
                f"budget.subject: column {name!r} of {file.url} is {kind}; subjects are strings or integers."
            )
        kind = plain
    return kind


def _role(name: str, config: InputConfig, subject: str | None) -> str:
    roles = {subject: "budget.subject"}
    roles |= dict.fromkeys(config.text_columns, "input.template" if config.template else "input.text")
    roles |= {config.id: "input.id", config.annotations: "input.annotations", config.embedding: "input.embedding"}
    return roles.get(name, "passthrough or label")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _merged(one: pa.DataType, other: pa.DataType, embedding: bool, inferred: bool) -> pa.DataType | None:
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if embedding:
        dimensions = {fixed_dimension(one), fixed_dimension(other)} - {None}
        return None if len(dimensions) > 1 else one if fixed_dimension(one) else other
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)]
    if all(map(_is_text, plain)):
        return one if _is_text(one) else other if _is_text(other) else plain[0]
    if inferred:
        try:
            schemas = [pa.schema([("column", kind)]) for kind in (one, other)]
            return pa.unify_schemas(schemas, promote_options="permissive").field("column").type
        except pa.ArrowException:
            return None
    return None
