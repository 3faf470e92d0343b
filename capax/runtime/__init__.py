"""Settings of the machine: CPU devices, compile cache, memory, BLAS threads, signals, standard streams, subprocesses, lanes."""

from __future__ import annotations


def configure() -> None:
    """Prepare this process for training: two CPU devices, the compile cache, memory that is kept. Safe to call again.

    Call it before JAX computes anything: JAX counts its devices only once.
    """
    from capax.runtime import compile_cache, cpu_devices, malloc  # JAX takes a second to import

    cpu_devices.claim()
    compile_cache.enable()
    malloc.keep_freed_memory()
