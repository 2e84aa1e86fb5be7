"""What a policy's mean and covariance tell of the bundled clinical sentences, by how many they were estimated on.

    pytest -m benchmark -s tests/benchmarks/test_policy_alone.py

Exact statistics, the covariance shrunk as masks do. 24 diagnoses are tried in known sentences. Prints the strongest
score of whoever knows other records of the kind, beside whoever knows all records but one; the figures of records that
were not in the statistics; and, last, statistics of other records altogether, which tell nothing.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from sparse_core.attacks import PublishedStatistics, membership_attack, substituted_candidates, value_attack
from sparse_core.concepts import Concept, find_spans

TERMS = (Path(__file__).parents[2] / "configs/concepts/patient.txt").read_text().split("\n")[14:]
SIZES = (78, 240, 600, 1200, 2500)
ATTACKED, REFERENCE, OUTSIDERS = 120, 1500, 600

pytestmark = pytest.mark.benchmark


def published(records):
    return PublishedStatistics(records.mean(axis=0), ledoit_wolf(records)[0], len(records))


def test_the_policy_alone(job_encoder, sentences):
    generator = np.random.default_rng(0)
    spans = find_spans(sentences, Concept(name="diagnosis", terms=tuple(term for term in TERMS if term)))
    surfaces = [
        text[found[0].start : found[0].end].casefold() if found else ""
        for text, found in zip(sentences, spans, strict=True)
    ]
    values = [value for value, _ in Counter(filter(None, surfaces)).most_common(24)]
    holding = generator.permutation([row for row, surface in enumerate(surfaces) if surface in values])[: 2 * ATTACKED]
    make = substituted_candidates(
        [sentences[row] for row in holding], [spans[row][0] for row in holding], values, encode=job_encoder.encode
    )
    candidates = np.concatenate([make(slice(start, start + 60)) for start in range(0, len(holding), 60)])
    truth = np.array([values.index(surfaces[row]) for row in holding])
    vectors = job_encoder.encode(sentences).astype(float)
    rest = generator.permutation(np.setdiff1d(np.arange(len(vectors)), holding))
    inside, outside = holding[:ATTACKED], holding[ATTACKED:]
    reference, others, pool = np.split(rest, [REFERENCE, REFERENCE + OUTSIDERS])
    shared = {"reference": vectors[reference], "generator": generator}
    compared = {"outside_candidates": candidates[ATTACKED:], "outside_truth": truth[ATTACKED:]}

    def figures(statistics, members):
        known = vectors[members]
        told = membership_attack(statistics, members=known, outsiders=vectors[np.r_[outside, others]], **shared)
        few = min(ATTACKED, len(members))
        given = {"candidates": candidates[:few], "truth": truth[:few], "members": known}
        return told, value_attack(statistics, **given, **compared, **shared)

    areas = {}
    print("\nrecords  adversary   members: AUC, score                     values read, in other records, score")
    for size in (*SIZES, None):
        members = np.r_[inside, pool][: size or max(SIZES)]
        statistics = published(vectors[members] if size else vectors[reference[:750]])
        told, read = figures(statistics, members)
        for adversary in dict.fromkeys(one.adversary for one in told):
            auc = max((one for one in told if one.adversary == adversary), key=lambda one: one.auc.value)
            top1 = max((one for one in read if one.adversary == adversary), key=lambda one: one.top1.value)
            areas[size, adversary] = auc.auc.value
            shown = f"{auc.auc} {auc.score:14}  {top1.top1} {top1.outside} {top1.score}"
            print(f"{size or 'others':>7}  {adversary:10}  {shown}")
    assert areas[78, "population"] == 1
    assert all(areas[size, "informed"] == 1 for size in SIZES)
    assert areas[2500, "population"] > 0.8 > 0.6 > areas[None, "population"]
