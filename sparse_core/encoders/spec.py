"""What identifies an encoder."""

from __future__ import annotations

from dataclasses import asdict, dataclass

COMPUTED = ("backend", "dtype")
"""The fields of an `EncoderSpec` that decide how a vector is computed, not what it means."""
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class EncoderSpec:
    """What identifies an encoder: whatever turns a text into a vector is in it.

    Two comparisons matter, and they differ in how the vectors are computed. Another backend or precision moves a
    coordinate by some 1e-7 (``onnx``) or 1e-3 (``bfloat16``). That is nothing to a mask, which is a statistic of
    many vectors: masks are compared by `space`. A release is rounded to a grid of about 1e-6, and 1e-7 tips some
    coordinates over: the published bytes differ, so a policy is named by `identity`, which tells backends apart.
    Last bits may also depend on the processor, on library versions and on `Encoder` settings such as the batch's
    number of tokens, which no identity covers: vectors that differ so get independent noise (`sparse_core.noise`).

    Attributes
    ----------
    model : str
        Hub id or path the encoder was loaded by. Kept for people; not part of `identity`.
    revision : str or None
        Hub revision asked for.
    weights_sha256 : str
        Hash of every parameter and buffer, by name (empty for vectors computed elsewhere, as are the next two).
    dimension : int
    pooling : str
        Pooling of token vectors, e.g. ``mean``.
    normalize : bool
        Whether vectors have unit Euclidean norm.
    max_tokens : int or None
        Longer texts are cut to this many tokens.
    prompt : str
        Put before every text.
    tokenizer_sha256 : str
        Hash of what turns a text into token ids, see `sparse_core.encoders.identity.hash_tokenizer`.
    architecture_sha256 : str
        Hash of what is done with the weights, see `sparse_core.encoders.identity.hash_architecture`.
    cut_left, pad_left : bool
        Whether long texts lose their start instead of their end; whether padding stands before the text.
    backend : {"torch", "onnx"}
        What computes.
    dtype : {"float32", "bfloat16"}
        Precision of the transformer; pooling and norm are always float32.
    """

    model: str
    revision: str | None
    weights_sha256: str
    dimension: int
    pooling: str
    normalize: bool
    max_tokens: int | None
    prompt: str = ""
    tokenizer_sha256: str = ""
    architecture_sha256: str = ""
    cut_left: bool = False
    pad_left: bool = False
    backend: str = "torch"
    dtype: str = "float32"

    @property
    def space(self) -> dict:
        """The fields that decide what a vector means: not the name of the model, nor how it is computed."""
        return {name: value for name, value in self.identity.items() if name not in COMPUTED}

    @property
    def identity(self) -> dict:
        """The fields that decide a vector to the last bit: all but the name of the model."""
        return {name: value for name, value in asdict(self).items() if name not in ("model", "revision")}
