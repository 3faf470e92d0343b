"""The checks of `capax doctor`: devices, cores and memory, environments, pictures, and the folder for runs."""

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
from support.doctor_fixtures import advice_of, description_of, hide_modules
from support.doctor_fixtures import answers as answers
from support.doctor_fixtures import bare as bare

from capax.cli import machine
from capax.envs import video
from capax.runtime import isolated

CPU, GPU = ["0.10.2", {}], ["0.10.2", {"NVIDIA H200": 2}]


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a replacement before a real module, for other processes."""
    folder = tmp_path / "shadows"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return lambda name, code: (folder / f"{name}.py").write_text(code) and None


# What computes.


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes the machine have an NVIDIA GPU or not, and JAX's plugin for it or not."""

    def install(gpu: bool, *, plugin: bool) -> None:
        monkeypatch.setattr(machine, "NVIDIA", tmp_path if gpu else tmp_path / "none")
        monkeypatch.setattr(machine, "PLUGINS", ("json",) if plugin else ("no_such_module",))
        monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi

    return install


def test_a_cpu_is_no_accelerator(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert isolated.call(machine.compute) == [metadata.version("jax"), {}]


def test_a_gpu_that_is_used_is_shown(answers):
    answers(GPU)
    assert description_of(machine.devices()) == "0.10.2 on 2 × NVIDIA H200"


def test_without_a_gpu_the_fast_preset_is_named(answers, nvidia):
    answers(CPU)
    nvidia(False, plugin=False)
    assert "preset fast" in advice_of(machine.devices(), "note")


def test_a_gpu_that_jax_does_not_see(answers, nvidia, monkeypatch):
    answers(CPU)
    nvidia(True, plugin=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "pip install 'capax[gpu]'" in advice_of(machine.devices(), "missing")
    nvidia(True, plugin=True)
    assert "Unset CUDA_VISIBLE_DEVICES=0" in advice_of(machine.devices(), "note")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "driver" in advice_of(machine.devices(), "missing")


@pytest.mark.parametrize(("code", "has_gpu"), [
    ("echo 'GPU 0: NVIDIA H200'", True), ("echo 'No devices were found'", False), ("echo GPU; exit 9", False)
])  # fmt: skip
def test_nvidia_smi_reports_a_gpu_too(nvidia, tmp_path, code, has_gpu):
    nvidia(False, plugin=False)
    assert not machine._nvidia()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{code}\n")
    tool.chmod(0o755)
    assert machine._nvidia() == has_gpu


def test_nvidia_smi_that_hangs_reports_none(nvidia, monkeypatch):
    def hang(*args: Any, **kwargs: Any) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", kwargs["timeout"])

    nvidia(False, plugin=False)
    monkeypatch.setattr(subprocess, "run", hang)
    assert not machine._nvidia()


def test_jax_that_cannot_be_imported_is_missing(shadow, monkeypatch):
    shadow("jax", "raise ImportError('libcudart is gone')")
    level, description, advice = machine.devices()
    assert description == "does not compute: ImportError: libcudart is gone"
    assert re.fullmatch(
        r"Run pip install --force-reinstall 'jax<.*,>=.*'\.", advice_of((level, description, advice), "missing")
    )
    monkeypatch.setenv("JAX_PLATFORMS", "rocm")
    assert advice_of(machine.devices(), "missing").startswith("Unset JAX_PLATFORMS=rocm, or run pip")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert description_of(machine.cores()) == "8 cores"
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3})
    assert description_of(machine.cores()) == "2 cores of 8"
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert "two cores" in advice_of(machine.cores(), "note") and machine.cores()[1] == "1 core of 8"
    monkeypatch.delattr(os, "sched_getaffinity")
    assert description_of(machine.cores()) == "8 cores"


def test_memory(monkeypatch, tmp_path):
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(machine, "MEMINFO", meminfo)
    monkeypatch.setattr(machine, "CGROUP", limit)
    assert machine.memory() == ("note", "this system does not say how much", None)
    meminfo.write_text(f"MemTotal:  {8 * 2**20} kB\nMemFree:  12 kB\nMemAvailable:   {3 * 2**20} kB\nHugePages: 0\n")
    assert description_of(machine.memory()) == "3.0 GiB free of 8.0 GiB"
    limit.write_text(f"{99 * 2**30}\n")
    assert description_of(machine.memory()) == "3.0 GiB free of 8.0 GiB"
    limit.write_text("max\n")
    assert description_of(machine.memory()) == "3.0 GiB free of 8.0 GiB"
    limit.write_text(f"{2**30}\n")
    assert machine.memory()[1] == "1.0 GiB free of 1.0 GiB"
    assert "Close other programs" in advice_of(machine.memory(), "missing")


# Environments.


def test_robots_without_mujoco(shadow, monkeypatch):
    # from the start of the interpreter, so that every import misses it
    shadow("sitecustomize", "import sys; sys.modules['mujoco'] = None")
    names = ["capax/HopperVelocity-v0", "capax/AntVelocity-v0"]
    verdict = machine.tasks(machine.ROBOTS, names)
    assert verdict[1].startswith("cannot be played: Hopper-v5 needs MuJoCo")
    assert re.fullmatch(r"Run pip install --force-reinstall 'mujoco<.*,>=.*'\.", advice_of(verdict, "missing"))
    monkeypatch.setenv("MUJOCO_GL", "odd")
    assert advice_of(machine.tasks(machine.ROBOTS, names), "missing").startswith("Unset MUJOCO_GL=odd, or run pip")
    assert description_of(machine.tasks("integrator", ["capax/Integrator-v0"])) == "Integrator-v0"


