"""The command line: ``sparse NAME --config FILE [field=value ...]``, and ``python -m jobs.NAME`` the same."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import sys
import textwrap
from types import ModuleType

from jobs.escaping import for_terminal
from sparse_core.errors import SparseError

JOBS = ("quickstart", "train_mask", "privatize", "query", "audit", "study", "calibrate")
TOOLS = {
    "budget": "jobs.budget",
    "inspect": "jobs.inspect_dataset",
    "report": "jobs.html_report.command",
    "reproduce": "jobs.reproduce",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 2 something for the user to put right, 130 interrupted.

    Also 3, where a calibration found no policy within its limits.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"sparse-embeddings {importlib.metadata.version('sparse-embeddings')}")
        return 0
    name, *rest = arguments
    try:
        if name == "key":
            return _key(rest)
        if name in TOOLS:
            return importlib.import_module(TOOLS[name]).main(rest)
        if name.replace("-", "_") not in JOBS:
            raise SparseError(f"There is no command {name!r}; there are {', '.join([*JOBS, *TOOLS])} and key.")
        return _run_job(name.replace("-", "_"), rest)
    except SparseError as error:
        told = for_terminal(f"sparse {name}: {error}", lines=True)
        print(textwrap.fill(told, 100, break_long_words=False, break_on_hyphens=False), file=sys.stderr)
        return getattr(error, "exit_status", 2)
    except KeyboardInterrupt:
        print(f"sparse {name}: interrupted; the same command continues where it stopped.", file=sys.stderr)
        return 130


def job_main(name: str) -> None:
    """Entry point of ``python -m jobs.NAME``."""
    sys.exit(main([name, *sys.argv[1:]]))


def _run_job(name: str, arguments: list[str]) -> int:
    job = importlib.import_module(f"jobs.{name}")
    parser = argparse.ArgumentParser(
        prog=f"sparse {name}",
        description=job.CONFIG.__doc__,
        epilog=_fields(job),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with the fields below")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, compute nothing")
    parser.add_argument("--verbose", action="store_true", help="show the logs of the libraries underneath")
    flags = getattr(job, "FLAGS", ())
    for name in flags:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=f"the field {name}")
    parser.add_argument(
        "overrides", nargs="*", metavar="field=value", help="override a field, such as output=/data/out"
    )
    options = parser.parse_intermixed_args(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="%(asctime)s %(name)s %(message)s"
    )
    logging.getLogger("sparse").setLevel(logging.INFO)
    from jobs.config import load_config

    given = {name: getattr(options, name) for name in flags}
    overrides = [*options.overrides, *(f"{name}={value}" for name, value in given.items() if value is not None)]
    config = load_config(job.CONFIG, options.config, overrides)
    if options.dry_run:
        for line in job.plan(config).lines:
            print(for_terminal(line))
        print("Dry run: configuration, inputs, masks and key are in order; nothing was computed or written.")
        return 0
    job.run(config, verbose=options.verbose)
    return 0


def _key(arguments: list[str]) -> int:
    from sparse_core.noise import write_new_key

    parser = argparse.ArgumentParser(prog="sparse key", description="Make secret keys for the noise.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="write a new key to a file that only you can read")
    new.add_argument("path")
    options = parser.parse_args(arguments)
    key = write_new_key(options.path)
    print(f"Wrote {options.path} (mode 600), key identifier {key.identifier}. Keep a copy: without it no release can")
    print("be reproduced, and a new key publishes every record once more with fresh noise, at its full epsilon.")
    return 0


def _overview() -> str:
    lines = ["usage: sparse COMMAND [--config FILE] [--dry-run] [field=value ...]", "", "commands:"]
    for name in JOBS:
        lines.append(f"  {name:<12} {importlib.import_module(f'jobs.{name}').CONFIG.__doc__}")
    lines.append("  key new PATH  Write a new secret key.")
    lines.append("  inspect DATASET  What an output holds and promises; --verify compares checksums.")
    lines.append("  report DIRECTORY  A page with figures of a study, an audit or another run.")
    lines.append("  budget show DATASET...  What records were released under, what they have spent and have left.")
    lines.append("  reproduce NAME...  Results of the paper measured anew, its figures beside ours.")
    lines += ["", "sparse COMMAND --help explains every field."]
    return "\n".join(lines)


def _fields(job: ModuleType) -> str:
    from jobs.config import describe_fields

    lines = ["fields (in the YAML file, or on the command line as field=value):"]
    for name, default, text in describe_fields(job.CONFIG):
        lines.append(f"  {name}  [{default}]")
        lines.append(textwrap.fill(text, 96, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
