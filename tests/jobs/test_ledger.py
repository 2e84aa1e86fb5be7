"""What the ledger says after releases under one policy, two policies, changed texts, another key and a killed run."""

import hashlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import budget, ledger, outputs, privatize, sources, spending
from jobs.cli import main
from jobs.config import PrivatizeConfig
from jobs.planning import policy_of
from jobs.stages import RememberingEncoder
from sparse_core.budget import compose
from sparse_core.errors import SparseError
from sparse_core.noise import Key, write_new_key

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
    return run(output="first", max_epsilon_per_record=1e4)


@pytest.fixture(scope="module")
def second(run, first):
    """Another policy over the changed corpus."""
    return run(output="second", rho=1.0, corpus="changed", include=["first"], max_epsilon_per_record=1e4)


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
    assert summary.details["budget"]["records_released_anew"] == 60


def test_the_ledger_names_every_published_record_policy_and_price(first):
    config, summary = first
    table = pq.read_table(f"{config.output}/ledger")
    assert table.schema.equals(ledger.SCHEMA)
    assert table["id"].to_pylist() == [row["id"] for row in published(config)]
    for name, value in (("policy", summary.policy_hash), ("epsilon_euclidean", price(summary)), ("delta", 0.0)):
        assert set(table[name].to_pylist()) == {value}


def test_the_ledger_confirms_no_guess_of_a_text(first, clinical):
    config, summary = first
    table = pq.read_table(f"{config.output}/ledger")
    values = {str(value) for name in table.column_names for value in table[name].unique().to_pylist()}
    fingerprints = set(table["release"].to_pylist())
    for record, text in zip(clinical["id"].to_pylist()[:60], clinical["text"].to_pylist()[:60], strict=True):
        assert text not in values
        for guess in (text, record + text, summary.policy_hash + record + text):
            for name in ("md5", "sha1", "sha256", "blake2b"):
                assert hashlib.new(name, guess.encode()).digest()[:16] not in fingerprints
            assert hashlib.shake_256(guess.encode()).digest(16) not in fingerprints


def test_records_with_one_text_have_fingerprints_of_their_own(settings, encoder, first):
    config, _ = first
    charge = ledger.read([config.output]).table[0]
    table = ledger.part(["a", "b", 1], ["same"] * 3, charge, Key.from_file(config.key.file))
    assert len(set(table["release"].to_pylist())) == 3


def test_the_same_policy_again_costs_nothing(settings, encoder, first):
    costs = costs_of(settings, encoder, output="again", include=["first"])
    assert costs.new == 0 and costs.releases == {1: 60}
    assert costs_of(settings, encoder, output="first").new == 0


def test_repeating_costs_nothing_even_where_the_limit_is_used_up(settings, encoder, first):
    costs_of(settings, encoder, output="again", include=["first"], max_epsilon_per_record=1.0).refuse_overspending()


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
    with pytest.raises(SparseError, match=r"60 of 60 records would go over the limit of 500.* 575\.5 at the median"):
        run(output="refused", rho=1.0, include=["first"], max_epsilon_per_record=500.0)
    assert not (room / "refused").exists()


def test_an_output_belongs_to_the_ledgers_it_counted(run, first):
    with pytest.raises(SparseError, match=r"another budget\.include"):
        run(output="first", include=["first"])


def test_dry_run_prints_the_budget_and_refuses_alike(room, first, capsys):
    arguments = ["privatize", "--dry-run", "protection.mechanism=laplace", "protection.rho=1"]
    arguments += ["protection.read_out=none", f"input.path={room}/corpus", f"output={room}/dry", f"key.file={room}/key"]
    arguments.append(f"budget.include=[{room}/first]")
    assert main(arguments) == 0
    assert "60 of 60 records released anew at epsilon_euclidean 383.667" in capsys.readouterr().out
    assert main([*arguments, "budget.max_epsilon_per_record=500"]) == 2
    assert "60 of 60 records" in capsys.readouterr().err
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
    again, summary = run(output="killed", max_epsilon_per_record=1e4)
    assert part.read_bytes() == before
    assert summary.details["budget"]["records_released_anew"] == 0
    assert published(again) == published(config)
    assert (compose(ledger.read([again.output])).releases == 1).all()


def test_a_run_killed_before_its_first_vector_has_released_nothing(settings, encoder, first, room, capsys):
    config, _ = first
    (room / "early" / "ledger").mkdir(parents=True)
    shutil.copy(f"{config.output}/claim.json", room / "early")
    assert costs_of(settings, encoder, output="early", include=["early"]).new == 60
    assert main(["budget", "show", str(room / "early")]) == 0
    assert "Nothing was released." in capsys.readouterr().out


def test_budget_show_tells_policies_releases_spent_and_left(first, second, capsys):
    (before_config, before), (config, summary) = first, second
    assert main(["budget", "show", config.output]) == 0
    shown = capsys.readouterr().out
    assert before.policy_hash[:16] in shown and summary.policy_hash[:16] in shown
    assert "2: 60 records" in shown
    assert "575.5 at the median, 575.5 at most (Euclidean)" in shown
    assert "left of 10000" in shown and "9424.5 at the median, 9424.5 at least; 0 records have nothing left" in shown
    assert "60 records have nothing left" in budget.report([before_config.output], limit=191.0)


def test_budget_show_of_a_dataset_without_a_ledger_says_so(room, capsys):
    assert main(["budget", "show", str(room / "corpus")]) == 2
    assert "has no ledger" in capsys.readouterr().err


def test_a_damaged_ledger_is_refused(first, room):
    config, _ = first
    shutil.copytree(config.output, room / "damaged")
    part = sorted((room / "damaged" / "ledger").iterdir())[0]
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(SparseError, match="is damaged"):
        ledger.read([str(room / "damaged")])
    pq.write_table(pa.table({"id": ["a"]}), part)
    with pytest.raises(SparseError, match="is damaged"):
        ledger.read([str(room / "damaged")])


def test_a_release_without_noise_is_infinite_and_over_any_limit(settings, encoder, first):
    config = settings(output="bare", include=["first"], max_epsilon_per_record=1e300).model_copy(
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
    again, _ = run(output="mended", max_epsilon_per_record=1e4)
    assert "1 of 1 finished units have lost files" in " ".join(capsys.readouterr().out.split())
    assert lost.read_bytes() == before and outputs.verify(again.output, checksums=True) == []
