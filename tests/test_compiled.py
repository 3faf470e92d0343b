"""Are compiled programs kept where they should be, and used again?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from capax import compiled


def start(tmp_path: Path, out: str, **variables: str) -> str:
    """A short run in a process of its own; its rows without times."""
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **variables}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    command = [sys.executable, "-m", "capax.cli", "train", "capax/Integrator-v0", "--preset", "fast", "--steps", "330"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / out)], env={**kept, **own}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "AOT" not in done.stderr  # nor does it warn
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
def untold(monkeypatch):
    """As if the user had said nothing of a cache."""
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


def test_a_folder_that_the_user_named_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named = jax.config.jax_compilation_cache_dir
    compiled.remember()
    assert jax.config.jax_compilation_cache_dir == named and not list(tmp_path.iterdir())


@pytest.mark.parametrize("home", ["file", "missing"])
def test_without_a_folder_to_write_to_nothing_is_kept(home, tmp_path, monkeypatch, untold):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home) if home == "file" else "")
    if home == "missing":
        monkeypatch.setattr(Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError("no home")))
    compiled.remember()
    assert jax.config.jax_compilation_cache_dir is None


def test_what_is_old_is_thrown_away(tmp_path, monkeypatch, untold):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.remember()
    folder = Path(jax.config.jax_compilation_cache_dir)
    for name, days in (("old", 91), ("young", 89)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - days * 86400,) * 2)
    compiled.forget_old(folder)
    assert [path.name for path in folder.iterdir()] == ["young"]


def test_processors_that_differ_have_folders_of_their_own(tmp_path, monkeypatch):
    names = set()
    for text in ("flags\t: avx2\n", "flags\t: avx2 avx512f\n"):
        monkeypatch.setattr(compiled, "CPUINFO", tmp_path / "cpuinfo")
        compiled.CPUINFO.write_text(f"processor\t: 0\ncpu MHz\t: {len(names)}\n{text}")
        names.add(compiled.processor())
    assert len(names) == 2
    compiled.CPUINFO.write_text("processor\t: 1\ncpu MHz\t: 3000\nflags\t: avx2\n")
    assert compiled.processor() in names  # speeds vary, and are no difference
