"""What copies of a text give away: under ids of their own their noise averages, under one subject there is one vector.

An attacker knows each sentence but for its diagnosis, one of 24, and multiplies the exact likelihoods of all copies.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sparse_core.attacks.candidates import candidate_log_likelihoods, substituted_candidates
from sparse_core.concepts import Concept, find_spans
from sparse_core.noise import Key
from sparse_core.policy import Policy

DEMOGRAPHICS = ("female", "male", "woman", "man", "gentleman", "lady", "boy", "girl", "white", "caucasian", "black")
CONCEPT = Path(__file__).parents[3] / "configs" / "concepts" / "patient.txt"
KEY = Key(bytes(range(32)))
N_RECORDS, N_VALUES, COPIES = 60, 24, (1, 4, 16, 64)


@pytest.fixture(scope="module")
def known(sentences, encoder):
    """Sentences, their vectors, those with each of 24 diagnoses in place of their own, and which is the true one."""
    listed = tuple(term for term in CONCEPT.read_text().split("\n") if term and term not in DEMOGRAPHICS)
    spans = find_spans(sentences, Concept("diagnosis", terms=listed))
    first = {row: found[0] for row, found in enumerate(spans) if len(found) == 1}
    surfaces = {row: sentences[row][span.start : span.end].casefold() for row, span in first.items()}
    values = [value for value, _ in Counter(surfaces.values()).most_common(N_VALUES)]
    rows = [row for row in surfaces if surfaces[row] in values]
    rows = np.random.default_rng(0).permutation(rows)[:N_RECORDS]
    texts = [sentences[row] for row in rows]
    make = substituted_candidates(texts, [first[row] for row in rows], values, encode=encoder.encode)
    truth = np.array([values.index(surfaces[row]) for row in rows])
    return texts, encoder.encode(texts), make(slice(0, len(rows))), truth


def share_read(known, encoder, subject_of):
    """Share of diagnoses read from 1, 4, 16 and 64 copies; `subject_of` names whom copy c of record r belongs to."""
    texts, vectors, candidates, truth = known
    policy = Policy.build(encoder=encoder.spec, mechanism="laplace", rho=8.0, read_out="none")
    total, seen, shares = np.zeros(candidates.shape[:2]), [set() for _ in texts], []
    for copy in range(max(COPIES)):
        names = range(len(texts))
        published = policy.release(
            vectors,
            ids=[f"{record}-{copy}" for record in names],
            subjects=[subject_of(record, copy) for record in names],
            contents=texts,
            key=KEY,
        )
        new = [vector.tobytes() not in before for vector, before in zip(published, seen, strict=True)]
        for vector, before in zip(published, seen, strict=True):
            before.add(vector.tobytes())
        if any(new):
            total[new] += candidate_log_likelihoods(published[new].astype(np.float64), candidates[new], law=policy.law)
        if copy + 1 in COPIES:
            shares.append(float((total.argmax(axis=1) == truth).mean()))
    return shares


def test_copies_under_ids_of_their_own_give_away_what_one_hides(known, encoder):
    shares = share_read(known, encoder, lambda record, copy: f"{record}-{copy}")
    print(f"laplace rho 8, {COPIES} copies under other ids: {shares}")
    assert shares[0] < 0.4 < shares[1] < 0.75 < shares[2] and shares[3] > 0.95


def test_copies_under_one_subject_give_away_no_more_than_one(known, encoder):
    shares = share_read(known, encoder, lambda record, copy: f"{record}")
    print(f"laplace rho 8, {COPIES} copies within a subject: {shares}")
    assert len(set(shares)) == 1 and shares[0] < 0.4
