"""Rows of an audit that no job of ours published: vectors of other tools, and baselines."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import audit, train_mask
from jobs.baselines import dropped, rotation
from jobs.config import AuditConfig, TrainMaskConfig, load_config
from jobs.report import few_records
from jobs.similar_tokens import choose_groups
from jobs.stages import RememberingEncoder
from jobs.stored_vectors import turned_back
from sparse_core.errors import SparseError
from sparse_core.evaluation import token_labels
from sparse_core.masks import Mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

# What is left of these texts without the concept, such as 'his', still tells of it.
TERMS = ("he", "she", "male", "female", "hypertension", "diabetes", "asthma", "depression")


@pytest.fixture(scope="module")
def remembering(job_encoder):
    return RememberingEncoder(job_encoder)


@pytest.fixture(scope="module")
def corpus(clinical):
    return clinical.take(np.arange(0, len(clinical), 3))


@pytest.fixture(scope="module")
def embeddings(corpus, remembering):
    return remembering.encode(corpus["text"].to_pylist(), title="Encoding")


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    pq.write_table(corpus, folder / "corpus.parquet")
    return folder


@pytest.fixture(scope="module")
def settings(folder):
    return {
        "input": {"path": str(folder / "corpus.parquet")},
        "concept": {"name": "person", "terms": TERMS},
        "tracking": {"enabled": False},
    }


@pytest.fixture(scope="module")
def mask(folder, settings, remembering):
    """A directory."""
    config = TrainMaskConfig(**settings, output=str(folder / "training"), mask={"basis": "label"})
    train_mask.run(config, encoder=remembering)
    return str(folder / "training" / "mask")


@pytest.fixture(scope="module")
def stored(folder, corpus):
    """Write vectors as another tool would; what to put into a row."""

    def stored(name, vectors, *, ids=None):
        ids = corpus["id"] if ids is None else pa.array(ids)
        table = pa.table({"record": ids, "vector": [np.asarray(vector, np.float32) for vector in vectors]})
        pq.write_table(table, folder / f"{name}.parquet")
        return {"path": str(folder / f"{name}.parquet"), "id": "record", "embedding": "vector"}

    return stored


@pytest.fixture(scope="module")
def noise(embeddings):
    """Isotropic, 1.5 times as long as the embeddings."""
    return 1.5 * np.random.default_rng(0).normal(size=embeddings.shape) / np.sqrt(embeddings.shape[1])


@pytest.fixture(scope="module")
def policy(folder, mask, job_encoder, embeddings, corpus):
    """A policy's directory, and what is published under it."""
    policy = Policy.build(
        encoder=job_encoder.spec, mechanism="mahalanobis", mask=Mask.load(mask), rho=2, floor=0.03, unit_norm=True
    )
    policy.save(folder / "policy")
    ids, texts = corpus["id"].to_pylist(), corpus["text"].to_pylist()
    return str(folder / "policy"), policy.release(embeddings, ids=ids, contents=texts, key=Key(bytes(range(32))))


@pytest.fixture(scope="module")
def audited(folder, settings, mask, policy, stored, noise, embeddings, remembering):
    """An audit of every kind of row; its output."""
    compare = [
        {"name": "unprotected", "protection": {"mechanism": "none"}},
        {"name": "laplace", "protection": {"mechanism": "laplace", "rho": 1.5, "read_out": "none"}},
        {"name": "delete", "baseline": "redaction"},
        {"name": "placeholder", "baseline": "redaction", "removal": "placeholder"},
        {"name": "surrogate", "baseline": "redaction", "removal": "surrogate"},
        {"name": "rotation", "baseline": "rotation"},
        {"name": "dropping", "baseline": "dropping", "mask": mask},
        {"name": "other tool", "vectors": stored("other", embeddings + noise)},
        {"name": "known", "vectors": stored("known", policy[1]), "policy": policy[0]},
    ]
    config = AuditConfig(
        **settings, output=str(folder / "out"), compare=compare, attacks=("ridge",), utility={"label": "section"}
    )
    audit.run(config, encoder=remembering)
    return folder / "out"


