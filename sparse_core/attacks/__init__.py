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
from sparse_core.attacks.statistics import (
    MembershipResult,
    PublishedStatistics,
    ValueResult,
    epsilon_lower_bound,
    geometry_confirmation,
    made_of,
    membership_attack,
    separation,
    value_attack,
)

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackResult",
    "AveragingRow",
    "DictionaryResult",
    "MembershipResult",
    "MlcAttack",
    "NeighbourAttack",
    "PublicKnowledge",
    "PublishedStatistics",
    "Reidentification",
    "RidgeAttack",
    "ValueResult",
    "averaging_attack",
    "build_attack",
    "check_enough_records",
    "dictionary_attack",
    "epsilon_lower_bound",
    "estimate_knowledge",
    "geometry_confirmation",
    "headline",
    "leakage_intervals",
    "made_of",
    "membership_attack",
    "register",
    "reidentification",
    "run_attack",
    "separation",
    "substituted_candidates",
    "unknown_context",
    "value_attack",
]
