import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Models are exported to ONNX once, and neither anew in every run nor into the user's own cache.
os.environ.setdefault("SPARSE_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "sparse"))

import pyarrow.parquet as pq
import pytest

CORPUS = Path(__file__).parents[1] / "configs" / "data" / "clinical_sentences.parquet"


# Jobs without a cluster.
WITHOUT_RAY = {f"test_{name}.py" for name in ("audit", "calibrate", "html_report", "reproduce", "utility_tasks")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that start a Ray cluster run one after the other in one process; a second one runs the rest."""
    unit = Path(__file__).parent / "unit"
    for item in items:
        alone = unit in item.path.parents or item.path.name in WITHOUT_RAY
        item.add_marker(pytest.mark.xdist_group("library" if alone else "clusters"))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def encoder():
    """The default encoder, on one thread."""
    from sparse_core.encoders import load_encoder

    return load_encoder(device="cpu", threads=1)


@pytest.fixture(scope="session")
def job_encoder():
    """The encoder as jobs load it, to the last bit."""
    from sparse_core.encoders import load_encoder

    return load_encoder(device="cpu", threads=1, backend="auto")


@pytest.fixture(scope="session")
def clinical():
    """The bundled corpus: id, text, section."""
    return pq.read_table(CORPUS)


@pytest.fixture(scope="session")
def sentences(clinical):
    return clinical["text"].to_pylist()
