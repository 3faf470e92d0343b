"""Compiled programs are kept in the user's cache folder, and are used again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from capax.runtime import compile_cache


def start(tmp_path: Path, out: str, **variables: str) -> str:
    """Do a short run in a new process, and return its rows without times."""
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **variables}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [
        sys.executable,
        "-m",
        "capax.cli.main",
        "train",
        "capax/Integrator-v0",
        "--preset",
        "fast",
        "--steps",
        "330",
        "--set",
        "least_updates=20",  # what is compiled is the same
        "most_updates=20",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / out)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "AOT" not in done.stderr  # no warning either
    return "\n".join(
        line.partition('"time"')[0] for line in (tmp_path / out / "episodes.jsonl").read_text().splitlines()
    )


def test_a_second_start_compiles_nothing_and_does_the_same(tmp_path):
    first = start(tmp_path, "first")
    (folder,) = (tmp_path / "cache" / "capax").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    programs = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(programs) >= 3  # a plan and a fit among them
    assert start(tmp_path, "second") == first
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir() if path in programs} == programs
    assert not {path.name for path in folder.iterdir()} - {path.name for path in programs}


@pytest.fixture
def no_folder_chosen():
    """JAX without a cache folder, as if the user had chosen none."""
    before = {
        name: getattr(jax.config, name)
        for name in (
            "jax_compilation_cache_dir",
            "jax_persistent_cache_min_compile_time_secs",
            "jax_persistent_cache_min_entry_size_bytes",
        )
    }
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_folder_that_the_user_chose_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    chosen = jax.config.jax_compilation_cache_dir
    compile_cache.enable()
    assert jax.config.jax_compilation_cache_dir == chosen and not list(tmp_path.iterdir())


@pytest.mark.parametrize("home", ["file", "missing"])
def test_without_a_writable_folder_nothing_is_kept(home, tmp_path, monkeypatch, no_folder_chosen):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home) if home == "file" else "")
    if home == "missing":
        monkeypatch.setattr(Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError("no home")))
    compile_cache.enable()
    assert jax.config.jax_compilation_cache_dir is None


def test_old_programs_are_deleted(tmp_path, monkeypatch, no_folder_chosen):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_cache.enable()
    folder = Path(jax.config.jax_compilation_cache_dir)
    for name, days in (("old", 91), ("young", 89)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - days * 86400,) * 2)
    compile_cache.delete_old(folder)
    assert [path.name for path in folder.iterdir()] == ["young"]


def test_each_kind_of_processor_has_its_own_folder(tmp_path, monkeypatch):
    names = set()
    for text in ("flags\t: avx2\n", "flags\t: avx2 avx512f\n"):
        monkeypatch.setattr(compile_cache, "CPUINFO", tmp_path / "cpuinfo")
        compile_cache.CPUINFO.write_text(f"processor\t: 0\ncpu MHz\t: {len(names)}\n{text}")
        names.add(compile_cache.processor_id())
    assert len(names) == 2
    compile_cache.CPUINFO.write_text("processor\t: 1\ncpu MHz\t: 3000\nflags\t: avx2\n")
    assert compile_cache.processor_id() in names  # the number and the speed of a core make no difference
