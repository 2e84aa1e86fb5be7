"""Stages that several jobs share: loading the encoder, encoding a corpus once, finding the concept."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from jobs import storage
from jobs.config import ChunkConfig, EncoderConfig, InputConfig, JobConfig, KeyConfig, SplitConfig
from jobs.progress import steps
from jobs.sources import Corpus, Rows
from jobs.tracking import check_tracking, tracking_uri
from sparse_core.concepts import Concept, Span, check_prevalence, find_spans
from sparse_core.encoders import Encoder, EncoderSpec, load_encoder
from sparse_core.errors import SparseError
from sparse_core.evaluation import near_duplicate_groups, split_records
from sparse_core.noise import Key

_log = logging.getLogger("sparse")


def load_configured(config: EncoderConfig, *, threads: int | None = None) -> Encoder:
    """Load the configured model; `threads` as in `load_encoder`.

    Where the backend 'auto' could not take ONNX Runtime on a CPU, a log line says why.
    """
    encoder = load_encoder(
        config.model,
        revision=config.revision,
        device=config.device,
        normalize=config.normalize,
        prompt=config.prompt,
        backend=config.backend,
        dtype=config.dtype,
        threads=threads,
    )
    if encoder.fallback is not None:
        _log.info("encoder.backend: torch computes instead of ONNX Runtime, because %s.", encoder.fallback)
    return encoder


def settled(config: EncoderConfig, spec: EncoderSpec) -> EncoderConfig:
    """The configuration with 'auto' replaced by what it came to, so that every worker computes the same bits."""
    return config.model_copy(update={"backend": spec.backend, "dtype": spec.dtype})


def chunker_of(config: ChunkConfig, encoder: Encoder | RememberingEncoder) -> Callable[[Rows], Rows]:
    """What cuts rows of long texts into rows of chunks."""
    from jobs.chunks import Chunker, chunked

    if encoder.tokenizer is None:
        raise SparseError("chunk: this model has no fast tokenizer to count tokens with; leave chunk out.")
    chunker = Chunker(
        encoder.tokenizer, tokens=config.tokens, overlap=config.overlap, max_tokens=encoder.spec.max_tokens
    )
    return partial(chunked, chunker=chunker)


class RememberingEncoder:
    """An encoder that encodes no text twice in one process, for jobs that follow each other."""

    def __init__(self, encoder: Encoder):
        self._encoder = encoder
        self._vectors: dict[bytes, np.ndarray] = {}

    @classmethod
    def load(cls, config: EncoderConfig) -> RememberingEncoder:
        """Load the configured model, telling how long it takes."""
        with steps("Loading the encoder"):
            return cls(load_configured(config))

    @property
    def spec(self):
        """See `Encoder.spec`."""
        return self._encoder.spec

    @property
    def tokenizer(self):
        """See `Encoder.tokenizer`."""
        return self._encoder.tokenizer

    def with_prompt(self, prompt: str) -> RememberingEncoder:
        """See `Encoder.with_prompt`; it remembers what it encodes for itself."""
        return RememberingEncoder(self._encoder.with_prompt(prompt))

    def encode(self, texts: Sequence[str], *, title: str) -> np.ndarray:
        """See `Encoder.encode`; `title` names the progress display."""
        names = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts]
        missing = {name: text for name, text in zip(names, texts, strict=True) if name not in self._vectors}
        if missing:
            with steps(title) as advance:
                vectors = self._encoder.encode(list(missing.values()), progress=advance)
            self._vectors |= dict(zip(missing, vectors, strict=True))
        return np.array([self._vectors[name] for name in names])

    def encode_passing(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts that nobody will ask for again, without remembering them or showing progress."""
        return self._encoder.encode(list(texts))


@dataclass(frozen=True)
class Roles:
    """Row numbers of the records that the mask, the attackers and the test may see; disjoint."""

    mask: np.ndarray
    attack: np.ndarray
    test: np.ndarray


def divide(texts: Sequence[str], config: SplitConfig) -> Roles:
    """Give every record its role; every job that reads the same corpus gets the same."""
    groups = near_duplicate_groups(texts)
    first = split_records(groups, test_share=config.test_share, seed=config.seed)
    share = config.attack_share / (1 - config.test_share)
    second = split_records(groups[first.train], test_share=share, seed=config.seed + 1)
    return Roles(first.train[second.train], first.train[second.test], first.test)


def named_split(source_fingerprint: str, config: SplitConfig | None) -> str:
    """A name for the records of a corpus that a mask may see; two jobs that give it agree on all roles."""
    settings = None if config is None else config.model_dump()
    return hashlib.sha256(json.dumps([source_fingerprint, settings], sort_keys=True).encode()).hexdigest()


def usable_vectors(vectors: np.ndarray) -> np.ndarray:
    """Rows with a usable vector: finite and not zero; bool, shape (n_records,)."""
    return np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)


def find_concept(corpus: Corpus, concept: Concept, config: InputConfig) -> list[list[Span]]:
    """Find the concept in every text; refuse one found in no row or in every row."""
    annotations = corpus.columns[config.annotations] if config.annotations else None
    with steps("Finding the concept") as advance:
        spans = find_spans(corpus.texts, concept, annotations=annotations, progress=advance)
    check_prevalence(spans, len(corpus.texts), name=concept.name)
    return spans


def refuse_missing_entity_model(concept: Concept, config: InputConfig) -> None:
    """Refuse a concept whose entity model is not installed, unless annotated spans take its place."""
    if concept.uses_entities and config.annotations is None:
        find_spans(["Nobody"], concept)


def check_output(job: str, config: JobConfig) -> None:
    """Refuse an output that another job has written to, that cannot be written, or whose runs have no place to be
    recorded; what follows reaches object storage as `config.storage` says.
    """
    storage.configure(config.storage)
    if config.tracking.enabled:
        tracking_uri(config)
    storage.check(config.output, field="output", write=True)
    check_tracking(config)
    found = storage.read_json(storage.join(config.output, "summary.json"))
    if found is not None and found.get("job") != job:
        raise SparseError(
            f"output: {config.output} holds the output of {found.get('job')}; {job} would overwrite its summary. "
            "Choose another output directory."
        )


def load_key(config: KeyConfig) -> Key:
    """The key a job is to use.

    Raises
    ------
    SparseError
        If there is none, or it is unfit.
    """
    if config.ephemeral:
        return Key.ephemeral()
    if config.file is not None:
        return Key.from_file(config.file)
    if config.environment is not None and os.environ.get(config.environment, "").strip():
        return Key.from_environment(config.environment)
    variable = f"the environment variable {config.environment} is not set, and " if config.environment else ""
    raise SparseError(
        f"There is no key: {variable}key.file names none. Write one with 'sparse key new FILE' and name it in "
        "key.file; for a demonstration whose vectors need never be reproduced, set key.ephemeral=true."
    )
