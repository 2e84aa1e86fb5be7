"""Reading a configuration, telling what is wrong with it, and describing its fields."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from jobs.config.inputs import without_credentials
from jobs.config.jobs import JobConfig
from jobs.config.section import Section
from sparse_core.errors import SparseError

C = TypeVar("C", bound=JobConfig)


def load_config(model: type[C], path: str | None, overrides: list[str]) -> C:
    """Read a YAML file, apply ``dotted.key=value`` overrides and validate.

    Raises
    ------
    SparseError
        Naming each field that is wrong; for an unknown one, the nearest that exists.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise SparseError(f"There is no configuration file {path}.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SparseError(f"The configuration file {path} cannot be read ({error}).") from None
        except yaml.YAMLError as error:
            # PyYAML's own message quotes the line, which may hold a term of the concept.
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise SparseError(f"The configuration file {path} is not valid YAML{where}.") from None
        if not isinstance(values, dict):
            raise SparseError(
                f"The configuration file {path} must hold fields and values, not {type(values).__name__}."
            )
    for override in overrides:
        _apply_override(values, override)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        where = f"{path} " if path else "the command line "
        problems = "; ".join(_problem(model, problem) for problem in error.errors(include_input=False))
        end = "" if problems.endswith("?") else "."
        raise SparseError(f"The configuration from {where}is not valid: {problems}{end}") from None


def _apply_override(values: dict, override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise SparseError(f"{override!r} is not an override; write field=value, such as output=/data/out.")
    *parents, leaf = key.split(".")
    target = values
    for depth, parent in enumerate(parents, start=1):
        target = target.setdefault(parent, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise SparseError(f"The override {key!r} does not fit: {'.'.join(parents[:depth])} has no fields.")
    try:
        value = yaml.safe_load(text)
        # A text such as 'passage: ' is not meant as a field of its own.
        target[leaf] = text if isinstance(value, dict) and not text.lstrip().startswith("{") else value
    except yaml.YAMLError:
        raise SparseError(f"The value of the override {key!r} is not valid YAML; quote it.") from None


def _problem(model: type[BaseModel], problem: dict) -> str:
    location = problem["loc"]
    name = ".".join(str(part) for part in location)
    if problem["type"] != "extra_forbidden":
        return f"{name or 'the whole'}: {problem['msg'].removeprefix('Value error, ')}"
    fields = list(_section_at(model, location[:-1]).model_fields)
    nearest = difflib.get_close_matches(str(location[-1]), fields, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(fields)}"
    return f"{name}: no such field; {hint}"


def _section_at(model: type[BaseModel], location: tuple) -> type[BaseModel]:
    choices: list[type[Section]] = []
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            choices = sections_of(model.model_fields[part].annotation)
            model = choices[0] if choices else model
        else:
            model = next((section for section in choices if _kind(section) == part), model)
    return model


def sections_of(annotation: Any) -> list[type[Section]]:
    """Sections inside an annotation: one in ``tuple[Section, ...]``, several where a field tells their kinds apart."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for arg in get_args(annotation) for section in sections_of(arg)]


def _kind(section: type[Section]) -> str | None:
    """What tells a section apart from others in its place: the only value that one of its fields may have."""
    fixed = (field.annotation for field in section.model_fields.values() if get_origin(field.annotation) is Literal)
    return next((str(get_args(annotation)[0]) for annotation in fixed if len(get_args(annotation)) == 1), None)


def describe_fields(
    model: type[BaseModel], prefix: str = "", default_section: BaseModel | None = None
) -> list[tuple[str, str, str]]:
    """Every field as (dotted name, default, documentation), sections expanded."""
    rows = []
    for name, field in model.model_fields.items():
        sections = sections_of(field.annotation)
        if not sections or field.description:
            default = "required"
            if default_section is not None:
                default = _shown(getattr(default_section, name))
            elif not field.is_required():
                default = _shown(field.get_default(call_default_factory=True))
            choices = _choices(field.annotation)
            text = (field.description or "") + (f" One of: {', '.join(choices)}." if len(choices) > 1 else "")
            rows.append((prefix + name, default, text))
        many = {tuple: "[]", dict: ".NAME"}.get(getattr(field.annotation, "__origin__", None), "")
        given = field.get_default()
        for section in sections:
            within = f"{prefix}{name}{many if len(sections) == 1 else f'[{_kind(section)}]'}."
            rows += describe_fields(section, within, given if isinstance(given, section) else None)
    return rows


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for arg in get_args(annotation) if not isinstance(arg, str) for choice in _choices(arg)]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Section):
        return "fields below"
    return "none" if value is None else str(value)


def public_settings(config: BaseModel) -> dict[str, str]:
    """The configuration as flat, loggable settings: without terms, patterns or anything secret."""
    flat: dict[str, str] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else key)
        elif isinstance(value, list | tuple) and any(isinstance(v, dict) for v in value):
            for position, inner in enumerate(value):
                walk(inner, f"{name}.{position}")
        elif name.endswith((".terms", ".patterns", "dictionary.values")):
            flat[name] = f"{len(value)} given"
        else:
            flat[name] = without_credentials(str(value))

    walk(config.model_dump(mode="json"), "")
    return flat
