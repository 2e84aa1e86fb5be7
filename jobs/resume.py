"""What binds an output directory to one release, and which units of it are done."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from jobs import storage
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.policy import Policy

UNITS = "_units"
LEDGER = "ledger"
_BOUND = {
    "policy_hash": "another policy",
    "key_identifier": "another key",
    "source_fingerprint": "another input, or its files have changed",
    "passthrough": "other passthrough columns",
    "dataset": "another dataset section",
    "chunk": "another chunk section",
    "counted": "another budget.include",
    "subject": "another budget.subject",
}


def done_units(output: str, claim: dict) -> dict[str, dict]:
    """The records of the units that earlier runs have finished, by unit.

    Parameters
    ----------
    output : str
    claim : dict
        What this run would bind the directory to; its policy may not be known yet.

    Raises
    ------
    SparseError
        If it is bound otherwise.
    """
    found = storage.read_json(storage.join(output, "claim.json"))
    if found is None:
        if storage.exists(storage.join(output, LEDGER)):
            raise SparseError(
                f"output: {output} has a ledger of earlier releases and no claim.json that tells what they belong to. "
                "Choose another output directory, and name this one in budget.include."
            )
        return {}
    for name, told in _BOUND.items():
        if found.get(name) != claim[name] and not (name == "policy_hash" and claim[name] is None):
            raise SparseError(
                f"output: {output} already holds a release of {told} ({name} {found.get(name)!r} there, "
                f"{claim[name]!r} here). Choose another output directory."
            )
    return {record["unit"]: record for record in unit_records(output)}


def refuse_other_policy(output: str, records: Iterable[dict], policy: Policy) -> None:
    """Refuse units that were done under another policy than the one that a manifest is to speak of.

    Raises
    ------
    SparseError
        Naming the unit and both hashes.
    """
    for record in records:
        if record["policy_hash"] != policy.hash:
            raise SparseError(
                f"output: unit {record['unit']} of {output} was released under the policy {record['policy_hash']}, not "
                f"under {policy.hash}, which this run was started with. Nothing was committed. Choose another output "
                "directory, and name this one in budget.include: what was seen stays spent."
            )


def unit_records(output: str) -> list[dict]:
    """The records of finished units, all fetched at once.

    Raises
    ------
    SparseError
        If one is damaged.
    """
    units = storage.join(output, UNITS)
    if not storage.exists(units):
        return []
    fs, path = storage.filesystem(units)
    with storage.explained(units):
        # A killed run may leave half a record under a temporary name.
        names = [name for name in fs.find(path) if name.endswith(".json")]
        contents = fs.cat(names) if names else {}
    records = []
    for name, content in contents.items():
        try:
            records.append(json.loads(content))
        except ValueError:
            raise SparseError(f"{fs.unstrip_protocol(name)} is damaged: it is not valid JSON.") from None
    return records


def write_claim(output: str, claim: dict, policy: Policy) -> None:
    """Bind an output directory, and write the policy that actors read there."""
    url = storage.join(output, "claim.json")
    found = storage.read_json(url)
    if found is None:
        with storage.upload_directory(storage.join(output, "policy")) as local:
            policy.save(local)
    policy_claimed(output, policy.hash)
    if found != claim:
        storage.write_json(url, claim)


def policy_claimed(output: str, policy_hash: str, *, encoder: EncoderSpec | None = None) -> Policy:
    """The policy that lies in an output directory, which must be the one that it was claimed for.

    Parameters
    ----------
    output : str
    policy_hash : str
    encoder : EncoderSpec, optional
        See `Policy.load`.

    Raises
    ------
    SparseError
        If another one lies there.
    """
    with storage.local_directory(storage.join(output, "policy")) as local:
        policy = Policy.load(local, encoder=encoder)
    if policy.hash != policy_hash:
        raise SparseError(
            f"output: the policy in {output}/policy is {policy.hash}, and not {policy_hash}, which the directory was "
            "claimed for: it was changed since. Put the policy back, or choose another output directory."
        )
    return policy


def damaged(output: str, records: Iterable[dict]) -> set[str]:
    """Finished units whose files are missing, or of another size than was written."""
    wanted = {
        file["path"]: (file["bytes"], record["unit"])
        for record in records
        for file in (record["file"], record["ledger"])
        if file is not None
    }
    fs, root = storage.filesystem(output)
    sizes: dict[str, int] = {}
    for folder in {path.split("/", 1)[0] for path in wanted}:
        place = storage.join(root, folder)
        found = fs.find(place, detail=True) if fs.exists(place) else {}
        sizes |= {path[len(root.rstrip("/")) + 1 :]: info["size"] for path, info in found.items()}
    return {unit for path, (size, unit) in wanted.items() if sizes.get(path) != size}


def forget(output: str, units: Iterable[str]) -> None:
    """Take back that units are done, and with them the whole output."""
    storage.remove(storage.join(output, "manifest.json"))
    for name in units:
        storage.remove(storage.join(output, UNITS, f"{name}.json"))


def sweep(output: str, folders: Iterable[str]) -> None:
    """Take away the temporary files that killed processes have left locally; on object storage they leave none."""
    fs, path = storage.filesystem(output)
    if not isinstance(fs, LocalFileSystem):
        return
    for folder in folders:
        for left in Path(path, folder).rglob(".*"):
            if left.is_file():
                left.unlink(missing_ok=True)


def finished(output: str) -> bool:
    """Whether a run has committed everything."""
    return all(storage.exists(storage.join(output, name)) for name in ("manifest.json", "summary.json"))
