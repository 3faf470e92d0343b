"""What becomes of memory that a compiled call gives back? It is kept for the next one.

On a CPU every call takes its room anew. The C library gives large pieces back to the system at once, which then clears
them, page by page, each time they are taken: a fifth of a gradient step from images.
"""

from __future__ import annotations

import ctypes
import os
import sys

import jax

TRIM, PAD, MAP = -1, -2, -3
"""What `mallopt` calls them: free memory at the end of the heap that is given back, how much the heap grows by at least, and the
size from which a piece is taken from the system on its own."""
KEPT = {MAP: 2**30, TRIM: 2**31 - 1, PAD: 2**28}
"""In bytes. What is only reserved takes no room."""


def keep() -> bool:
    """From now on, keep what is freed, where this is glibc, a CPU computes, and the user has not decided otherwise."""
    decided = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
    if sys.platform != "linux" or decided or jax.default_backend() != "cpu":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(name, size) for name, size in KEPT.items()])