@pytest.fixture(scope="module")
def summary(audited):
    return json.loads((audited / "summary.json").read_text())


@pytest.fixture(scope="module")
def rows(summary):
    return {row["name"]: row for row in summary["protections"]}


@pytest.fixture
def refused(settings, tmp_path, monkeypatch):
    """What an audit of one row says when it refuses it, having encoded nothing."""

    def refused(row, *, encoder=None, **more):
        def encode(*_, **__):
            pytest.fail("texts were encoded")

        monkeypatch.setattr(RememberingEncoder, "encode", encode)
        config = AuditConfig(**settings | more, output=str(tmp_path / "out"), compare=[{"name": "theirs"} | row])
        with pytest.raises(SparseError) as error:
            audit.run(config, encoder=encoder)
        assert str(error.value).startswith("compare 'theirs'") or "compare" not in str(error.value)
        return str(error.value)

    return refused


# Baselines


def test_baselines_are_named_and_claim_nothing(rows):
    names = ("delete", "placeholder", "surrogate", "rotation", "dropping")
    kinds = ["redaction (delete)", "redaction (placeholder)", "redaction (surrogate)", "rotation", "dropping"]
    assert [rows[name]["protection"] for name in names] == kinds
    assert {rows[name]["epsilon"] for name in names} == {rows[name]["epsilon_euclidean"] for name in names} == {None}
    assert [rows[name]["basis"] for name in names] == ["none"] * 4 + ["label"]


def test_a_rotation_hides_nothing_from_attackers_trained_on_it(rows):
    assert rows["unprotected"]["leakage"] > 0.7
    assert rows["rotation"]["leakage"] == pytest.approx(rows["unprotected"]["leakage"], abs=0.03)
    assert rows["rotation"]["utility"] == pytest.approx(rows["unprotected"]["utility"], abs=0.03)


def test_whoever_knows_some_texts_turns_a_rotation_back(rows):
    assert rows["rotation"]["reidentification"] > 0.99


@pytest.mark.parametrize("removal", ["delete", "placeholder", "surrogate"])
def test_redaction_takes_the_words_away_but_not_all_that_tells_of_them(rows, removal):
    row = rows[removal]
    assert row["leakage"] < rows["unprotected"]["leakage"] - 0.1
    # Surrogates of another gender contradict the pronouns around them.
    assert removal == "surrogate" or row["leakage_low"] > row["leakage_floor"] + 0.03


def test_redaction_keeps_utility_and_hides_no_record(rows):
    assert rows["delete"]["utility"] > rows["unprotected"]["utility_low"]
    assert rows["delete"]["reidentification"] > 0.8


def test_dropping_lies_between_everything_and_nothing(rows):
    assert rows["dropping"]["leakage_floor"] < rows["dropping"]["leakage"] < rows["unprotected"]["leakage"] - 0.1


def test_dropped_directions_are_at_the_mean(mask, embeddings):
    loaded = Mask.load(mask)
    along = (dropped(embeddings, loaded) - loaded.mean) @ loaded.basis
    opened = loaded.values > 0
    assert np.abs(along[:, opened]).max() < 1e-6
    np.testing.assert_allclose(along[:, ~opened], ((embeddings - loaded.mean) @ loaded.basis)[:, ~opened], atol=1e-6)


def test_dropping_all_directions_is_refused(mask, tmp_path, refused):
    loaded = Mask.load(mask)
    Mask(np.ones(384), loaded.basis, loaded.mean, loaded.covariance, loaded.info).save(tmp_path / "open")
    told = refused({"baseline": "dropping", "mask": str(tmp_path / "open")})
    assert "opens all 384 directions" in told


