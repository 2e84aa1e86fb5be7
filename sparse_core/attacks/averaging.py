"""What an attacker gains from several releases of one record.

k releases y_j = x + z_j with independent noise of covariance N: their mean has error covariance N / k, whatever the
law, so its distance to x falls as 1 / sqrt(k). For noise of density exp(-epsilon * |z|) in n dimensions nothing does
much better: the Fisher information of one release about x is epsilon^2 / n in every direction and N is
(n + 1) / epsilon^2, so the mean needs a share 1 / n more releases than the Cramer-Rao bound asks for, 0.3% at
n = 384, and for Gaussian noise none. The mean is therefore the attack; releases on the sphere (``purkayastha``) are
divided by their gain, which leaves their mean unbiased too. Two refinements need no more than public knowledge:
shrinking the mean towards what embeddings look like (Wiener, with N / k), and, against a closed set of values,
multiplying the likelihoods of the releases (:mod:`sparse_core.attacks.dictionary`).

Epsilons of fresh releases add up (sequential composition): k cost k * epsilon. Keyed noise is a function of key,
policy, subject, content and embedding (:mod:`sparse_core.noise.keyed`), so the same record published again is the same
vector again, and so are copies of a text under one subject. Fresh noise comes from a new key, a changed policy, or one
text under several subjects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparse_core.attacks.candidates import (
    Candidates,
    candidate_blocks,
    candidate_log_likelihoods,
    candidate_posterior,
    checked_truth,
    top1_hits,
)
from sparse_core.attacks.reidentification import reidentification
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval, interval_of, ratio_interval, resample_ratios
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.mechanisms import wiener
from sparse_core.noise import Key
from sparse_core.positions import by_position

if TYPE_CHECKING:
    from sparse_core.policy import Policy

_RECORDS = 256


@dataclass(frozen=True)
class AveragingRow:
    """What k releases of every record give away.

    Parameters
    ----------
    noise : str
        "fresh", another key for every release, or "keyed", one key for all.
    releases : int
        k, how often each record was published.
    distinct : float
        How many different vectors that gave, on average. An attacker keeps one of equal ones.
    error : Interval
        Root mean squared distance of the mean of the releases, the read-out undone, to the original, over the
        root mean squared norm of the originals.
    error_shrunk : Interval or None
        The same after Wiener shrinkage of the mean: the best linear estimate. None without a mask.
    reidentification : Interval
        Share of records that the mean is linked to among all originals, see `Reidentification.top1`.
    dictionary, confidence : Interval or None
        Share of records whose true candidate has the highest product of likelihoods, and its mean posterior
        probability; None without candidates.
    """

    noise: str
    releases: int
    distinct: float
    error: Interval
    error_shrunk: Interval | None
    reidentification: Interval
    dictionary: Interval | None
    confidence: Interval | None


def averaging_attack(
    policy: Policy,
    embeddings: np.ndarray,
    ids: Sequence[str | int],
    contents: Sequence[str | bytes],
    *,
    keys: Sequence[Key],
    releases: Sequence[int] = (1, 4, 16),
    candidates: Candidates | None = None,
    truth: np.ndarray | None = None,
    n_bootstrap: int = 1000,
    generator: np.random.Generator,
) -> tuple[AveragingRow, ...]:
    """Publish records several times, with fresh and with keyed noise, and attack all their releases together.

    Everything is published as a job would publish it, `2 * max(releases)` times: give a sample of records.

    Parameters
    ----------
    policy : Policy
    embeddings : float array, shape (n_records, n)
        Unprotected; also the candidates of re-identification.
    ids : sequence of str or int, length n_records
    contents : sequence of str or bytes, length n_records
    keys : sequence of Key
        As many different ones as the most releases. Fresh noise uses them in turn, keyed noise the first.
    releases : sequence of int
        Numbers of releases to report.
    candidates, truth : optional
        A closed set and each record's value in it, as `dictionary_attack` takes them.
    n_bootstrap : int
        Resamples of records, the same for all rows.
    generator : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    tuple of AveragingRow
        Fresh, then keyed, each in rising number of releases.

    Raises
    ------
    SparseError
        For unusable or mismatched columns, too few keys, or a number of releases below 1.
    """
    embeddings = check_vectors(embeddings, "embeddings", dimension=policy.encoder.dimension)
    ids = by_position(ids, "ids", length=len(embeddings))
    contents = by_position(contents, "contents", length=len(embeddings))
    keys = by_position(keys, "keys")
    releases = sorted(set(by_position(releases, "releases")))
    if not releases or releases[0] < 1:
        raise SparseError(f"releases are {releases}; give numbers of releases of at least 1")
    if len({key.identifier for key in keys[: releases[-1]]}) < releases[-1]:
        raise SparseError(
            f"{releases[-1]} releases with fresh noise need as many different keys; make them with Key.ephemeral()"
        )
    if (candidates is None) != (truth is None):
        raise SparseError("candidates and truth go together; give both or neither")
    if truth is not None:
        truth = np.asarray(truth)
        check_same_length(embeddings=embeddings, truth=truth)
    schedules = {"fresh": list(keys[: releases[-1]]), "keyed": [keys[0]] * releases[-1]}
    blocks = _record_blocks(len(embeddings)) if candidates is None else _candidates(candidates, embeddings)
    parts = []
    for rows, block in blocks:
        parts.append(
            {
                noise: _accumulated(policy, embeddings[rows], ids[rows], contents[rows], schedule, releases, block)
                for noise, schedule in schedules.items()
            }
        )
    state = generator.bit_generator.state
    found = []
    for noise in schedules:
        for number, count in enumerate(releases):
            generator.bit_generator.state = state
            mean, distinct, likelihoods = (
                np.concatenate(columns) for columns in zip(*(part[noise][number] for part in parts), strict=True)
            )
            found.append(
                _row(policy, embeddings, noise, count, mean, distinct, likelihoods, truth, n_bootstrap, generator)
            )
    return tuple(found)


def _record_blocks(n_records: int):
    if n_records == 0:
        raise SparseError("there is no record to attack; give at least one")
    for start in range(0, n_records, _RECORDS):
        rows = slice(start, min(start + _RECORDS, n_records))
        yield rows, None


def _candidates(candidates: Candidates, embeddings: np.ndarray):
    return candidate_blocks(candidates, len(embeddings), dimension=embeddings.shape[1])


def _accumulated(policy, embeddings, ids, contents, schedule, releases, candidates):
    """After each number of releases: mean of the distinct ones, how many, and their log-likelihoods."""
    published = np.stack([policy.release(embeddings, ids=ids, contents=contents, key=key) for key in schedule])
    new = np.array(
        [(published[:number] != release).any(axis=2).all(axis=0) for number, release in enumerate(published)]
    )
    # All at once, as the read-out's inverse is computed anew in each call.
    noised = np.zeros(published.shape)
    noised[new] = policy.undo_read_out(published[new])
    total = np.zeros(embeddings.shape)
    likelihoods = np.zeros((len(embeddings), 0 if candidates is None else candidates.shape[1]))
    snapshots = []
    for number, (vectors, rows) in enumerate(zip(noised, new, strict=True), start=1):
        total += vectors
        if candidates is not None and rows.any():
            likelihoods[rows] += candidate_log_likelihoods(vectors[rows], candidates[rows], law=policy.law)
        if number in releases:
            distinct = new[:number].sum(axis=0)
            snapshots.append((total / distinct[:, None], distinct, likelihoods.copy()))
    return snapshots


def _row(policy, embeddings, noise, count, mean, distinct, likelihoods, truth, n_bootstrap, generator):
    options = {"n_bootstrap": n_bootstrap, "generator": generator}
    dictionary = confidence = None
    if truth is not None:
        truth = checked_truth(truth, likelihoods.shape[1])
        posterior = candidate_posterior(likelihoods)[np.arange(len(truth)), truth]
        resampling = {"n_resamples": n_bootstrap, "generator": generator}
        dictionary = ratio_interval(top1_hits(likelihoods, truth), **resampling)
        confidence = ratio_interval(posterior, **resampling)
    shrunk = None
    if policy.mask is not None:
        shrunk = _relative_error(_shrunk(policy, mean, distinct.mean()), embeddings, **options)
    return AveragingRow(
        noise=noise,
        releases=count,
        distinct=float(distinct.mean()),
        error=_relative_error(mean, embeddings, **options),
        error_shrunk=shrunk,
        reidentification=reidentification(mean, embeddings, public=policy.public_knowledge(), **options).top1,
        dictionary=dictionary,
        confidence=confidence,
    )


def _relative_error(estimates, embeddings, *, n_bootstrap, generator) -> Interval:
    squares = np.sum((estimates - embeddings) ** 2, axis=1), np.sum(embeddings**2, axis=1, dtype=np.float64)
    replicates = resample_ratios(*squares, n_resamples=n_bootstrap, generator=generator)
    return interval_of(np.sqrt(squares[0].sum() / squares[1].sum()), np.sqrt(replicates))


def _shrunk(policy: Policy, mean: np.ndarray, count: float) -> np.ndarray:
    noise = policy.law.noise_variance() / policy.law.signal_gain**2 / count
    reader = wiener(policy.mask, noise, covariance=policy.mask.covariance)
    return reader.mean + (mean - reader.mean) @ reader.matrix.T
