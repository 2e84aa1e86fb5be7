"""What protection costs, as ratios measured in one run: `pytest -m benchmark -s tests/benchmarks`.

Rivals take turns on small batches and are charged CPU time, so that a busy machine slows them alike. BLAS
has one thread, as in a worker of one core.
"""

import time
import tracemalloc

import numpy as np
import pytest
from scipy.integrate import quad
from threadpoolctl import threadpool_limits

from sparse_core.mechanisms import Laplace, Mahalanobis, Purkayastha
from sparse_core.mechanisms.angle import AngleLaw
from sparse_core.noise import Key, record_uniforms

pytestmark = pytest.mark.benchmark

SIZE = 384
BATCH = 2_000
VECTORS = 100_000


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def embeddings():
    rows = np.random.default_rng(0).standard_normal((BATCH, SIZE))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def basis():
    return np.linalg.qr(np.random.default_rng(1).standard_normal((SIZE, SIZE)))[0]


def graded(active):
    weights = np.zeros(SIZE)
    weights[:active] = np.random.default_rng(2).uniform(0.2, 1.0, active)
    return weights


TEXTS = [f"a sentence of ordinary length about record number {row}" for row in range(BATCH)]


def uniforms_of(batch, key, embeddings, count=SIZE + 1):
    return record_uniforms(
        key,
        subjects=range(batch * BATCH, batch * BATCH + len(embeddings)),
        contents=TEXTS[: len(embeddings)],
        embeddings=embeddings,
        policy_hash="ab" * 32,
        count=count,
    )


def side_by_side(rivals, rounds):
    """Median seconds of each rival for one call; each call receives the round's number."""
    seconds = {name: [] for name in rivals}
    for number in range(rounds):
        for name, call in rivals.items():
            start = time.process_time()
            call(number)
            seconds[name].append(time.process_time() - start)
    return {name: float(np.median(each)) for name, each in seconds.items()}


def table(title, seconds, vectors):
    first = next(iter(seconds.values()))
    print(f"\n{title}")
    for name, total in seconds.items():
        print(f"  {name:<44} {total / vectors * 1e6:10.2f} us/vector  x {total / first:8.3f}")


