import numpy as np
import pytest
import torch

from sparse_core.attacks import AttackResult, PublicKnowledge, build_attack, headline, run_attack
from sparse_core.attacks.text import build_text_attack, run_text_attack, word_labels
from sparse_core.errors import SparseError

N_ATTACKED = 36


@pytest.fixture(scope="module")
def inverted(clinic, quick):
    return run_text_attack(
        build_text_attack("inversion", **quick),
        **clinic.material,
        log_likelihood=clinic.log_likelihood,
        max_test_records=N_ATTACKED,
    )


@pytest.fixture(scope="module")
def corrected(clinic, quick):
    """vec2text on unprotected vectors: fitted, the rows it attacked, and what it wrote."""
    rows = clinic.split.test[clinic.tokens.labels[clinic.split.test].any(axis=1)][:N_ATTACKED]
    attack = build_text_attack("vec2text", **quick, rounds=2).fit(
        clinic.vectors[clinic.split.train],
        [clinic.texts[row] for row in clinic.split.train],
        unprotected=clinic.vectors[clinic.split.train],
        public=clinic.public.without_noise(),
        encode=clinic.encode,
        seed=0,
    )
    return attack, rows, attack.reconstruct(clinic.vectors[rows], seed=0)


def test_unprotected_vectors_are_written_out_and_shuffled_training_learns_nothing(inverted):
    leakage = inverted.leakage
    assert leakage.verdict == "ok"
    assert leakage.unprotected.low > leakage.floor.high
    assert leakage.unprotected.value > 0.4 > 0.2 > leakage.floor.value
    assert leakage.confidence_unprotected > leakage.confidence > 0


def test_noise_lowers_what_is_leaked_and_every_score(inverted):
    assert inverted.leakage.protected.value < inverted.leakage.unprotected.value
    for name, sides in inverted.scores.items():
        assert sides["unprotected"].value > sides["protected"].value > sides["floor"].value, name
        assert all(side.low <= side.value <= side.high for side in sides.values())


def test_leakage_counts_true_tokens_in_the_reconstructions(inverted, clinic):
    written = word_labels(inverted.reconstructions.protected, clinic.tokens.vocabulary)
    leakage = inverted.leakage
    np.testing.assert_array_equal(leakage.true, clinic.tokens.labels[leakage.records])
    np.testing.assert_array_equal(leakage.hits_protected, written & leakage.true)
    assert leakage.protected.value == pytest.approx(leakage.hits_protected.sum() / leakage.true.sum())
    assert len(leakage.records) == N_ATTACKED
    assert set(leakage.records) <= set(clinic.split.test)


def test_the_headline_takes_a_text_attack_beside_others(inverted, clinic):
    material = {name: value for name, value in clinic.material.items() if name not in ("texts", "vocabulary", "encode")}
    neighbour = run_attack(build_attack("neighbour", neighbours=(10,), sharpness=(1.0,)), n_shuffles=1, **material)
    results = [neighbour, inverted.leakage]
    assert headline(results) is max(results, key=lambda result: result.protected.value)
    assert isinstance(inverted.leakage, AttackResult)
    rows = np.isin(neighbour.records, inverted.leakage.records)
    share = inverted.share_of(neighbour)
    assert share == inverted.leakage.hits_unprotected.sum() / neighbour.hits_unprotected[rows].sum()
    assert f"{share:.0%} of the concept tokens that neighbour recovers" in inverted.strength(neighbour)


def test_no_secret_is_in_the_representation_of_a_result(inverted, clinic):
    told = repr(inverted) + repr(inverted.reconstructions)
    words = set(told.lower().replace(",", " ").replace("'", " ").split())
    assert not words & set(clinic.tokens.vocabulary)


def test_a_control_is_taken_over_and_not_trained_again(inverted, clinic, quick):
    steps = []
    again = run_text_attack(
        build_text_attack("inversion", **(quick | {"epochs": 2, "candidates": 1})),
        **clinic.material,
        control=inverted,
        max_test_records=N_ATTACKED,
        progress=lambda side, done, total: steps.append((side, done, total)),
    )
    assert steps == [("protected", 1, 2), ("protected", 2, 2), ("floor", 1, 1)]
    assert again.leakage.unprotected == inverted.leakage.unprotected
    assert again.reconstructions.unprotected == inverted.reconstructions.unprotected
    assert again.reconstructions.protected != inverted.reconstructions.protected
    for name, sides in again.scores.items():
        assert sides["unprotected"] == inverted.scores[name]["unprotected"]


