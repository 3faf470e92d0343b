"""Does `capax doctor` see what computes here, what can be played and drawn, and where a run can be written?"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from findings import absent, advised, fine
from findings import answers as answers
from findings import bare as bare

from capax import apart, machine, video

CPU, GPU = ["0.10.2", {}], ["0.10.2", {"NVIDIA H200": 2}]


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a module of one's own before the real one, for other processes."""
    folder = tmp_path / "shadows"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return lambda name, code: (folder / f"{name}.py").write_text(code) and None


# What computes.


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Puts an NVIDIA GPU into the machine, or not, and JAX's plugin for it."""

    def put(there: bool, *, plugin: bool) -> None:
        monkeypatch.setattr(machine, "NVIDIA", tmp_path if there else tmp_path / "none")
        monkeypatch.setattr(machine, "PLUGINS", ("json",) if plugin else ("no_such_module",))
        monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi

    return put


def test_a_cpu_is_no_accelerator(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert apart.ask(machine.compute) == [metadata.version("jax"), {}]


def test_a_gpu_that_is_used_is_shown(answers):
    answers(GPU)
    assert fine(machine.devices()) == "0.10.2 on 2 × NVIDIA H200"


def test_without_a_gpu_the_fast_preset_is_named(answers, nvidia):
    answers(CPU)
    nvidia(False, plugin=False)
    assert "--preset fast" in advised(machine.devices(), "note")


def test_a_gpu_that_jax_does_not_see(answers, nvidia, monkeypatch):
    answers(CPU)
    nvidia(True, plugin=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "pip install 'capax[gpu]'" in advised(machine.devices(), "missing")
    nvidia(True, plugin=True)
    assert "Unset CUDA_VISIBLE_DEVICES=0" in advised(machine.devices(), "note")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "driver" in advised(machine.devices(), "missing")


@pytest.mark.parametrize(("code", "there"), [
    ("echo 'GPU 0: NVIDIA H200'", True), ("echo 'No devices were found'", False), ("echo GPU; exit 9", False)
])  # fmt: skip
def test_nvidia_smi_tells_of_a_gpu_too(nvidia, tmp_path, code, there):
    nvidia(False, plugin=False)
    assert not machine._nvidia()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{code}\n")
    tool.chmod(0o755)
    assert machine._nvidia() == there


def test_nvidia_smi_that_hangs_tells_of_none(nvidia, monkeypatch):
    def hang(*args: Any, **kwargs: Any) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", kwargs["timeout"])

    nvidia(False, plugin=False)
    monkeypatch.setattr(subprocess, "run", hang)
    assert not machine._nvidia()


def test_jax_that_cannot_be_imported_is_missing(shadow, monkeypatch):
    shadow("jax", "raise ImportError('libcudart is gone')")
    level, found, advice = machine.devices()
    assert found == "does not compute: ImportError: libcudart is gone"
    assert re.fullmatch(
        r"Run pip install --force-reinstall 'jax<.*,>=.*'\.", advised((level, found, advice), "missing")
    )
    monkeypatch.setenv("JAX_PLATFORMS", "rocm")
    assert advised(machine.devices(), "missing").startswith("Unset JAX_PLATFORMS=rocm, or run pip")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert fine(machine.cores()) == "8 cores"
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3})
    assert fine(machine.cores()) == "2 cores of 8"
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert "two cores" in advised(machine.cores(), "note") and machine.cores()[1] == "1 core of 8"
    monkeypatch.delattr(os, "sched_getaffinity")
    assert fine(machine.cores()) == "8 cores"


def test_memory(monkeypatch, tmp_path):
    told, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(machine, "MEMINFO", told)
    monkeypatch.setattr(machine, "CGROUP", limit)
    assert machine.memory() == ("note", "this system does not say how much", None)
    told.write_text(f"MemTotal:  {8 * 2**20} kB\nMemFree:  12 kB\nMemAvailable:   {3 * 2**20} kB\nHugePages: 0\n")
    assert fine(machine.memory()) == "3.0 GiB free of 8.0 GiB"
    limit.write_text(f"{99 * 2**30}\n")
    assert fine(machine.memory()) == "3.0 GiB free of 8.0 GiB"
    limit.write_text("max\n")
    assert fine(machine.memory()) == "3.0 GiB free of 8.0 GiB"
    limit.write_text(f"{2**30}\n")
    assert machine.memory()[1] == "1.0 GiB free of 1.0 GiB"
    assert "Close other programs" in advised(machine.memory(), "missing")


# Environments.


def test_robots_without_mujoco(shadow, monkeypatch):
    # as the interpreter starts, so that it is missing for every import
    shadow("sitecustomize", "import sys; sys.modules['mujoco'] = None")
    names = ["capax/HopperVelocity-v0", "capax/AntVelocity-v0"]
    verdict = machine.tasks(machine.ROBOTS, names)
    assert verdict[1].startswith("cannot be played: Hopper-v5 needs MuJoCo")
    assert re.fullmatch(r"Run pip install --force-reinstall 'mujoco<.*,>=.*'\.", advised(verdict, "missing"))
    monkeypatch.setenv("MUJOCO_GL", "odd")
    assert advised(machine.tasks(machine.ROBOTS, names), "missing").startswith("Unset MUJOCO_GL=odd, or run pip")
    assert fine(machine.tasks("integrator", ["capax/Integrator-v0"])) == "Integrator-v0"


