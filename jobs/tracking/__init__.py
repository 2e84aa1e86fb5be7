"""MLflow: what a run did, and never a key, a concept's term or a text.

`store` finds and opens the place, `reaching` tells early that it does not serve, `runs` records a job, and `studies` a
study with its trials.
"""

from jobs.tracking.reaching import client_of, explained
from jobs.tracking.runs import Run, tracked
from jobs.tracking.store import Store, check_tracking, tracking_uri
from jobs.tracking.studies import StudyRun, tracked_study

__all__ = [
    "Run",
    "Store",
    "StudyRun",
    "check_tracking",
    "client_of",
    "explained",
    "tracked",
    "tracked_study",
    "tracking_uri",
]
