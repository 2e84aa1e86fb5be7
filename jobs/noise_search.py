"""The search behind a calibration: for each size of mask, the least noise that keeps leakage within the limit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt

import numpy as np

from jobs.cluster import cpu_cores, one_thread_each
from jobs.config import CalibrateConfig
from jobs.study.space import Parameters
from jobs.study.trial import Prepared, Reference, Trial, learn, measure_reference
from sparse_core.attacks.run import MIN_TEST_RECORDS
from sparse_core.errors import SparseError
from sparse_core.evaluation import near_duplicate_groups, split_records
from sparse_core.masks import Mask
from sparse_core.policy import Policy


@dataclass(frozen=True)
class Tried:
    """A policy that was measured.

    Attributes
    ----------
    parameters : Parameters
    mask : Mask
    policy : Policy
    record : dict
        The trial's record.
    loss : float
        Share of the unprotected vectors' utility that is lost.
    """

    parameters: Parameters
    mask: Mask
    policy: Policy
    record: dict
    loss: float

    @property
    def row(self) -> dict:
        """Fields of its `ProtectionRow`."""
        return self.record["row"]

    @property
    def bound(self) -> float:
        """Upper confidence bound of the leakage; that of a leakage nobody could measure is 1."""
        return 1.0 if self.row["leakage_high"] is None else self.row["leakage_high"]

    def as_record(self) -> dict:
        """As ``summary.json`` lists it."""
        names = ("rho", "epsilon", "epsilon_euclidean", "leakage", "leakage_low", "leakage_high", "utility")
        size = {"lambda": self.parameters.penalty, "directions": self.parameters.directions}
        size |= {"directions_open": int(np.count_nonzero(self.mask.values))}
        return size | {name: self.row[name] for name in names} | {"utility_loss": self.loss}

    def __str__(self) -> str:
        open_directions = np.count_nonzero(self.mask.values)
        return (
            f"lambda {self.parameters.penalty:g} ({open_directions} of {self.mask.dimension} directions) at rho "
            f"{self.row['rho']:.3g}"
        )


class Bench:
    """Records to measure policies on, with what unprotected vectors come to there.

    Parameters
    ----------
    config : CalibrateConfig
    prepared : Prepared
    seed : int
        Of noise and attackers.

    Raises
    ------
    SparseError
        If neither leakage nor utility of unprotected vectors can be measured.
    """

    def __init__(self, config: CalibrateConfig, prepared: Prepared, *, seed: int):
        self._config, self.prepared, self._seed = config, prepared, seed
        self.reference: Reference = measure_reference(prepared, encoder=config.encoder.model, seed=seed)
        if not self.reference.record["row"]["utility"]:
            raise SparseError(
                f"utility: {config.utility[0].title} cannot be measured, or is 0 on unprotected vectors already; name "
                "another task first."
            )

    @property
    def n_attacked(self) -> int:
        """Test records that hold a token that is attacked."""
        return attacked(self.prepared)

    def measure(self, parameters: Parameters, mask: Mask, name: str) -> Tried:
        """Measure a policy with noise of this bench's own."""
        parameters = replace(parameters, seed=self._seed)
        trial = Trial(self.prepared, parameters, name=name, mask=mask, reference=self.reference)
        record = trial.finish()
        loss = 1 - record["row"]["utility"] / self.reference.record["row"]["utility"]
        return Tried(parameters, mask, trial.policy, record, loss)


def attacked(prepared: Prepared) -> int:
    """How many test records hold a token that is attacked."""
    material = prepared.material
    return int(material.concepts[prepared.concept].labels[material.test].any(axis=1).sum())