def test_mujoco_that_ends_the_process_is_a_finding(shadow):
    shadow("mujoco", f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})")
    verdict = machine.tasks(machine.ROBOTS, ["capax/HopperVelocity-v0"])
    assert verdict[1] == "cannot be played: the process was stopped (Killed)"
    advised(verdict, "missing")


def test_other_tasks_that_fail_name_gymnasium(answers, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    answers({"capax/B-v0": "it is broken"})
    verdict = machine.tasks("toys", ["capax/A-v0", "capax/B-v0"])
    assert verdict[1] == "B-v0 cannot be played: it is broken"
    assert advised(verdict, "missing").startswith("Run pip install --force-reinstall 'gymnasium<")


def test_box2d_is_optional(answers, monkeypatch):
    absent(monkeypatch, "Box2D")
    answers({"BipedalWalker-v3": "Box2D is not installed, you can install it"})
    assert "pip install 'gymnasium[box2d]'" in advised(machine.box2d(), "note")
    assert machine.box2d()[1] == "not installed"
    monkeypatch.setitem(sys.modules, "Box2D", json)  # some module that is there
    assert machine.box2d()[1].startswith("Box2D is not installed, you")
    answers(apart.Failed("the process was stopped (Killed)"))
    assert "'gymnasium[box2d]'" in advised(machine.box2d(), "note")
    answers({})
    assert "BipedalWalker" in fine(machine.box2d())


def test_playing_tells_why_not():
    assert machine.play("capax/Integrator-v0") == {}
    failed = machine.play("capax/NoSuch-v0", "capax/Integrator-v0")
    assert list(failed) == ["capax/NoSuch-v0"] and "NoSuch" in failed["capax/NoSuch-v0"]


# Pictures.


def test_mujoco_draws_here_or_cannot():
    assert re.match(r"MuJoCo (draws through|cannot draw) ", machine.drawing()[1])


def test_drawing_that_works(answers):
    answers("EGL")
    assert fine(machine.drawing()) == "MuJoCo draws through EGL"


def test_drawing_without_a_library(shadow):
    # MuJoCo itself is there, and whoever wants a context from it fails
    shadow("mujoco", "")
    level, found, advice = machine.drawing()
    assert found == "MuJoCo cannot draw without a display on this machine"
    assert "libegl1" in advised((level, found, advice), "missing")


def test_drawing_that_crashes_or_hangs(shadow, monkeypatch):
    shadow("mujoco", f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("DISPLAY", ":0")  # no choice of backends: the process itself imports it
    assert "libegl1" in advised(machine.drawing(), "missing")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setattr(apart, "PATIENCE", 1.0)
    shadow("mujoco", "import time; time.sleep(60)")
    assert machine.drawing()[1] == "no answer within 1 s"
    assert "libegl1" in advised(machine.drawing(), "missing")


def test_a_display_that_does_not_answer_is_blamed(answers, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":99")
    asked = []

    def draws_without(function: Any, without: list[str]) -> Any:
        asked.append(without)
        return "EGL" if "DISPLAY" in without else apart.Failed("FatalError: no context")

    answers(draws_without)
    verdict = machine.drawing()
    assert verdict[1] == "MuJoCo cannot draw with DISPLAY=:99"
    assert advised(verdict, "missing") == "Unset DISPLAY: MuJoCo then draws through EGL."
    assert asked == [(), ["DISPLAY"]]


def test_a_variable_is_not_blamed_where_nothing_draws(answers, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    answers(lambda function, without: apart.Failed(f"with{'out' * bool(without)} it: {video.INSTALL}."))
    assert machine.drawing()[1] == "without it"
    assert advised(machine.drawing(), "missing").startswith("Install a library")


def test_missing_mujoco_is_what_drawing_lacks(monkeypatch):
    absent(monkeypatch, "mujoco")
    assert "pip install 'mujoco<" in advised(machine.drawing(), "missing")


def test_videos(monkeypatch, tmp_path):
    assert "H.264" in fine(machine.videos())
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "none"))
    assert advised(machine.videos(), "missing").startswith("Unset IMAGEIO_FFMPEG_EXE, or run pip install")
    monkeypatch.delenv("IMAGEIO_FFMPEG_EXE")
    monkeypatch.setattr(apart, "ask", lambda function: (_ for _ in ()).throw(apart.Failed("No ffmpeg exe")))
    assert machine.videos()[1] == "cannot be written: No ffmpeg exe"
    assert "'imageio-ffmpeg<" in advised(machine.videos(), "missing")


# The folder.


@pytest.mark.parametrize(("free", "enough"), [(5 * 2**30, True), (5 * 2**30 - 1, False), (0, False)])
def test_disk(monkeypatch, tmp_path, free, enough):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free) if folder == tmp_path else None)
    if enough:
        assert fine(machine.disk(tmp_path)) == "5.0 GiB free"
    else:
        assert "--out" in advised(machine.disk(tmp_path), "missing")


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    assert fine(machine.writing(tmp_path)) == f"{tmp_path} can be written and locked"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    verdict = machine.writing(tmp_path / "file")
    assert verdict[1] == f"{tmp_path / 'file'} cannot be written (Not a directory)"
    assert "--out" in advised(verdict, "missing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o555)
    assert "cannot be written (Permission denied)" in machine.writing(tmp_path)[1]


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(file: Any, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "not locked (No locks available)" in machine.writing(tmp_path)[1]
    assert "local disk" in advised(machine.writing(tmp_path), "missing")
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)  # as on a file system that pretends
    assert "holds nobody off" in machine.writing(tmp_path)[1]
    assert "local disk" in advised(machine.writing(tmp_path), "missing")
