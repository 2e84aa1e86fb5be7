"""Attackers that write the hidden text."""

from sparse_core.attacks.text.base import (
    TEXT_ATTACKS,
    Reconstructions,
    TextAttack,
    TrainingLog,
    build_text_attack,
    register_text,
)
from sparse_core.attacks.text.inversion import InversionAttack
from sparse_core.attacks.text.result import TextAttackResult, Texts
from sparse_core.attacks.text.run import run_text_attack
from sparse_core.attacks.text.scores import check_score_libraries, reconstruction_scores, word_labels
from sparse_core.attacks.text.vec2text import Vec2TextAttack

__all__ = [
    "TEXT_ATTACKS",
    "InversionAttack",
    "Reconstructions",
    "TextAttack",
    "TextAttackResult",
    "Texts",
    "TrainingLog",
    "Vec2TextAttack",
    "build_text_attack",
    "check_score_libraries",
    "reconstruction_scores",
    "register_text",
    "run_text_attack",
    "word_labels",
]
