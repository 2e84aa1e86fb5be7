import math
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from jobs.config import (
    AuditConfig,
    CalibrateConfig,
    MaskTrainingConfig,
    PrivatizeConfig,
    QueryConfig,
    QuickstartConfig,
    SplitConfig,
    StudyConfig,
    TrainMaskConfig,
    describe_fields,
    load_config,
    public_settings,
    sections_of,
)
from sparse_core.errors import SparseError
from sparse_core.masks import WHITEBOX_BASES
from sparse_core.mechanisms import DEFAULT_DELTA

CONFIGS = Path(__file__).parents[2] / "configs"
MODELS = (TrainMaskConfig, PrivatizeConfig, QueryConfig, AuditConfig, QuickstartConfig, StudyConfig, CalibrateConfig)
JOBS = {
    "train_mask": TrainMaskConfig,
    "privatize": PrivatizeConfig,
    "query": QueryConfig,
    "audit": AuditConfig,
    "quickstart": QuickstartConfig,
    "study": StudyConfig,
    "calibrate": CalibrateConfig,
}
TRAINING = {"output": "out", "input": {"path": "a.csv"}, "concept": {"name": "people", "terms": ["Zorvath"]}}
PRIVATIZING = {"output": "out", "input": {"path": "a.csv"}, "protection": {"mechanism": "laplace", "rho": 1}}
RELEASING = {**PRIVATIZING, "protection": {"mechanism": "laplace", "rho": 1, "read_out": "none"}}
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)


@pytest.fixture
def load(tmp_path):
    """Write settings as YAML and load them with overrides."""

    def load(settings, *overrides, model=TrainMaskConfig):
        path = tmp_path / "job.yaml"
        path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
        return load_config(model, str(path), list(overrides))

    return load


def leaves(model: type[BaseModel]):
    """Every field that is no section, or not only one, with its model."""
    for name, field in model.model_fields.items():
        sections = sections_of(field.annotation)
        if not sections or field.description:
            yield model, name, field
        for section in sections:
            yield from leaves(section)


# Fields and files


@every_model
def test_every_field_and_every_section_is_documented(model):
    assert [f"{owner.__name__}.{name}" for owner, name, field in leaves(model) if not field.description] == []
    assert model.__doc__


@every_model
def test_every_field_is_described_once_under_its_dotted_name(model):
    names = [name for name, _, text in describe_fields(model) if text]
    assert len(names) == len(set(names)) == len(list(leaves(model)))


def test_descriptions_tell_defaults_and_what_is_required():
    rows = {name: default for name, default, _ in describe_fields(AuditConfig)}
    assert rows["output"] == rows["input.path"] == rows["compare[].name"] == "required"
    assert (rows["input.text"], rows["split.seed"], rows["encoder.device"]) == ("text", "0", "none")


def test_masks_by_name_are_described_under_a_name():
    assert "masks.NAME.penalty" in [name for name, _, _ in describe_fields(QuickstartConfig)]


@pytest.mark.parametrize(
    "path", [*sorted(CONFIGS.glob("*.yaml")), *sorted(CONFIGS.glob("studies/*.yaml"))], ids=lambda path: path.name
)
def test_every_configuration_in_the_repository_is_valid_and_tells_its_command(path):
    text = path.read_text()
    told = [job for job in JOBS if f"sparse {job} --config configs/{path.relative_to(CONFIGS)}" in text]
    assert len(told) == 1
    job = told[0]
    load_config(JOBS[job], str(path), [])


# Unknown fields and wrong values


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("ouput=x", "ouput: no such field; did you mean 'output'?"),
        ("input.txt=x", "input.txt: no such field; did you mean 'text'?"),
        ("mask.penality=1", "mask.penality: no such field; did you mean 'penalty'?"),
        ("tracking.url=x", "tracking.url: no such field; did you mean 'uri'?"),
        ("split.zzz=1", f"split.zzz: no such field; there are {', '.join(SplitConfig.model_fields)}."),
    ],
)
def test_an_unknown_field_is_told_with_the_nearest_there_is(load, override, told):
    with pytest.raises(SparseError, match="not valid") as refused:
        load(TRAINING, override)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"compare": [{"nam": "x", "release": "r"}]}, "compare.0.nam: no such field; did you mean 'name'?"),
        (
            {"compare": [{"name": "x", "protection": {"mechanism": "laplace", "roh": 1}}]},
            "compare.0.protection.roh: no such field; did you mean 'rho'?",
        ),
        ({"utility": {"lable": "x"}}, "utility.0.classification.lable: no such field; did you mean 'label'?"),
        ({"utility": [{"task": "sts", "lefft": "x"}]}, "utility.0.sts.lefft: no such field; did you mean 'left'?"),
    ],
)
def test_an_unknown_field_inside_a_list_or_an_optional_section_is_told_too(load, fields, told):
    settings = TRAINING | {"compare": [{"name": "x", "release": "r"}]} | fields
    with pytest.raises(SparseError, match="not valid") as refused:
        load(settings, model=AuditConfig)
    assert told in str(refused.value)


