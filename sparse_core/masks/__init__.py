"""Masks: which directions of an embedding carry a concept, learned and kept as an artifact."""

from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import BASES, ConceptDirections, concept_directions
from sparse_core.masks.training import DEFAULT_BASIS, learn_mask
from sparse_core.masks.union import unite_masks
from sparse_core.masks.whitebox import whitebox_mask

__all__ = [
    "BASES",
    "DEFAULT_BASIS",
    "ConceptDirections",
    "Mask",
    "MaskInfo",
    "concept_directions",
    "learn_mask",
    "unite_masks",
    "whitebox_mask",
]
