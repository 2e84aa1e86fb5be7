"""What a GPU makes of the attacks that write texts; run by gpu_check.sh attacks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from sparse_core.attacks import PublicKnowledge, build_attack, run_attack  # noqa: E402
from sparse_core.attacks.text import TextAttackResult, build_text_attack, run_text_attack  # noqa: E402
from sparse_core.concepts import Concept, concept_tokens, find_spans  # noqa: E402
from sparse_core.encoders import load_encoder  # noqa: E402
from sparse_core.errors import SparseError  # noqa: E402
from sparse_core.evaluation import TokenLabels, split_records, token_labels  # noqa: E402
from sparse_core.noise import Key  # noqa: E402
from sparse_core.policy import Policy  # noqa: E402

NO_GPU, LATE = 3, 4
RHO, DRAWS, SEED = 2.0, 3, 0
LARGE = {"width": 512, "layers": 6, "slots": 4, "batch_size": 256, "epochs": 40, "patience": 6, "learning_rate": 1e-3}
SMALL = {"width": 64, "layers": 1, "vocabulary": 1000, "batch_size": 32, "epochs": 2, "candidates": 2, "max_tokens": 16}


@dataclass
class Measured:
    """One row of the table."""

    attack: str
    result: TextAttackResult
    seconds: float
    peak_memory: float


def main() -> int:
    """Measure, print a table; 3 where there is no GPU, 4 where time ran out before every attack was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=None, help="use so many of the bundled sentences; default all")
    parser.add_argument("--minutes", type=float, default=8, help="start no further attack once it would not fit")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    on_gpu = options.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        print("There is no GPU here that torch can use: nothing was measured.", file=sys.stderr)
        return NO_GPU
    if not on_gpu:
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(options.device) if on_gpu else "CPU (dry run)"
    print(f"{name}, attacks in {'bfloat16' if on_gpu else 'float32'}", flush=True)
    started = time.perf_counter()
    material, draws, likelihood = prepared(options.device, options.records)
    others = {key: value for key, value in material.items() if key not in ("texts", "vocabulary", "encode")}
    classifier = run_attack(build_attack("mlc"), **others)
    print(f"{len(material['texts'])} records, mlc {classifier.unprotected} of unprotected vectors", flush=True)
    rows, late = [], []
    for attack, settings in attacks(on_gpu):
        spent = time.perf_counter() - started
        # The next attack takes no less than the one before.
        if spent + (rows[-1].seconds if rows else 0) > 60 * options.minutes:
            late.append(attack)
            continue
        rows.append(measure(attack, settings | {"device": options.device}, material, draws, likelihood))
        print(f"{attack}: {rows[-1].seconds:.0f} s. {rows[-1].result.strength(classifier)}", flush=True)
    if rows:
        show(rows)
    if late:
        print(f"No time was left for {', '.join(late)}: give more --minutes.", file=sys.stderr)
    return LATE if late else 0


def attacks(on_gpu: bool) -> Iterator[tuple[str, dict]]:
    """Names and options of the attacks; a language model where SPARSE_ATTACK_MODEL names one."""
    options = LARGE if on_gpu else SMALL
    yield "inversion", options
    yield "vec2text", options
    if model := os.environ.get("SPARSE_ATTACK_MODEL"):
        scratch = ("width", "layers", "vocabulary")
        kept = {name: value for name, value in options.items() if name not in scratch}
        yield "inversion", kept | {"model": model, "lora_rank": 16, "epochs": max(1, kept["epochs"] // 4)}


def prepared(device: str, n_records: int | None) -> tuple[dict, list[np.ndarray], object]:
    """The bundled sentences, their vectors before and after isotropic noise, further draws of it, and its law."""
    import pyarrow.parquet as pq

    texts = pq.read_table(ROOT / "configs" / "data" / "clinical_sentences.parquet", columns=["text"])["text"]
    texts = texts.to_pylist()[:n_records]
    terms = (ROOT / "configs" / "concepts" / "patient.txt").read_text().splitlines()
    concept = Concept("patient", terms=tuple(term.strip() for term in terms if term.strip()))
    found = [concept_tokens(text, spans) for text, spans in zip(texts, find_spans(texts, concept), strict=True)]
    split = split_records(texts, test_share=0.3, seed=SEED)
    tokens: TokenLabels = token_labels(found, train=split.train, min_count=5)
    encoder = load_encoder(device=device)
    vectors = encoder.encode(texts)
    policy = Policy.build(encoder=encoder.spec, mechanism="laplace", rho=RHO, read_out="none")

    def released(rows: np.ndarray) -> np.ndarray:
        named = {"ids": [int(row) for row in rows], "contents": [texts[row] for row in rows]}
        return policy.release(vectors[rows], **named, key=Key.ephemeral())

    material = {
        "unprotected": vectors,
        "protected": released(np.arange(len(texts))),
        "texts": texts,
        "labels": tokens.labels,
        "vocabulary": tokens.vocabulary,
        "train": split.train,
        "test": split.test,
        "public": PublicKnowledge(noise_variance=policy.law.noise_variance()),
        "encode": encoder.encode,
        "seed": SEED,
    }
    return material, [released(split.train) for _ in range(DRAWS)], policy.law.log_likelihood


def measure(attack: str, options: dict, material: dict, draws: list[np.ndarray], likelihood) -> Measured:
    """One attack with its control and its floor."""
    import torch

    on_gpu = options["device"] != "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    result = run_text_attack(
        build_text_attack(attack, **options), **material, draws=draws, log_likelihood=likelihood, max_test_records=400
    )
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    name = f"{attack}, {Path(options['model']).name}" if "model" in options else attack
    return Measured(name, result, time.perf_counter() - started, peak)


def show(rows: list[Measured]) -> None:
    """Print the table."""
    columns = ("leakage", "bleu", "rouge_l", "token_f1", "cosine")
    print(f"\n{'':<32}" + "".join(f"{name:>9}" for name in columns) + f"{'seconds':>9}{'GiB':>7}")
    for row in rows:
        for side in ("unprotected", "protected", "floor"):
            figures = [getattr(row.result.leakage, side).value]
            figures += [row.result.scores[name][side].value for name in columns[1:]]
            spent = f"{row.seconds:>9.0f}{row.peak_memory:>7.1f}" if side == "unprotected" else ""
            print(f"{row.attack + ', ' + side:<32}" + "".join(f"{figure:>9.3f}" for figure in figures) + spent)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SparseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
