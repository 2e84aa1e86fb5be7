"""Keyed, cryptographically strong randomness: one secret key, one reproducible stream per record."""

from sparse_core.noise.keyed import record_uniforms, release_fingerprints, vector_fingerprints
from sparse_core.noise.keys import KEY_ENVIRONMENT_VARIABLE, Key, write_new_key

__all__ = [
    "KEY_ENVIRONMENT_VARIABLE",
    "Key",
    "record_uniforms",
    "release_fingerprints",
    "vector_fingerprints",
    "write_new_key",
]
