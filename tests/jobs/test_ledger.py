"""What the ledger says after releases under one policy, two policies, changed texts, another key and a killed run."""

import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import budget, ledger, outputs, privatize, sources, spending
from jobs.cli import main
from jobs.config import PrivatizeConfig
from jobs.planning import policy_of
from jobs.stages import RememberingEncoder, settled
from jobs.units import UnitActor, UnitWork
from sparse_core.budget import compose, subject_numbers
from sparse_core.errors import SparseError
from sparse_core.noise import Key, write_new_key
from sparse_core.policy import Policy

CHANGED = ("changed text", "another changed text", "a third")


@pytest.fixture(scope="module")
def room(tmp_path_factory, clinical):
    """Two versions of a corpus of 60 records in two files; three texts differ, and one id stands there twice."""
    room = tmp_path_factory.mktemp("ledger")
    rows = clinical.select(["id", "text"]).slice(0, 60).to_pylist()
    changed = [{**row, "text": text} for row, text in zip(rows, CHANGED, strict=False)] + rows[len(CHANGED) :]
    changed.append({"id": rows[-1]["id"], "text": "the last id once more"})
    for name, version in (("corpus", rows), ("changed", changed)):
        (room / name).mkdir()
        pq.write_table(pa.Table.from_pylist(version[:30]), room / name / "0.parquet")
        pq.write_table(pa.Table.from_pylist(version[30:]), room / name / "1.parquet")
    write_new_key(room / "key")
    write_new_key(room / "other.key")
    return room


@pytest.fixture(scope="module")
def settings(room):
    def build(*, output, rho=2.0, corpus="corpus", key="key", **budget):
        return PrivatizeConfig(
            input={"path": str(room / corpus)},
            output=str(room / output),
            protection={"mechanism": "laplace", "rho": rho, "read_out": "none"},
            key={"file": str(room / key)},
            budget={**budget, "include": [str(room / name) for name in budget.get("include", ())]},
            workers={"actors": 1},
            tracking={"enabled": False},
        )

    return build


@pytest.fixture(scope="module")
def run(settings, encoder):
    remembering = RememberingEncoder(encoder)

    def go(**options):
        config = settings(**options)
        return config, privatize.run(config, encoder=remembering)

    return go


@pytest.fixture(scope="module")
def first(run):
    return run(output="first", max_epsilon_per_subject=1e4)


@pytest.fixture(scope="module")
def second(run, first):
    """Another policy over the changed corpus."""
    return run(output="second", rho=1.0, corpus="changed", include=["first"], max_epsilon_per_subject=1e4)


def published(config):
    return pq.read_table(f"{config.output}/embeddings").to_pylist()


def costs_of(settings, encoder, **options):
    config = settings(**options)
    source, key = sources.plan(config.input), Key.from_file(config.key.file)
    policy = policy_of(config, encoder.spec, None)
    with spending.plan(config.budget, source, policy, key, output=config.output) as costs:
        return costs


def price(summary):
    return summary.details["guarantee"]["epsilon_euclidean"]


def test_the_first_release_charges_each_record_once(first):
    config, summary = first
    rows = published(config)
    assert len(rows) == 60
    assert {(row["releases"], row["epsilon_spent"]) for row in rows} == {(1, price(summary))}
    assert summary.details["budget"]["subjects_released_anew"] == 60


def test_the_ledger_names_every_published_record_policy_and_price(first):
    config, summary = first
    table = pq.read_table(f"{config.output}/ledger")
    assert table.schema.equals(ledger.SCHEMA)
    assert np.array_equal(table["record"].to_numpy(), subject_numbers([row["id"] for row in published(config)]))
    assert len(set(table["vector"].to_pylist())) == len(set(table["release"].to_pylist())) == 60
    for name, value in (("policy", summary.policy_hash), ("epsilon_euclidean", price(summary)), ("delta", 0.0)):
        assert set(table[name].to_pylist()) == {value}


