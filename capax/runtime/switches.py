"""Switches that change numbers without a word: those of JAX, variables of compilers and BLAS, versions of libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

PRECISION = "jax_enable_x64"
"""Decides the types of an agent's arrays, so a checkpoint can be read with the same value only."""
JAX_SWITCHES = (
    # random numbers
    "jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset", "jax_high_dynamic_range_gumbel",
    # types and precision
    PRECISION, "jax_explicit_x64_dtypes", "jax_default_dtype_bits", "jax_numpy_dtype_promotion",
    "jax_default_matmul_precision", "jax_allow_f16_reductions",
    # derivatives
    "jax_softmax_custom_jvp", "jax_use_direct_linearize", "jax_custom_vjp3", "jax_remat3", "jax_scan3",
    # what is compiled, and how
    "jax_disable_jit", "jax_disable_most_optimizations", "jax_optimization_level", "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort", "jax_memory_fitting_level", "jax_compiler_enable_remat_pass", "eager_constant_folding",
    "jax_use_shardy_partitioner", "jax_enable_pgle", "jax_use_magma", "jax_pallas_use_mosaic_gpu",
    "jax_threefry_gpu_kernel_lowering", "jax_xla_profile_version",
)  # fmt: skip
"""Those that may change a number of a run; a version of JAX may lack some. The others decide on errors, logs, caches and
places, or what is derived from them is compared otherwise (the device)."""
VARIABLES = (
    "XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "OPENBLAS_CORETYPE", "MKL_CBWR", "NPY_DISABLE_CPU_FEATURES",
)  # fmt: skip
LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "optax", "equinox", "highspy", "gymnasium", "mujoco")
HARMLESS_XLA_FLAGS = ("--xla_force_host_platform_device_count", "--xla_dump_")
"""Beginnings of flags that change no number; the count of devices is compared as part of the device."""


def current() -> dict[str, Any]:
    """All of them as they are now in this thread, by name, as plain values."""
    values = jax.config.values  # of the process; an attribute, where there is one, is that of the thread
    switches = {name: _plain(getattr(jax.config, name, values[name])) for name in JAX_SWITCHES if name in values}
    variables = {name: _without_harmless(os.environ.get(name, "")) for name in VARIABLES}
    return {**switches, **variables, **{name: _version(name) for name in LIBRARIES}}


def changes(before: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The name, the earlier and the present value of each that has changed since `before`, where both are known."""
    now = current()
    return ((name, before[name], now[name]) for name in now if name in before and before[name] != now[name])


def _plain(value: Any) -> Any:
    """A value of a switch for JSON: enums by their values."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _without_harmless(flags: str) -> str:
    """Flags in alphabetical order, without those that change no number."""
    return " ".join(sorted(flag for flag in flags.split() if not flag.startswith(HARMLESS_XLA_FLAGS)))


@cache
def _version(name: str) -> str | None:
    """The version of a library, read once: to read it takes milliseconds, and the process keeps what it has imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
