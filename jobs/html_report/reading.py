"""Taking the directory of a run apart: what kind it is, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs import storage
from jobs.config import without_credentials
from jobs.html_report.found_masks import FoundMask, mask_at, masks_below, masks_of
from jobs.html_report.shapes import Parameters, Results, Study, Trial, shaped
from jobs.html_report.studies import Policy, policies, read_trials
from jobs.inspect_dataset import inspect
from sparse_core.errors import SparseError

_MOST_PROBLEMS = 5


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything a page may show.

    Attributes
    ----------
    kind : str
        The job that wrote the directory.
    place : str
        The directory, for people.
    results : Results
        ``summary.json``; for a study, put together from its trials.
    trials : tuple of Trial
    policies : dict of str to Policy
        A study's, by the name of their row.
    study : Study or None
    masks : tuple of FoundMask
    release : dict or None
        From `inspect`.
    remarks : tuple of str
        What is missing or damaged.
    """

    kind: str
    place: str
    results: Results
    trials: tuple[Trial, ...] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    study: Study | None = None
    masks: tuple[FoundMask, ...] = ()
    release: dict | None = None
    remarks: tuple[str, ...] = ()

    def parameters(self, name: str) -> Parameters | None:
        """What the policy of a row tried; None where rows are not a study's."""
        return self.policies[name].parameters if name in self.policies else None

    @property
    def shows_texts(self) -> bool:
        """Whether an audit kept examples of text."""
        return any(one.examples for found in self.results.reconstruction.values() for one in found.values())


def without_texts(findings: Findings) -> Findings:
    """The same without any text of the corpus, for places that texts must not reach."""
    kept = {
        name: {attack: one.model_copy(update={"examples": []}) for attack, one in found.items()}
        for name, found in findings.results.reconstruction.items()
    }
    return replace(findings, results=findings.results.model_copy(update={"reconstruction": kept}))


def read(directory: str, *, masks: Sequence[str] = ()) -> Findings:
    """Read what a run left.

    Parameters
    ----------
    directory : str
        Output of any job; of a study also an unfinished one.
    masks : sequence of str
        Mask directories to show besides those found.

    Raises
    ------
    SparseError
        If the directory is no output of a job, a file that everything hangs on is damaged, or a named mask is.
    """
    found = _found(directory)
    named = tuple(mask for place in masks for mask in mask_at(place))
    return replace(found, masks=(*found.masks, *named), place=without_credentials(directory))


def _found(directory: str) -> Findings:
    study = storage.read_json(storage.join(directory, "study.json"))
    if study is not None:
        return _study(directory, shaped(Study, study, storage.join(directory, "study.json")))
    released = any(storage.exists(storage.join(directory, name)) for name in ("claim.json", "manifest.json"))
    place = storage.join(directory, "summary.json")
    summary = storage.read_json(place)
    if summary is None and not released:
        raise SparseError(_no_run(directory))
    results = shaped(Results, {"job": "privatize"} if summary is None else summary, place)
    release, remarks = None, []
    if released:
        release = inspect(directory)
    elif storage.exists(storage.join(directory, "release", "manifest.json")):
        release = inspect(storage.join(directory, "release"))
    if release is not None:
        remarks = release["problems"][:_MOST_PROBLEMS]
        if not release["finished"]:
            remarks.append("This run has not finished: the figures are of what is done so far.")
    return Findings(
        kind=results.job,
        place=directory,
        results=results,
        masks=tuple(masks_below(directory)),
        release=release,
        remarks=tuple(remarks),
    )


def _no_run(directory: str) -> str:
    shown = without_credentials(directory)
    if not storage.exists(directory):
        return f"{shown} does not exist. Name the output directory of a study, an audit or another job."
    if storage.exists(storage.join(directory, "mask.json")):
        return f"{shown} is a mask. Name the run that it belongs to, and this one with --mask."
    return (
        f"{shown} is no output of a job: it has none of study.json, summary.json, claim.json and manifest.json. "
        "Name the output directory of a study, an audit or another job."
    )


def _study(directory: str, study: Study) -> Findings:
    trials, remarks = read_trials(directory, "trials")
    references, damaged = read_trials(directory, "references")
    place = storage.join(directory, "summary.json")
    summary = storage.read_json(place)
    if summary is None:
        remarks.append(
            "This study has not finished: the figures are of the trials so far. The command that began it continues it."
        )
    found = policies([*references, *trials])
    told = shaped(Results, {"job": "study"} if summary is None else summary, place)
    # Trials' own files are there from the first one on, the summary only at the end.
    results = Results(
        job="study",
        counts=told.counts,
        durations=told.durations,
        protections=[policy.row for policy in found],
        attacks={policy.name: policy.attacks for policy in found if policy.attacks},
        utilities={policy.name: policy.utilities for policy in found if policy.utilities},
    )
    return Findings(
        kind="study",
        place=directory,
        results=results,
        trials=tuple(trials),
        policies={policy.name: policy for policy in found},
        study=study,
        masks=tuple(masks_of(trials, directory)),
        remarks=(*remarks, *damaged),
    )