def test_the_ledger_confirms_no_guess_of_a_text(first, clinical):
    config, summary = first
    table = pq.read_table(f"{config.output}/ledger")
    values = {str(value) for name in table.column_names for value in table[name].unique().to_pylist()}
    fingerprints = {*table["release"].to_pylist(), *table["vector"].to_pylist()}
    for record, text in zip(clinical["id"].to_pylist()[:60], clinical["text"].to_pylist()[:60], strict=True):
        assert text not in values
        for guess in (text, record + text, summary.policy_hash + record + text):
            for name in ("md5", "sha1", "sha256", "blake2b"):
                assert hashlib.new(name, guess.encode()).digest()[:16] not in fingerprints
            assert hashlib.shake_256(guess.encode()).digest(16) not in fingerprints


def test_the_same_policy_again_costs_nothing(settings, encoder, first):
    costs = costs_of(settings, encoder, output="again", include=["first"])
    assert costs.new == 0 and costs.releases == {1: 60}
    assert costs_of(settings, encoder, output="first").new == 0


def test_repeating_costs_nothing_even_where_the_limit_is_used_up(settings, encoder, first):
    costs_of(settings, encoder, output="again", include=["first"], max_epsilon_per_subject=1.0).refuse_overspending()


def test_a_changed_text_is_a_second_release(settings, encoder, first):
    costs = costs_of(settings, encoder, output="again", corpus="changed", include=["first"])
    assert (costs.new, costs.duplicates) == (len(CHANGED), 1)
    assert costs.releases == {1: 57, 2: 3}


def test_under_another_key_every_record_is_a_new_release(settings, encoder, first):
    costs = costs_of(settings, encoder, output="again", key="other.key", include=["first"])
    assert costs.new == 60 and costs.releases == {2: 60}


def test_two_policies_over_the_same_records_add_up(first, second):
    (_, before), (config, summary) = first, second
    rows = published(config)
    twice = price(summary) + price(before)
    assert {row["releases"] for row in rows} == {2}
    assert [row["epsilon_spent"] for row in rows] == pytest.approx([twice] * 60)
    assert len(compose(ledger.read([config.output]))) == 60


def test_of_two_rows_with_one_id_the_first_is_published_and_the_other_quarantined(room, second, clinical):
    config, summary = second
    assert summary.quarantined == {"duplicate_id": 1}
    assert sorted(row["id"] for row in published(config)) == sorted(clinical["id"].to_pylist()[:60])
    (set_apart,) = pq.read_table(f"{config.output}/quarantine").to_pylist()
    assert set_apart["id"] == clinical["id"].to_pylist()[59]
    assert set_apart["position"].startswith(str(room / "changed" / "1.parquet"))


def test_what_a_dataset_counted_is_counted_with_it(settings, encoder, second):
    costs = costs_of(settings, encoder, output="third", rho=1.5, include=["second"])
    assert costs.releases == {3: 60}


def test_a_run_over_the_limit_is_refused_before_anything_is_written(run, settings, first, room):
    with pytest.raises(SparseError, match=r"60 of 60 subjects would go over the limit of 500.* 575\.5 at the median"):
        run(output="refused", rho=1.0, include=["first"], max_epsilon_per_subject=500.0)
    assert not (room / "refused").exists()


def test_an_output_belongs_to_the_ledgers_it_counted(run, first):
    with pytest.raises(SparseError, match=r"another budget\.include"):
        run(output="first", include=["first"])


def test_dry_run_prints_the_budget_and_refuses_alike(room, first, capsys):
    arguments = ["privatize", "--dry-run", "protection.mechanism=laplace", "protection.rho=1"]
    arguments += ["protection.read_out=none", f"input.path={room}/corpus", f"output={room}/dry", f"key.file={room}/key"]
    arguments.append(f"budget.include=[{room}/first]")
    assert main(arguments) == 0
    assert "60 of 60 subjects released anew at epsilon_euclidean 383.667" in capsys.readouterr().out
    assert main([*arguments, "budget.max_epsilon_per_subject=500"]) == 2
    assert "60 of 60 subjects" in capsys.readouterr().err
    assert not (room / "dry").exists()


