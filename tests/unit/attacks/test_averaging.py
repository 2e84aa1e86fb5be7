from dataclasses import replace

import numpy as np
import pytest

from sparse_core.attacks import averaging_attack
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.evaluation.metrics import unit_rows
from sparse_core.masks import Mask, MaskInfo
from sparse_core.noise import Key
from sparse_core.policy import Policy

N, ROWS, CANDIDATES = 24, 400, 5
SPEC = EncoderSpec("made-up", None, "a" * 64, N, "mean", True, 64)
KEYS = [Key(bytes((7 * step + start) % 256 for step in range(32))) for start in range(16)]
IDS = [f"record-{row}" for row in range(ROWS)]
CONTENTS = [f"What record {row} says." for row in range(ROWS)]
RELEASES = (1, 4, 16)


def draws(seed=0):
    return np.random.default_rng(seed)


EMBEDDINGS = unit_rows(draws(1).standard_normal((ROWS, N)) + 0.3).astype(np.float32)
MASK = Mask(
    values=np.where(np.arange(N) < 8, 1.0, 0.0),
    basis=np.linalg.qr(draws(2).standard_normal((N, N)))[0],
    mean=EMBEDDINGS.mean(axis=0, dtype=np.float64),
    covariance=np.eye(N) / N,
    info=MaskInfo(("made-up",), "f" * 16, "5a17", SPEC, "label", 0.02, 0, {}),
)


def build(**changes):
    options = {"encoder": SPEC, "mechanism": "mahalanobis", "mask": MASK, "rho": 3, "floor": 0.2}
    return Policy.build(**(options | changes))


def attack(policy, *, releases=RELEASES, keys=KEYS, rows=slice(None), **options):
    rows = averaging_attack(
        policy,
        EMBEDDINGS[rows],
        IDS[rows],
        CONTENTS[rows],
        keys=keys,
        releases=releases,
        n_bootstrap=200,
        generator=draws(),
        **options,
    )
    return {(row.noise, row.releases): row for row in rows}


@pytest.fixture(scope="module")
def rows():
    candidates = unit_rows(draws(3).standard_normal((ROWS * CANDIDATES, N))).reshape(ROWS, CANDIDATES, N)
    truth = draws(4).integers(0, CANDIDATES, ROWS)
    candidates[np.arange(ROWS), truth] = EMBEDDINGS
    return attack(build(), candidates=candidates, truth=truth)


POLICIES = {
    "mahalanobis": {},
    "mahalanobis raw": {"read_out": "none"},
    "laplace": {"mechanism": "laplace"},
    "gaussian": {"mechanism": "gaussian"},
    "purkayastha": {"mechanism": "purkayastha", "rho": 1.2},
}


@pytest.mark.parametrize("name", POLICIES)
def test_fresh_noise_falls_with_the_root_of_the_number_of_releases(name):
    policy = build(**POLICIES[name])
    found = attack(policy)
    expected = np.sqrt(policy.law.noise_variance().sum()) / policy.law.signal_gain
    for count in RELEASES:
        row = found["fresh", count]
        assert row.distinct == count
        assert row.error.value * np.sqrt(count) == pytest.approx(expected, rel=0.05)
        assert row.error.low < row.error.value < row.error.high


@pytest.mark.parametrize("name", POLICIES)
def test_keyed_noise_leaves_every_figure_bit_identical(name):
    found = attack(build(**POLICIES[name]), rows=slice(0, 100))
    for count in RELEASES:
        row = found["keyed", count]
        assert row.distinct == 1
        assert replace(row, releases=1) == found["keyed", 1] == replace(found["fresh", 1], noise="keyed")


def test_records_are_linked_the_better_the_more_fresh_releases_there_are(rows):
    linked = [rows["fresh", count].reidentification for count in RELEASES]
    assert linked[0].high < linked[1].low
    assert linked[1].value < linked[2].value
    assert rows["keyed", 16].reidentification == linked[0]


def test_a_closed_set_is_read_the_better_the_more_fresh_releases_there_are(rows):
    read = [rows["fresh", count].dictionary for count in RELEASES]
    assert 1 / CANDIDATES < read[0].low < read[0].high < read[1].low
    assert read[2].value >= read[1].value
    confidence = [rows["fresh", count].confidence.value for count in RELEASES]
    assert confidence[0] < confidence[1] < confidence[2]


def test_equal_releases_do_not_make_the_attacker_surer(rows):
    assert rows["keyed", 16].dictionary == rows["fresh", 1].dictionary
    assert rows["keyed", 16].confidence == rows["fresh", 1].confidence


def test_shrinking_gets_closer_than_the_mean_and_less_so_with_more_releases(rows):
    gains = [rows["fresh", count].error.value / rows["fresh", count].error_shrunk.value for count in RELEASES]
    assert gains[0] > gains[1] > gains[2] > 1


def test_one_release_without_noise_is_the_original():
    row = attack(build(mechanism="none", rho=None), rows=slice(0, 50))["fresh", 16]
    assert row.distinct == 1
    assert row.error.value < 1e-5
    assert row.reidentification.value == 1


def test_a_policy_without_a_mask_has_nothing_to_shrink_towards():
    found = attack(build(mechanism="laplace", mask=None, read_out="none"), rows=slice(0, 50), releases=(1, 2))
    assert [row.error_shrunk for row in found.values()] == [None] * 4
    assert found["fresh", 1].dictionary is None


def test_unusable_input_is_refused():
    with pytest.raises(SparseError, match="16 releases with fresh noise need as many different keys"):
        attack(build(), keys=KEYS[:1] * 16)
    with pytest.raises(SparseError, match="at least 1"):
        attack(build(), releases=(0, 1))
    with pytest.raises(SparseError, match="candidates and truth go together"):
        attack(build(), truth=np.zeros(ROWS, dtype=int))
    with pytest.raises(SparseError, match="truth has 2"):
        attack(build(), candidates=EMBEDDINGS[:3], truth=np.zeros(2, dtype=int))
    with pytest.raises(SparseError, match="no record to attack"):
        attack(build(), rows=slice(0, 0))
    with pytest.raises(SparseError, match="ids has 400"):
        averaging_attack(build(), EMBEDDINGS[:9], IDS, CONTENTS, keys=KEYS, generator=draws())
