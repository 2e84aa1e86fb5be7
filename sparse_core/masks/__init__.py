"""Masks: which directions of an embedding carry a concept, learned and kept as an artifact."""

from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import BASES, ConceptDirections, concept_directions
from sparse_core.masks.training import DEFAULT_BASIS, DEFAULT_PENALTY, learn_mask
from sparse_core.masks.union import unite_masks
from sparse_core.masks.whitebox import WHITEBOX_BASES, label_basis, require_captum, whitebox_mask

__all__ = [
    "BASES",
    "DEFAULT_BASIS",
    "DEFAULT_PENALTY",
    "WHITEBOX_BASES",
    "ConceptDirections",
    "Mask",
    "MaskInfo",
    "concept_directions",
    "label_basis",
    "learn_mask",
    "require_captum",
    "unite_masks",
    "whitebox_mask",
]