def test_a_killed_run_leaves_no_double_count(run, settings, first, room):
    """Killed after a unit's ledger was written and before its vectors were."""
    config, _ = first
    shutil.copytree(config.output, room / "killed")
    killed = room / "killed"
    part = sorted((killed / "ledger").iterdir())[0]
    unit, before = part.stem.removeprefix("part-"), part.read_bytes()
    for lost in (killed / "manifest.json", killed / "_units" / f"{unit}.json", killed / "embeddings" / part.name):
        lost.unlink()
    again, summary = run(output="killed", max_epsilon_per_subject=1e4)
    assert part.read_bytes() == before
    assert summary.details["budget"]["subjects_released_anew"] == 0
    assert published(again) == published(config)
    assert (compose(ledger.read([again.output])).releases == 1).all()


def test_a_run_killed_before_its_first_vector_has_released_nothing(settings, encoder, first, room, capsys):
    config, _ = first
    (room / "early" / "ledger").mkdir(parents=True)
    shutil.copy(f"{config.output}/claim.json", room / "early")
    assert costs_of(settings, encoder, output="early").new == 60
    assert main(["budget", "show", str(room / "early")]) == 0
    shown = capsys.readouterr().out
    assert "Nothing was released." in shown and f"not finished         {room}/early: more may be spent" in shown


def test_budget_show_tells_policies_releases_spent_and_left(first, second, capsys):
    (before_config, before), (config, summary) = first, second
    assert main(["budget", "show", config.output]) == 0
    shown = capsys.readouterr().out
    assert before.policy_hash[:16] in shown and summary.policy_hash[:16] in shown
    assert "2: 60 subjects" in shown
    assert "575.5 at the median, 575.5 at most (Euclidean)" in shown
    assert "left of 10000" in shown and "9424.5 at the median, 9424.5 at least; 0 subjects have nothing left" in shown
    assert "60 subjects have nothing left" in budget.report([before_config.output], limit=191.0)


@pytest.mark.parametrize("limit", ["inf", "nan", "0", "-5", "much"])
def test_budget_show_takes_a_positive_and_finite_limit_only(room, limit, capsys):
    with pytest.raises(SystemExit):
        main(["budget", "show", str(room / "corpus"), f"--limit={limit}"])
    assert "limit" in capsys.readouterr().err


def test_budget_show_of_a_dataset_without_a_ledger_says_so(room, capsys):
    assert main(["budget", "show", str(room / "corpus")]) == 2
    assert "has no ledger" in capsys.readouterr().err


def test_a_damaged_ledger_is_refused(first, room):
    config, _ = first
    shutil.copytree(config.output, room / "damaged")
    part = sorted((room / "damaged" / "ledger").iterdir())[0]
    whole, table = part.read_bytes(), pq.read_table(part)
    part.write_bytes(whole[:-100])
    assert_damaged(room / "damaged", part, "no ledger")
    pq.write_table(pa.table({"id": ["a"]}), part)
    assert_damaged(room / "damaged", part, "no ledger")
    pq.write_table(table.slice(1), part)
    assert_damaged(room / "damaged", part, "not the file that was written")
    pq.write_table(at_price(table, 1e-3), part)
    assert_damaged(room / "damaged", part, "not the file that was written")
    part.write_bytes(whole)
    ledger.read([str(room / "damaged")])


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan")])
def test_a_price_of_no_sense_is_refused_even_where_nothing_tells_what_was_written(first, room, tmp_path, price):
    config, _ = first
    (part,) = shutil.copytree(f"{config.output}/ledger", tmp_path / "bare" / "ledger").iterdir()
    ledger.read([str(tmp_path / "bare")])
    pq.write_table(at_price(pq.read_table(part), price), part)
    assert_damaged(tmp_path / "bare", part, "epsilons are positive")


def at_price(table, price):
    at = table.schema.get_field_index("epsilon_euclidean")
    return table.set_column(at, "epsilon_euclidean", pa.array(np.full(len(table), price)))


