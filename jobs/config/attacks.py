"""Attacks that need more than a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from jobs.config.section import Section
from sparse_core.errors import SparseError


class DictionaryConfig(Section):
    """An attacker who tries every value of a closed set, under the exact law of the noise."""

    values: tuple[str, ...] = ()
    """Values to try, such as all drugs of a formulary; none takes the concept's most frequent ones among the records
    that attackers know. Never logged or stored."""
    values_file: str | None = None
    """Text file with one value a line, for long lists."""
    n_values: Annotated[int, Field(gt=1)] = 24
    """How many values to take from the records where none are listed."""
    records: Annotated[int, Field(ge=20)] = 200
    """Most test records to attack; each is encoded once with every value."""
    contexts: Annotated[int, Field(ge=0)] = 24
    """Sentences of its own in which an attacker who does not know the rest of a text learns what each value does to a
    vector; 0 leaves that attacker out."""

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.values and self.values_file is not None:
            raise ValueError("give values or values_file, not both")
        return self

    def listed(self) -> tuple[str, ...]:
        """The values given, those of ``values_file`` read; empty where they are to be taken from the records.

        Raises
        ------
        SparseError
            If the file cannot be read, or holds fewer than two values.
        """
        if self.values_file is None:
            given = self.values
        else:
            try:
                given = Path(self.values_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SparseError(f"dictionary.values_file: {self.values_file!r} cannot be read ({error}).") from None
        values = tuple({value.strip().casefold(): value.strip() for value in given if value.strip()}.values())
        if given and len(values) < 2:
            raise SparseError("dictionary.values: fewer than two different values are given; list at least two.")
        return values


class AveragingConfig(Section):
    """An attacker who holds several releases of the same records."""

    releases: Annotated[tuple[Annotated[int, Field(gt=0, le=256)], ...], Field(min_length=1)] = (1, 4, 16)
    """Numbers of releases to show."""
    records: Annotated[int, Field(gt=1)] = 200
    """Most test records to publish that often."""


class TextAttackConfig(Section):
    """Attacks that write sentences: 'inversion' and 'vec2text' (extra 'text_attacks')."""

    model: str | None = None
    """Causal language model to write with, hub id or folder, such as gpt2; null trains a small one from scratch, in
    minutes on a CPU."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """With `model`, train low-rank updates of this rank in place of its weights (extra 'lora')."""
    epochs: Annotated[int, Field(gt=0)] = 8
    """Most passes over the records that attackers know."""
    batch_size: Annotated[int, Field(gt=0)] = 64
    """Records a step."""
    candidates: Annotated[int, Field(gt=0)] = 8
    """Texts written for each vector, of which the one that explains it best is kept."""
    max_tokens: Annotated[int, Field(gt=0)] = 48
    """Longer texts are cut."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    records: Annotated[int, Field(ge=20)] = 200
    """Most test records to attack."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Texts to show in the report beside what was made of them. **Raw text of yours** but for the concepts' terms,
    which are masked; 0 shows none."""

    @property
    def options(self) -> dict:
        """As `build_text_attack` takes them."""
        return self.model_dump(exclude={"records", "examples"})
