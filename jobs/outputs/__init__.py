"""The published dataset: its files, what their numbers mean, and the one moment at which they become a dataset.

Every unit of work becomes one file, whose name is a hash of the unit. It is written beside and put in place whole, by a
rename or by completing an upload, so that a unit done twice is the same file twice, and a process that dies leaves
nothing that a reader sees. Parquet is finished with that. Delta Lake and Lance read what their log names: the driver
writes that log once, when all units are done (`commit`), and stray files are not in it.

Why not the writers of Ray Data 2.60
------------------------------------
The contract is: every good row exactly once, whatever dies and however often the command is run again; no vector
published that the ledger does not name.

- ``write_delta`` and ``write_lance`` do commit once, on the driver, after all tasks: their readers see all or nothing.
  But what a killed driver's tasks have written is lost to the next run, which starts from the first row: their state
  lives in the driver's memory. A driver that dies after its commit and before it could say so doubles the table when
  it is run again in append mode, and computes everything anew in overwrite mode; ``write_lance`` refuses to create.
- ``write_delta`` names files by a random number per job, Lance by one per file, so that a run again leaves the dead
  one's files lying there, and nothing but the log tells them apart; a plain ``read_parquet`` of a Delta folder reads
  both.
- ``write_parquet`` has no commit: 7,000 of 20,000 rows stood there twice after a kill.
- ``ray.data.checkpoint`` does resume, by row, in two phases. It loads every finished id into the memory of each filter
  actor, wants ids that are unique before it starts, and forgets its state on success, so that running a finished job
  again does the whole job again.
- None of them writes the ledger before the vectors, counts quarantined rows per unit, or hashes what it has written.

So Ray Data hands out units, and the files are written here; the log is written with the same two calls that Ray's own
sinks end in, ``create_table_with_add_actions`` and ``LanceDataset.commit``.
"""

from jobs.outputs.manifest import read_columns, read_manifest, read_published, verify, write_manifest
from jobs.outputs.parts import FileRecord, PartWriter
from jobs.outputs.precision import COLUMN, as_float32, count_clipped, public_scale, vector_array, vector_field
from jobs.outputs.tables import check_format, commit, folder_of, listed

__all__ = [
    "COLUMN",
    "FileRecord",
    "PartWriter",
    "as_float32",
    "check_format",
    "commit",
    "count_clipped",
    "folder_of",
    "listed",
    "public_scale",
    "read_columns",
    "read_manifest",
    "read_published",
    "vector_array",
    "vector_field",
    "verify",
    "write_manifest",
]