def assert_damaged(output, part, why):
    with pytest.raises(SparseError, match=f"{part.name} is damaged: .*{why}"):
        ledger.read([str(output)])


def test_a_release_without_noise_is_infinite_and_over_any_limit(settings, encoder, first):
    config = settings(output="bare", include=["first"], max_epsilon_per_subject=1e300).model_copy(
        update={"protection": privatize.PrivatizeConfig.model_fields["protection"].annotation(mechanism="none")}
    )
    source, key = sources.plan(config.input), Key.from_file(config.key.file)
    policy = policy_of(config, encoder.spec, None)
    with spending.plan(config.budget, source, policy, key, output="bare") as costs:
        assert "spent then: infinite at the median" in costs.line
        with pytest.raises(SparseError, match="infinite at the median"):
            costs.refuse_overspending()


@pytest.mark.parametrize("finished", [True, False])
def test_a_ledger_that_was_lost_is_refused_and_not_taken_for_nothing_spent(first, room, finished, capsys):
    config, _ = first
    lossy = shutil.copytree(config.output, room / f"lossy-{finished}")
    if not finished:
        (lossy / "manifest.json").unlink()
    sorted((lossy / "ledger").iterdir())[0].unlink()
    assert main(["budget", "show", str(lossy)]) == 2
    assert "has no ledger" in " ".join(capsys.readouterr().err.split())
    if finished:
        assert any("ledger/" in problem for problem in outputs.verify(str(lossy)))


@pytest.mark.parametrize("folder", ["embeddings", "ledger"])
def test_a_finished_run_mends_what_was_lost_since(run, first, room, capsys, folder):
    config, _ = first
    shutil.rmtree(room / "mended", ignore_errors=True)
    shutil.copytree(config.output, room / "mended")
    (lost,) = (room / "mended" / folder).iterdir()
    before = lost.read_bytes()
    lost.unlink()
    again, _ = run(output="mended", max_epsilon_per_subject=1e4)
    assert "1 of 1 finished units have lost files" in " ".join(capsys.readouterr().out.split())
    assert lost.read_bytes() == before and outputs.verify(again.output, checksums=True) == []


@pytest.mark.parametrize("written", ["something", "nothing"])
def test_a_release_that_is_not_finished_cannot_be_counted(run, settings, encoder, first, room, written):
    """What it has written so far is less than it will: 59 were spent so at a limit of 31."""
    config, _ = first
    growing = shutil.copytree(config.output, room / f"growing-{written}")
    (growing / "manifest.json").unlink()
    if written == "nothing":
        for folder in ("ledger", "embeddings", "_units"):
            shutil.rmtree(growing / folder)
    for include in ([growing.name], ["first", growing.name]):
        with pytest.raises(SparseError, match=f"budget.include: {growing} is claimed by a run that has not finished"):
            costs_of(settings, encoder, output="counting", include=include, max_epsilon_per_subject=1e4)


def test_a_release_that_counts_one_that_is_not_finished_cannot_be_counted(settings, encoder, second, room):
    config, _ = second
    shutil.copytree(room / "first", room / "reopened")
    (room / "reopened" / "manifest.json").unlink()
    counting = shutil.copytree(config.output, room / "counting-it")
    bound = json.loads((counting / "claim.json").read_text())
    (counting / "claim.json").write_text(json.dumps(bound | {"counted": [str(room / "reopened")]}))
    with pytest.raises(SparseError, match=f"{room}/reopened is claimed by a run that has not finished"):
        costs_of(settings, encoder, output="third", include=["counting-it"])


def test_a_ledger_alone_counts_for_what_it_holds(settings, encoder, first, room):
    config, _ = first
    shutil.copytree(f"{config.output}/ledger", room / "alone" / "ledger")
    assert costs_of(settings, encoder, output="again", include=["alone"]).new == 0


def test_an_output_with_a_ledger_and_no_claim_is_not_written_over(run, first, room):
    shutil.copytree(f"{first[0].output}/ledger", room / "left" / "ledger")
    with pytest.raises(SparseError, match=r"has a ledger of earlier releases and no claim\.json"):
        run(output="left")


