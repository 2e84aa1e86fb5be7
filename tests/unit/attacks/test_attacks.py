from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparse_core.attacks import ATTACKS, Attack, PublicKnowledge, build_attack, register
from sparse_core.errors import SparseError
from sparse_core.evaluation import micro_leakage

NAMES = ("ridge", "neighbour", "mlc")
QUICK = {"mlc": {"hidden": 64, "epochs": 20}}


def leakage(name, data, vectors, public, *, n_train=None, **options):
    train = data.train[:n_train]
    attack = build_attack(name, **options).fit(vectors[train], data.labels[train], public=public, seed=0)
    return micro_leakage(attack.scores(vectors[data.test]), data.labels[data.test])


@pytest.mark.parametrize(("name", "slack"), [("ridge", 0.02), ("neighbour", 0.05), ("mlc", 0.03)])
def test_every_attack_comes_close_to_the_best_possible_one(name, slack, gaussian):
    sampling = 2 * (0.25 / len(gaussian.test)) ** 0.5
    unprotected = leakage(name, gaussian, gaussian.unprotected, gaussian.public.without_noise())
    protected = leakage(name, gaussian, gaussian.protected, gaussian.public)
    assert unprotected == pytest.approx(gaussian.best_unprotected, abs=slack + sampling)
    assert protected == pytest.approx(gaussian.best_protected, abs=slack + sampling)


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_works_without_any_public_knowledge(name, gaussian):
    found = leakage(name, gaussian, gaussian.protected, PublicKnowledge(), **QUICK.get(name, {}))
    assert found > gaussian.best_protected - 0.1


@pytest.mark.parametrize(("name", "gain"), [("ridge", 0.02), ("neighbour", 0.3), ("mlc", 0.3)])
def test_knowing_sigma_beats_not_knowing_it(name, gain, make_gaussian):
    aware, blind = [], []
    for seed in range(3):
        data = make_gaussian(dimension=60, n_noisy=40, noise=20.0, distance=4.0, signal_in_noise=False, seed=seed)
        aware.append(leakage(name, data, data.protected, data.public, n_train=150))
        blind.append(leakage(name, data, data.protected, PublicKnowledge(), n_train=150, transforms=("plain",)))
    assert np.mean(aware) > np.mean(blind) + gain


@pytest.mark.parametrize("name", ["ridge", "mlc"])
def test_draws_of_other_records_are_refused(name, gaussian):
    rows = gaussian.train
    known = {"labels": gaussian.labels[rows], "public": gaussian.public, "seed": 0}
    with pytest.raises(SparseError, match="draw"):
        build_attack(name).fit(gaussian.protected[rows], draws=[gaussian.protected[rows][:-1]], **known)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_probabilities_and_the_seed_decides_them(name, gaussian):
    rows, labels = gaussian.train, gaussian.labels[gaussian.train]
    scores = [
        build_attack(name, **QUICK.get(name, {}))
        .fit(gaussian.protected[rows], labels, public=gaussian.public, seed=seed)
        .scores(gaussian.protected[gaussian.test])
        for seed in (3, 3)
    ]
    assert (scores[0] == scores[1]).all()
    assert scores[0].shape == (len(gaussian.test), 2)
    assert scores[0].min() >= 0 and scores[0].max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_are_calibrated(name, make_gaussian):
    data = make_gaussian(n_records=3000, distance=2.0)
    attack = build_attack(name).fit(
        data.unprotected[data.train], data.labels[data.train], public=data.public.without_noise(), seed=0
    )
    probability = attack.scores(data.unprotected[data.test])[:, 1]
    truth = data.labels[data.test, 1]
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (probability >= low) & (probability <= low + 0.25)
        if inside.sum() > 50:
            assert truth[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.15)


@pytest.mark.parametrize("name", NAMES)
def test_attacks_bear_dead_directions_single_precision_and_unseen_tokens(name, gaussian):
    vectors = gaussian.protected.astype(np.float32)
    vectors[:, 3] = 0.5
    labels = np.column_stack([gaussian.labels, np.zeros(len(vectors), dtype=bool)])
    attack = build_attack(name).fit(vectors[:200], labels[:200], public=PublicKnowledge(), seed=0)
    assert np.isfinite(attack.scores(vectors[200:300])).all()


@pytest.mark.parametrize("name", NAMES)
def test_attacks_bear_fewer_records_than_dimensions(name, make_gaussian):
    data = make_gaussian(n_records=180, dimension=150)
    assert 0 <= leakage(name, data, data.protected, data.public) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_unusable_training_data_is_refused(name, gaussian):
    vectors, labels = gaussian.protected[:50], gaussian.labels[:50]

    def fit(vectors, labels, public=gaussian.public):
        return build_attack(name).fit(vectors, labels, public=public, seed=0)

    with pytest.raises(SparseError, match="labels has 49"):
        fit(vectors, labels[:49])
    with pytest.raises(SparseError, match="vocabulary is empty"):
        fit(vectors, labels[:, :0])
    with pytest.raises(SparseError, match="5 training records are too few"):
        fit(vectors[:5], labels[:5])
    with pytest.raises(SparseError, match="first row 7"):
        fit(np.where(np.arange(50)[:, None] == 7, np.nan, vectors), labels)
    with pytest.raises(SparseError, match="public basis has dimension 24 but the vectors 10"):
        fit(vectors[:, :10], labels)
    with pytest.raises(SparseError, match="dimension 10 where 24"):
        fit(vectors, labels).scores(vectors[:, :10])


def test_unknown_names_and_options_are_refused():
    with pytest.raises(SparseError, match="known are mlc, neighbour, ridge"):
        build_attack("magic")
    with pytest.raises(SparseError, match="attack ridge does not take these options"):
        build_attack("ridge", depth=3)
    with pytest.raises(SparseError, match="give some of whitened"):
        build_attack("ridge", transforms=("sideways",))


def test_a_device_that_is_not_there_is_refused(gaussian):
    with pytest.raises(SparseError, match="device cuda:97"):
        leakage("mlc", gaussian, gaussian.protected, gaussian.public, device="cuda:97")


def test_registering_an_attack_makes_it_buildable(monkeypatch):
    monkeypatch.setattr("sparse_core.attacks.base.ATTACKS", dict(ATTACKS))

    @register
    class Guess:
        name = "guess"

        def fit(self, vectors, labels, *, public, seed):
            return self

        def scores(self, vectors):
            return np.zeros((len(vectors), 2))

    assert isinstance(build_attack("guess"), Attack)


def test_training_the_mlc_leaves_the_global_random_state_alone(gaussian):
    import torch

    before = torch.random.get_rng_state()
    build_attack("mlc", epochs=1).fit(gaussian.protected[:100], gaussian.labels[:100], public=gaussian.public, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_training_side_by_side_learns_the_same_as_one_after_the_other(gaussian):
    def scores(seed):
        attack = build_attack("mlc", **QUICK["mlc"])
        rows = gaussian.train[:400]
        attack.fit(gaussian.protected[rows], gaussian.labels[rows], public=gaussian.public, seed=seed)
        return attack.scores(gaussian.protected[gaussian.test[:50]])

    alone = [scores(seed) for seed in (0, 1, 2)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(scores, (0, 1, 2)))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
