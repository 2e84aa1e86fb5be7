"""Attackers that know everything public, and what they get."""

from sparse_core.attacks.averaging import AveragingRow, averaging_attack
from sparse_core.attacks.base import ATTACKS, Attack, build_attack, register
from sparse_core.attacks.candidates import substituted_candidates, unknown_context
from sparse_core.attacks.dictionary import DictionaryResult, dictionary_attack
from sparse_core.attacks.knowledge import PublicKnowledge, estimate_knowledge
from sparse_core.attacks.mlc import MlcAttack
from sparse_core.attacks.neighbour import NeighbourAttack
from sparse_core.attacks.reidentification import Reidentification, reidentification
from sparse_core.attacks.result import AttackResult, headline, leakage_intervals
from sparse_core.attacks.ridge import RidgeAttack
from sparse_core.attacks.run import check_enough_records, run_attack

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackResult",
    "AveragingRow",
    "DictionaryResult",
    "MlcAttack",
    "NeighbourAttack",
    "PublicKnowledge",
    "Reidentification",
    "RidgeAttack",
    "averaging_attack",
    "build_attack",
    "check_enough_records",
    "dictionary_attack",
    "estimate_knowledge",
    "headline",
    "leakage_intervals",
    "register",
    "reidentification",
    "run_attack",
    "substituted_candidates",
    "unknown_context",
]