def test_turning_back_undoes_a_rotation_and_a_shift_and_leaves_noise_alone(embeddings, noise):
    turn = rotation(384, seed=5)
    np.testing.assert_allclose(turn @ turn.T, np.eye(384), atol=1e-12)
    known = np.arange(0, len(embeddings), 2)
    back = turned_back(embeddings @ turn + 3, embeddings, known=known)
    np.testing.assert_allclose(back, embeddings, atol=1e-4)
    left = turned_back(embeddings + noise, embeddings, known=known)[1::2] - embeddings[1::2]
    assert np.median(np.linalg.norm(left, axis=1)) > 1.2


# Vectors of other tools


def test_vectors_without_a_policy_are_told_as_unknown(rows, audited):
    row = rows["other tool"]
    assert (row["protection"], row["basis"], row["epsilon"]) == ("unknown", "unknown", None)
    assert row["rho"] == pytest.approx(1.5, rel=0.02)
    assert "| other tool | unknown | unknown | unknown | unknown | 1.50 |" in (audited / "report.md").read_text()


def test_noise_whose_law_is_unknown_protects_no_better_than_the_same_known(rows):
    assert rows["other tool"]["leakage"] == pytest.approx(rows["laplace"]["leakage"], abs=0.08)
    assert rows["other tool"]["leakage"] < rows["unprotected"]["leakage"] - 0.05
    assert rows["other tool"]["reidentification"] > 0.9


def test_vectors_with_their_policy_are_audited_as_a_release_is(rows, policy):
    guarantee = Policy.load(policy[0]).guarantee()
    row = rows["known"]
    assert (row["protection"], row["basis"], row["epsilon"]) == ("mahalanobis", "label", guarantee.epsilon)
    assert row["rho"] == pytest.approx(2)
    assert row["leakage"] < rows["unprotected"]["leakage"] - 0.1


def test_a_policy_of_other_noise_is_refused_with_both_figures(
    settings, folder, mask, policy, stored, job_encoder, remembering
):
    theirs = Policy.build(encoder=job_encoder.spec, mechanism="laplace", mask=Mask.load(mask), rho=1.5, read_out="none")
    theirs.save(folder / "theirs")
    row = {"name": "theirs", "vectors": stored("known", policy[1]), "policy": str(folder / "theirs")}
    config = AuditConfig(**settings, output=str(folder / "refused"), compare=[row])
    with pytest.raises(SparseError, match=r"compare 'theirs': .* median of 0\.\d+ away .* would be 1\.(49|50)"):
        audit.run(config, encoder=remembering)


def test_vectors_under_their_policy_but_of_other_texts_are_refused(settings, folder, policy, stored, remembering):
    row = {"name": "theirs", "vectors": stored("shuffled", np.roll(policy[1], 1, axis=0)), "policy": policy[0]}
    config = AuditConfig(**settings, output=str(folder / "refused"), compare=[row])
    with pytest.raises(SparseError, match="of other texts"):
        audit.run(config, encoder=remembering)


@pytest.mark.parametrize(("factor", "fits"), [(1.03, True), (1.08, False)])
def test_noise_may_be_off_by_a_twentieth(
    settings, tmp_path, mask, stored, job_encoder, embeddings, corpus, remembering, factor, fits
):
    """Stated rho 1, made with more."""
    made, stated = (
        Policy.build(encoder=job_encoder.spec, mechanism="laplace", rho=rho, read_out="none") for rho in (factor, 1)
    )
    stated.save(tmp_path / "stated")
    ids, texts = corpus["id"].to_pylist(), corpus["text"].to_pylist()
    published = made.release(embeddings, ids=ids, contents=texts, key=Key(bytes(range(32))))
    row = {"name": "theirs", "vectors": stored("off", published), "policy": str(tmp_path / "stated")}
    more = {"attacks": ("ridge",), "similar_tokens": False}
    config = AuditConfig(**settings, output=str(tmp_path / "out"), compare=[row], **more)
    if fits:
        assert audit.run(config, encoder=remembering).policy_hash == stated.hash
    else:
        with pytest.raises(SparseError, match="median"):
            audit.run(config, encoder=remembering)


