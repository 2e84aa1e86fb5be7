"""What every section of a configuration is."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """Base of every section: unknown fields are errors, numbers are finite, values cannot change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_yes_for_a_number(cls, values: Any) -> Any:
        # Python's true is the number 1: a limit of `true` would be one of 1.
        for name, value in values.items() if isinstance(values, dict) else ():
            kinds = _kinds(cls.model_fields[name].annotation) if name in cls.model_fields else {bool}
            if bool not in kinds and kinds & {int, float} and _holds_bool(value):
                raise ValueError(f"{name} takes a number; true and false are none")
        return values


def _kinds(annotation: Any) -> set[type]:
    return {annotation} if isinstance(annotation, type) else {k for arg in get_args(annotation) for k in _kinds(arg)}


def _holds_bool(value: Any) -> bool:
    return any(map(_holds_bool, value)) if isinstance(value, list | tuple) else isinstance(value, bool)
