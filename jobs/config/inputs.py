"""Sections on what is read: corpus, concept, encoder, storage."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from jobs.config.section import Positive, Section, Share
from sparse_core.concepts import Concept
from sparse_core.encoders import BACKENDS, DEFAULT_MODEL, DTYPES
from sparse_core.errors import SparseError

_CREDENTIALS = re.compile(r"://[^/\s]*@")


class InputConfig(Section):
    """The corpus to read."""

    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """Parquet, CSV or JSON-lines files (text formats also .gz or .zst), a folder of them, a glob, a Delta Lake table
    (extra 'delta'), a Lance table (*.lance, extra 'lance'), or a list of these; local or s3://bucket/key. Folders named
    key=value become columns."""
    text: str | None = "text"
    """Column that holds the text."""
    template: str | None = None
    """Text made from several columns, such as '{title}. {body}', in place of input.text; a null field is left empty."""
    embedding: str | None = None
    """Column of vectors computed already, protected as they are, without text. Noise is then drawn from id and vector,
    in steps of the release grid (2**-20). Store vectors once: computed anew, many differ by a step and are released
    anew."""
    id: str | None = "id"
    """Column that holds a unique string or integer per record; null makes ids, keyed hashes of place and content."""
    annotations: str | None = None
    """Column of annotated spans, each a struct {start, end, label} in characters, for concepts by entity type."""
    max_characters: Annotated[int, Field(gt=0)] = 1_000_000
    """Longer texts are quarantined. Encoders read a few thousand characters; see what is truncated in summary.json."""

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        chosen = [name for name in ("template", "embedding") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ValueError("template makes text and embedding takes its place; leave one of them out")
        if chosen and "text" in self.model_fields_set and self.text is not None:
            raise ValueError(f"{chosen[0]} takes the place of text; leave text out")
        if not chosen and self.text is None:
            raise ValueError("name the column of the text in text, or that of the vectors in embedding")
        if self.template is not None:
            template_columns(self.template)
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """``path`` as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def shown_path(self) -> str:
        """``path`` for people."""
        first, *others = self.paths
        return f"{first} and {len(others)} more" if others else first

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that the text is made from; none where vectors take its place."""
        if self.embedding is not None:
            return ()
        return (self.text,) if self.template is None else template_columns(self.template)


def template_columns(template: str) -> tuple[str, ...]:
    """The columns that a template names.

    Raises
    ------
    ValueError
        If it names none, or says more of one than its name.
    """
    try:
        fields = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"template {template!r} is not valid ({error}); write braces that are text twice") from None
    for name, form, conversion in fields:
        if not name or form or conversion or re.search(r"[.\[\]]", name):
            raise ValueError(
                f"template {template!r}: a field is a column's name in braces, such as {{title}}, without index, "
                "attribute or format"
            )
    if not fields:
        raise ValueError(f"template {template!r} names no column; put one in braces, such as {{title}}")
    return tuple(dict.fromkeys(name for name, _, _ in fields))


class ConceptConfig(Section):
    """What is to be hidden. Terms and patterns stay in this file: they are never logged or stored."""

    name: str
    """Public name of the concept; appears in artifacts and reports."""
    terms: tuple[str, ...] = ()
    """Words or names of several words, matched as whole words in any case."""
    terms_file: str | None = None
    """Text file with one term a line, for long lists."""
    patterns: tuple[str, ...] = ()
    """Regular expressions (syntax of the regex package)."""
    entity_types: tuple[str, ...] = ()
    """Entity types, from input.annotations where given, else found by entity_model."""
    entity_model: str | None = None
    """spaCy model for entity_types, by name or path; needs the extra 'ner'."""

    def build(self) -> Concept:
        """The concept, with the terms of ``terms_file`` read."""
        terms = list(self.terms)
        if self.terms_file is not None:
            try:
                lines = Path(self.terms_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SparseError(f"concept.terms_file: {self.terms_file!r} cannot be read ({error}).") from None
            terms += [line.strip() for line in lines if line.strip()]
        return Concept(
            name=self.name,
            terms=tuple(dict.fromkeys(terms)),
            patterns=self.patterns,
            entity_types=self.entity_types,
            entity_model=self.entity_model,
        )


class EncoderConfig(Section):
    """The model that turns text into vectors."""

    model: str = DEFAULT_MODEL
    """Any sentence-transformers or transformers model: hub id or local folder."""
    revision: str | None = None
    """Hub revision; pin a commit so that a re-run publishes the same vectors."""
    device: str | None = None
    """cpu, cuda or cuda:N; null takes the best there is."""
    backend: Literal[BACKENDS] = "auto"
    """What computes. 'onnx' (extra 'onnx', CPU only) is faster than 'torch' there and equal within 1e-5; 'auto'
    takes it where it can. It decides the last bits of a vector and is part of the policy: name one for releases that
    several kinds of machine make."""
    dtype: Literal[DTYPES] = "auto"
    """Precision of the transformer; 'auto' is bfloat16 on CUDA and float32 elsewhere. Part of the policy too."""
    normalize: bool = True
    """Scale vectors to unit norm."""
    prompt: str = ""
    """Put before every text, such as 'passage: ' for E5 models."""


class SplitConfig(Section):
    """Who sees which records: the mask, the attackers, and nobody before the test. Near-duplicates stay together.

    Attackers get records of their own, because on the records that a mask was learned from its directions have taken
    away more than they do elsewhere.
    """

    test_share: Share = 0.25
    """Share of records that attackers are tested on."""
    attack_share: Share = 0.3
    """Share of records that attackers are trained on; the mask is learned from what is left."""
    seed: int = 0
    """The same seed and corpus give every job the same split."""

    @model_validator(mode="after")
    def _leaves_some(self) -> Self:
        if self.test_share + self.attack_share >= 1:
            raise ValueError("test_share and attack_share leave no records for the mask; their sum must be below 1")
        return self


class StorageConfig(Section):
    """Object storage. Credentials never stand here: they come from the environment, a profile, or a role.

    Where a field is null, AWS's own variables and files are followed: AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE,
    AWS_ACCESS_KEY_ID and so on, ~/.aws/config, web identity, container and instance roles. Workers on other machines
    look there too.
    """

    endpoint: str | None = None
    """Address of an S3-compatible server, such as https://minio.internal:9000; null takes AWS_ENDPOINT_URL, or AWS."""
    region: str | None = None
    """Region of the buckets; null takes AWS_REGION or the profile's."""
    profile: str | None = None
    """Profile of ~/.aws to take credentials from; null takes what the environment, AWS_PROFILE, or the role of the
    machine or container gives."""
    anonymous: bool = False
    """Read public buckets without credentials."""
    attempts: Annotated[int, Field(gt=0, le=100)] = 10
    """Most attempts per request, with growing pauses, where storage throttles, fails or drops the connection."""
    connect_timeout: Positive = 10
    """Seconds to wait for a connection."""
    read_timeout: Positive = 30
    """Seconds to wait for the next bytes of an answer."""

    @field_validator("endpoint")
    @classmethod
    def _an_address(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        if _CREDENTIALS.search(endpoint):
            raise ValueError(
                "carries a user name or password; leave them out and give credentials in the environment or a profile"
            )
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("is not an address; write it as https://minio.internal:9000")
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.anonymous and self.profile is not None:
            raise ValueError("anonymous takes no profile; leave one of them out")
        return self


def without_credentials(text: str) -> str:
    """A setting without the user name and password that a URL in it may carry."""
    return _CREDENTIALS.sub("://***@", text)
