"""Embeddings kept on any filesystem, named by what they are of, so that no job encodes a corpus a second time."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from jobs import storage
from jobs.stages import RememberingEncoder
from sparse_core.encoders import EncoderSpec


class CachedEncoder:
    """A `RememberingEncoder` that also looks into a directory, and leaves there what it had to encode.

    A file holds the vectors of one list of texts, in order. It is named by a hash of the encoder, down to weights and
    precision, and of all texts. Vectors are unprotected, and a text can be guessed from its vector: the directory is to
    be kept as the texts are.

    Parameters
    ----------
    encoder : RememberingEncoder
    directory : str
        Made when something is written; readable by its owner only where it is local.
    """

    def __init__(self, encoder: RememberingEncoder, directory: str):
        self._encoder = encoder
        self._directory = directory

    @property
    def spec(self) -> EncoderSpec:
        """See `Encoder.spec`."""
        return self._encoder.spec

    @property
    def tokenizer(self):
        """See `Encoder.tokenizer`."""
        return self._encoder.tokenizer

    def with_prompt(self, prompt: str) -> CachedEncoder:
        """See `Encoder.with_prompt`."""
        return CachedEncoder(self._encoder.with_prompt(prompt), self._directory)

    def encode(self, texts: Sequence[str], *, title: str) -> np.ndarray:
        """See `RememberingEncoder.encode`.

        Raises
        ------
        SparseError
            If the directory cannot be read or written.
        """
        texts = list(texts)
        url = storage.join(self._directory, f"{name_of(self.spec, texts)}.npy")
        vectors = _read(url, (len(texts), self.spec.dimension))
        if vectors is None:
            vectors = self._encoder.encode(texts, title=title)
            _make_private(self._directory)
            buffer = io.BytesIO()
            np.save(buffer, vectors, allow_pickle=False)
            storage.write_bytes(url, buffer.getvalue(), private=True)
        return vectors


def name_of(spec: EncoderSpec, texts: Sequence[str]) -> str:
    """The name of the vectors that an encoder gives for a list of texts.

    Parameters
    ----------
    spec : EncoderSpec
    texts : sequence of str

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(json.dumps(asdict(spec), sort_keys=True).encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode(errors="surrogatepass")).digest())
    return digest.hexdigest()


def _read(url: str, shape: tuple[int, int]) -> np.ndarray | None:
    """Vectors of this shape; None where there are none, or not all of them."""
    fs, path = storage.filesystem(url)
    with storage.explained(url):
        if not fs.exists(path):
            return None
        content = fs.cat_file(path)
    try:
        vectors = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError):
        return None
    return vectors if vectors.shape == shape and vectors.dtype == np.float32 else None


def _make_private(directory: str) -> None:
    fs, path = storage.filesystem(directory)
    if isinstance(fs, LocalFileSystem):
        storage.make_local_directory(path, private=True)
