"""Two concepts on each of two data sets, every protection and baseline: what the strongest attack got in each row.

    pytest -m benchmark -s tests/benchmarks/test_baselines.py

The coordinate mask has penalty 1, below which it opens every coordinate for some of the concepts.

Clinical sentences (bundled; utility: accuracy of telling the note's section) with patients' diagnoses and with their
demographics; and, where shared/data is, the Presidio sentences (utility: accuracy of telling the template) with persons
and with places, as annotated. All noise is at rho 2, Purkayastha's at 1.2. Every row is attacked by mlc, ridge,
neighbour and the dictionary, averaged, and re-identified. Prints the audits' tables, controls, verdicts and durations.
SPARSE_INVERSION=1 adds the sentence-level attack.
"""

import os
from pathlib import Path

import pytest

from jobs import audit, train_mask
from jobs.config import AuditConfig, TrainMaskConfig
from jobs.stages import RememberingEncoder

ROOT = Path(__file__).parents[2]
PRESIDIO = ROOT.parent / "shared/data/pii_presidio/pii_presidio.parquet"
PATIENT = (ROOT / "configs/concepts/patient.txt").read_text().split("\n")
DEMOGRAPHICS = ("female", "male", "woman", "man", "gentleman", "lady", "boy", "girl", "white", "caucasian", "black")
DEMOGRAPHICS += ("african-american", "hispanic", "asian")
CLINICAL = {"path": str(ROOT / "configs/data/clinical_sentences.parquet")}
ANNOTATED = {"path": str(PRESIDIO), "annotations": "spans"}
CASES = {
    "clinical, diagnosis": (CLINICAL, {"terms": [t for t in PATIENT if t and t not in DEMOGRAPHICS]}, "section"),
    "clinical, demographics": (CLINICAL, {"terms": DEMOGRAPHICS}, "section"),
    "presidio, person": (ANNOTATED, {"entity_types": ["PERSON"]}, "template_id"),
    "presidio, place": (ANNOTATED, {"entity_types": ["GPE", "LOCATION"]}, "template_id"),
}
BASES = {"subspace": "substitution", "coordinate": "coordinate", "whitebox": "whitebox"}

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module")
def remembering(job_encoder):
    return RememberingEncoder(job_encoder)


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_the_table(case, remembering, tmp_path):
    source, concept, label = CASES[case]
    if not Path(source["path"]).exists():
        pytest.skip("shared/data is not here")
    shared = {"input": source, "concept": {"name": case} | concept, "tracking": {"enabled": False}}
    for name, basis in BASES.items():
        settings = {"basis": basis} | ({"penalty": 1} if basis == "coordinate" else {})
        config = TrainMaskConfig(**shared, output=str(tmp_path / name), mask=settings)
        train_mask.run(config, encoder=remembering)
    masks = {name: str(tmp_path / name / "mask") for name in BASES}

    def noised(name, mechanism, mask="subspace", **settings):
        protection = {"mechanism": mechanism, "rho": 2} | settings
        return {"name": name, "protection": protection, "mask": masks[mask]}

    rows = [
        {"name": "unprotected", "protection": {"mechanism": "none"}},
        noised("laplace", "laplace"),
        noised("gaussian", "gaussian"),
        noised("purkayastha", "purkayastha", rho=1.2),
        noised("coordinate mask", "mahalanobis", "coordinate", floor=1e-6),
        noised("SPARSE-WB", "mahalanobis", "whitebox", floor=1e-6),
        noised("subspace mask", "mahalanobis", floor=0.03),
        noised("subspace mask, rho 4", "mahalanobis", floor=0.03, rho=4),
        *({"name": f"redaction, {how}", "baseline": "redaction", "removal": how} for how in REMOVALS),
        {"name": "rotation", "baseline": "rotation"},
        {"name": "dropping", "baseline": "dropping", "mask": masks["subspace"]},
    ]
    attacks = ("mlc", "neighbour", "ridge") + (("inversion",) if os.environ.get("SPARSE_INVERSION") else ())
    config = AuditConfig(
        **shared,
        output=str(tmp_path / "audit"),
        compare=rows,
        attacks=attacks,
        dictionary={"records": 120, "n_values": 24 if source is CLINICAL else 200},
        averaging={"records": 100},
        min_token_count=3,
        utility={"label": label},
    )
    summary = audit.run(config, encoder=remembering)
    print(f"\n{case}: {summary.rows_out:,} records, {summary.durations}")
    print((tmp_path / "audit" / "report.md").read_text())
    assert all(row.leakage is not None for row in summary.protections)


REMOVALS = ("delete", "placeholder", "surrogate")
