"""Masks: which directions of an embedding carry a concept, learned and kept as an artifact."""

from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import BASES, Basis, build_basis
from sparse_core.masks.training import DEFAULT_BASIS, learn_mask

__all__ = ["BASES", "DEFAULT_BASIS", "Basis", "Mask", "MaskInfo", "build_basis", "learn_mask"]
