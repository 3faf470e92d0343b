"""Videos of a task's pictures, also on a machine without a display."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from capax.core.errors import InputError
from capax.runs.folder import Folder

Frame = UInt8[np.ndarray, "height width 3"]
BACKENDS = ("egl", "osmesa")
PROBE = """
import importlib, sys, mujoco
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
context.free()
"""
INSTALL = "install a library to draw with (Debian: libegl1 and libgl1-mesa-dri, or libosmesa6)"


def write(path: Path, frames: Iterable[Any], fps: float) -> None:
    """Write frames as an H.264 mp4 that appears whole or not at all. Odd sizes get a black line at the end."""
    if not (math.isfinite(fps) and fps > 0.0):
        raise InputError(f"a video cannot have {fps} frames per second: choose a positive number.")
    pictures = (picture(frame) for frame in frames)
    first = next(pictures, None)
    if first is None:
        raise InputError(f"there is no frame for {path}: run the task for at least one step.")
    try:
        folder = Folder(path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    with folder, tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as own:
        folder.check_plain([path.name])
        temporary = Path(own, path.name)  # ffmpeg would follow a link that waits under a name that can be guessed
        complaint = _encode(temporary, first.shape, chain((first,), pictures), fps)
        if complaint:
            raise OSError(errno.EIO, complaint, str(path))
        os.replace(temporary, path)


def frame_of(render: Callable[[], Any]) -> Frame:
    """The picture that an environment's `render` returns."""
    from gymnasium.error import DependencyNotInstalled

    try:
        return picture(render())
    except DependencyNotInstalled as error:
        raise InputError(f"the task cannot be drawn: {error}.") from None


def picture(rendered: Any) -> Frame:
    """Check that a rendered value is a picture: height × width × 3 numbers from 0 to 255, in uint8."""
    if rendered is None:
        raise InputError("the task draws nothing: make its environment with render_mode='rgb_array'.")
    array = rendered if isinstance(rendered, np.ndarray) else None
    if array is None or array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        kind = type(rendered).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
        raise InputError(
            f"the task draws {kind} where a picture of height × width × 3 in uint8 is needed: make its environment"
            " with render_mode='rgb_array'."
        )
    return array.copy()  # some environments draw into the same array again


def headless(*, mujoco: bool) -> None:
    """Choose how to draw on Linux without a display. Call it before a task is made and before `mujoco` is imported.

    If `MUJOCO_GL` is unset, Gymnasium uses GLFW, which fails without a display, but only at the first picture. A
    library that loads may still find no driver. Therefore each backend is tried in a process of its own.
    """
    if not sys.platform.startswith("linux") or os.environ.get("DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not mujoco:
        return
    if importlib.util.find_spec("mujoco") is None:
        raise InputError("this task is drawn by MuJoCo, which is missing: pip install 'gymnasium[mujoco]'.")
    chosen = os.environ.get("MUJOCO_GL")
    for backend in (chosen,) if chosen else BACKENDS:
        if _can_draw(backend):
            os.environ["MUJOCO_GL"] = backend
            return
    variables = [f"{name}={os.environ[name]}" for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM") if os.environ.get(name)]
    condition, unset = (f" and with {' and '.join(variables)}", "unset that, or ") if variables else ("", "")
    raise InputError(f"MuJoCo cannot draw without a display{condition} on this machine: {unset}{INSTALL}.")


@cache
def _can_draw(backend: str) -> bool:
    """Whether MuJoCo can draw with this backend. A new process tries it, since the import can crash."""
    environment = os.environ | {"MUJOCO_GL": backend}
    quiet = subprocess.DEVNULL
    try:
        probe = subprocess.run(
            [sys.executable, "-P", "-c", PROBE, backend],
            env=environment,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0


def _encode(path: Path, shape: tuple[int, ...], frames: Iterator[Frame], fps: float) -> str:
    """Encode frames with ffmpeg. Returns its complaint, or an empty text."""
    from imageio_ffmpeg import get_ffmpeg_exe

    height, width, _ = shape
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:.6g}", "-i", "-"]
    # players need 4:2:0, which halves both sides, so they must be even
    target = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p"]
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *source, *target, "-movflags", "+faststart", "-f", "mp4"]
    with tempfile.TemporaryFile() as messages:
        ffmpeg = subprocess.Popen(
            [*command, f"file:{path}"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages,
            start_new_session=True,  # Ctrl-C must not end it
        )  # fmt: skip
        assert ffmpeg.stdin is not None
        try:
            with suppress(BrokenPipeError):  # it ended early: its message and exit code say why
                for frame in frames:
                    if frame.shape != shape:
                        raise InputError(f"a video's frames must be of one size, not {shape} and {frame.shape}.")
                    ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
        finally:
            with suppress(BrokenPipeError):
                ffmpeg.stdin.close()
            ffmpeg.wait()
        if ffmpeg.returncode == 0:
            return ""
        messages.seek(0)
        lines = messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ffmpeg ended with {ffmpeg.returncode}"
