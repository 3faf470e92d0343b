"""Freed memory is kept for the next call, unless the user has chosen otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import jax
import pytest

from capax.runtime import malloc

PROBE = """
import resource
from capax.runtime import malloc
assert {kept} == ({enabled} and malloc.keep_freed_memory())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    b"1" * 2**26
before = faults()
for _ in range(10):
    b"1" * 2**26
print(faults() - before)
"""
"""Allocates 64 MiB ten times, and prints how many pages the system had to clear for that."""
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def page_faults(enabled: bool, kept: bool, **variables: str) -> int:
    """The pages that a new process had cleared."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(enabled=enabled, kept=kept)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@GLIBC
def test_freed_memory_is_not_cleared_again():
    default = page_faults(enabled=False, kept=False)
    assert default >= 10 * 2**26 / 2**21  # a page has 4 KiB or more, and 2 MiB at most
    assert page_faults(enabled=True, kept=True) < 0.1 * default


@GLIBC
@pytest.mark.parametrize("variables", [{"MALLOC_ARENA_MAX": "4"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}])
def test_a_choice_of_the_user_stays(variables):
    assert page_faults(enabled=True, kept=False, **variables) > 0


@pytest.mark.parametrize(("platform", "backend"), [("darwin", "cpu"), ("linux", "gpu")])
def test_nothing_changes_elsewhere_than_on_linux_with_a_cpu(platform, backend, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert not malloc.keep_freed_memory()
