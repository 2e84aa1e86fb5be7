"""One trial, from prepared material and parameters to its record, without Ray."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from jobs.cluster import one_thread_each
from jobs.compared import Protected
from jobs.config import Compared
from jobs.measuring import Material, as_record, protection_row, reidentify
from jobs.study.masks import described, learn, without_directions
from jobs.study.material import PART, Found, Prepared, find, prepare
from jobs.study.space import Parameters
from jobs.summary import ProtectionRow
from jobs.utility_tasks import Utility, measure_utilities
from sparse_core.attacks import AttackResult, build_attack, run_attack
from sparse_core.errors import SparseError
from sparse_core.masks import Mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

__all__ = [
    "Found",
    "Parameters",
    "Prepared",
    "Reference",
    "Trial",
    "find",
    "learn",
    "measure_reference",
    "prepare",
    "run_trial",
]


@dataclass(frozen=True)
class Reference:
    """Unprotected vectors, measured with one seed: the positive controls of its trials, and what they could keep.

    Attributes
    ----------
    record : dict
        As of a trial with mechanism ``none``.
    controls, first_controls : list of AttackResult
        Of all attacks, and of the first look.
    """

    record: dict
    controls: list[AttackResult]
    first_controls: list[AttackResult]


def measure_reference(prepared: Prepared, *, encoder: str, seed: int, first_look: bool = False) -> Reference:
    """Measure unprotected vectors.

    Parameters
    ----------
    prepared : Prepared
    encoder : str
        Name of the encoder in records.
    seed : int
    first_look : bool
        Whether trials will be stopped early.

    Raises
    ------
    SparseError
        If every attack fails even on unprotected vectors, so that nothing could be said of any protection.
    """
    parameters = Parameters(mechanism="none", read_out="none", seed=seed, encoder=encoder, concept=prepared.concept)
    with one_thread_each():
        trial = Trial(prepared, parameters, name="unprotected")
        first = [trial.attacked("ridge", trial.part)] if first_look else []
        record = trial.finish()
    if record["row"]["leakage"] is None:
        raise SparseError(
            f"concept {prepared.concept!r}: no attack recovers more from unprotected vectors than chance does, so "
            "nothing could be said of any protection. Give more records, a more frequent concept, or other attacks."
        )
    return Reference(record, trial.results, first)


def run_trial(
    prepared: Prepared,
    parameters: Parameters,
    *,
    name: str = "trial",
    mask: Mask | None = None,
    reference: Reference | None = None,
) -> dict:
    """Train a mask, protect, attack and measure utility.

    Parameters
    ----------
    prepared : Prepared
    parameters : Parameters
    name : str
        The trial's name in its record and row.
    mask : Mask, optional
        Learned already with these parameters.
    reference : Reference, optional
        Of the same seed; its positive controls are taken over.

    Returns
    -------
    dict
        The trial's record, as `jobs.study.results` describes it; ``mask_path`` is None.

    Raises
    ------
    SparseError
        If the parameters lead to no policy.
    """
    with one_thread_each():
        return Trial(prepared, parameters, name=name, mask=mask, reference=reference).finish()


class Trial:
    """A trial in the making, for whoever may want to stop it after a first look.

    Parameters
    ----------
    prepared, parameters, name, mask, reference
        As in `run_trial`.

    Attributes
    ----------
    policy : Policy
    mask : Mask or None
    results : list of AttackResult
        Once finished.
    """

    def __init__(
        self,
        prepared: Prepared,
        parameters: Parameters,
        *,
        name: str,
        mask: Mask | None = None,
        reference: Reference | None = None,
    ):
        self._prepared, self._parameters, self._name, self._reference = prepared, parameters, name, reference
        self._durations: dict[str, float] = {}
        self._cpu_started = time.process_time()
        self._utilities: list[Utility] | None = None
        self.results: list[AttackResult] = []
        shaped = parameters.mechanism == "mahalanobis"
        with self._timed("mask"):
            if mask is None and shaped:
                mask = learn(prepared, parameters)
            elif mask is None and parameters.read_out != "none":
                mask = without_directions(prepared)
        self.mask = mask
        norm = 1.0 if prepared.encoder.normalize else prepared.material.embedding_norm
        floor = {} if parameters.floor is None else {"floor": parameters.floor}
        self.policy = Policy.build(
            encoder=prepared.encoder,
            mechanism=parameters.mechanism,
            mask=mask,
            epsilon=parameters.epsilon,
            rho=parameters.rho,
            embedding_norm=norm,
            read_out=parameters.read_out,
            unit_norm=prepared.unit_norm,
            delta=prepared.delta if parameters.mechanism == "gaussian" else None,
            **floor,
        )
        with self._timed("protect"):
            self._row = self._protected()

    @property
    def part(self) -> Material:
        """Every third of the records that attackers know and that they attack, for a first look."""
        whole = self._prepared.material
        return replace(whole, train=whole.train[::PART], test=whole.test[::PART])

    def first_look(self) -> dict:
        """What ridge makes of a part of the records, and the utility: a row like that of the record."""
        controls = self._reference.first_controls if self._reference else []
        part = self.part
        return asdict(self._figures([self.attacked("ridge", part, controls)], part))

    def finish(self) -> dict:
        """Run all attacks, and return the record."""
        prepared, parameters = self._prepared, self._parameters
        controls = self._reference.controls if self._reference else []
        self.results = [self.attacked(attack, prepared.material, controls) for attack in prepared.attacks]
        row = self._figures(self.results, prepared.material)
        learned = self.mask if parameters.mechanism == "mahalanobis" else None
        return {
            "trial": self._name,
            "status": "done",
            "reason": None,
            "parameters": parameters.as_record(),
            "row": asdict(row),
            "attacks": {result.attack: as_record(result) for result in self.results},
            "utilities": [utility.as_record() for utility in self._utilities],
            "mask": learned and described(learned),
            "mask_path": None,
            "cpu_seconds": round(time.process_time() - self._cpu_started, 3),
            "durations": {stage: round(seconds, 3) for stage, seconds in self._durations.items()},
        }

    def attacked(self, attack: str, material: Material, controls: Sequence[AttackResult] = ()) -> AttackResult:
        """One attack on some of the records."""
        with self._timed("simulate"):
            draws = self._simulated
        if material is not self._prepared.material:
            # The part's training records are every so many of the whole's, in the same order.
            draws = [draw[::PART] for draw in draws]
        with self._timed(attack):
            return run_attack(
                build_attack(attack),
                unprotected=material.vectors,
                protected=self._row.noised,
                labels=material.concepts[self._prepared.concept].labels,
                train=material.train,
                test=material.test,
                public=self._row.knowledge[0],
                seed=self._parameters.seed,
                control=next((control for control in controls if control.attack == attack), None),
                draws=draws,
            )

    @cached_property
    def _simulated(self) -> list[np.ndarray]:
        """Further noise that attackers draw for the records they know; the others' vectors are nobody's business."""
        if self.policy.mechanism == "none":
            return []
        material, known = self._prepared.material, self._prepared.material.train
        shown = {"ids": [material.ids[row] for row in known], "contents": [material.texts[row] for row in known]}
        keys = [_key(f"draw {number} of {self._parameters.seed}") for number in range(self._prepared.draws)]
        return [
            self.policy.undo_read_out(self.policy.release(material.vectors[known], **shown, key=key)) for key in keys
        ]

    def _figures(self, results: list[AttackResult], material: Material) -> ProtectionRow:
        seed = self._parameters.seed
        if self._utilities is None:
            with self._timed("utility"):
                self._utilities = measure_utilities(
                    self._prepared.utility,
                    self._row,
                    self._prepared.material,
                    encoder=None,
                    key=self._noise_key,
                    seed=seed,
                )
        with self._timed("reidentification"):
            linked = reidentify(self._row, material, seed=seed)
        utility = self._utilities[0].result if self._utilities else None
        return protection_row(self._row, material, results, utility=utility, linked=linked)

    def _protected(self) -> Protected:
        material = self._prepared.material
        published = self.policy.release(
            material.vectors, ids=material.ids, contents=material.texts, key=self._noise_key
        )
        return Protected(
            Compared.model_construct(name=self._name),
            self.policy,
            published,
            self.policy.undo_read_out(published),
            (self.policy.public_knowledge(),),
            self.policy.basis_name,
        )

    @property
    def _noise_key(self) -> Key:
        return _key(f"trial {self._parameters.seed}")

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._durations[stage] = self._durations.get(stage, 0.0) + time.perf_counter() - started


def _key(purpose: str) -> Key:
    """The same for the same purpose, so that a trial can be repeated: nothing of a trial is published."""
    return Key(hashlib.sha256(purpose.encode()).digest())
