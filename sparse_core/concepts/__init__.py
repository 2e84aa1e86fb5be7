"""Concepts: what the user wants hidden, where a text holds it, and the text without it."""

from sparse_core.concepts.concept import (
    DEFAULT_ENTITY_MODEL,
    EVERY_ENTITY_TYPE,
    Concept,
    concept_fingerprint,
)
from sparse_core.concepts.contrast import ContrastPairs, contrast_pairs
from sparse_core.concepts.matching import find_spans
from sparse_core.concepts.removal import DEFAULT_PLACEHOLDER, REMOVALS, remove_spans
from sparse_core.concepts.spans import Span, check_prevalence, concept_tokens, merge_spans
from sparse_core.concepts.substitution import Substitutions, value_substitutions
from sparse_core.concepts.surrogates import SurrogatePool

__all__ = [
    "DEFAULT_ENTITY_MODEL",
    "DEFAULT_PLACEHOLDER",
    "EVERY_ENTITY_TYPE",
    "REMOVALS",
    "Concept",
    "ContrastPairs",
    "Span",
    "Substitutions",
    "SurrogatePool",
    "check_prevalence",
    "concept_fingerprint",
    "concept_tokens",
    "contrast_pairs",
    "find_spans",
    "merge_spans",
    "remove_spans",
    "value_substitutions",
]
