"""What an audit compares: releases, protections to simulate, vectors of other tools, and baselines."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from jobs.config.release import ProtectionConfig
from jobs.config.section import Section
from sparse_core.concepts import REMOVALS

BASELINES = ("redaction", "rotation", "dropping")


class StoredVectors(Section):
    """Vectors that another tool protected, or that were copied out of a release."""

    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """Files, folder, glob or table, as in input.path."""
    id: str = "id"
    """Column with the id that each record has in the audit's input."""
    embedding: str = "embedding"
    """Column of the protected vectors."""

    @property
    def shown_path(self) -> str:
        """``path`` for people."""
        return self.path if isinstance(self.path, str) else f"{self.path[0]} and {len(self.path) - 1} more"


class Compared(Section):
    """One row of the table: vectors that were published, or ones to make for the audit with a key drawn for it."""

    name: str
    """Row in the table."""
    release: str | None = None
    """Output directory of a privatize job, whose published vectors and policy are taken."""
    vectors: StoredVectors | None = None
    """Vectors protected by another tool; what attackers know of its noise they estimate from their own records."""
    policy: str | None = None
    """Policy directory that the vectors are said to be made under; refused where their noise is another."""
    protection: ProtectionConfig | None = None
    """Protection to simulate."""
    baseline: Literal[BASELINES] | None = None
    """What others do, without a guarantee: 'redaction' takes the concept out of the texts before they are encoded,
    'rotation' turns all vectors by one secret random rotation, 'dropping' sets the directions that the mask opens to
    the mean."""
    removal: Literal[REMOVALS] = "delete"
    """How redaction takes the concept out; 'surrogate' puts other values found in the corpus in its place."""
    mask: str | None = None
    """Mask directory, or its name in MLflow's registry, for the simulated protection or for dropping; a read-out needs
    one too."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("release", "protection", "vectors", "baseline") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of release, protection, vectors and baseline")
        return self

    @model_validator(mode="after")
    def _only_what_counts(self) -> Self:
        if self.mask is not None:
            if self.release is not None:
                raise ValueError("a release brings its own mask; leave mask out")
            if self.vectors is not None:
                raise ValueError("vectors are protected already; leave mask out, and name their policy if there is one")
            if self.baseline not in (None, "dropping"):
                raise ValueError(f"baseline {self.baseline!r} uses no mask; leave mask out")
        elif self.baseline == "dropping":
            raise ValueError("baseline 'dropping' drops the directions of a mask; name one in mask")
        elif self.protection is not None:
            refuse_missing_mask(self.protection)
        if self.policy is not None and self.vectors is None:
            raise ValueError("policy belongs to vectors; a release brings its own, leave policy out")
        if "removal" in self.model_fields_set and self.baseline != "redaction":
            raise ValueError("removal belongs to the baseline 'redaction'; leave it out")
        return self

    @property
    def kind(self) -> str:
        """What the row shows, in a word or two."""
        if self.baseline == "redaction":
            return f"redaction ({self.removal})"
        if self.vectors is not None:
            return "vectors"
        return self.baseline or ("release" if self.protection is None else self.protection.mechanism)


def refuse_missing_mask(protection: ProtectionConfig) -> None:
    """Refuse a protection that needs a mask, for a job that has none."""
    if protection.mechanism == "mahalanobis":
        raise ValueError("mechanism 'mahalanobis' needs a mask; name one in mask")
    if protection.read_out == "wiener" and protection.mechanism != "none":
        raise ValueError("read_out 'wiener' needs a mask, whose mean and covariance it uses; name one in mask, or none")