@pytest.mark.parametrize(("name", "options"), [("inversion", {}), ("vec2text", {"rounds": 1, "beam": 1})])
def test_the_same_seed_writes_the_same_texts(name, options, clinic, quick):
    known, attacked = clinic.split.train[:80], clinic.split.test[:8]

    def written(seed):
        attack = build_text_attack(name, **(quick | options | {"epochs": 2, "candidates": 1}))
        torch.rand(3)
        attack.fit(
            clinic.protected[known],
            [clinic.texts[row] for row in known],
            unprotected=clinic.vectors[known],
            public=clinic.public,
            encode=clinic.encode,
            seed=seed,
            draws=[clinic.vectors[known]],
        )
        return attack.reconstruct(clinic.protected[attacked], seed=seed)

    assert written(1) == written(1) != written(2)


def test_each_epoch_trains_on_the_next_draw(clinic, quick):
    known = clinic.split.train[:80]
    losses = []
    for draws in ((), (clinic.protected[known],), (clinic.vectors[known],)):
        attack = build_text_attack("inversion", **(quick | {"epochs": 2, "candidates": 1}))
        attack.fit(
            clinic.protected[known],
            [clinic.texts[row] for row in known],
            unprotected=clinic.vectors[known],
            public=clinic.public,
            encode=clinic.encode,
            seed=0,
            draws=draws,
        )
        losses.append(attack.log.validation_losses)
    none, same, other = losses
    assert none == same
    assert other[0] == none[0] and other[1] != none[1]


def test_another_attacks_control_is_refused_before_training(inverted, clinic, quick):
    with pytest.raises(SparseError, match="the control is inversion"):
        run_text_attack(build_text_attack("vec2text", **quick), **clinic.material, control=inverted)


def test_each_correction_comes_nearer_and_loses_no_tokens(corrected, clinic):
    attack, rows, found = corrected
    truth = clinic.tokens.labels[rows]
    off, leaked = [], []
    for texts in found.rounds:
        distances = -attack._ranking.scores(clinic.vectors[rows], clinic.encode(texts)[:, None])[:, 0]
        off.append(distances)
        leaked.append((word_labels(texts, clinic.tokens.vocabulary) & truth).sum())
    assert len(off) == 3
    assert found.texts == found.rounds[-1]
    assert (off[1] <= off[0] + 1e-9).all() and (off[2] <= off[1] + 1e-9).all()
    assert off[2].mean() < 0.97 * off[0].mean()
    assert leaked[-1] >= leaked[0] > 0


def test_corrections_bring_the_plain_embedding_nearer_too(corrected, clinic):
    _, rows, found = corrected
    first, last = (
        np.linalg.norm(clinic.encode(texts) - clinic.vectors[rows], axis=1).mean()
        for texts in (found.rounds[0], found.rounds[-1])
    )
    assert last < first


def test_drawn_texts_are_as_many_as_the_beam_can_make(corrected, quick):
    attack, rows, found = corrected
    assert len(found.drawn) == len(rows)
    assert all(attack.corrections <= len(drawn) <= attack.beam * attack.corrections for drawn in found.drawn)


@pytest.mark.parametrize("name", ["inversion", "vec2text"])
def test_attacks_are_built_by_name_and_refuse_options_that_make_no_sense(name):
    assert build_text_attack(name).name == name
    assert build_text_attack(name, epochs=9).shortened(0.5).epochs == 5
    with pytest.raises(SparseError, match="does not take these options"):
        build_text_attack(name, colour="red")
    with pytest.raises(SparseError, match="epochs=0 must be positive"):
        build_text_attack(name, epochs=0)
    with pytest.raises(SparseError, match="name one as model"):
        build_text_attack(name, lora_rank=8)


def test_what_cannot_be_attacked_is_refused_before_training(clinic, quick):
    attack = build_text_attack("inversion", **quick)
    material = clinic.material
    with pytest.raises(SparseError, match=r"rows do not match.*texts has 3"):
        run_text_attack(attack, **(material | {"texts": ["a", "b", "c"]}))
    with pytest.raises(SparseError, match="both in train and in test"):
        run_text_attack(attack, **(material | {"test": clinic.split.train}))
    with pytest.raises(SparseError, match="one column per token"):
        run_text_attack(attack, **(material | {"vocabulary": clinic.tokens.vocabulary[:-1]}))
    with pytest.raises(SparseError, match="device cuda:9 is not available"):
        run_text_attack(build_text_attack("inversion", device="cuda:9"), **material)
    few = clinic.split.train[:40]
    with pytest.raises(SparseError, match="40 training records are too few"):
        attack.fit(
            clinic.vectors[few],
            [clinic.texts[row] for row in few],
            unprotected=clinic.vectors[few],
            public=PublicKnowledge(),
            encode=clinic.encode,
            seed=0,
        )


def test_an_unknown_attack_is_refused_with_those_there_are():
    with pytest.raises(SparseError, match="known are inversion, vec2text"):
        build_text_attack("telepathy")
