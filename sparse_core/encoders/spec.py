"""What identifies an encoder."""

from __future__ import annotations

from dataclasses import asdict, dataclass

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class EncoderSpec:
    """What identifies an encoder: two encoders with equal specs give the same vectors.

    Two comparisons matter, and they differ in how the vectors are computed. Another backend or precision moves a
    coordinate by some 1e-7 (``onnx``) or 1e-3 (``bfloat16``). That is nothing to a mask, which is a statistic of
    many vectors: masks are compared by `space`. A release is rounded to a grid of about 1e-6, and 1e-7 tips some
    coordinates over: the published bytes differ, so a policy is named by `identity`, which tells backends apart.

    Attributes
    ----------
    model : str
        Hub id or path the encoder was loaded by. Kept for people; not part of `identity`.
    revision : str or None
        Hub revision asked for.
    weights_sha256 : str
        Hash of every parameter and buffer, by name (empty for vectors computed elsewhere).
    dimension : int
    pooling : str
        Pooling of token vectors, e.g. ``mean``.
    normalize : bool
        Whether vectors have unit Euclidean norm.
    max_tokens : int or None
        Longer texts are cut to this many tokens.
    prompt : str
        Put before every text.
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
    backend: str = "torch"
    dtype: str = "float32"

    @property
    def space(self) -> dict:
        """The fields that decide what a vector means: not the name of the model, nor how it is computed."""
        fields = asdict(self)
        for name in ("model", "revision", "backend", "dtype"):
            fields.pop(name)
        return fields

    @property
    def identity(self) -> dict:
        """The fields that decide a vector to the last bit.

        ``backend`` and ``dtype`` are named only where they are not ``torch`` and ``float32``, which older policies
        were made with without saying so.
        """
        computed = {"backend": (self.backend, "torch"), "dtype": (self.dtype, "float32")}
        return self.space | {name: value for name, (value, usual) in computed.items() if value != usual}
