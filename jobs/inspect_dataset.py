"""``sparse inspect DATASET``: what lies in an output directory, and what it promises."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from jobs import budget, ledger, outputs, resume, storage
from jobs.escaping import for_terminal
from jobs.report import in_words
from jobs.spending import Copies
from sparse_core.budget import Charge, compose
from sparse_core.errors import SparseError
from sparse_core.policy import Policy

_SAMPLE = 5
_INDENT, _WIDTH = 18, 100


def main(arguments: list[str]) -> int:
    """Run the command; 1 if something is wrong with the files."""
    parser = argparse.ArgumentParser(prog="sparse inspect", description="What an output directory holds and promises.")
    parser.add_argument("dataset", help="output directory of a privatize job")
    parser.add_argument("--verify", action="store_true", help="read all files and compare their checksums")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    found = inspect(options.dataset, checksums=options.verify)
    print(
        json.dumps(found, indent=2, default=str) if options.json else for_terminal("\n".join(_lines(found)), lines=True)
    )
    return 1 if found["problems"] else 0


def inspect(dataset: str, *, checksums: bool = False) -> dict:
    """What an output directory holds and promises.

    Parameters
    ----------
    dataset : str
        Output directory of a privatize job, finished or not.
    checksums : bool
        Compare files by content; otherwise by name and size only.

    Returns
    -------
    dict
        Ready for JSON: infinite figures are None.

    Raises
    ------
    SparseError
        If there is no such output.
    """
    claim, manifest = storage.read_json(storage.join(dataset, "claim.json")), outputs.read_manifest(dataset)
    if claim is None and manifest is None:
        raise SparseError(_no_output(dataset))
    policy = _policy(dataset)
    found = {
        "dataset": dataset,
        "finished": manifest is not None,
        **(_finished(dataset, manifest) if manifest else _unfinished(dataset, claim)),
        "policy": _described(policy),
        "guarantee": _guarantee(policy),
        "guarantee_in_words": in_words(policy.guarantee(), policy),
        "budget": _budget(dataset, claim or {}),
        "key_identifier": (claim or {}).get("key_identifier"),
        "source_fingerprint": (claim or manifest)["source_fingerprint"],
        "copies": (storage.read_json(storage.join(dataset, "summary.json")) or {}).get("copies"),
        "problems": _problems(dataset, claim, manifest, policy, checksums=checksums),
        "checksums_compared": checksums and manifest is not None,
    }
    if manifest and manifest["files"] and not found["problems"]:
        # The id is the first column.
        column = next(iter(manifest["schema"]))
        try:
            head = outputs.read_columns(dataset, manifest["files"][0]["path"], [column], rows=_SAMPLE)
            found["sample_ids"] = head[column].to_pylist()
        except SparseError as error:
            found["problems"].append(str(error))
    return found


def _problems(dataset: str, claim: dict | None, manifest: dict | None, policy: Policy, *, checksums: bool) -> list[str]:
    """What does not fit together: files and manifest, and what is said of the policy and the policy that lies there."""
    problems = outputs.verify(dataset, checksums=checksums) if manifest else []
    said = {name: told for name, told in (("claim.json", claim), ("manifest.json", manifest)) if told is not None}
    said |= {f"_units/{record['unit']}.json": record for record in resume.unit_records(dataset)}
    problems += [
        f"{name} speaks of the policy {told['policy_hash']}, and {policy.hash} lies in policy/."
        for name, told in said.items()
        if told["policy_hash"] != policy.hash
    ]
    if manifest and not _agree(manifest["guarantee"], _guarantee(policy)):
        problems.append("manifest.json promises another guarantee than the policy in policy/ gives.")
    if checksums:
        problems += _ledger_problems(dataset, claim, policy)
    return problems


def _ledger_problems(dataset: str, claim: dict | None, policy: Policy) -> list[str]:
    try:
        charges = ledger.charges(dataset)
    except SparseError as error:
        return [str(error)]
    prices = ("policy", "metric", "epsilon", "epsilon_euclidean", "delta")
    problems = []
    for charge in charges:
        ours = Charge.of(policy, charge.key)
        if not all(_agree(getattr(charge, name), getattr(ours, name)) for name in prices):
            problems.append(f"The ledger tells another policy or price than the policy in policy/ ({charge}).")
        if claim and charge.key != claim["key_identifier"]:
            problems.append(f"The ledger tells the key {charge.key}, claim.json {claim['key_identifier']}.")
    return problems


def _guarantee(policy: Policy) -> dict:
    return {name: _finite(value) for name, value in asdict(policy.guarantee()).items()}


def _agree(one, other) -> bool:
    """Equal but for the last bits, which another machine may compute otherwise."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_agree(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _finished(dataset: str, manifest: dict) -> dict:
    counts = (storage.read_json(storage.join(dataset, "summary.json")) or {}).get("counts", {})
    return {
        "rows": manifest["rows"],
        "rows_read": counts.get("rows_in"),
        "quarantined": counts.get("quarantined", {}),
        "files": len(manifest["files"]),
        **{name: manifest[name] for name in ("bytes", "format", "precision", "scale", "schema")},
    }


def _unfinished(dataset: str, claim: dict) -> dict:
    units = resume.unit_records(dataset)
    return {
        "units_done": len(units),
        "units": claim.get("units"),
        "rows": sum(unit["rows_out"] for unit in units),
        "rows_read": sum(unit["rows_in"] for unit in units),
        "quarantined": dict(sum((Counter(unit["quarantined"]) for unit in units), Counter())),
    }


