"""What every test runs under."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scipy.linalg  # noqa: F401  its BLAS must be there to be limited
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread() -> Iterator[None]:
    """Matrices are small here, and the workers of pytest-xdist already use the cores."""
    with threadpool_limits(1, user_api="blas"):
        yield