def test_vectors_of_other_records_are_refused_before_anything_is_encoded(stored, embeddings, remembering, refused):
    row = {"vectors": stored("strangers", embeddings, ids=[f"x{row}" for row in range(len(embeddings))])}
    assert "none of the ids of input.path" in refused(row, encoder=remembering)


def test_ids_of_another_type_are_told(stored, embeddings, remembering, refused):
    told = refused({"vectors": stored("numbered", embeddings, ids=range(len(embeddings)))}, encoder=remembering)
    assert "are str, these int" in told


def test_vectors_of_another_dimension_are_refused_before_anything_is_encoded(stored, embeddings, remembering, refused):
    told = refused({"vectors": stored("short", embeddings[:, :256])}, encoder=remembering)
    assert "have dimension 256" in told and "384" in told and "encoder.model" in told


def test_vectors_of_another_dimension_than_their_policy_are_refused_while_planning(
    settings, tmp_path, stored, embeddings, policy
):
    row = {"name": "theirs", "vectors": stored("short", embeddings[:, :256]), "policy": policy[0]}
    with pytest.raises(SparseError, match="have dimension 256, those of its policy 384"):
        audit.plan(AuditConfig(**settings, output=str(tmp_path), compare=[row]))


def test_vectors_of_mixed_dimensions_are_refused(stored, embeddings, remembering, refused):
    mixed = [vector if row % 3 else vector[:100] for row, vector in enumerate(embeddings)]
    told = refused({"vectors": stored("mixed", mixed)}, encoder=remembering)
    assert "mixes dimensions" in told and "than 384" in told


def test_too_few_of_the_records_with_a_vector_are_refused_before_anything_is_encoded(
    stored, embeddings, corpus, remembering, refused
):
    row = {"vectors": stored("part", embeddings[:150], ids=corpus["id"].to_pylist()[:150])}
    assert "test records hold a token" in refused(row, encoder=remembering)


def test_a_missing_column_is_told_as_one_of_the_row(settings, tmp_path, stored, embeddings):
    row = {"name": "theirs", "vectors": stored("named", embeddings) | {"embedding": "embedding"}}
    with pytest.raises(SparseError, match=r"compare 'theirs': vectors\.embedding: .* has no column 'embedding'"):
        audit.plan(AuditConfig(**settings, output=str(tmp_path), compare=[row]))


def test_vectors_without_ids_are_refused(settings, tmp_path, stored, embeddings):
    source = settings["input"] | {"id": None}
    row = {"name": "theirs", "vectors": stored("named", embeddings)}
    with pytest.raises(SparseError, match=r"input\.id"):
        audit.plan(AuditConfig(**settings | {"input": source}, output=str(tmp_path), compare=[row]))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{baseline: redaction, protection: {mechanism: none}}", "exactly one of"),
        ("{vectors: {path: p}, baseline: rotation}", "exactly one of"),
        ("{vectors: {path: p}, mask: m}", "protected already"),
        ("{baseline: rotation, mask: m}", "'rotation' uses no mask"),
        ("{baseline: dropping}", "'dropping' drops the directions of a mask"),
        ("{release: r, policy: p}", "policy belongs to vectors"),
        ("{baseline: rotation, removal: delete}", "removal belongs to the baseline 'redaction'"),
        ("{baseline: shuffling}", "baseline"),
    ],
)
def test_a_row_of_no_sense_is_refused(row, told):
    overrides = ["output=o", "input.path=p", "concept={name: c, terms: [t]}", f"compare=[{{name: x, {row[1:]}]"]
    with pytest.raises(SparseError, match=told):
        load_config(AuditConfig, None, overrides)


# Few records


def test_intervals_are_said_to_be_wide_below_200_records():
    assert few_records(200) is None
    assert "Only 50 test records" in few_records(50) and "±0.14" in few_records(50)


