"""Is memory that was freed kept for the next call?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import jax
import pytest

from capax import memory

ALIKE = """
import resource
from capax import memory
assert {kept} == ({asked} and memory.keep())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    b"1" * 2**26
before = faults()
for _ in range(10):
    b"1" * 2**26
print(faults() - before)
"""
"""Takes 64 MiB again and again, and says how many pages the system had to clear for that."""
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another")


def faults(asked: bool, kept: bool, **variables: str) -> int:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", ALIKE.format(asked=asked, kept=kept)],
        env={**own, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@GLIBC
def test_what_is_freed_is_not_cleared_again():
    given_back = faults(asked=False, kept=False)
    assert given_back >= 10 * 2**26 / 2**21  # a page has 4 KiB or more, and 2 MiB at most
    assert faults(asked=True, kept=True) < 0.1 * given_back


@GLIBC
@pytest.mark.parametrize("decided", [{"MALLOC_ARENA_MAX": "4"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}])
def test_what_a_user_decided_stays(decided):
    assert faults(asked=True, kept=False, **decided) > 0


@pytest.mark.parametrize(("platform", "backend"), [("darwin", "cpu"), ("linux", "gpu")])
def test_elsewhere_nothing_is_changed(platform, backend, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert not memory.keep()
