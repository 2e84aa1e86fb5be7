"""Writing one file of a dataset: in streaming, and visible only when whole."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import storage
from jobs.config import OutputConfig
from jobs.outputs.precision import COLUMN
from jobs.outputs.tables import as_fragment, fitting, folder_of

_COPY_BYTES = 1 << 20
_LANCE_ROWS_PER_FILE = 2**31 - 1


@dataclass(frozen=True)
class FileRecord:
    """A file that was written.

    Attributes
    ----------
    path : str
        Relative to the output directory.
    rows, bytes : int
    sha256 : str
        Of its bytes.
    fragment : dict or None
        What a Lance dataset must know of it.
    """

    path: str
    rows: int
    bytes: int
    sha256: str
    fragment: dict | None = None

    @property
    def listed(self) -> dict:
        """As it stands in a manifest."""
        return {name: value for name, value in asdict(self).items() if name != "fragment"}


class PartWriter:
    """One file of an output, as a context manager; nothing is visible of it before the block ends, or if it raises.

    Rows are gathered into row groups whatever the sizes of the tables that arrive, so that a name and its rows written
    twice are the same bytes twice, and memory holds one row group and one table. A process that is killed leaves a
    hidden temporary file, or an upload that was never completed; readers see neither.

    Parameters
    ----------
    output : str
        Output directory.
    config : OutputConfig
        Format and row groups. Folders beside the dataset are Parquet whatever it says.
    name : str
        Of the unit; names the file.
    folder : str, optional
        ``ledger``, ``quarantine``; by default the dataset's own.

    Attributes
    ----------
    file : FileRecord or None
        Set when the block has ended; None if no row was written, in which case there is no file.
    """

    def __init__(self, output: str, config: OutputConfig, *, name: str, folder: str | None = None):
        self.file: FileRecord | None = None
        self._config = config if folder is None else OutputConfig(row_group_rows=config.row_group_rows)
        lance = self._config.format == "lance"
        folder = folder_of(self._config.format) if folder is None else folder
        self._path = f"{folder}/data/part-{name}.lance" if lance else f"{folder}/part-{name}.parquet"
        self._url = storage.join(output, self._path)
        self._sink: _Sink | None = None
        self._open = ExitStack()
        self._waiting: list[pa.Table] = []
        self._rows_waiting = self._rows = 0

    def __enter__(self) -> PartWriter:
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows; every table must have the same columns.

        Raises
        ------
        SparseError
            If the format cannot hold a column.
        """
        if not len(table):
            return
        self._waiting.append(fitting(table, self._config.format))
        self._rows_waiting += len(table)
        if self._rows_waiting >= self._config.row_group_rows:
            self._write_groups(whole=True)

    def __exit__(self, *raised) -> None:
        if raised[0] is not None:
            # The file's own context is told, and leaves nothing behind.
            self._open.__exit__(*raised)
            return
        with self._open:
            self._write_groups(whole=False)
            if self._sink is None:
                return
            fragment = self._sink.finish()
        file = self._sink.file
        self.file = FileRecord(self._path, self._rows, file.bytes, file.digest.hexdigest(), fragment)

    def _write_groups(self, *, whole: bool) -> None:
        rows = self._config.row_group_rows
        table = pa.concat_tables(self._waiting) if self._waiting else None
        start = 0
        while start < self._rows_waiting and (self._rows_waiting - start >= rows or not whole):
            self._write_group(table.slice(start, rows))
            start += rows
        self._rows_waiting = max(0, self._rows_waiting - start)
        self._waiting = [table.slice(start)] if self._rows_waiting else []

    def _write_group(self, group: pa.Table) -> None:
        # One chunk a column, because page boundaries follow chunks.
        group = group.unify_dictionaries().combine_chunks()
        if self._sink is None:
            sink = _LanceSink if self._config.format == "lance" else _ParquetSink
            self._sink = sink(group.schema, self._url, self._open)
        self._sink.write(group)
        self._rows += len(group)


class _Sink(Protocol):
    file: _Hashed

    def write(self, group: pa.Table) -> None: ...

    def finish(self) -> dict | None: ...


class _Hashed:
    """A binary file that is counted and hashed on its way."""

    closed = False

    def __init__(self, file: BinaryIO):
        self._file = file
        self.bytes = 0
        self.digest = hashlib.sha256()

    def write(self, data) -> int:
        self._file.write(data)
        self.digest.update(data)
        size = memoryview(data).nbytes
        self.bytes += size
        return size

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Left to whoever opened the file, as is closing it."""

    close = flush


class _ParquetSink:
    """Parquet with zstd.

    Vectors are noise to a compressor: no dictionary helps, but the bytes of a float32 split by significance shrink by a
    fifth, since releases lie on a grid. float16 is left plain, as DuckDB does not read it split; int8 has 255 values,
    which a dictionary packs into a byte each.
    """

    def __init__(self, schema: pa.Schema, url: str, stack: ExitStack):
        self.file = _Hashed(stack.enter_context(storage.writing(url)))
        names, encoding = list(schema.names), None
        if COLUMN in names:
            values = schema.field(COLUMN).type.value_type
            leaf = f"{COLUMN}.list.element"
            names[names.index(COLUMN)] = leaf
            if values != pa.int8():
                names.remove(leaf)
            if values == pa.float32():
                encoding = {leaf: "BYTE_STREAM_SPLIT"}
        self._writer = stack.enter_context(
            pq.ParquetWriter(
                pa.PythonFile(self.file, mode="w"),
                schema,
                compression="zstd",
                use_dictionary=names or False,
                column_encoding=encoding,
            )
        )

    def write(self, group: pa.Table) -> None:
        self._writer.write_table(group, row_group_size=len(group))

    def finish(self) -> None:
        self._writer.close()


class _LanceSink:
    """One Lance fragment: made beside, from a spool on local disk, and then put in place under its own name.

    Lance's writer pulls its rows and invents the file's name; the spool turns that into a push, and the name into one
    that a repetition overwrites instead of leaving a stray file.
    """

    def __init__(self, schema: pa.Schema, url: str, stack: ExitStack):
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparse-lance-")))
        self._spool = stack.enter_context(pa.ipc.new_stream(str(self._folder / "spool"), schema))
        self._url, self._stack = url, stack

    def write(self, group: pa.Table) -> None:
        self._spool.write_table(group)

    def finish(self) -> dict:
        from lance.fragment import write_fragments

        self._spool.close()
        with pa.memory_map(str(self._folder / "spool")) as spool, pa.ipc.open_stream(spool) as reader:
            (written,) = write_fragments(
                reader, str(self._folder / "fragment"), mode="create", max_rows_per_file=_LANCE_ROWS_PER_FILE
            )
        fragment, made = as_fragment(written, self._url)
        self.file = _Hashed(self._stack.enter_context(storage.writing(self._url)))
        with open(self._folder / "fragment" / "data" / made, "rb") as content:
            while block := content.read(_COPY_BYTES):
                self.file.write(block)
        return fragment
