import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="module")
def one_blas_thread():
    """BLAS threads that wait for each other on a busy machine would take most of the time."""
    with threadpool_limits(1):
        yield
