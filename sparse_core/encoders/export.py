"""Exported models: a folder with the ONNX graph, the tokenizer and what else an encoder must know.

A model is exported once on every machine (10 to 20 seconds) and found again afterwards, so that starting an encoder
needs neither torch nor sentence-transformers. The folder is named by a hash of where the model comes from (the
content of a local folder, or the hub's commit) and of the versions that exported it; a change of either exports anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from sparse_core.encoders.onnx_backend import INPUTS, OUTPUT, OnnxBackend

TOLERANCE = 1e-5
"""Largest difference to torch, in any coordinate of a vector of norm 1, that an export may show. Seen are 3e-7."""
EXPORTERS = ("onnxruntime", "torch", "onnx", "onnxscript", "sentence-transformers", "transformers", "tokenizers")
_FORMAT = 2


class NotExportableError(Exception):
    """Why a model cannot run under ONNX Runtime; in words that follow "because"."""


@dataclass(frozen=True)
class Exported:
    """An exported model: the graph's file, and `torch_backend.describe` of the model it was made from."""

    graph: Path
    description: dict


def missing_packages() -> list[str]:
    """Packages of the extra ``onnx`` that are not installed."""
    missing = []
    for name in ("onnxruntime", "onnx", "onnxscript"):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


def cache_folder() -> Path:
    """Where exported models are kept: ``SPARSE_CACHE``, or ``sparse`` in the user's cache folder."""
    named = os.environ.get("SPARSE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparse"


def hash_folder(folder: Path) -> str:
    """SHA-256 over the files of a model folder, names and content, but for hidden files and Markdown."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and path.suffix != ".md" and not any(part.startswith(".") for part in relative.parts):
            with path.open("rb") as file:
                digest.update(f"{relative.as_posix()}|{hashlib.file_digest(file, 'sha256').hexdigest()}|".encode())
    return digest.hexdigest()


def exported(source: str, load) -> Exported:
    """The exported form of a model; made now if the cache has none.

    Parameters
    ----------
    source : str
        What names the model's content, see the module.
    load : callable
        Returns the SentenceTransformer on the CPU; called only where an export must be made.

    Raises
    ------
    NotExportableError
        If the model does not go; remembered, so that later calls do not try again.
    OSError
        If the cache cannot be written.
    """
    versions = [f"{name} {version(name)}" for name in EXPORTERS]
    name = hashlib.sha256("|".join([str(_FORMAT), source, *versions]).encode()).hexdigest()[:32]
    folder = cache_folder() / "encoders" / name
    if (found := _read(folder)) is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.with_suffix(".lock")):
        # Another process may have made it while this one waited.
        if (found := _read(folder)) is None:
            _make(folder, load())
            found = _read(folder)
    if found is None:
        raise OSError(f"{folder} cannot be read back")
    return found


def _read(folder: Path) -> Exported | None:
    """What the folder holds; None if it holds nothing, or something damaged."""
    try:
        content = (folder / "encoder.json").read_bytes()
        seal = (folder / "sha256").read_text()
        if hashlib.sha256(content).hexdigest() != seal:
            return None
        described = json.loads(content)
        if "unsupported" in described:
            raise NotExportableError(described["unsupported"])
        graph = folder / "model.onnx"
        with graph.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != described.pop("graph_sha256"):
                return None
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None
    return Exported(graph, described)


def _make(folder: Path, model) -> None:
    from sparse_core.encoders.torch_backend import describe

    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        try:
            described = describe(model)
            if described["tokenizer"] is None:
                raise NotExportableError("it has no fast tokenizer over a transformer")
            graph = temporary / "model.onnx"
            _export(model.float(), graph, pad_left=described["pad_left"])
            with graph.open("rb") as file:
                described["graph_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        except NotExportableError as error:
            described = {"unsupported": str(error)}
        content = json.dumps(described).encode()
        (temporary / "encoder.json").write_bytes(content)
        (temporary / "sha256").write_text(hashlib.sha256(content).hexdigest())
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _export(model, path: Path, *, pad_left: bool) -> None:
    """Write the graph, pooling and all, and compare it to torch."""
    import torch

    class Pipeline(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]

    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    pipeline = Pipeline().eval()
    try:
        with _silence():
            torch.onnx.export(
                pipeline,
                _sample(model, rows=2, length=16, pad_left=pad_left),
                path,
                input_names=list(INPUTS),
                output_names=[OUTPUT],
                dynamic_shapes=(dynamic, dynamic),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        backend = OnnxBackend(path)
        worst = 0.0
        for rows, length in ((1, 8), (3, 16), (2, 64)):
            sample = _sample(model, rows=rows, length=length, pad_left=pad_left)
            with torch.inference_mode():
                wanted = pipeline(*sample).numpy()
            found = backend.run(*(tensor.numpy() for tensor in sample))
            scale = np.linalg.norm(wanted, axis=1, keepdims=True)
            worst = max(worst, float(np.abs((found - wanted) / scale).max()))
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # What exporter and runtime raise for a model they do not know has no common type.
        raise NotExportableError(f"torch.onnx cannot export it ({type(error).__name__})") from error
    if not worst <= TOLERANCE:
        raise NotExportableError(f"its export differs from torch by {worst:.1e}, more than {TOLERANCE:g}")


def _sample(model, *, rows: int, length: int, pad_left: bool):
    """Token ids drawn from the vocabulary, the last row half padding."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, len(model.tokenizer), (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    padding = slice(0, length // 2) if pad_left else slice(length // 2, None)
    mask[-1, padding] = 0
    ids[-1, padding] = model.tokenizer.pad_token_id or 0
    return ids, mask


@contextmanager
def _silence() -> Iterator[None]:
    """Without the exporter's remarks on packages that it would know more operators with."""
    exporter = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time export; where files cannot be locked, several may, and the last one stays."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
