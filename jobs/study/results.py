"""A study on disk: what it is of, a record for each trial, and what they come to.

``study.json`` says what is studied; ``trials/ID.json`` holds a trial's record; ``references/ID.json`` one of
unprotected vectors for each encoder, concept and seed; ``masks/ID`` a mask that trials share. A record has

``trial``, ``status`` ("done"; "failed"; "stopped" after a first look), ``reason`` (of the latter two), ``parameters``
(`Parameters.as_record`), ``row`` (a `ProtectionRow`; null unless done), ``attacks`` (by name), ``utilities``, ``mask``
(its values and training metrics; null without one), ``mask_path`` (below the output), ``durations`` (seconds a stage),
``cpu_seconds`` of them all (on one thread), and ``score`` (what is sought, see `score_of`; null where failed).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from jobs import storage
from jobs.config import StudyConfig, public_settings
from jobs.study.space import Parameters, encoder_names
from jobs.summary import ProtectionRow
from sparse_core.concepts import Concept, concept_fingerprint
from sparse_core.errors import SparseError

# Settings that decide where and how a study runs, not what its trials come to.
_NO_PART = ("output", "tracking.", "storage.", "workers.", "trials", "retry_failed", "cache", "registry")
_HASHED = (".terms", ".terms_file", ".patterns")
_MOST_NAMED = 5
_MEANS = ("leakage", "leakage_high", "leakage_normalized", "utility", "reidentification", "epsilon_euclidean")


@dataclass(frozen=True)
class Study:
    """What a study is of.

    Attributes
    ----------
    fingerprint : str
        Names it: trials of another study have other ids.
    salt : str
        Of the fingerprints of concepts.
    """

    fingerprint: str
    salt: str


def opened(config: StudyConfig, concepts: Iterable[Concept], data_fingerprint: str) -> tuple[Study, dict]:
    """The study that a configuration means, and what is to be written as its ``study.json``.

    Raises
    ------
    SparseError
        If the output holds the study of another configuration; it names the fields that differ.
    """
    found = storage.read_json(storage.join(config.output, "study.json"))
    salt = secrets.token_hex(16) if found is None else found["salt"]
    settings = public_settings(config)
    compared = {name: value for name, value in settings.items() if _has_part(name)}
    named = {concept.name: concept_fingerprint(concept, salt=salt) for concept in concepts}
    content = {
        "job": "study",
        "settings": settings,
        "concept": config.concepts[0].name,
        "concepts": list(named),
        "encoders": list(encoder_names(config)),
        "space": config.space.model_dump(mode="json"),
        "concept_fingerprints": named,
        "salt": salt,
        "fingerprints": {"data": data_fingerprint},
    }
    if found is not None:
        _refuse_another(config, compared, content, found)
    identity = json.dumps([compared, named, data_fingerprint], sort_keys=True)
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    return Study(fingerprint, salt), content | {"fingerprint": fingerprint}


def _has_part(name: str) -> bool:
    return not name.startswith(_NO_PART) and not name.endswith(_HASHED)


def _refuse_another(config: StudyConfig, compared: dict[str, str], content: dict, found: dict) -> None:
    before = {name: value for name, value in found["settings"].items() if _has_part(name)}
    differing = [
        f"{name} was {before.get(name, 'not given')!r} and is {compared.get(name, 'not given')!r}"
        for name in sorted(before.keys() | compared.keys())
        if before.get(name) != compared.get(name)
    ]
    if not differing:
        differing += [
            f"terms or patterns of the concept {name!r} are others"
            for name, fingerprint in content["concept_fingerprints"].items()
            if found["concept_fingerprints"].get(name) != fingerprint
        ]
        if found["fingerprints"] != content["fingerprints"]:
            differing.append("the files of input.path have changed")
    if differing:
        shown = "; ".join(differing[:_MOST_NAMED])
        more = f"; and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
        raise SparseError(
            f"output: {config.output} holds the study of another configuration: {shown}{more}. Choose another output "
            "directory, or set these back to continue it."
        )


def record_url(output: str, trial: str, folder: str = "trials") -> str:
    """Where a record lies."""
    return storage.join(output, folder, f"{trial}.json")


def read_records(output: str, folder: str = "trials") -> dict[str, dict]:
    """All records of a folder, by trial."""
    fs, path = storage.filesystem(storage.join(output, folder))
    with storage.explained(path):
        files = fs.glob(f"{path.rstrip('/')}/*.json")
        contents = fs.cat(files) if files else {}
    records = [json.loads(content) for content in contents.values()]
    return {record["trial"]: record for record in sorted(records, key=lambda record: record["trial"])}


def unfinished(trial: str, parameters: Parameters, status: str, reason: str, score: float | None = None) -> dict:
    """The record of a trial that is not done."""
    nothing = {"row": None, "attacks": {}, "utilities": [], "mask": None, "mask_path": None, "durations": {}}
    head = {"trial": trial, "status": status, "reason": reason, "parameters": parameters.as_record()}
    return head | nothing | {"score": score}


def score_of(row: Mapping, reference: Mapping, *, leakage_weight: float) -> float:
    """What is sought: the share of utility kept, less the weighted share of leakage left.

    Parameters
    ----------
    row, reference : mapping
        Fields of a `ProtectionRow`, of the trial and of unprotected vectors.
    leakage_weight : float

    Returns
    -------
    float
        At most 1. A leakage that no attack could measure counts as whole.
    """
    leaked = 1.0 if row["leakage_normalized"] is None else max(0.0, row["leakage_normalized"])
    kept = row["utility"] / reference["utility"] if row["utility"] and reference["utility"] else 0.0
    return kept - leakage_weight * leaked


def policies(records: Iterable[dict]) -> dict[str, list[dict]]:
    """Records by policy: those that differ only in their seed."""
    found: dict[str, list[dict]] = {}
    for record in records:
        policy = {name: value for name, value in record["parameters"].items() if name != "seed"}
        found.setdefault(json.dumps(policy, sort_keys=True), []).append(record)
    return found


def best(records: Iterable[dict]) -> list[dict]:
    """The trials of the policy with the highest mean score over its seeds; none where none is done."""
    done = policies(record for record in records if record["status"] == "done")
    return max(done.values(), key=lambda seeds: float(np.mean([record["score"] for record in seeds])), default=[])


def details_of(records: Mapping[str, dict], references: Mapping[str, dict]) -> dict:
    """What ``summary.json`` says beside the rows."""
    done = [record for record in records.values() if record["status"] == "done"]
    kinds = sorted({(r["parameters"]["concept"], r["parameters"]["mechanism"]) for r in done})
    return {
        "trials": {
            status: sum(record["status"] == status for record in records.values())
            for status in ("done", "stopped", "failed")
        },
        "parameters": {record["trial"]: record["parameters"] for record in done},
        "scores": {record["trial"]: record["score"] for record in done},
        "failed": {name: record["reason"] for name, record in records.items() if record["status"] == "failed"},
        "best": {
            f"{concept}, {mechanism}": _summarised(
                best(
                    r
                    for r in done
                    if (r["parameters"]["concept"], r["parameters"]["mechanism"]) == (concept, mechanism)
                )
            )
            for concept, mechanism in kinds
        },
        "unprotected": [
            {"parameters": record["parameters"], "row": record["row"], "attacks": record["attacks"]}
            for record in references.values()
        ],
    }


def _summarised(seeds: list[dict]) -> dict:
    rows = [record["row"] for record in seeds]
    means = {
        name: None if any(row[name] is None for row in rows) else float(np.mean([row[name] for row in rows]))
        for name in (
            "leakage",
            "leakage_high",
            "leakage_normalized",
            "utility",
            "reidentification",
            "epsilon_euclidean",
        )
    }
    return {
        "trials": [record["trial"] for record in seeds],
        "parameters": {name: value for name, value in seeds[0]["parameters"].items() if name != "seed"},
        "score": float(np.mean([record["score"] for record in seeds])),
        "mean": means,
    }


def rows_of(records: Mapping[str, dict]) -> list[ProtectionRow]:
    """Rows of all done trials."""
    return [ProtectionRow(**record["row"]) for record in records.values() if record["status"] == "done"]
