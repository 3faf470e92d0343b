"""Memory that a compiled call frees is kept for the next call instead of being returned to the system.

On a CPU every call allocates its memory again. The C library returns large blocks to the system at once. The system then
clears them page by page each time they are allocated: this takes a fifth of a gradient step from images.
"""

from __future__ import annotations

import ctypes
import os
import sys

import jax

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's `mallopt`: how much free memory at the end of the heap is returned to the system, how much the
heap grows by at least, and from which size on a block is allocated by the system on its own."""
BYTES = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**28}
"""The value of each parameter. Memory that is only reserved takes no room."""


def keep_freed_memory() -> bool:
    """Keep freed memory from now on, and say whether that worked. Safe to call again.

    Nothing changes if the C library is not glibc, if a GPU computes, or if the user has set a variable of malloc.
    """
    chosen_by_user = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
    if sys.platform != "linux" or chosen_by_user or jax.default_backend() != "cpu":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(name, size) for name, size in BYTES.items()])