def test_a_policy_that_was_swapped_after_the_claim_is_not_published_under(run, first, room, encoder):
    """A job killed after its claim resumed under any policy with a valid hash of its own, and published raw vectors."""
    config, _ = first
    killed = shutil.copytree(config.output, room / "swapped")
    for folder in ("ledger", "embeddings", "_units", "policy"):
        shutil.rmtree(killed / folder)
    (killed / "manifest.json").unlink()
    weak = Policy.build(encoder=encoder.spec, mechanism="laplace", epsilon=1e9, read_out="none")
    weak.save(killed / "policy")
    with pytest.raises(SparseError, match=f"policy is {weak.hash}, and not .* changed since"):
        run(output="swapped", max_epsilon_per_subject=1e4)
    assert not (killed / "embeddings").exists()


def test_an_actor_refuses_a_policy_that_the_driver_has_not_built(settings, encoder, room):
    config = settings(output="actor")
    ours = Policy.build(encoder=encoder.spec, mechanism="laplace", rho=2.0, read_out="none")
    weak = Policy.build(encoder=encoder.spec, mechanism="laplace", epsilon=1e9, read_out="none")
    weak.save(room / "actor" / "policy")
    source = sources.plan(config.input)
    actor = UnitActor(
        UnitWork(
            source=source,
            key=Key.from_file(config.key.file),
            encoder=settled(config.encoder, encoder.spec),
            output=config.output,
            dataset=config.dataset,
            storage=config.storage,
            passthrough=(),
            chunk=None,
            noted=frozenset(),
            policy_hash=ours.hash,
        )
    )
    (record,) = actor({"unit": [source.units[0]]})["record"]
    assert weak.hash in record["refused"] and ours.hash in record["refused"]
    assert not (room / "actor" / "embeddings").exists()


def test_a_unit_that_was_done_under_another_policy_is_not_committed(run, first, room):
    config, _ = first
    shutil.copytree(config.output, room / "mixed")
    (record,) = (room / "mixed" / "_units").iterdir()
    record.write_text(json.dumps(json.loads(record.read_text()) | {"policy_hash": "0" * 64}))
    (room / "mixed" / "manifest.json").unlink()
    with pytest.raises(SparseError, match=f"unit {record.stem} .* was released under the policy {'0' * 64}"):
        run(output="mixed", max_epsilon_per_subject=1e4)
    assert not (room / "mixed" / "manifest.json").exists()


def before_subjects(part, ids):
    """A part as it was written before there were subjects: ids, and no fingerprint of the vector."""
    table = pq.read_table(part)
    pq.write_table(table.drop(["vector"]).set_column(0, "id", pa.array(ids)), part)


def test_a_ledger_from_before_there_were_subjects_still_counts(settings, encoder, first, room):
    config, _ = first
    for name, chunk in (("old", None), ("old-chunks", {"tokens": 64, "overlap": 8})):
        old = shutil.copytree(config.output, room / name)
        ids = [row["id"] + ("#0" if chunk else "") for row in published(config)]
        before_subjects(next((old / "ledger").iterdir()), ids)
        # Parts of that time were promised by the same lists of files.
        listed = json.loads((old / "manifest.json").read_text())
        (part,) = (old / "ledger").iterdir()
        listed["ledger"][0] |= {"bytes": part.stat().st_size, "sha256": hashlib.sha256(part.read_bytes()).hexdigest()}
        (old / "manifest.json").write_text(json.dumps(listed))
        bound = json.loads((old / "claim.json").read_text())
        bound = {key: value for key, value in bound.items() if key not in ("subject", "id", "max_epsilon_per_subject")}
        (old / "claim.json").write_text(json.dumps(bound | {"chunk": chunk, "max_epsilon_per_record": 700.0}))
        costs = costs_of(settings, encoder, output="after", rho=1.0, include=[name])
        assert costs.releases == {2: 60}
        assert "left of 700" in budget.report([str(old)])
        assert len(compose(ledger.read([str(old)]))) == 60