def test_an_unknown_field_of_a_named_mask_is_told_too(load):
    settings = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text())
    settings["masks"]["subspace"]["bases"] = "label"
    with pytest.raises(SparseError, match=r"masks\.subspace\.bases: no such field; did you mean 'basis'"):
        load(settings, model=QuickstartConfig)


def test_every_wrong_field_is_told_at_once(load):
    with pytest.raises(SparseError) as refused:
        load(TRAINING, "mask.penalty=-1", "mask.basis=diagonal", "split.test_share=2", "colour=red")
    for name in ("mask.penalty", "mask.basis", "split.test_share", "colour"):
        assert f"{name}: " in str(refused.value)


def test_a_missing_field_is_told(load):
    with pytest.raises(SparseError, match=r"input: Field required"):
        load({"output": "out", "concept": {"name": "people"}})


@pytest.mark.parametrize(
    ("protection", "told"),
    [
        ({"mechanism": "laplace"}, "exactly one of epsilon and rho"),
        ({"mechanism": "laplace", "rho": 1, "epsilon": 1}, "exactly one of epsilon and rho"),
        ({"mechanism": "none", "rho": 1}, "neither epsilon nor rho"),
        ({"mechanism": "laplace", "rho": 0}, "greater than 0"),
        ({"mechanism": "laplace", "epsilon": float("inf")}, "finite"),
        ({"mechanism": "uniform", "rho": 1}, "laplace"),
        ({"rho": 1, "floor": 1}, "less than 1"),
        ({"rho": 1, "delta": 1e-6}, "delta belongs to the mechanism 'gaussian'"),
        ({"mechanism": "gaussian", "rho": 1, "delta": 0}, "greater than 0"),
        ({"mechanism": "gaussian", "rho": 1, "delta": 1}, "less than 1"),
        ({"mechanism": "purkayastha", "rho": 1.5, "read_out": "none"}, "rho below 1.41"),
    ],
)
def test_a_protection_of_no_sense_is_refused(load, protection, told):
    with pytest.raises(SparseError, match=told):
        load(PRIVATIZING | {"protection": protection}, model=PrivatizeConfig)


def test_directions_of_vectors_that_are_not_normalized_are_refused(load):
    protection = {"mechanism": "purkayastha", "rho": 1}
    changes = {"mask": "m", "protection": protection, "encoder": {"normalize": False}}
    with pytest.raises(SparseError, match=r"norm 1; set encoder\.normalize to true"):
        load(PRIVATIZING | changes, model=PrivatizeConfig)
    rows = [{"name": "x", "protection": protection, "mask": "m"}]
    with pytest.raises(SparseError, match=r"norm 1; set encoder\.normalize to true"):
        load(TRAINING | {"compare": rows, "encoder": {"normalize": False}}, model=AuditConfig)


def test_delta_is_described_with_the_default_that_counts():
    (text,) = [text for name, _, text in describe_fields(PrivatizeConfig) if name == "protection.delta"]
    assert f"null takes {DEFAULT_DELTA:g}".replace("e-06", "e-6") in text


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        ({"share": 0.5}, "share would have no effect with a basis other than whitebox and whitebox-label"),
        ({"basis": "whitebox", "penalty": 0.5}, "penalty would have no effect with basis 'whitebox'"),
        ({"basis": "whitebox-label", "removal": "delete", "epochs": 5}, "epochs, removal would have no effect"),
        ({"basis": "whitebox", "share": 1}, "less than 1"),
    ],
)
def test_a_setting_that_the_basis_does_not_use_is_refused(load, mask, told):
    with pytest.raises(SparseError, match=told):
        load(TRAINING | {"mask": mask})


def test_the_default_shares_of_whitebox_masks_are_described():
    (text,) = [text for name, _, text in describe_fields(TrainMaskConfig) if name == "mask.share"]
    assert [str(share) for share in WHITEBOX_BASES.values() if f"{share} of" in text] == ["0.9", "0.5"]


