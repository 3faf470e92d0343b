"""Switches that change numbers without a word are recorded with a run, and compared when it continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import pytest
from support.tiny_runs import counting, train_random

import capax
from capax.core.errors import InputError
from capax.runs.run import Run
from capax.runtime import switches

NO_NUMBERS = (
    # where something is, and how much of it
    "backend_target", "cpu_", "cuda_visible_devices", "default_device", "num_cpu_devices", "oneapi_visible", "platform",
    "rocm_visible", "xla_backend", "mock_", "cross_host", "pjrt", "share_binary", "distributed", "sort_devices",
    # caches, logs, dumps, profiles, tracebacks, names
    "cache", "log", "dump", "explain", "pprint", "traceback", "frames", "source", "metadata", "include_", "captured", "export",
    "serialization", "jax2tf", "pgle_", "debug_info", "refs_to_pins",
    # what raises or warns, and what only checks
    "check", "debug", "error", "guard", "transfer", "disallow", "no_tracing", "no_execution", "legacy", "rank_promotion",
    "experimental", "recoverability", "preemption", "mutable", "disable_bwd", "disable_vmap", "pallas_poison", "pallas_verbose",
    # how programs are written down, or what capax does not use
    "auto_pcast", "bcoo", "collectives", "constants", "custom_partitioning", "custom_prng", "ir_", "mosaic_allow",
    "emit_pipeline", "ragged", "size_one_mesh",
)  # fmt: skip
"""Parts of the names of JAX's switches that change no number of a run."""


def test_every_switch_of_jax_is_recorded_or_changes_no_number():
    names = [name for name in jax.config.values if name not in switches.JAX_SWITCHES]
    assert [name for name in names if not any(part in name for part in NO_NUMBERS)] == []


def test_they_are_plain_values_by_name(monkeypatch):
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_b=1  --xla_force_host_platform_device_count=2 --xla_a=0 --xla_dump_to=/tmp/x"
    )
    now = switches.current()
    assert json.loads(json.dumps(now)) == now
    assert now["XLA_FLAGS"] == "--xla_a=0 --xla_b=1" and now["jax"] == jax.__version__
    assert now["jax_default_prng_impl"] == "threefry2x32" and now["jax_numpy_dtype_promotion"] == "standard"


def test_a_switch_of_this_thread_counts():
    before = switches.current()
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        changed = {name: (old, new) for name, old, new in switches.changes(before)}
    assert changed == {"jax_enable_x64": (False, True), "jax_default_matmul_precision": (None, "highest")}
    assert list(switches.changes(before)) == []


def test_the_version_of_a_library_is_read_once(monkeypatch):
    # to read those of all libraries takes longer than an episode of a small task
    before = switches.current()
    monkeypatch.setattr(switches, "version", lambda name: pytest.fail(f"the version of {name} is read again"))
    assert switches.current() == before


def test_only_what_both_sides_have_is_compared():
    assert list(switches.changes({"a switch that is gone": 1})) == []


@pytest.mark.parametrize(("name", "value", "words"), [
    ("jax_threefry_partitionable", False, "jax_threefry_partitionable=True, now it is False"),
    ("jax_default_matmul_precision", "highest", "jax_default_matmul_precision=nothing, now it is highest"),
    ("jax_random_seed_offset", 3, "jax_random_seed_offset=0, now it is 3"),
])  # fmt: skip
def test_a_resume_with_another_switch_warns(name, value, words, tmp_path, capsys):
    run = train_random(tmp_path)
    assert run.config.switches == switches.current()
    before = getattr(jax.config, name)
    capsys.readouterr()
    try:
        jax.config.update(name, value)
        capax.resume(run, env=counting(), steps=16)
    finally:
        jax.config.update(name, before)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    assert warnings == [f"warning: the run was begun with {words}: rows may differ."]
    capax.resume(run, env=counting(), steps=20)
    assert "warning" not in capsys.readouterr().err


def test_a_resume_with_another_version_of_a_library_warns(tmp_path, capsys, monkeypatch):
    train_random(tmp_path)
    monkeypatch.setattr(switches, "_version", lambda name: "99.0" if name == "jaxlib" else None)
    now = {**switches.current(), "jaxlib": "99.0"}
    monkeypatch.setattr(switches, "current", lambda: {"jaxlib": now["jaxlib"]})
    capsys.readouterr()
    capax.resume(tmp_path, env=counting(), steps=16)
    assert ", now it is 99.0: rows may differ." in capsys.readouterr().err


def test_a_run_is_not_read_with_numbers_of_another_precision(tmp_path):
    run = train_random(tmp_path)
    files = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    message = r"^the run was begun with jax_enable_x64=False, now it is True: set JAX_ENABLE_X64=0, so that its arrays"
    with jax.enable_x64(True):
        for use in (lambda: capax.resume(run, env=counting(), steps=16), lambda: capax.load(run)):
            with pytest.raises(InputError, match=message):
                use()
    assert {path: path.read_bytes() for path in files} == files


RESUME = (
    "import sys, capax; from support.tiny_runs import counting; capax.resume(sys.argv[1], env=counting(), steps=16)"
)


def test_a_variable_of_the_environment_counts(tmp_path):
    train_random(tmp_path / "run")
    path = os.pathsep.join(["tests", *sys.path])
    resumed = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path / "run")], capture_output=True, text=True, timeout=300,
        env={**os.environ, "JAX_DEFAULT_PRNG_IMPL": "rbg", "PYTHONPATH": path},
    )  # fmt: skip
    assert "jax_default_prng_impl=threefry2x32, now it is rbg: rows may differ." in resumed.stderr
    assert resumed.returncode == 0 and len(Run(tmp_path / "run").episodes) == 4
