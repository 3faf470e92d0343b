"""Settings that every test runs under."""

from __future__ import annotations

import gc
import os

# compiling takes longest: programs run once or twice here, so that none is worth optimising
QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",  # the older emitters are twice as fast
    "--xla_cpu_parallel_codegen_split_count=1",  # no program is large enough to be split
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILATION]).strip()

# ruff: noqa: E402
from collections.abc import Iterator

import jax
import pytest
import scipy.linalg  # noqa: F401  its BLAS must be there to be limited
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from capax.runs import trusted
from capax.runtime import cpu_devices

cpu_devices.claim()  # before a test module computes anything

LONG_FILES = (
    "test_drill.py",
    "test_rssm.py",
    "test_crash.py",
    "test_compile_cache.py",
    "test_resume.py",
    "test_foreign_folders.py",
    "test_lanes.py",
    "test_pets.py",
    "test_policy_gradient_training.py",
    "test_recipes.py",
)
"""They come first: a long file that comes last keeps one worker busy while the other has nothing to do."""

# the same examples in every run, however long they take: a change breaks a test, chance does not
settings.register_profile(
    "capax", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("capax")


def pytest_collection_finish() -> None:
    """What was imported and collected stays, so the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the others stay in their order."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread() -> Iterator[None]:
    """Matrices are small here, and the workers of pytest-xdist already use the cores."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_the_disk() -> Iterator[None]:
    """No machine loses its power in a test, so what is written need not be on the disk at once. The file must be open."""

    def check_open(file: int) -> None:
        os.fstat(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", check_open)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests name is not remembered for the user who runs them, also not by processes that tests start."""
    os.environ[trusted.VARIABLE] = str(tmp_path_factory.mktemp("trusted") / "trusted.json")


@pytest.fixture(autouse=True, scope="session")
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many tests compile the same programs, also in processes of their own, which must not write to the user's folder."""
    folder = str(tmp_path_factory.mktemp("xla"))
    for name, value in (
        ("jax_compilation_cache_dir", folder),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
