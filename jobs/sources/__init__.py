"""Reading a corpus: planning units of work, reading one, and telling good rows from bad.

`plan` lists files and tables, checks that they fit together and cuts them into units, each for one worker; `read`
gives a unit's rows in batches, the bad ones set apart with a reason and a place.
"""

from jobs.sources.columns import Columns, plan_columns, read_columns
from jobs.sources.plan import plan
from jobs.sources.reading import Corpus, read, read_all
from jobs.sources.rows import BATCH_ROWS, Piece, Rejected, Rows, Source, Unit

__all__ = [
    "BATCH_ROWS",
    "Columns",
    "Corpus",
    "Piece",
    "Rejected",
    "Rows",
    "Source",
    "Unit",
    "plan",
    "plan_columns",
    "read",
    "read_all",
    "read_columns",
]
