"""What every job leaves behind: ``summary.json``, under names that stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from jobs import storage


@dataclass(frozen=True, kw_only=True)
class ProtectionRow:
    """One protection compared. The table, ``summary.json`` and MLflow use these names.

    Attributes
    ----------
    name : str
        As the user called it.
    protection : str
        Mechanism; or the baseline, or ``unknown`` for vectors of another tool.
    basis : str
        Basis of the mask; ``isotropic`` without one, ``none`` without noise, ``unknown`` without a policy.
    epsilon, epsilon_euclidean : float or None
        In the mechanism's metric, and per unit of Euclidean distance in the worst direction; None where nothing is
        claimed or known.
    rho : float
        Median noise norm over median embedding norm; for vectors of another tool, of the distance from the embeddings.
    leakage, leakage_low, leakage_high : float or None
        Of the strongest attack, with its 95% interval; None if every attack failed its positive control.
    leakage_attack, leakage_concept : str or None
        That attack, and the concept it read, where several were attacked.
    leakage_learned : float or None
        Of the strongest attack that sees the vector alone; lower than `leakage` where a dictionary got more.
    utility, utility_low, utility_high : float or None
    utility_task : str or None
    reidentification : float
        Share of held-out records found again by their nearest unprotected vector; without a policy also after turning
        the vectors back as the attackers' own records tell.
    confidence : float or None
        Mean probability the strongest attack gives to the true tokens.
    leakage_unprotected, leakage_floor : float or None
        The strongest attack on unprotected vectors, and with shuffled training texts.
    leakage_normalized : float or None
        (leakage - floor) / (unprotected - floor).
    statistics : str or None
        ``public``, ``private`` or ``unprotected``: of which records mean, covariance and mask in ``policy/`` tell; None
        where there are none or nobody asked.
    policy_membership, policy_membership_low, policy_membership_high : float or None
        How well the policy alone tells the records of its statistics from others (area under the curve; guessing
        gets .5), to whoever knows other records of the population, with its 95% interval; None where that was not
        measured.
    policy_membership_informed : float or None
        The same to whoever knows all the other records of the statistics.
    policy_values, policy_values_low, policy_values_high, policy_values_informed : float or None
        Share of values in known sentences of those records that the two read from the policy alone.
    policy_values_floor : float or None
        The same of records that are not in the statistics.
    """

    name: str
    protection: str
    basis: str
    epsilon: float | None
    epsilon_euclidean: float | None
    rho: float
    leakage: float | None
    leakage_low: float | None
    leakage_high: float | None
    leakage_attack: str | None
    leakage_concept: str | None
    leakage_learned: float | None
    utility: float | None
    utility_low: float | None
    utility_high: float | None
    utility_task: str | None
    reidentification: float
    confidence: float | None
    leakage_unprotected: float | None
    leakage_floor: float | None
    leakage_normalized: float | None
    statistics: str | None = None
    policy_membership: float | None = None
    policy_membership_low: float | None = None
    policy_membership_high: float | None = None
    policy_membership_informed: float | None = None
    policy_values: float | None = None
    policy_values_low: float | None = None
    policy_values_high: float | None = None
    policy_values_informed: float | None = None
    policy_values_floor: float | None = None


@dataclass
class Summary:
    """A job's result, written to ``summary.json``."""

    job: str
    policy_hash: str | None = None
    rows_in: int = 0
    rows_out: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    protections: list[ProtectionRow] = field(default_factory=list)
    details: dict = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Record how many seconds a stage takes."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.durations[stage] = round(time.monotonic() - started, 3)

    def write(self, directory: str) -> None:
        """Write ``summary.json`` into a directory; for its owner only if it holds examples of text."""
        storage.write_json(storage.join(directory, "summary.json"), self.as_dict(), private=self.shows_texts)

    @property
    def shows_texts(self) -> bool:
        """Whether an audit kept examples of text."""
        found = self.details.get("reconstruction", {})
        return any(attack["examples"] for row in found.values() for attack in row.values())

    def without_texts(self) -> Summary:
        """The same without any text of the corpus, for places that texts must not reach."""
        kept = {
            name: {attack: one | {"examples": []} for attack, one in found.items()}
            for name, found in self.details.get("reconstruction", {}).items()
        }
        return replace(self, details=self.details | {"reconstruction": kept})

    def as_dict(self) -> dict:
        """The content of ``summary.json``."""
        return {
            "job": self.job,
            "policy_hash": self.policy_hash,
            "counts": {"rows_in": self.rows_in, "rows_out": self.rows_out, "quarantined": self.quarantined},
            "durations": self.durations,
            "protections": [asdict(row) for row in self.protections],
            **self.details,
        }
