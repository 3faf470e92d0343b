"""Limit of the number of threads that linear algebra (BLAS) uses."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS uses one thread.

    For matrices of about 100 rows a second thread gains nothing. Waiting for it can take 50 times as long when another
    process uses its core. One thread also makes sums the same in every process.
    """
    return _controller().limit(limits=1, user_api="blas")
