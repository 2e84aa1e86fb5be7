"""Rows of an audit that no job of ours published: vectors of other tools, and baselines."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import audit, train_mask
from jobs.baselines import dropped, rotation
from jobs.compared import Protected
from jobs.config import AuditConfig, Compared, SplitConfig, TextAttackConfig, TrainMaskConfig, load_config
from jobs.escaping import for_markdown
from jobs.measuring import Material, simulated_draws
from jobs.report import few_records
from jobs.similar_tokens import choose_groups
from jobs.stages import RememberingEncoder, divide
from jobs.stored_vectors import turned_back
from jobs.tracking import Run
from sparse_core.attacks import build_attack
from sparse_core.concepts import Concept, concept_tokens, find_spans
from sparse_core.errors import SparseError
from sparse_core.evaluation import micro_leakage, token_labels
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
    with pytest.raises(SparseError, match=r"compare 'theirs': .* median of 0\.\d+ away .* would be 1\.(49|5)"):
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


# What attackers know of the noise, and of records


@pytest.fixture(scope="module")
def labelled(corpus, settings):
    """Concept tokens of every record, and the records that attackers know and attack."""
    texts = corpus["text"].to_pylist()
    spans = find_spans(texts, Concept("person", terms=TERMS))
    roles = divide(texts, SplitConfig())
    tokens = [concept_tokens(text, found) for text, found in zip(texts, spans, strict=True)]
    return spans, token_labels(tokens, train=roles.attack, min_count=5), roles


@pytest.fixture(scope="module")
def attacked(corpus, embeddings, labelled, job_encoder):
    """Leakage under laplace noise, averaged over some keys."""
    policy = Policy.build(encoder=job_encoder.spec, mechanism="laplace", rho=1.5, read_out="none")
    ids, texts = corpus["id"].to_pylist(), corpus["text"].to_pylist()
    _, tokens, roles = labelled

    def attacked(name, *, draws, unprotected=embeddings, keys=3):
        found = []
        for number in range(keys):
            published = [
                policy.release(
                    embeddings, ids=ids, contents=texts, key=Key(hashlib.sha256(bytes([number, again])).digest())
                )
                for again in range(1 + draws)
            ]
            attack = build_attack(name).fit(
                published[0][roles.attack],
                tokens.labels[roles.attack],
                public=policy.public_knowledge(),
                seed=0,
                unprotected=None if unprotected is None else unprotected[roles.attack],
                draws=[again[roles.attack] for again in published[1:]],
            )
            found.append(micro_leakage(attack.scores(published[0][roles.test]), tokens.labels[roles.test]))
        return np.mean(found)

    return attacked


def test_training_on_simulated_draws_makes_ridge_stronger(attacked):
    assert attacked("ridge", draws=7) > attacked("ridge", draws=0) + 0.01


def test_neighbours_are_told_better_among_unprotected_records(attacked):
    # One key more or less moves either figure by hundredths.
    told = attacked("neighbour", draws=0, keys=12)
    assert told > attacked("neighbour", draws=0, keys=12, unprotected=None) + 0.03


def test_an_attacker_simulates_draws_only_of_what_it_knows_the_law_of(mask, job_encoder, embeddings, corpus, labelled):
    _, tokens, roles = labelled
    material = Material(corpus["id"].to_pylist(), [], embeddings, {"person": tokens}, roles.attack, roles.test)
    policy = Policy.build(encoder=job_encoder.spec, mechanism="laplace", rho=1.5, read_out="none")
    stated = Protected(Compared(name="a", release="r"), policy, embeddings, embeddings, (), "isotropic")
    draws = simulated_draws(stated, material, 3)
    known = embeddings[np.sort(roles.attack)]
    assert [np.median(np.linalg.norm(draw - known, axis=1)) for draw in draws] == pytest.approx([1.5] * 3, rel=0.02)
    assert np.corrcoef((draws[0] - known).ravel(), (draws[1] - known).ravel())[0, 1] == pytest.approx(0, abs=0.02)
    assert simulated_draws(replace(stated, policy=None), material, 3) == []


# The policy alone


def strongest(results, figure, adversary):
    return max(one[figure]["value"] for one in results if one["adversary"] == adversary and one["verdict"] == "ok")


def test_exact_statistics_give_their_records_to_whoever_has_the_policy_alone(told):
    rows = {row["name"]: row for row in told[0]["protections"]}
    assert set(told[0]["policy_alone"]) == {"mask", "strong"}
    for name in ("mask", "strong"):
        row, found = rows[name], told[0]["policy_alone"][name]
        assert row["statistics"] == found["kind"] == "unprotected"
        assert row["policy_membership_informed"] == row["policy_values_informed"] == 1
        assert row["policy_membership_low"] > 0.6
        assert row["policy_membership"] == strongest(found["membership"], "auc", "population")
        assert row["policy_values"] == strongest(found["values"], "top1", "population")
        assert row["policy_values"] > 1.5 * row["policy_values_floor"]
        assert all(abs(one["floor"]["value"] - 0.5) < 0.08 for one in found["membership"])
    assert rows["unprotected"]["statistics"] is None


def test_the_table_is_not_read_without_what_the_policy_alone_gives(told):
    head, _, rest = told[1].partition("## Attacks")
    assert "**strong: mean and covariance in the policy, without any vector, tell the records" in head
    assert "more than any attack read from the vectors" in head
    assert "## The policy alone" in rest


def test_public_statistics_are_shown_to_tell_nothing(
    folder, settings, mask, embeddings, corpus, tmp_path, remembering, monkeypatch
):
    monkeypatch.setattr("jobs.audit.policy_alone._kind", lambda mask: "public")
    loaded, public = Mask.load(mask), embeddings[divide(corpus["text"].to_pylist(), SplitConfig()).attack].astype(float)
    covariance = loaded.basis.T @ np.cov(public.T) @ loaded.basis
    replace(loaded, mean=public.mean(axis=0), covariance=covariance).save(tmp_path / "public")
    config = AuditConfig(
        **settings,
        output=str(tmp_path / "out"),
        compare=[
            {"name": "row", "protection": {"mechanism": "laplace", "rho": 8}, "mask": str(tmp_path / "public")},
        ],
        attacks=("ridge",),
        similar_tokens=False,
    )
    row = audit.run(config, encoder=remembering).protections[0]
    assert row.statistics == "public"
    assert abs(row.policy_membership - 0.5) < 0.08
    assert row.policy_membership_informed is row.policy_values is None
    report = (tmp_path / "out/report.md").read_text()
    assert "| row | public |" in report and "without any vector, tell" not in report.partition("## Attacks")[0]


def test_statistics_of_other_records_are_not_attacked_and_the_report_says_why(
    folder, settings, mask, tmp_path, remembering
):
    config = AuditConfig(
        **settings | {"split": {"seed": 1}},
        output=str(tmp_path / "out"),
        compare=[{"name": "strong", "protection": {"mechanism": "laplace", "rho": 8}, "mask": mask}],
        attacks=("ridge",),
        similar_tokens=False,
    )
    summary = audit.run(config, encoder=remembering)
    found = summary.details["policy_alone"]["strong"]
    assert found["membership"] == found["values"] == ()
    assert "not made of the records that `split` gives the mask" in found["why_not"]
    assert summary.protections[0].policy_membership is None
    assert "its statistics were not attacked: they were not made of" in (tmp_path / "out/report.md").read_text()


# Attackers who are told more, and unprotected vectors that are given


@pytest.fixture(scope="module")
def told(folder, settings, mask, stored, embeddings, remembering, labelled):
    """An audit with a closed set, several releases and a concept that no mask knew; its summary and page."""
    config = AuditConfig(
        **settings,
        output=str(folder / "told"),
        unprotected=stored("unprotected", embeddings),
        unlisted_concepts=[{"name": "symptoms", "terms": ["pain", "cough", "fever", "nausea", "vomiting", "weight"]}],
        compare=[
            {"name": "unprotected", "protection": {"mechanism": "none"}},
            {"name": "mask", "protection": {"mechanism": "mahalanobis", "rho": 2, "floor": 0.03}, "mask": mask},
            {"name": "strong", "protection": {"mechanism": "laplace", "rho": 8}, "mask": mask},
            {"name": "delete", "baseline": "redaction"},
            {"name": "rotation", "baseline": "rotation"},
        ],
        attacks=("ridge",),
        dictionary={"records": 60, "contexts": 8},
        averaging={"releases": [1, 8], "records": 40},
        similar_tokens=False,
    )
    audit.run(config, encoder=remembering)
    return json.loads((folder / "told/summary.json").read_text()), (folder / "told/report.md").read_text()


def test_a_closed_set_is_read_from_unprotected_vectors_and_not_through_strong_noise(told):
    found = told[0]["dictionary"]
    assert found["unprotected"]["known"]["top1"]["value"] > 0.95
    assert found["unprotected"]["known"]["verdict"] == "ok"
    assert found["strong"]["known"]["top1"]["value"] < found["mask"]["known"]["top1"]["value"] - 0.1
    assert found["mask"]["unknown"]["top1"]["value"] < found["mask"]["known"]["top1"]["value"]
    assert found["rotation"]["known"]["top1"]["value"] > 0.9


def test_the_headline_is_the_most_that_any_attack_got(told):
    for row in told[0]["protections"]:
        results = told[0]["attacks"][row["name"]].values()
        learned = max(one["protected"]["value"] for one in results)
        closed = max(one["top1"]["value"] for one in told[0]["dictionary"][row["name"]].values())
        assert (row["leakage_learned"], row["leakage"]) == (learned, max(learned, closed))
        assert row["leakage_attack"] == ("ridge" if learned >= closed else "dictionary (known)")
    assert "| learned |" in told[1] and "## Closed set of values" in told[1]


def test_fresh_noise_averages_away_and_keyed_noise_does_not(told):
    assert set(told[0]["averaging"]) == {"mask", "strong"}
    rows = {(row["noise"], row["releases"]): row for row in told[0]["averaging"]["strong"]}
    assert rows["fresh", 8]["error"]["value"] == pytest.approx(rows["fresh", 1]["error"]["value"] / 8**0.5, rel=0.05)
    assert rows["keyed", 8] == rows["keyed", 1] | {"releases": 8}
    assert rows["fresh", 8]["dictionary"]["value"] > rows["keyed", 8]["dictionary"]["value"] + 0.1
    assert "## Several releases of one record" in told[1]


def test_a_concept_that_was_not_listed_is_shown_apart_and_makes_no_headline(told):
    concepts = told[0]["concepts"]
    assert {name: found["listed"] for name, found in concepts.items()} == {"person": True, "symptoms": False}
    assert concepts["symptoms"]["attacks"]["unprotected"]["ridge"]["protected"]["value"] > 0.5
    assert {row["leakage_concept"] for row in told[0]["protections"]} == {"person"}
    assert "### Concept “symptoms”" in told[1] and "No mask was told" in told[1]


def test_no_term_of_a_concept_or_dictionary_is_in_what_an_audit_writes(told):
    words = set(re.findall(r"\w+", (json.dumps(told[0]) + told[1]).casefold()))
    assert not words & {"hypertension", "diabetes", "asthma", "cough", "nausea"}


def test_reidentification_has_ranks_too(told):
    found = told[0]["reidentification"]
    assert found["unprotected"]["mrr"] == found["unprotected"]["top1"]["value"] == 1
    assert found["mask"]["mrr"] >= found["mask"]["top1"]["value"]
    assert found["unprotected"]["top1_whitened"] is None and found["mask"]["top1_whitened"]["value"] > 0.5


def test_given_vectors_take_the_place_of_the_encoder(settings, tmp_path, mask, stored, embeddings):
    rows = [{"name": "mask", "protection": {"mechanism": "mahalanobis", "rho": 2}, "mask": mask}]
    config = AuditConfig(
        **settings,
        output=str(tmp_path),
        encoder="none",
        unprotected=stored("given", embeddings),
        compare=rows,
        attacks=("ridge",),
    )
    summary = audit.run(config)
    assert summary.protections[0].leakage_unprotected > 0.7
    assert summary.details["token_groups"] == {}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"encoder": "none"}, "name them in unprotected"),
        ({"encoder": "none", "unprotected": {"path": "p"}, "dictionary": {}}, "dictionary needs the encoder"),
        ({"unlisted_concepts": [{"name": "person", "terms": ["x"]}]}, "names in the concepts must differ"),
        ({"dictionary": {"values": ["a"], "values_file": "f"}}, "values or values_file"),
        ({"encoder": "none", "unprotected": {"path": "p"}, "attacks": ["inversion"]}, "writes sentences needs"),
        ({"attacks": ["guessing"]}, "attacks"),
    ],
)
def test_an_audit_of_no_sense_is_refused(settings, more, told):
    with pytest.raises(ValueError, match=told):
        AuditConfig(**settings, output="o", compare=[{"name": "x", "baseline": "rotation"}], **more)


def test_vectors_that_the_encoder_does_not_make_are_refused(settings, tmp_path, stored, embeddings, remembering):
    config = AuditConfig(
        **settings,
        output=str(tmp_path),
        unprotected=stored("swapped", np.roll(embeddings, 1, axis=0)),
        compare=[{"name": "rotation", "baseline": "rotation"}],
    )
    with pytest.raises(SparseError, match=r"unprotected: .* does not make the vectors .* median cosine"):
        audit.run(config, encoder=remembering)


def test_a_dictionary_of_values_that_no_record_holds_is_refused_before_anything_is_encoded(refused, remembering):
    values = {"values": ["Zorvath", "Quexlington"]}
    told = refused({"baseline": "rotation"}, encoder=remembering, dictionary=values)
    assert "dictionary: only 0 test records hold one of the 2 values" in told and "orvath" not in told


# Attackers that write sentences


@pytest.fixture(scope="module")
def written(folder, settings, stored, embeddings, remembering):
    """An audit with an attack that writes, trained too briefly to be good at it; its summary and page."""
    config = AuditConfig(
        **settings,
        output=str(folder / "written"),
        unprotected=stored("unprotected", embeddings),
        compare=[{"name": "laplace", "protection": {"mechanism": "laplace", "rho": 1, "read_out": "none"}}],
        attacks=("ridge", "inversion"),
        text_attacks={"epochs": 1, "records": 20, "candidates": 1, "max_tokens": 12, "examples": 20},
        draws=1,
        similar_tokens=False,
    )
    recorded = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log_text", lambda self, text, name: recorded.append(text))
        audit.run(config, encoder=remembering)
    page = (folder / "written/report.md").read_text()
    return json.loads((folder / "written/summary.json").read_text()), page, recorded


def test_an_attack_that_writes_is_judged_like_any_other_and_scored_as_text(written):
    results, scored = written[0]["attacks"]["laplace"], written[0]["reconstruction"]["laplace"]["inversion"]
    assert set(results) == {"ridge", "inversion"}
    assert results["inversion"]["verdict"] in ("ok", "attack failed")
    assert scored["n_records"] == 20
    for score in ("bleu", "rouge_l", "token_f1", "cosine"):
        for side in ("unprotected", "protected", "floor"):
            assert scored[score][side]["low"] <= scored[score][side]["value"] <= scored[score][side]["high"]
    assert "## Written texts" in written[1]


def test_examples_show_texts_with_the_terms_of_the_concept_masked(written, corpus):
    examples = written[0]["reconstruction"]["laplace"]["inversion"]["examples"]
    assert len(examples) == 20 and all(set(one) == {"original", "unprotected", "protected"} for one in examples)
    assert all("▇▇▇" in one["original"] for one in examples)
    for one in examples:
        assert not any(find_spans(list(one.values()), Concept("person", terms=TERMS)))
    texts = " ".join(corpus["text"].to_pylist())
    pieces = [max(one["original"].split("▇▇▇"), key=len).strip() for one in examples]
    assert np.mean([piece in texts for piece in pieces]) > 0.9


def test_examples_reach_neither_mlflow_nor_other_users(written, audited, folder):
    summary, page, (recorded,) = written
    original = for_markdown(summary["reconstruction"]["laplace"]["inversion"]["examples"][0]["original"])
    assert original in page and original not in recorded
    assert recorded.startswith("# Audit") and "## Written texts" in recorded
    for name in ("summary.json", "report.md"):
        assert (folder / "written" / name).stat().st_mode & 0o777 == 0o600
        assert (audited / name).stat().st_mode & 0o777 != 0o600


def test_a_mask_that_may_have_seen_the_test_records_is_told(summary, audited, folder, settings, mask, remembering):
    assert summary["masks_learned_elsewhere"] == []
    config = AuditConfig(
        **settings,
        output=str(folder / "other split"),
        compare=[{"name": "<b>masked</b>", "mask": mask, "protection": {"mechanism": "mahalanobis", "rho": 2}}],
        attacks=("ridge",),
        split={"seed": 1},
        similar_tokens=False,
    )
    assert audit.run(config, encoder=remembering).details["masks_learned_elsewhere"] == ["<b>masked</b>"]
    told = "**Masks of " + for_markdown("<b>masked</b>") + ": as far as is known not learned with the input"
    page = (folder / "other split" / "report.md").read_text()
    assert told in page and "<b>" not in page
    assert "Masks of" not in (audited / "report.md").read_text()


def test_texts_are_shown_only_if_asked_for():
    assert TextAttackConfig().examples == 0


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
