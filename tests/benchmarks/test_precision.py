"""What fewer bits cost: bytes per vector, cosine error, and neighbours found again, on releases of real sentences."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs import outputs
from jobs.config import OutputConfig
from sparse_core.concepts import Concept, contrast_pairs, find_spans
from sparse_core.masks import learn_mask
from sparse_core.noise import Key
from sparse_core.policy import Policy

pytestmark = pytest.mark.benchmark
TERMS = Path(__file__).parents[2] / "configs/concepts/patient.txt"


@pytest.fixture(scope="module")
def released(encoder, sentences):
    """A release with every choice at its default."""
    concept = Concept("patient", terms=tuple(TERMS.read_text().split("\n")[:-1]))
    spans = find_spans(sentences, concept)
    pairs = contrast_pairs(sentences, spans)
    chosen = np.random.default_rng(0).choice(len(pairs), 600, replace=False)
    vectors = encoder.encode(sentences)
    mask = learn_mask(
        positive=vectors[pairs.index[chosen]],
        negative=encoder.encode([pairs.negative[i] for i in chosen]),
        embeddings=vectors,
        basis="shift",
        concepts=("patient",),
        concept_fingerprint="",
        salt="",
        encoder=encoder.spec,
    )
    policy = Policy.build(encoder=encoder.spec, mechanism="mahalanobis", mask=mask, rho=2, floor=0.03)
    ids = list(range(len(sentences)))
    return policy, policy.release(vectors, ids=ids, contents=sentences, key=Key(bytes(range(32)))), vectors


def test_int8_takes_a_third_of_the_bytes_and_next_to_no_neighbours(released, tmp_path):
    policy, vectors, queries = released
    queries = policy.query_transform(queries[::10])
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    size = {}
    for precision in ("float32", "float16", "int8"):
        scale = outputs.public_scale(policy, precision)
        column = outputs.vector_array(vectors, precision, scale)
        decoded = outputs.as_float32(column, scale).astype(np.float64)
        cosine = (decoded * vectors).sum(1) / np.linalg.norm(decoded, axis=1) / np.linalg.norm(vectors, axis=1)
        found = np.argsort(-(queries @ decoded.T), axis=1)[:, :10]
        again = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best, found, strict=True)])
        field = outputs.vector_field(vectors.shape[1], precision, scale)
        table = pa.table([column], schema=pa.schema([field]))
        for format in ("parquet", "lance"):
            with outputs.PartWriter(str(tmp_path), OutputConfig(format=format), name=precision) as part:
                part.write(table)
            size[format, precision] = part.file.bytes / len(vectors)
        print(
            f"{precision:<8} Parquet {size['parquet', precision]:6.0f} Lance {size['lance', precision]:6.0f} bytes a "
            f"vector; 1 - cosine: mean {(1 - cosine).mean():.1e}, most {(1 - cosine).max():.1e}; of the 10 nearest "
            f"{again:.2%} found again; {outputs.count_clipped(vectors, precision, scale)} numbers clipped"
        )
    assert size["parquet", "int8"] < size["parquet", "float32"] / 2.5
    assert again > 0.95