def halves(prepared: Prepared, *, seed: int) -> tuple[Prepared, Prepared]:
    """Test records to choose on, and others to tell what the choice came to; the same where there are too few."""
    material = prepared.material
    groups = near_duplicate_groups([material.texts[row] for row in material.test])
    split = split_records(groups, test_share=0.5, seed=seed)
    parts = [
        replace(prepared, material=replace(material, test=material.test[part])) for part in (split.train, split.test)
    ]
    return (parts[0], parts[1]) if min(map(attacked, parts)) >= MIN_TEST_RECORDS else (prepared, prepared)


def sizes(config: CalibrateConfig) -> list[tuple[float, int | None]]:
    """Lambda and most directions of each mask."""
    return list(product(config.penalty, config.directions or (None,)))


class Search:
    """The search, and what it tried.

    Attributes
    ----------
    tried : list of Tried
    skipped : list of str
        Why some lambdas gave no mask.
    """

    def __init__(self, config: CalibrateConfig, bench: Bench, advance: Callable[[int, int, str], None]):
        self._config, self._bench, self._advance = config, bench, advance
        self.tried: list[Tried] = []
        self.skipped: list[str] = []

    @property
    def eligible(self) -> list[Tried]:
        """What is within both limits, highest utility first."""
        found = [t for t in self.tried if t.bound <= self._config.max_leakage and within_loss(self._config, t)]
        return sorted(found, key=lambda tried: -tried.row["utility"])

    def run(self) -> None:
        """Search all sizes.

        Raises
        ------
        SparseError
            If none of them gives a mask.
        """
        with one_thread_each(), ThreadPoolExecutor(cpu_cores()) as pool:
            learned = [(p, mask) for p, mask in pool.map(self._learned, sizes(self._config)) if mask is not None]
            if not learned:
                raise SparseError(f"penalty: no lambda gives a mask. {'; '.join(self.skipped)}")
            shapes = [mask.basis * mask.values for _, mask in learned]
            # Lambdas close to each other give the same mask.
            distinct = [
                pair for n, pair in enumerate(learned) if not any(np.array_equal(shapes[n], s) for s in shapes[:n])
            ]
            total = len(distinct) * (1 + self._config.steps)
            found = pool.map(lambda pair: self._halved(*pair, total), distinct)
            # In the order of the sizes, whichever ended first.
            self.tried = [tried for of_size in found for tried in of_size]

    def _learned(self, size: tuple[float, int | None]) -> tuple[Parameters, Mask | None]:
        parameters = self._parameters(*size)
        try:
            return parameters, learn(self._bench.prepared, parameters)
        except SparseError as error:
            self.skipped.append(f"lambda {size[0]:g}: {error}")
            return parameters, None

    def _halved(self, parameters: Parameters, mask: Mask, total: int) -> list[Tried]:
        low, high, found = self._config.rho.low, self._config.rho.high, []
        for step in range(1 + self._config.steps):
            # Where the most noise does not suffice, less will not.
            rho = high if step == 0 else sqrt(low * high)
            found.append(self._bench.measure(replace(parameters, rho=rho), mask, "tried"))
            self.tried.append(found[-1])
            self._advance(len(self.tried), total, self._told())
            if found[-1].bound <= self._config.max_leakage:
                high = rho
            elif step == 0:
                break
            else:
                low = rho
        return found

    def _parameters(self, penalty: float, directions: int | None) -> Parameters:
        config = self._config
        return Parameters(
            mechanism="mahalanobis",
            read_out=config.read_out,
            seed=config.seed,
            encoder=config.encoder.model,
            concept=config.concept.name,
            penalty=penalty,
            basis=config.mask.basis,
            removal=config.mask.removal,
            floor=config.floor,
            directions=directions,
        )

    def _told(self) -> str:
        if not (eligible := self.eligible):
            return f"lowest upper bound {min(tried.bound for tried in self.tried):.2f}"
        return f"best {eligible[0]}, utility {eligible[0].row['utility']:.3f}"


def within_loss(config: CalibrateConfig, tried: Tried) -> bool:
    """Whether a policy keeps enough utility."""
    return config.max_utility_loss is None or tried.loss <= config.max_utility_loss
