"""What an attack got, what a consumer keeps, and how sure the figures are."""

from sparse_core.evaluation.bootstrap import (
    Interval,
    interval_of,
    ratio_interval,
    resample_ratios,
)
from sparse_core.evaluation.clustering import clustering
from sparse_core.evaluation.leakage import confidence, guess_hits, micro_leakage
from sparse_core.evaluation.splits import Split, near_duplicate_groups, split_records
from sparse_core.evaluation.tokens import TokenLabels, token_labels
from sparse_core.evaluation.utility import UtilityResult, classification, retrieval, sts

__all__ = [
    "Interval",
    "Split",
    "TokenLabels",
    "UtilityResult",
    "classification",
    "clustering",
    "confidence",
    "guess_hits",
    "interval_of",
    "micro_leakage",
    "near_duplicate_groups",
    "ratio_interval",
    "resample_ratios",
    "retrieval",
    "split_records",
    "sts",
    "token_labels",
]