def test_mujoco_that_ends_the_process_is_a_finding(shadow):
    shadow("mujoco", f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})")
    verdict = machine.tasks(machine.ROBOTS, ["capax/HopperVelocity-v0"])
    assert verdict[1] == "cannot be played: the process was stopped (Killed)"
    advice_of(verdict, "missing")


def test_other_tasks_that_fail_name_gymnasium(answers, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    answers({"capax/B-v0": "it is broken"})
    verdict = machine.tasks("toys", ["capax/A-v0", "capax/B-v0"])
    assert verdict[1] == "B-v0 cannot be played: it is broken"
    assert advice_of(verdict, "missing").startswith("Run pip install --force-reinstall 'gymnasium<")


def test_box2d_is_optional(answers, monkeypatch):
    hide_modules(monkeypatch, "Box2D")
    answers({"BipedalWalker-v3": "Box2D is not installed, you can install it"})
    assert "pip install 'gymnasium[box2d]'" in advice_of(machine.box2d(), "note")
    assert machine.box2d()[1] == "not installed"
    monkeypatch.setitem(sys.modules, "Box2D", json)  # any module that exists
    assert machine.box2d()[1].startswith("Box2D is not installed, you")
    answers(isolated.CallFailed("the process was stopped (Killed)"))
    assert "'gymnasium[box2d]'" in advice_of(machine.box2d(), "note")
    answers({})
    assert "BipedalWalker" in description_of(machine.box2d())


def test_playing_returns_the_reasons_of_failures():
    assert machine.play("capax/Integrator-v0") == {}
    failed = machine.play("capax/NoSuch-v0", "capax/Integrator-v0")
    assert list(failed) == ["capax/NoSuch-v0"] and "NoSuch" in failed["capax/NoSuch-v0"]


# Pictures.


def test_mujoco_draws_here_or_cannot():
    assert re.match(r"MuJoCo (draws through|cannot draw) ", machine.drawing()[1])


def test_drawing_that_works(answers):
    answers("EGL")
    assert description_of(machine.drawing()) == "MuJoCo draws through EGL"


def test_drawing_without_a_library(shadow):
    # MuJoCo can be imported, but it gives no context
    shadow("mujoco", "")
    level, description, advice = machine.drawing()
    assert description == "MuJoCo cannot draw without a display on this machine"
    assert "libegl1" in advice_of((level, description, advice), "missing")


def test_drawing_that_crashes_or_hangs(shadow, monkeypatch):
    shadow("mujoco", f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("DISPLAY", ":0")  # then no backend is chosen, and the process itself imports MuJoCo
    assert "libegl1" in advice_of(machine.drawing(), "missing")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setattr(isolated, "ANSWER_TIMEOUT_S", 1.0)
    shadow("mujoco", "import time; time.sleep(60)")
    assert machine.drawing()[1] == "no answer within 1 s"
    assert "libegl1" in advice_of(machine.drawing(), "missing")


def test_a_display_that_does_not_answer_is_named_as_the_cause(answers, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":99")
    removed = []

    def draws_without_display(function: Any, without: list[str]) -> Any:
        removed.append(without)
        return "EGL" if "DISPLAY" in without else isolated.CallFailed("FatalError: no context")

    answers(draws_without_display)
    verdict = machine.drawing()
    assert verdict[1] == "MuJoCo cannot draw with DISPLAY=:99"
    assert advice_of(verdict, "missing") == "Unset DISPLAY: MuJoCo then draws through EGL."
    assert removed == [(), ["DISPLAY"]]


def test_a_variable_is_not_named_where_nothing_draws(answers, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    answers(lambda function, without: isolated.CallFailed(f"with{'out' * bool(without)} it: {video.INSTALL}."))
    assert machine.drawing()[1] == "without it"
    assert advice_of(machine.drawing(), "missing").startswith("Install a library")


def test_drawing_needs_mujoco(monkeypatch):
    hide_modules(monkeypatch, "mujoco")
    assert "pip install 'mujoco<" in advice_of(machine.drawing(), "missing")


def test_videos(monkeypatch, tmp_path):
    assert "H.264" in description_of(machine.videos())
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "none"))
    assert advice_of(machine.videos(), "missing").startswith("Unset IMAGEIO_FFMPEG_EXE, or run pip install")
    monkeypatch.delenv("IMAGEIO_FFMPEG_EXE")
    monkeypatch.setattr(isolated, "call", lambda function: (_ for _ in ()).throw(isolated.CallFailed("No ffmpeg exe")))
    assert machine.videos()[1] == "cannot be written: No ffmpeg exe"
    assert "'imageio-ffmpeg<" in advice_of(machine.videos(), "missing")


# The folder.


@pytest.mark.parametrize(("free", "enough"), [(5 * 2**30, True), (5 * 2**30 - 1, False), (0, False)])
def test_disk(monkeypatch, tmp_path, free, enough):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free) if folder == tmp_path else None)
    if enough:
        assert description_of(machine.disk(tmp_path)) == "5.0 GiB free"
    else:
        assert "--out" in advice_of(machine.disk(tmp_path), "missing")


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    assert description_of(machine.writing(tmp_path)) == f"{tmp_path} can be written and locked"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    verdict = machine.writing(tmp_path / "file")
    assert verdict[1] == f"{tmp_path / 'file'} cannot be written (Not a directory)"
    assert "--out" in advice_of(verdict, "missing")


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
    assert "local disk" in advice_of(machine.writing(tmp_path), "missing")
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)  # a file system whose locks do nothing
    assert "keeps no other process out" in machine.writing(tmp_path)[1]
    assert "local disk" in advice_of(machine.writing(tmp_path), "missing")
