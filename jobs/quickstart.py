"""Everything in one go: learn masks, privatize a corpus, audit the release beside its alternatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jobs import audit, privatize, storage, train_mask
from jobs.cli import job_main
from jobs.config import (
    AuditConfig,
    Compared,
    PrivatizeConfig,
    ProtectionConfig,
    QuickstartConfig,
    QuickstartProtection,
    TrackingConfig,
    TrainMaskConfig,
    without_credentials,
)
from jobs.progress import console
from jobs.stages import RememberingEncoder
from jobs.summary import Summary
from jobs.tracking import tracking_uri
from sparse_core.errors import SparseError

CONFIG = QuickstartConfig


@dataclass(frozen=True)
class Plan:
    """What will be done, job by job."""

    lines: tuple[str, ...]


def plan(config: QuickstartConfig) -> Plan:
    """Check inputs, concept, key and output."""
    storage.configure(config.storage)
    if storage.exists(storage.join(config.output, "release", "claim.json")):
        raise SparseError(
            f"output: {config.output} already holds a quickstart. Remove it, or choose another output directory."
        )
    training = [line for name in config.masks for line in train_mask.plan(_training(config, name)).lines]
    # The mask is not there yet: all else about the release can be checked.
    release = privatize.plan(_release(config).model_copy(update={"mask": None})).lines
    return Plan((*training, *release))


def run(config: QuickstartConfig, *, verbose: bool = False) -> Summary:
    """Run the three jobs, sharing one encoder, and show what the release bought."""
    plan(config)
    encoder = RememberingEncoder.load(config.encoder)
    for name in config.masks:
        train_mask.run(_training(config, name), encoder=encoder)
    released = privatize.run(_release(config), encoder=encoder, verbose=verbose)
    audited = audit.run(_audit(config), encoder=encoder)
    summary = replace(audited, job="quickstart", policy_hash=released.policy_hash)
    summary.durations = {f"privatize_{k}": v for k, v in released.durations.items()} | {
        f"audit_{k}": v for k, v in audited.durations.items()
    }
    summary.rows_in, summary.rows_out = released.rows_in, released.rows_out
    summary.quarantined = released.quarantined
    summary.write(config.output)
    store = without_credentials(tracking_uri(config))
    console.print(
        f"\nProtected vectors  {config.output}/release/embeddings (Parquet)\n"
        + "".join(f"Mask               {config.output}/masks/{name}/mask\n" for name in config.masks)
        + f"Report             {config.output}/audit/report.md\n"
        f"MLflow store       {store}\n"
        f"Open it with       mlflow ui --backend-store-uri {store}",
        highlight=False,
        soft_wrap=True,
    )
    return summary


def _row(config: QuickstartConfig, name: str) -> QuickstartProtection:
    return next(row for row in config.compare if row.name == name)


def _common(config: QuickstartConfig, folder: str) -> dict:
    tracking = config.tracking.model_dump()
    if config.tracking.enabled:
        tracking["uri"] = tracking_uri(config)
    return {
        "output": storage.join(config.output, folder),
        "tracking": TrackingConfig(**tracking),
        "storage": config.storage,
        "input": config.input,
        "encoder": config.encoder,
    }


def _training(config: QuickstartConfig, name: str) -> TrainMaskConfig:
    return TrainMaskConfig(
        **_common(config, f"masks/{name}"),
        concept=config.concept,
        mask=config.masks[name],
        split=config.split,
    )


def _protection(config: QuickstartConfig, row: QuickstartProtection) -> ProtectionConfig:
    if row.mechanism == "none":
        return ProtectionConfig(mechanism="none")
    return ProtectionConfig(mechanism=row.mechanism, rho=config.rho, floor=config.floor)


def _mask_directory(config: QuickstartConfig, row: QuickstartProtection) -> str | None:
    """The row's own mask; for others any mask will do, whose mean and covariance the read-out needs."""
    if row.mechanism == "none":
        return None
    return storage.join(config.output, "masks", row.mask or next(iter(config.masks)), "mask")


def _release(config: QuickstartConfig) -> PrivatizeConfig:
    row = _row(config, config.release)
    return PrivatizeConfig(
        **_common(config, "release"),
        passthrough=config.passthrough,
        mask=_mask_directory(config, row),
        protection=_protection(config, row),
        key=config.key,
        workers=config.workers,
    )


def _audit(config: QuickstartConfig) -> AuditConfig:
    compare = []
    for row in config.compare:
        if row.name == config.release:
            compare.append(Compared(name=row.name, release=storage.join(config.output, "release")))
        else:
            compare.append(
                Compared(name=row.name, protection=_protection(config, row), mask=_mask_directory(config, row))
            )
    return AuditConfig(
        **_common(config, "audit"),
        concept=config.concept,
        split=config.split,
        compare=tuple(compare),
        attacks=config.attacks,
        min_token_count=config.min_token_count,
        utility=config.utility,
    )


if __name__ == "__main__":
    job_main("quickstart")