def test_a_small_audit_says_so_on_the_terminal_and_in_the_report(
    corpus, settings, tmp_path, remembering, capsys, stored
):
    pq.write_table(corpus.slice(0, 700), tmp_path / "few.parquet")
    row = {"name": "unprotected", "protection": {"mechanism": "none"}}
    more = {"input": {"path": str(tmp_path / "few.parquet")}, "attacks": ("ridge",), "min_token_count": 3}
    config = AuditConfig(**settings | more, output=str(tmp_path / "out"), compare=[row])
    summary = audit.run(config, encoder=remembering)
    warning = few_records(summary.details["concept_test_records"])
    assert warning in capsys.readouterr().out
    assert warning in (tmp_path / "out" / "report.md").read_text()


# Words beside the concept's


@pytest.fixture(scope="module")
def choose(corpus, remembering):
    """Groups for a concept of diagnoses."""
    texts = corpus["text"].to_pylist()
    train, test = np.arange(0, len(texts), 2), np.arange(1, len(texts), 2)

    def choose(words):
        concept_of = [tuple(word for word in words if word in text.casefold().split()) for text in texts]
        tokens = token_labels(concept_of, train=train, min_count=5)
        return tokens, choose_groups(
            texts,
            concept_of,
            targets=tokens.vocabulary,
            target_labels=tokens.labels,
            train=train,
            test=test,
            min_count=5,
            encoder=remembering,
            seed=0,
        )

    return choose


def test_groups_are_as_large_as_the_concept_and_apart(choose):
    tokens, groups = choose(["he", "she", "hypertension", "diabetes"])
    sizes = [at.stop - at.start for at in groups.columns.values()]
    assert list(groups.columns) == ["target", "similar", "unrelated"]
    assert sizes == [len(tokens.vocabulary)] * 3
    assert groups.labels.shape[1] == sum(sizes)
    np.testing.assert_array_equal(groups.labels[:, groups.columns["target"]], tokens.labels)


def test_similar_words_are_those_a_reader_would_name(choose, corpus):
    """His or him for he, her for she: chosen words are told apart by the records that hold them."""
    _, groups = choose(["he", "she"])
    similar = groups.labels[:, groups.columns["similar"]]
    texts = [set(text.casefold().split()) for text in corpus["text"].to_pylist()]
    known = {word: np.array([word in words for words in texts]) for word in ("his", "him", "her", "hers", "herself")}
    best = [max(np.corrcoef(column, held)[0, 1] for held in known.values() if held.any()) for column in similar.T]
    assert max(best) > 0.9


def test_every_row_has_intervals_for_every_group(summary):
    assert list(summary["token_groups"]) == [row["name"] for row in summary["protections"]]
    for groups in summary["token_groups"].values():
        assert list(groups) == ["target", "similar", "unrelated"]
        for found in groups.values():
            assert all(0 <= found[at]["low"] <= found[at]["value"] <= found[at]["high"] <= 1 for at in FIGURES)


FIGURES = ("unprotected", "protected")


def test_redaction_spares_words_beside_the_concept(summary):
    found = summary["token_groups"]["delete"]
    lost = {name: group["unprotected"]["value"] - group["protected"]["value"] for name, group in found.items()}
    assert lost["target"] > 0.1
    assert abs(lost["unrelated"]) < 0.1


def test_the_report_shows_the_groups_and_no_word_of_them(audited, summary):
    report = (audited / "report.md").read_text()
    assert "## Words beside the concept's" in report
    assert not set(TERMS) & set(report.casefold().replace("|", " ").split()) - {"he", "she"}


def test_the_groups_can_be_left_out(settings, tmp_path, remembering):
    row = {"name": "unprotected", "protection": {"mechanism": "none"}}
    more = {"attacks": ("ridge",), "similar_tokens": False}
    config = AuditConfig(**settings, output=str(tmp_path / "out"), compare=[row], **more)
    assert audit.run(config, encoder=remembering).details["token_groups"] == {}
    assert "Words beside" not in (tmp_path / "out" / "report.md").read_text()
