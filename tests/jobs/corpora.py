"""A small corpus with awkward texts, in every format; and what a test does with a source."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import sources
from jobs.config import InputConfig

RECORDS = [
    {"id": f"r{row}", "text": text, "section": "ROS" if row % 2 else "CC"}
    for row, text in enumerate(
        [
            "He denies chest pain, fever, or chills.",
            'She said "never better", then left.',
            "Two lines\nof one text, with a comma",
            "Ærøskøbing, 東京, 🩺 and e\u0301",
            "  leading and trailing blanks  ",
            "\ufeffstarts with a byte order mark",
            "a\tb",
        ]
    )
]


def as_parquet(records) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), buffer, row_group_size=3)
    return buffer.getvalue()


def as_csv(records) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue().encode()


def as_jsonl(records, *, ascii=False) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=ascii).encode() + b"\n" for record in records)


WRITERS = {
    "a.parquet": as_parquet,
    "a.csv": as_csv,
    "a.jsonl": as_jsonl,
    "a.ndjson": as_jsonl,
    "a.csv.gz": lambda records: gzip.compress(as_csv(records)),
    "a.jsonl.gz": lambda records: gzip.compress(as_jsonl(records)),
    "a.csv.zst": lambda records: pa.compress(as_csv(records), "zstd", asbytes=True),
    "a.jsonl.zst": lambda records: pa.compress(as_jsonl(records), "zstd", asbytes=True),
}


def plan(path, *, columns=(), **options):
    return sources.plan(InputConfig(path=str(path), **options), columns=columns)


def read(source, units=None):
    """Good rows as (id, text) pairs, and rejected rows, in order."""
    batches = [rows for unit in (source.units if units is None else units) for rows in sources.read(source, unit)]
    good = [pair for rows in batches for pair in zip(rows.ids, rows.texts, strict=True)]
    return good, [rejected for rows in batches for rejected in rows.rejected]


def one_piece(url, format, start, stop):
    return sources.Unit((sources.Piece(url, format, start, stop),), "")


def pairs(records):
    return [(record["id"], record["text"]) for record in records]
