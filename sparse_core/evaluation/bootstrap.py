"""Record-level bootstrap: percentile intervals from resampled records.

Records, not tokens or guesses, are the independent units, so whole records are drawn with
replacement (Efron & Tibshirani 1993, chapters 13 and 16). Figures that share records are resampled
with the same draws, so that the interval of a difference or a quotient keeps their correlation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparse_core.errors import SparseError

_CELLS_PER_BLOCK = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A figure with its bootstrap interval.

    Parameters
    ----------
    value : float
        The figure on all records.
    low, high : float
        Ends of the interval; nan where it is undefined.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def resample_counts(n_records: int, n_resamples: int, *, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each record is drawn in each resample, in blocks of bounded memory.

    Parameters
    ----------
    n_records, n_resamples : int
        Records in a sample and number of samples, both at least 1.
    generator : numpy.random.Generator
        Source of the draws.

    Yields
    ------
    int array, shape (n_block, n_records)
        Rows sum to n_records; the blocks together have n_resamples rows and at most some 32 MB each.
    """
    block = max(1, _CELLS_PER_BLOCK // max(1, n_records))
    for start in range(0, n_resamples, block):
        rows = min(block, n_resamples - start)
        draws = generator.integers(0, n_records, size=(rows, n_records))
        draws += np.arange(rows)[:, None] * n_records
        yield np.bincount(draws.ravel(), minlength=rows * n_records).reshape(rows, n_records)


def resample_ratios(
    numerators: np.ndarray,
    denominators: np.ndarray,
    *,
    n_resamples: int = 1000,
    generator: np.random.Generator,
) -> np.ndarray:
    """Bootstrap replicates of sum(numerators) / sum(denominators), paired over columns.

    Parameters
    ----------
    numerators : float array, shape (n_records,) or (n_records, n_figures)
        Per record, for example the tokens an attack hit; one column per figure.
    denominators : float array, shape (n_records,)
        Per record, for example the tokens there were; ones for a mean.
    n_resamples : int
        Number of replicates.
    generator : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    float array, shape (n_resamples,) or (n_resamples, n_figures)
        Every figure of one row comes from the same resampled records. nan where the denominator is 0.

    Raises
    ------
    SparseError
        Without records, or where the lengths differ.
    """
    numerators = np.asarray(numerators, dtype=float)
    denominators = np.asarray(denominators, dtype=float)
    if len(numerators) != len(denominators):
        raise SparseError(f"{len(numerators)} numerators but {len(denominators)} denominators; give one of each")
    if len(denominators) == 0:
        raise SparseError("no records to resample; give at least one record")
    columns = np.column_stack([numerators, denominators])
    sums = np.concatenate(
        [counts @ columns for counts in resample_counts(len(denominators), n_resamples, generator=generator)]
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = sums[:, :-1] / sums[:, -1:]
    return ratios[:, 0] if numerators.ndim == 1 else ratios


def interval_of(value: float, replicates: np.ndarray, *, level: float = 0.95) -> Interval:
    """The percentile interval of bootstrap replicates around a figure.

    Parameters
    ----------
    value : float
        The figure on all records.
    replicates : float array, shape (n_resamples,)
        Undefined (nan) replicates are left out.
    level : float
        Nominal coverage.

    Returns
    -------
    Interval
        With nan ends if more than a tenth of the replicates are undefined.
    """
    defined = replicates[np.isfinite(replicates)]
    if not np.isfinite(value) or len(defined) < 0.9 * len(replicates):
        return Interval(float(value), float("nan"), float("nan"))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def widen_at_bounds(interval: Interval, n_records: int, *, level: float = 0.95) -> Interval:
    """Replace the empty interval of a rate that is 0 or 1 on every record by an exact one.

    A bootstrap of nothing but misses gives [0, 0], which claims a certainty that no finite sample
    has. The bound is Clopper & Pearson's (1934) for n_records independent records: a rate of 0 gets
    the upper end 1 - ((1 - level) / 2)^(1 / n_records), and a rate of 1 its mirror image.

    Parameters
    ----------
    interval : Interval
        A rate's bootstrap interval.
    n_records : int
        Records behind it.
    level : float
        Nominal coverage.

    Returns
    -------
    Interval
    """
    reach = 1 - ((1 - level) / 2) ** (1 / n_records)
    if interval.value == 0:
        return Interval(0.0, 0.0, max(interval.high, reach))
    if interval.value == 1:
        return Interval(1.0, min(interval.low, 1 - reach), 1.0)
    return interval


def ratio_interval(
    numerators: np.ndarray,
    denominators: np.ndarray | None = None,
    *,
    n_resamples: int = 1000,
    level: float = 0.95,
    generator: np.random.Generator,
) -> Interval:
    """A rate sum(numerators) / sum(denominators) with its record-level bootstrap interval.

    Parameters
    ----------
    numerators : float array, shape (n_records,)
        Per record, between 0 and its denominator.
    denominators : float array, shape (n_records,), optional
        Per record; ones (a mean over records) if not given.
    n_resamples, level, generator
        As in `resample_ratios` and `interval_of`.

    Returns
    -------
    Interval
        Widened by `widen_at_bounds` where every record hits or every record misses.

    Raises
    ------
    SparseError
        Without records, where the lengths differ, or where the denominators sum to 0.
    """
    numerators = np.asarray(numerators, dtype=float)
    denominators = np.ones(len(numerators)) if denominators is None else np.asarray(denominators, dtype=float)
    replicates = resample_ratios(numerators, denominators, n_resamples=n_resamples, generator=generator)
    total = denominators.sum()
    if total <= 0:
        raise SparseError("the denominators sum to 0, so there is no rate to report")
    interval = interval_of(numerators.sum() / total, replicates, level=level)
    return widen_at_bounds(interval, int(np.count_nonzero(denominators)), level=level)