def _no_output(dataset: str) -> str:
    other = storage.read_json(storage.join(dataset, "summary.json"))
    if other is not None:
        return f"{dataset} holds the output of {other.get('job')}; sparse inspect shows outputs of privatize."
    parent = str(dataset).rstrip("/").rpartition("/")[0]
    if parent and storage.read_json(storage.join(parent, "claim.json")) is not None:
        return f"{dataset} is part of the output {parent}; name that."
    there = "has neither claim.json nor manifest.json" if storage.exists(dataset) else "does not exist"
    return f"{dataset} is no output directory of a privatize job: it {there}."


def _policy(dataset: str) -> Policy:
    with storage.local_directory(storage.join(dataset, "policy")) as local:
        return Policy.load(local)


def _described(policy: Policy) -> dict:
    encoder = policy.encoder
    return {
        "hash": policy.hash,
        "mechanism": policy.mechanism,
        "encoder": encoder.model,
        "encoder_revision": encoder.revision,
        "dimension": encoder.dimension,
        "normalize": encoder.normalize,
        "concepts": list(policy.mask.info.concepts) if policy.mask else [],
        "basis": policy.basis_name,
        "floor": policy.floor if policy.mechanism == "mahalanobis" else None,
        "read_out": policy.read_out,
        "unit_norm": policy.unit_norm,
    }


def _budget(dataset: str, claim: dict) -> dict:
    """What the run said it spends, which it worked out without holding every record in memory; else from ledgers."""
    told = (storage.read_json(storage.join(dataset, "summary.json")) or {}).get("budget")
    if told is not None:
        return told | {"counted": claim.get("counted", [])}
    try:
        counted, releases = budget.releases_of([dataset])
    except SparseError as error:
        return {"unknown": str(error)}
    spent = compose(releases)
    if not len(spent):
        return {"subjects": 0}
    return {
        "subjects": len(spent),
        "releases_max": int(spent.releases.max()),
        "epsilon_spent_median": _finite(ledger.median(spent.epsilon_euclidean)),
        "epsilon_spent_max": _finite(spent.epsilon_euclidean.max()),
        "delta_spent_max": float(spent.delta.max()),
        "max_epsilon_per_subject": budget.limit_of([dataset]),
        "counted": counted[1:],
    }


def _finite(value):
    if not isinstance(value, float):
        return value
    return float(value) if math.isfinite(value) else None


def _lines(found: dict) -> Iterator[str]:
    """For people: a name and what there is to say of it."""
    for name, told in _told(found):
        if told:
            yield textwrap.fill(
                told,
                _WIDTH,
                initial_indent=name.ljust(_INDENT),
                subsequent_indent=" " * _INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _told(found: dict) -> Iterator[tuple[str, str]]:
    policy, guarantee = found["policy"], found["guarantee"]
    yield "dataset", found["dataset"]
    yield "state", _state(found)
    quarantined = ", ".join(f"{count:,} {reason}" for reason, count in sorted(found["quarantined"].items()))
    read = "" if found["rows_read"] is None else f" of {found['rows_read']:,} read"
    yield "rows", f"{found['rows']:,} published{read}"
    yield "quarantined", quarantined or "none"
    if found["finished"]:
        scale = f", a vector is {found['scale']:g} times the integers" if found["scale"] is not None else ""
        yield "files", f"{found['files']:,} {found['format']} files, {found['bytes']:,} bytes"
        yield "precision", found["precision"] + scale
        for number, (name, kind) in enumerate(found["schema"].items()):
            yield "" if number else "columns", f"{name}: {kind}"
        yield "sample ids", ", ".join(map(str, found.get("sample_ids", [])))
    yield "policy", policy["hash"]
    concepts = ", ".join(policy["concepts"])
    mask = f"mask of {concepts} in the basis {policy['basis']}" if concepts else "no mask"
    floor = f", floor {policy['floor']:g}" if policy["floor"] is not None else ""
    yield "protection", f"{policy['mechanism']}, {mask}{floor}, read-out {policy['read_out']}"
    yield "encoder", f"{policy['encoder']}, {policy['dimension']} dimensions"
    figures = [f"{name} {_shown(guarantee[name])}" for name in ("epsilon", "epsilon_euclidean", "delta", "rho")]
    yield "guarantee", f"{', '.join(figures)} (metric: {guarantee['metric']})"
    yield "in words", f"Of one release: {found['guarantee_in_words']}"
    yield "budget", _spent(found["budget"])
    if found["copies"]:
        yield "copies", Copies(**found["copies"]).warning
    yield "key", found["key_identifier"] or ""
    yield "source", found["source_fingerprint"]
    for number, problem in enumerate(found["problems"]):
        yield "" if number else "problems", problem


def _state(found: dict) -> str:
    if found["finished"]:
        compared = "checksums" if found["checksums_compared"] else "sizes"
        fit = "do NOT all match the manifest, see problems" if found["problems"] else "match the manifest"
        return f"finished; {compared} of the files {fit}"
    of = f" of {found['units']:,}" if found["units"] else ""
    return (
        f"not finished: {found['units_done']:,}{of} units are done. To resume, run the command that began it again, "
        "with the same configuration and key; it continues with what is left."
    )


def _spent(spending: dict) -> str:
    if "unknown" in spending:
        return f"unknown: {spending['unknown']}"
    if not spending["subjects"]:
        return "nothing was released"
    limit = spending["max_epsilon_per_subject"]
    delta = f", delta {spending['delta_spent_max']:g}" if spending["delta_spent_max"] else ""
    return (
        f"{spending['subjects']:,} subjects, released {spending['releases_max']} times at most; "
        f"epsilon_euclidean spent: {_shown(spending['epsilon_spent_median'])} at the median, "
        f"{_shown(spending['epsilon_spent_max'])} at most{delta}; "
        + (f"limit {limit:g}" if limit is not None else "no limit")
        + f"; earlier releases counted from {', '.join(spending['counted']) or 'nowhere'}. More: sparse budget show"
    )


def _shown(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"
