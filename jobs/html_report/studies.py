"""A study's trials, and what they come to policy by policy: seeds are averaged, so that none wins by luck."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs import storage
from jobs.config import without_credentials
from jobs.html_report.shapes import Attack, Interval, Parameters, Row, Shape, Trial, Utility, shaped
from sparse_core.errors import SparseError

_TOLD = ("penalty", "rho", "epsilon", "floor", "read_out", "removal", "concept", "encoder")
_SYMBOLS = {"penalty": "λ", "rho": "ρ", "epsilon": "ε", "floor": "floor"}


@dataclass(frozen=True)
class Policy:
    """What was tried with one seed or several.

    Attributes
    ----------
    name : str
        What it has of its own among the study's policies.
    trials : tuple of Trial
        Finished ones, one a seed.
    row : Row
        Means over the trials. So are the ends of intervals: further seeds do not shrink what few test records leave
        open.
    attacks : dict of str to Attack
    utilities : list of Utility
    """

    name: str
    trials: tuple[Trial, ...]
    row: Row
    attacks: dict[str, Attack]
    utilities: list[Utility]

    @property
    def parameters(self) -> Parameters:
        """What was tried, with the first seed."""
        return self.trials[0].parameters


def read_trials(directory: str, folder: str) -> tuple[list[Trial], list[str]]:
    """Every trial of a folder, in the order of names, and what is wrong with those that cannot be read."""
    place = storage.join(directory, folder)
    fs, path = storage.filesystem(place)
    with storage.explained(place):
        paths = [p for p in fs.ls(path, detail=False) if p.endswith(".json")] if fs.exists(path) else []
        contents = fs.cat(paths, on_error="omit") if paths else {}
    trials, remarks = [], []
    for full, content in sorted(contents.items()):
        url = storage.join(place, full.rsplit("/", 1)[-1])
        try:
            trials.append(shaped(Trial, _parsed(content, url), url))
        except SparseError as error:
            remarks.append(f"A trial is left out: {error}")
    return trials, remarks


def _parsed(content: bytes, url: str):
    try:
        return json.loads(content)
    except ValueError:
        raise SparseError(f"{without_credentials(url)} is damaged: it is not valid JSON.") from None


def policies(trials: Sequence[Trial]) -> list[Policy]:
    """Finished trials by policy, those with the same mechanism together."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.status == "done" and trial.row is not None:
            groups.setdefault(_but_for_the_seed(trial.parameters), []).append(trial)
    named = zip(_names([group[0].parameters for group in groups.values()]), groups.values(), strict=True)
    found = [_policy(name, sorted(group, key=lambda trial: trial.parameters.seed or 0)) for name, group in named]
    return sorted(found, key=_order)


def _but_for_the_seed(tried: Parameters) -> str:
    """Names a policy. What epsilon a rho comes to depends on the mask, and that on the seed."""
    return tried.model_dump_json(exclude={"seed", "epsilon"} if tried.rho else {"seed"})


def _order(policy: Policy) -> tuple:
    tried = policy.parameters
    numbers = (tried.penalty or 0.0, policy.row.rho or 0.0, tried.floor or 0.0)
    return (tried.encoder, tried.concept, tried.mechanism, tried.basis or "", *numbers, policy.name)


def _names(tried: Sequence[Parameters]) -> Iterator[str]:
    """Basis or else mechanism, and what differs between the policies of one mechanism."""
    groups: dict[str, list[Parameters]] = {}
    for one in tried:
        groups.setdefault(one.mechanism, []).append(one)
    varied = {
        mechanism: [name for name in _TOLD if len({getattr(one, name) for one in like}) > 1]
        for mechanism, like in groups.items()
    }
    names = []
    for one in tried:
        told = {name: getattr(one, name) for name in varied[one.mechanism] if getattr(one, name) is not None}
        # Of two names for one strength the one that was asked for.
        told = {name: value for name, value in told.items() if name != "epsilon" or one.rho is None}
        names.append(" ".join([_kind(one), *(_told(name, value) for name, value in told.items())]))
    counts = Counter(names)
    for at, name in enumerate(names):
        yield name if counts[name] == 1 else f"{name} #{at + 1}"


def _kind(tried: Parameters) -> str:
    return "unprotected" if tried.mechanism == "none" else tried.basis or tried.mechanism


def _told(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{_SYMBOLS[name]}\u00a0{value:.4g}"
    return f"read-out\u00a0{value}" if name == "read_out" else str(value)


def _policy(name: str, trials: Sequence[Trial]) -> Policy:
    rows = [trial.row for trial in trials]
    words = {field: _agreed([getattr(row, field) for row in rows]) for field in ("leakage_attack", "leakage_concept")}
    same = {field: getattr(rows[0], field) for field in ("protection", "basis", "utility_task", "statistics")}
    rest = set(Row.model_fields) - {"name", *words, *same}
    means = {field: _mean([getattr(row, field) for row in rows]) for field in rest}
    kinds = sorted({kind for trial in trials for kind in trial.attacks or {}})
    return Policy(
        name,
        tuple(trials),
        Row(name=name, **words, **same, **means),
        {kind: _attack([trial.attacks[kind] for trial in trials if kind in (trial.attacks or {})]) for kind in kinds},
        [_merged(Utility, tasks) for tasks in zip(*(trial.utilities or [] for trial in trials), strict=False)],
    )


def _attack(found: Sequence[Attack]) -> Attack:
    figures = ("unprotected", "protected", "floor", "leakage_normalized")
    return Attack(
        verdict=next((one.verdict for one in found if one.verdict != "ok"), "ok"),
        confidence=_mean([one.confidence for one in found]),
        **{figure: _merged(Interval, [getattr(one, figure) for one in found]) for figure in figures},
    )


def _merged(shape: type[Shape], found: Sequence[Shape]) -> Shape:
    """Means of the numbers, and the first's words."""
    fields = shape.model_fields
    words = {name: getattr(found[0], name) for name in fields if isinstance(getattr(found[0], name), str | int)}
    return shape(
        **words, **{name: _mean([getattr(one, name) for one in found]) for name in fields if name not in words}
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _agreed(values: Sequence[str | None]) -> str | None:
    return " / ".join(sorted({value for value in values if value})) or None
