"""Text to vectors: which model, what computes it, and vectors that do not depend on how texts were batched."""

from sparse_core.encoders.encoder import Encoder
from sparse_core.encoders.loading import (
    BACKENDS,
    CPU_TOKENS_PER_BATCH,
    DTYPES,
    GPU_TOKENS_PER_BATCH,
    LENGTH_STEP,
    ONNX_LENGTH_STEP,
    load_encoder,
)
from sparse_core.encoders.spec import DEFAULT_MODEL, EncoderSpec
from sparse_core.encoders.tokens import TextTokenizer

__all__ = [
    "BACKENDS",
    "CPU_TOKENS_PER_BATCH",
    "DEFAULT_MODEL",
    "DTYPES",
    "GPU_TOKENS_PER_BATCH",
    "LENGTH_STEP",
    "ONNX_LENGTH_STEP",
    "Encoder",
    "EncoderSpec",
    "TextTokenizer",
    "load_encoder",
]
