"""The checks of `capax doctor`: each looks at one thing of this machine and returns a verdict.

Whatever may crash or hang runs in a separate process (`runtime.isolated`).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np

from capax.core.version import __version__
from capax.runtime import isolated

Level = Literal["ok", "note", "missing"]
Verdict = tuple[Level, str, str | None]
"""Level, description, and advice: what to do about it, or None."""
GIB = 2**30
MIN_DISK_BYTES, MIN_MEMORY_BYTES = 5 * GIB, 2 * GIB
MEMINFO, CGROUP, NVIDIA = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max"), Path("/dev/nvidia0")
ROBOTS = "MuJoCo robots"
FAMILIES = {"velocity": ROBOTS}
"""Name of the tasks of a module of `capax.envs`, where it is not the module's name."""
DRAWING_VARIABLES = ("DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
"""Variables that decide how MuJoCo draws."""
DEVICE_VARIABLES = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
"""Variables that can hide a GPU from JAX."""
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
"""Packages that let JAX use an NVIDIA GPU."""


def checks(folder: Path) -> dict[str, Callable[[], Verdict]]:
    """Every check, by the name of the thing that it looks at; `folder` is a place for runs."""
    families: dict[str, list[str]] = {}
    for name, spec in gym.registry.items():
        if name.startswith("capax/"):
            module = str(spec.entry_point).partition(":")[0].rpartition(".")[2]
            families.setdefault(FAMILIES.get(module, module), []).append(name)
    return {
        "Python": python,
        "capax": packages,
        "JAX": devices,
        "processor": cores,
        "memory": memory,
        **{family: partial(tasks, family, names) for family, names in families.items()},
        "Box2D": box2d,
        "drawing": drawing,
        "videos": videos,
        "TensorBoard": tensorboard,
        "disk": partial(disk, folder),
        "folder": partial(writing, folder),
    }


# Python, and what is installed.


def python() -> Verdict:
    """Whether capax supports this Python."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    with suppress(metadata.PackageNotFoundError):
        wanted = metadata.metadata("capax")["Requires-Python"]
        if wanted and not _within(platform.python_version(), wanted):
            return "missing", f"{text}, which capax does not support", f"Use a Python {_range(wanted)}."
    return "ok", text, None


def packages() -> Verdict:
    """Whether the packages that capax requires are installed, in versions that it supports."""
    try:
        requirements = metadata.requires("capax") or []
    except metadata.PackageNotFoundError:
        return (
            "note",
            f"{__version__}, not installed",
            "Run pip install . in its folder: that installs its packages too.",
        )
    needed = [requirement for requirement in requirements if "extra ==" not in requirement]
    wrong = {requirement: problem for requirement in needed if (problem := _problem(requirement))}
    if wrong:
        install = " ".join(f"'{requirement}'" for requirement in wrong)
        return "missing", f"{__version__}, but {', '.join(wrong.values())}", f"Run pip install {install}."
    return "ok", f"{__version__}, and the {len(needed)} packages that it requires", None


def tensorboard() -> Verdict:
    """Whether the curves of runs are written, and can be shown in a browser."""
    missing = [name for name in ("tensorboardX", "tensorboard") if importlib.util.find_spec(name) is None]
    if missing:
        text = "not installed" if len(missing) == 2 else f"{missing[0]} is not installed"
        return "note", text, "Run pip install 'capax[tensorboard]' to see the curves of runs in a browser."
    return "ok", "installed", None


def _required(package: str) -> str:
    """The argument of pip for a package that capax requires."""
    with suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires("capax") or []:
            if re.fullmatch(rf"{package}[<>=!~][^;]*", requirement):
                return f"'{requirement}'"
    return package


def _problem(requirement: str) -> str | None:
    """The problem with a package that is required as `name<2,>=1`; None if there is none."""
    parts = re.fullmatch(r"([\w.-]+)(?:\[.*\])?([^;]*).*", requirement)
    assert parts is not None, requirement
    name, wanted = parts.groups()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return None if _within(version, wanted.strip()) else f"{name} is {version} and not {_range(wanted.strip())}"


def _within(version: str, wanted: str) -> bool:
    """Whether a version is within `<2,>=1`. Where `packaging` is missing, every version counts as within."""
    if importlib.util.find_spec("packaging") is None:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)


def _range(wanted: str) -> str:
    """`<2,>=1` with the lower end first."""
    return " and ".join(sorted(wanted.split(","), reverse=True))


# What computes.


def devices() -> Verdict:
    """Checks which device JAX computes on, and whether it overlooks a GPU."""
    hiding = " and ".join(f"{name}={os.environ[name]}" for name in DEVICE_VARIABLES if name in os.environ)
    try:
        version, kinds = isolated.call(compute)
    except isolated.CallFailed as error:
        unset = f"Unset {hiding}, or run" if hiding else "Run"
        return "missing", f"does not compute: {error}", f"{unset} pip install --force-reinstall {_required('jax')}."
    if kinds:
        return "ok", f"{version} on {' and '.join(f'{count} × {kind}' for kind, count in kinds.items())}", None
    if not _nvidia():
        advice = "Train with the preset fast, the default without a GPU; the paper's sizes need one."
        return "note", f"{version} on the CPU", advice
    text = f"{version} on the CPU, though there is an NVIDIA GPU"
    if not any(importlib.util.find_spec(plugin) for plugin in PLUGINS):
        return "missing", text, "Run pip install 'capax[gpu]'."
    if hiding:
        return "note", text, f"Unset {hiding} to let JAX see it."
    return "missing", text, "Update the NVIDIA driver; nvidia-smi says whether it works."


def compute() -> tuple[str, dict[str, int]]:
    """JAX's version and the number of accelerators of each kind, after a computation on the first device."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # another run may have the GPU's memory
    import jax

    jax.numpy.ones(8).sum().block_until_ready()
    return jax.__version__, Counter(device.device_kind for device in jax.devices() if device.platform != "cpu")


def cores() -> Verdict:
    """Counts the processor cores that may be used."""
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    text = f"{usable} core{'s' * (usable > 1)}{f' of {total}' if usable < total else ''}"
    if usable < 2:
        return "note", text, "Allow two cores if you can: the preset fast is meant for them."
    return "ok", text, None


def memory() -> Verdict:
    """Measures the memory that is free, within a container's limit."""
    try:
        sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", MEMINFO.read_text(), re.MULTILINE))
        total, free = (1024 * int(sizes[name]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError):
        return "note", "this system does not say how much", None
    with suppress(OSError, ValueError):  # no container, or `max`
        total = min(total, int(CGROUP.read_text()))
    free = min(total, free)
    text = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    if free < MIN_MEMORY_BYTES:
        return "missing", text, "Close other programs, or allow more: a run takes about 1 GiB."
    return "ok", text, None


def _nvidia() -> bool:
    """Whether an NVIDIA GPU seems to be there."""
    if NVIDIA.exists():
        return True
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and "GPU" in listing.stdout


# Environments.


def tasks(family: str, names: Sequence[str]) -> Verdict:
    """Whether capax's tasks of one family can be played."""
    short = {name: name.removeprefix("capax/") for name in names}
    try:
        failed = isolated.call(play, *names)
    except isolated.CallFailed as error:
        failed = dict.fromkeys(names, str(error))
    if not failed:
        return "ok", ", ".join(short.values()), None
    advice = f"Run pip install --force-reinstall {_required('mujoco' if family == ROBOTS else 'gymnasium')}."
    if family == ROBOTS and os.environ.get("MUJOCO_GL"):
        advice = f"Unset MUJOCO_GL={os.environ['MUJOCO_GL']}, or r{advice[1:]}"
    which = f"{', '.join(short[name] for name in failed)} " if len(failed) < len(names) else ""
    return "missing", f"{which}cannot be played: {next(iter(failed.values()))}", advice


def box2d() -> Verdict:
    """Whether Gymnasium's Box2D environments, which capax does not need, can be played."""
    try:
        failed = isolated.call(play, "BipedalWalker-v3")
    except isolated.CallFailed as error:
        return "note", f"does not work: {error}", "Run pip install --force-reinstall 'gymnasium[box2d]'."
    if failed:
        text = "not installed" if importlib.util.find_spec("Box2D") is None else failed["BipedalWalker-v3"]
        return "note", text, "For its tasks, run pip install swig and then pip install 'gymnasium[box2d]'."
    return "ok", "BipedalWalker, LunarLander, CarRacing", None


def play(*names: str) -> dict[str, str]:
    """Make these environments and step them once; returns the reason of each that fails."""
    failed = {}
    for name in names:
        try:
            env = gym.make(name, disable_env_checker=True)
            env.action_space.seed(0)
            env.reset(seed=0)
            env.step(env.action_space.sample())
            env.close()
        except Exception as error:
            failed[name] = str(error) or type(error).__name__
    return failed


# Pictures.


def drawing() -> Verdict:
    """Whether MuJoCo can draw, and if not, whether an environment variable is the cause."""
    from capax.envs.video import INSTALL

    if importlib.util.find_spec("mujoco") is None:
        return "missing", "MuJoCo is not installed", f"Run pip install {_required('mujoco')}."
    try:
        return "ok", f"MuJoCo draws through {isolated.call(draw)}", None
    except isolated.CallFailed as error:
        reason = str(error)
    variables = [name for name in DRAWING_VARIABLES if os.environ.get(name)]
    if variables:
        try:
            backend = isolated.call(draw, without=variables)
        except isolated.CallFailed as error:
            reason = str(error)
        else:
            values = " and ".join(f"{name}={os.environ[name]}" for name in variables)
            advice = f"Unset {' and '.join(variables)}: MuJoCo then draws through {backend}."
            return "missing", f"MuJoCo cannot draw with {values}", advice
    return "missing", reason.removesuffix(f": {INSTALL}."), f"{INSTALL[0].upper()}{INSTALL[1:]}."


def draw() -> str:
    """Draw one picture as for a video; returns the backend that drew it."""
    from capax.envs import video

    video.headless(mujoco=True)
    env = gym.make("capax/HopperVelocity-v0", render_mode="rgb_array", disable_env_checker=True)
    env.reset(seed=0)
    frame = video.frame_of(env.render)
    env.close()
    if frame.min() == frame.max():
        raise RuntimeError("MuJoCo's pictures are blank")
    return os.environ.get("MUJOCO_GL", "").upper() or "the display"


def videos() -> Verdict:
    """Whether videos can be written."""
    try:
        return "ok", f"ffmpeg {isolated.call(film)} writes H.264", None
    except isolated.CallFailed as error:
        unset = "Unset IMAGEIO_FFMPEG_EXE, or run" if os.environ.get("IMAGEIO_FFMPEG_EXE") else "Run"
        advice = f"{unset} pip install --force-reinstall {_required('imageio-ffmpeg')}, which brings ffmpeg."
        return "missing", f"cannot be written: {error}", advice


def film() -> str:
    """Write a video of two frames; returns the version of ffmpeg."""
    from imageio_ffmpeg import get_ffmpeg_version

    from capax.envs import video

    with tempfile.TemporaryDirectory() as folder:
        video.write(Path(folder) / "video.mp4", [np.zeros((16, 16, 3), np.uint8)] * 2, fps=10.0)
    return str(get_ffmpeg_version())


# The folder.


def disk(folder: Path) -> Verdict:
    """Measures the disk space that is free in the folder."""
    free = shutil.disk_usage(folder).free
    text = f"{free / GIB:.1f} GiB free"
    if free < MIN_DISK_BYTES:
        return "missing", text, "Free some, or name another disk with --out: 200,000 images take about 2.5 GiB."
    return "ok", text, None


def writing(folder: Path) -> Verdict:
    """Whether a file in the folder can be written, and locked as run folders are."""
    import fcntl  # not on every system

    try:
        probe = tempfile.NamedTemporaryFile(dir=folder, prefix=".capax-")  # noqa: SIM115  closed below
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror})"
        return "missing", text, "Go to a folder that can, or name one with --out."
    with probe, open(probe.name, "r+b") as other:
        advice = "Name a folder on a local disk with --out: run folders are locked with flock."
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return "missing", f"{folder} can be written, but not locked ({error.strerror})", advice
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "ok", f"{folder} can be written and locked", None
        return "missing", f"{folder} can be written, but a lock there keeps no other process out", advice