@pytest.mark.parametrize(
    ("compare", "told"),
    [
        ([], "compare"),
        ([{"name": "x"}], "exactly one of release, protection, vectors and baseline"),
        ([{"name": "x", "release": "r", "mask": "m"}], "brings its own mask"),
        ([{"name": "x", "release": "r"}] * 2, "names in compare must differ"),
    ],
)
def test_a_comparison_of_no_sense_is_refused(load, compare, told):
    with pytest.raises(SparseError, match=told):
        load(TRAINING | {"compare": compare}, model=AuditConfig)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("release=nobody", "release 'nobody' is not one of compare"),
        ("compare=[{name: subspace mask, mechanism: mahalanobis}]", "a mask belongs to the mechanism mahalanobis"),
        ("compare=[{name: subspace mask, mechanism: mahalanobis, mask: m}]", "there is no mask 'm'"),
        ("compare=[{name: subspace mask, mechanism: purkayastha}]", "rho 2 is more than random ones have"),
    ],
)
def test_a_quickstart_of_no_sense_is_refused(override, told):
    with pytest.raises(SparseError, match=told):
        load_config(QuickstartConfig, str(CONFIGS / "quickstart.yaml"), [override])


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("output=/data/out", "/data/out"),
        ("split.seed=7", 7),
        ("mask.penalty=0.5", 0.5),
        ("mask.learning_rate=1e-3", 0.001),
        ("mask.directions=null", None),
        ("split=null", None),
        ("tracking.enabled=false", False),
        ("input.id=null", None),
        ("concept.terms=[Ada, 'Grace Hopper']", ("Ada", "Grace Hopper")),
        ("tracking.uri=http://server:5000/?a=b", "http://server:5000/?a=b"),
    ],
)
def test_an_override_is_typed_like_yaml(load, override, value):
    found = load(TRAINING, override)
    for part in override.partition("=")[0].split("."):
        found = getattr(found, part)
    assert found == value and type(found) is type(value)


def test_the_last_override_of_a_field_counts(load):
    assert load(TRAINING, "split.seed=1", "split.seed=2").split.seed == 2


def test_overrides_alone_make_a_configuration():
    overrides = ["output=out", "input.path=a.csv", "concept.name=people", "concept.terms=[Ada]"]
    assert load_config(TrainMaskConfig, None, overrides).concept.terms == ("Ada",)


@pytest.mark.parametrize("override", ["output", "=x", "output.name=x", "output=[", "concept.terms.0=x"])
def test_an_override_that_does_not_fit_is_told(load, override):
    with pytest.raises(SparseError, match="override"):
        load(TRAINING, override)


def test_a_configuration_cannot_be_changed(load):
    config = load(TRAINING)
    with pytest.raises(ValueError, match="frozen"):
        config.output = "elsewhere"


# Files


def test_a_missing_configuration_file_is_told_by_name(tmp_path):
    with pytest.raises(SparseError, match=r"no configuration file .*nowhere\.yaml"):
        load_config(TrainMaskConfig, str(tmp_path / "nowhere.yaml"), [])


def test_a_file_that_is_no_yaml_is_told_by_line_and_not_by_content(load):
    with pytest.raises(SparseError, match=r"not valid YAML at line 2") as refused:
        load("output: out\nname: 'Quexlington' Zorvath\n")
    assert "Zorvath" not in str(refused.value) and "Quexlington" not in str(refused.value)


@pytest.mark.parametrize("content", ["- a\n- b\n", "words\n"])
def test_a_file_without_fields_is_told_so(load, content):
    with pytest.raises(SparseError, match="must hold fields and values"):
        load(content)


def test_a_folder_as_configuration_is_refused(tmp_path):
    with pytest.raises(SparseError, match="cannot be read"):
        load_config(TrainMaskConfig, str(tmp_path), [])


def test_terms_of_a_file_join_those_of_the_configuration(load, tmp_path):
    (tmp_path / "terms.txt").write_text("Quexlington\n\n  Grace Hopper \nZorvath\n", encoding="utf-8")
    concept = load(TRAINING, f"concept.terms_file={tmp_path}/terms.txt").concept.build()
    assert concept.terms == ("Zorvath", "Quexlington", "Grace Hopper")


def test_a_missing_file_of_terms_is_told_by_name(load):
    with pytest.raises(SparseError, match=r"concept\.terms_file: 'nowhere\.txt' cannot be read"):
        load(TRAINING, "concept.terms_file=nowhere.txt").concept.build()


# What is logged


SECRETS = ("Zorvath", "Quexlington", "Vorb[ae]x", "hunter2")


@pytest.fixture
def secretive():
    concept = {"name": "people", "terms": ["Zorvath", "Quexlington"], "patterns": ["Vorb[ae]x"]}
    return {
        "output": "out",
        "input": {"path": "a.csv"},
        "concept": concept,
        "tracking": {"uri": "postgresql://sparse:hunter2@server/mlflow"},
    }


def test_settings_for_the_log_hold_no_term_pattern_or_password(load, secretive):
    flat = public_settings(load(secretive))
    assert not [f"{name}={value}" for name, value in flat.items() for secret in SECRETS if secret in value + name]


