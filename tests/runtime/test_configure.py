"""`runtime.configure` prepares a process for training, once; an import alone prepares nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capax.runtime import cpu_devices

TWO_CORES = pytest.mark.skipif(cpu_devices.core_count() < cpu_devices.SHARES, reason="there is one core")


def run_code(code: str, cache: Path) -> str:
    """What a new process prints, without the settings of JAX and malloc that these tests run under."""
    hidden = ("JAX_", "XLA_", "MALLOC_", "GLIBC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@TWO_CORES
def test_configure_gives_two_devices_and_a_cache_and_can_be_called_again(tmp_path):
    code = """
from capax import runtime
import jax
for _ in range(3):
    runtime.configure()
    print(len(jax.devices()), jax.config.jax_compilation_cache_dir)
"""
    lines = run_code(code, tmp_path).splitlines()
    (folder,) = (tmp_path / "capax").iterdir()
    assert lines == [f"2 {folder}"] * 3


def test_import_of_runtime_does_not_import_jax(tmp_path):
    run_code("import sys, capax.runtime; assert 'jax' not in sys.modules", tmp_path)


@pytest.mark.parametrize("module", ["capax.runtime.cpu_devices", "capax.training.train", "capax.cli.bench"])
def test_import_claims_no_device_and_computes_nothing(module, tmp_path):
    # a module that computed something at import would make JAX count its devices before `configure`
    code = f"""
import {module}, jax
from jax._src import xla_bridge
assert jax.config.values["jax_num_cpu_devices"] <= 0 and not xla_bridge._backends
"""
    run_code(code, tmp_path)
    assert not list(tmp_path.iterdir())
