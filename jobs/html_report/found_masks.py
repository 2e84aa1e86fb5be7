"""The masks of a run, and where their artifacts lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jobs import storage
from jobs.html_report.shapes import Trial, TrialMask
from sparse_core.errors import SparseError
from sparse_core.masks import Mask


@dataclass(frozen=True, kw_only=True)
class FoundMask:
    """A mask, and where the artifact with its basis lies.

    Attributes
    ----------
    name : str
        Short, for figures.
    concept, basis, encoder : str
    penalty : float or None
    seed : int or None
    values : float array, shape (n,)
    accuracy, accuracy_length_only, energy_open : float or None
        From training.
    place : str or None
        Directory of the artifact; None where it was not kept.
    """

    name: str
    concept: str
    basis: str
    encoder: str
    penalty: float | None
    seed: int | None
    values: np.ndarray
    accuracy: float | None
    accuracy_length_only: float | None
    energy_open: float | None
    place: str | None

    @property
    def sparsity(self) -> float:
        """Share of closed directions."""
        return float((self.values == 0).mean())

    def artifact(self) -> Mask | None:
        """The mask with its basis; None if it is not there or damaged."""
        if self.place is None:
            return None
        try:
            with storage.local_directory(self.place) as local:
                return Mask.load(local)
        except SparseError:
            return None


def masks_of(trials: Sequence[Trial], directory: str) -> Iterator[FoundMask]:
    """Every mask once, however many trials used it."""
    seen = set()
    several = {(t.parameters.concept, t.parameters.encoder) for t in trials}
    for trial in trials:
        tried = trial.parameters
        if trial.mask is None or not trial.mask.values:
            continue
        known = (tried.encoder, tried.concept, tried.basis, tried.removal, tried.penalty, tried.seed)
        name = trial.mask_path or known
        if name in seen:
            continue
        seen.add(name)
        yield _mask(
            trial.mask,
            concept=tried.concept,
            basis=tried.basis or "",
            encoder=tried.encoder,
            penalty=tried.penalty,
            seed=tried.seed,
            place=storage.join(directory, trial.mask_path) if trial.mask_path else None,
            name_concept=len(several) > 1,
        )


def masks_below(directory: str) -> Iterator[FoundMask]:
    """Masks of a training, a quickstart or a release."""
    yield from mask_at(storage.join(directory, "mask"), missing_ok=True)
    yield from mask_at(storage.join(directory, "policy", "mask"), missing_ok=True)
    folder = storage.join(directory, "masks")
    fs, path = storage.filesystem(folder)
    with storage.explained(folder):
        names = sorted(p.rstrip("/").rsplit("/", 1)[-1] for p in fs.ls(path, detail=False)) if fs.exists(path) else []
    for name in names:
        yield from mask_at(storage.join(folder, name), missing_ok=True)


def mask_at(place: str, *, missing_ok: bool = False) -> Iterator[FoundMask]:
    """The mask in a directory or in its folder ``mask``.

    Raises
    ------
    SparseError
        If it is damaged, or missing where it may not be.
    """
    inner = storage.join(place, "mask")
    if not storage.exists(storage.join(place, "mask.json")):
        if storage.exists(storage.join(inner, "mask.json")):
            place = inner
        elif missing_ok:
            return
    with storage.local_directory(place) as local:
        mask = Mask.load(local)
    info = mask.info
    trained = {name: info.metrics.get(name) for name in ("accuracy", "accuracy_length_only", "energy_open")}
    yield _mask(
        TrialMask(values=mask.values.tolist(), **trained),
        concept=", ".join(info.concepts),
        basis=info.basis,
        encoder=info.encoder.model,
        penalty=info.penalty,
        seed=info.seed,
        place=place,
        name_concept=True,
    )


def _mask(trained: TrialMask, *, name_concept: bool, **known) -> FoundMask:
    parts = [known["concept"]] if name_concept else []
    parts.append(known["basis"])
    if known["penalty"] is not None:
        parts.append(f"λ\u00a0{known['penalty']:g}")
    if known["seed"]:
        parts.append(f"seed\u00a0{known['seed']}")
    return FoundMask(
        name=" ".join(part for part in parts if part),
        values=np.array(trained.values),
        accuracy=trained.accuracy,
        accuracy_length_only=trained.accuracy_length_only,
        energy_open=trained.energy_open,
        **known,
    )