def test_settings_of_the_quickstart_hold_no_term_or_pattern(load, secretive):
    settings = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text()) | secretive
    flat = public_settings(load(settings, model=QuickstartConfig))
    assert not [f"{name}={value}" for name, value in flat.items() for secret in SECRETS if secret in value + name]


def test_settings_for_the_log_tell_how_many_terms_there_were(load, secretive):
    flat = public_settings(load(secretive))
    assert (flat["concept.terms"], flat["concept.patterns"]) == ("2 given", "1 given")


def test_settings_for_the_log_tell_every_other_field(load, secretive):
    flat = public_settings(load(secretive))
    assert (
        flat["concept.name"] == "people"
        and flat["mask.penalty"] == str(MaskTrainingConfig().penalty)
        and flat["split.seed"] == "0"
    )
    assert flat["tracking.uri"] == "postgresql://***@server/mlflow"


def test_the_key_is_no_field_of_a_configuration():
    assert {name for name, _, _ in describe_fields(PrivatizeConfig) if name.startswith("key.")} == {
        "key.file",
        "key.environment",
        "key.ephemeral",
    }


@pytest.mark.parametrize("problem", ["concept.colour=Zorvath", "concept.terms=Zorvath", "concept.terms=[Zorvath, 1]"])
def test_an_error_in_the_configuration_does_not_repeat_a_term(load, problem):
    with pytest.raises(SparseError, match="concept") as refused:
        load(TRAINING, problem)
    assert "Zorvath" not in str(refused.value)


def test_a_text_with_a_colon_stays_a_text_on_the_command_line():
    config = load_config(
        TrainMaskConfig,
        None,
        ["output=x", "input.path=y", "concept={name: x, terms: [a]}", "encoder.prompt=passage: "],
    )
    assert config.encoder.prompt == "passage: "


@pytest.mark.parametrize("mechanism", ["laplace", "mahalanobis"])
def test_a_protection_that_needs_a_mask_is_refused_without_one(mechanism):
    with pytest.raises(SparseError, match="needs a mask"):
        load_config(
            PrivatizeConfig,
            None,
            ["output=x", "input.path=y", f"protection={{mechanism: {mechanism}, rho: 1}}"],
        )


@every_model
def test_no_number_may_be_true(model):
    """In Python true is the number 1, and a limit of true would be one of 1."""
    for section, name, field in leaves(model):
        if {int, float} & kinds_of(field.annotation) and bool not in kinds_of(field.annotation):
            for value in (True, [True], [1, False]):
                with pytest.raises(ValidationError) as refused:
                    section.model_validate({name: value})
                problem = refused.value.errors()[0]["msg"]
                assert f"{name} takes a number" in problem


@every_model
def test_every_number_is_finite(model):
    for section, name, field in leaves(model):
        if float in kinds_of(field.annotation):
            for value in (math.inf, -math.inf, math.nan):
                with pytest.raises(ValidationError) as refused:
                    section.model_validate({name: value})
                assert any(problem["loc"][0] == name for problem in refused.value.errors()), (section, name, value)


def kinds_of(annotation) -> set[type]:
    if isinstance(annotation, type):
        return {annotation}
    return {kind for arg in get_args(annotation) for kind in kinds_of(arg)}


@pytest.mark.parametrize("limit", ["true", "0", "-1", ".inf", ".nan"])
def test_a_limit_that_is_no_positive_finite_number_is_refused(load, limit):
    with pytest.raises(SparseError, match=r"budget.*max_epsilon_per_subject"):
        load(PRIVATIZING, f"budget.max_epsilon_per_subject={limit}", model=PrivatizeConfig)


def test_the_old_name_of_the_limit_is_taken_with_a_warning(load):
    with pytest.warns(FutureWarning, match=r"is now called budget\.max_epsilon_per_subject"):
        config = load(RELEASING, "budget.max_epsilon_per_record=5", model=PrivatizeConfig)
    assert config.budget.max_epsilon_per_subject == 5
    with pytest.raises(SparseError, match="the old name of max_epsilon_per_subject; leave it out"):
        load(PRIVATIZING, "budget={max_epsilon_per_record: 5, max_epsilon_per_subject: 5}", model=PrivatizeConfig)


@pytest.mark.parametrize("budget", ["max_epsilon_per_subject: 5", "include: [other]"])
def test_a_budget_of_rows_that_have_no_ids_of_their_own_is_refused(load, budget):
    with pytest.raises(SparseError, match=r"name input\.id, or a column in budget\.subject"):
        load(RELEASING, "input.id=null", f"budget={{{budget}}}", model=PrivatizeConfig)
    load(RELEASING, "input.id=null", f"budget={{subject: patient, {budget}}}", model=PrivatizeConfig)