def test_mahalanobis_noise_costs_little_more_than_laplace_noise(embeddings):
    """Without the read-out, which costs either the same; with it see test_release_cost.py."""
    key = Key.ephemeral()
    mechanisms = {"laplace": Laplace(dimension=SIZE, rho=2.0)}
    for active in (80, 160, 384):
        mechanisms[f"mahalanobis, {active} of 384 directions"] = Mahalanobis(
            weights=graded(active), basis=basis(), floor=0.02, rho=2.0
        )

    def protect(mechanism):
        def release(batch):
            rounded = mechanism.on_grid(embeddings)
            return mechanism.release(rounded, uniforms_of(batch, key, rounded)).astype(np.float32)

        return release

    seconds = side_by_side({name: protect(m) for name, m in mechanisms.items()}, VECTORS // BATCH)
    table("Protecting 100,000 vectors of 384 dimensions (keyed noise, release, float32)", seconds, BATCH)
    assert max(seconds.values()) <= 1.3 * seconds["laplace"]


def test_keyed_noise_costs_a_small_multiple_of_unkeyed_noise(embeddings):
    key, generator = Key.ephemeral(), np.random.default_rng(0)
    mechanism = Laplace(dimension=SIZE, rho=2.0)

    def unkeyed_noise(_):
        noise = generator.standard_normal((BATCH, SIZE))
        radius = generator.gamma(SIZE, 1 / mechanism.epsilon, BATCH)
        return noise * (radius / np.linalg.norm(noise, axis=1))[:, None]

    rivals = {
        "unkeyed uniforms (PCG64)": lambda _: generator.random((BATCH, SIZE + 1)),
        "keyed uniforms (SHAKE-256)": lambda batch: uniforms_of(batch, key, embeddings),
        "unkeyed noise (PCG64, ziggurat)": unkeyed_noise,
        "keyed noise (SHAKE-256, inverse CDF)": lambda batch: mechanism.noise(uniforms_of(batch, key, embeddings)),
    }
    seconds = side_by_side(rivals, 20)
    table("Keyed against unkeyed", seconds, BATCH)
    keyed, unkeyed = (seconds[f"{kind}"] for kind in list(rivals)[:1:-1])
    print(f"  keyed noise over unkeyed noise: {keyed / unkeyed:.2f}")
    assert keyed < 10 * unkeyed
    assert seconds["keyed uniforms (SHAKE-256)"] / BATCH < 50e-6


def test_purkayastha_is_a_thousand_times_faster_than_bisection_per_sample(embeddings):
    mechanism = Purkayastha(dimension=SIZE, rho=0.7)
    law = AngleLaw(SIZE, mechanism.epsilon)
    uniforms = np.random.default_rng(0).random((BATCH, SIZE + 1))
    samples = 5

    def weight(angle):
        return np.exp(-mechanism.epsilon * (angle - law.mode) + (SIZE - 2) * np.log(np.sin(angle) / np.sin(law.mode)))

    def bisected(chance):
        total = quad(weight, 0, np.pi, points=[law.mode], limit=200)[0]
        low, high = 0.0, np.pi
        while high - low > 1e-15:
            middle = (low + high) / 2
            points = [law.mode] if middle > law.mode else None
            below = quad(weight, 0, middle, points=points, limit=200)[0]
            low, high = (middle, high) if below < chance * total else (low, middle)
        return (low + high) / 2

    found = [bisected(chance) for chance in uniforms[:samples, 0]]
    assert np.allclose(found, law.quantile(uniforms[:samples, 0]), atol=1e-8)

    rivals = {
        "bisection per sample, angle": lambda _: [bisected(chance) for chance in uniforms[:samples, 0]],
        "vectorised, angle": lambda _: law.quantile(uniforms[:, 0]),
        "vectorised, whole release": lambda _: mechanism.release(embeddings, uniforms),
    }
    seconds = side_by_side(rivals, 4)
    each = {name: total / BATCH for name, total in seconds.items()}
    each["bisection per sample, angle"] *= BATCH / samples
    table("Purkayastha, 384 dimensions", each, 1)
    print(
        "  speed-up: angle "
        f"{each['bisection per sample, angle'] / each['vectorised, angle']:.0f}, whole release "
        f"{each['bisection per sample, angle'] / each['vectorised, whole release']:.0f}"
    )
    assert each["bisection per sample, angle"] >= 1000 * each["vectorised, angle"]
    assert each["bisection per sample, angle"] >= 200 * each["vectorised, whole release"]


@pytest.mark.parametrize("name", ["laplace", "mahalanobis", "purkayastha"])
def test_memory_is_proportional_to_the_batch(name, embeddings):
    mechanism = {
        "laplace": lambda: Laplace(dimension=SIZE, rho=1.0),
        "mahalanobis": lambda: Mahalanobis(weights=graded(80), basis=basis(), rho=1.0),
        "purkayastha": lambda: Purkayastha(dimension=SIZE, rho=1.0),
    }[name]()
    key = Key.ephemeral()
    peaks = {}
    for rows in (500, 2_000):
        tracemalloc.start()
        mechanism.release(embeddings[:rows], uniforms_of(0, key, embeddings[:rows]))
        tracemalloc.stop()
        texts = [str(row) for row in range(rows)]
        tracemalloc.start()
        rounded = mechanism.on_grid(embeddings[:rows])
        uniforms = record_uniforms(
            key, subjects=texts, contents=texts, embeddings=rounded, policy_hash="ab", count=SIZE + 1
        )
        mechanism.release(rounded, uniforms)
        peaks[rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    vector = SIZE * 8
    print(f"\n{name}: peak memory per row {peaks[2000] / 2000 / vector:.1f} x a float64 vector")
    assert peaks[2_000] <= 4.2 * peaks[500]
    assert peaks[2_000] <= 2_000 * vector * 8
