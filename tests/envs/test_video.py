"""Videos are complete, and an error says what is missing where a task cannot be drawn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from support.foreign_files import ran, record

from capax.core.errors import InputError
from capax.envs import video

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
COLOURS = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]


def plain_frames(height: int, width: int) -> list[np.ndarray]:
    """Three frames of one colour each."""
    return [np.full((height, width, 3), colour, np.uint8) for colour in COLOURS]


def decode(path: Path) -> tuple[str, np.ndarray]:
    """ffmpeg's description of a video, and its frames [T, height, width, 3]."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True)
    about = next(line for line in decoded.stderr.decode().splitlines() if "Video: h264" in line)
    width, height = map(int, re.findall(r" (\d+)x(\d+)[ ,]", about)[0])
    return about, np.frombuffer(decoded.stdout, np.uint8).reshape(-1, height, width, 3)


@pytest.fixture
def headless_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this a Linux machine without a display, where MuJoCo can draw with these backends only."""

    def set_up(*backends: str, **variables: str) -> None:
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(video, "_can_draw", lambda backend: backend in backends)
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        monkeypatch.setattr(os, "environ", environment | variables)

    return set_up


# The file.


@pytest.mark.parametrize("size", [(48, 64), (47, 63)])
def test_frames_come_back(tmp_path, size):
    video.write(tmp_path / "run.mp4", iter(plain_frames(*size)), 3)
    about, frames = decode(tmp_path / "run.mp4")
    assert "yuv420p" in about and " 3 fps" in about
    assert frames.shape == (3, 48, 64, 3)  # odd sizes get one more line
    inside = frames[:, : size[0] - 3, : size[1] - 3].astype(int)
    # the conversion to YUV and back costs a few of 256 levels
    assert np.abs(inside - np.array(COLOURS)[:, None, None]).max() < 16


def test_picture_is_neither_rotated_nor_mirrored(tmp_path):
    frame = np.zeros((32, 48, 3), np.uint8)
    frame[16:, :24] = 255  # lower left, and upper left in the view that a renderer which flips returns
    video.write(tmp_path / "run.mp4", [frame[::-1]] * 2, 10)
    _, frames = decode(tmp_path / "run.mp4")
    assert frames[0, 4:12, 4:20].min() > 200 and frames[0, 20:].max() < 50 and frames[0, :, 28:].max() < 50


def test_many_frames_are_streamed_and_counted(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    video.write(tmp_path / "run.mp4", (np.roll(noise, i, axis=0) for i in range(200)), 25)
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "run.mp4")) == (200, 8.0)


def test_nothing_but_the_video_is_left(tmp_path):
    (tmp_path / "run.mp4").write_text("an older one")
    video.write(tmp_path / "run.mp4", plain_frames(16, 16), 5)
    assert [path.name for path in tmp_path.iterdir()] == ["run.mp4"]
    assert decode(tmp_path / "run.mp4")[1].shape == (3, 16, 16, 3)


def test_names_that_look_like_options_or_addresses_are_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("-run.mp4", "a:b %d.mp4"):
        video.write(Path(name), plain_frames(16, 16), 5)
    assert sorted(os.listdir()) == ["-run.mp4", "a:b %d.mp4"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, InputError])
def test_a_task_that_fails_midway_leaves_the_older_video(tmp_path, error):
    def frames() -> Iterator[np.ndarray]:
        yield from plain_frames(16, 16)
        raise error

    (tmp_path / "run.mp4").write_text("an older one")
    with pytest.raises(error):
        video.write(tmp_path / "run.mp4", frames(), 5)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older one"]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"run\.mp4") as caught:
        video.write(tmp_path / "none" / "run.mp4", plain_frames(16, 16), 5)
    assert caught.value.filename == str(tmp_path / "none" / "run.mp4")
    assert "No such file" in caught.value.strerror


def test_an_encoder_that_dies_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    fake = tmp_path / "ffmpeg"
    fake.write_text('#!/bin/sh\nfor last; do :; done\necho half > "${last#file:}"\necho disk full >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(fake))
    large = np.zeros((512, 512, 3), np.uint8)  # more than a pipe holds
    with pytest.raises(OSError, match="disk full"):
        video.write(tmp_path / "run.mp4", [large] * 4, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]


# What is refused.


def test_no_frame_is_refused(tmp_path):
    with pytest.raises(InputError, match="no frame"):
        video.write(tmp_path / "run.mp4", [], 5)
    assert list(tmp_path.iterdir()) == []


def test_frames_of_two_sizes_are_refused(tmp_path):
    with pytest.raises(InputError, match="one size"):
        video.write(tmp_path / "run.mp4", [*plain_frames(16, 16), *plain_frames(16, 18)], 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_impossible_frame_rates_are_refused(tmp_path, fps):
    with pytest.raises(InputError, match="frames per second"):
        video.write(tmp_path / "run.mp4", plain_frames(16, 16), fps)


@pytest.mark.parametrize("rendered", [
    None,
    "ansi text",
    [np.zeros((4, 4, 3), np.uint8)],
    np.zeros((4, 4), np.uint8),
    np.zeros((4, 4, 4), np.uint8),
    np.zeros((4, 4, 3), np.float32),
    np.zeros((0, 4, 3), np.uint8),
    np.zeros((2, 4, 4, 3), np.uint8),
])  # fmt: skip
def test_a_value_that_is_not_a_picture_is_refused(tmp_path, rendered):
    with pytest.raises(InputError, match="render_mode='rgb_array'"):
        video.frame_of(lambda: rendered)
    with pytest.raises(InputError):
        video.write(tmp_path / "run.mp4", [*plain_frames(4, 4), rendered], 5)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_returned_unchanged():
    frame = plain_frames(4, 6)[0]
    np.testing.assert_array_equal(video.frame_of(lambda: frame), frame)


def test_a_picture_that_is_drawn_over_is_kept_as_it_was():
    canvas = np.zeros((2, 2, 3), np.uint8)
    frame = video.frame_of(lambda: canvas)
    canvas[:] = 9
    assert not frame.any()


def test_a_missing_package_is_named():
    def render() -> None:
        raise DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[classic-control]"`')

    with pytest.raises(InputError, match="pip install"):
        video.frame_of(render)


# Without a display.


@pytest.mark.parametrize(("works", "chosen"), [(["egl", "osmesa"], "egl"), (["egl"], "egl"), (["osmesa"], "osmesa")])
@pytest.mark.parametrize("variables", [{}, {"MUJOCO_GL": "", "DISPLAY": ""}])
def test_the_first_backend_that_works_is_chosen(headless_machine, works, chosen, variables):
    headless_machine(*works, **variables)
    video.headless(mujoco=True)
    assert os.environ["MUJOCO_GL"] == chosen and os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_where_none_works_the_packages_are_named(headless_machine):
    headless_machine()
    with pytest.raises(InputError, match=r"^MuJoCo cannot draw without a display.*libegl1.*libosmesa6\)\.$"):
        video.headless(mujoco=True)
    assert "MUJOCO_GL" not in os.environ


def test_where_none_works_other_tasks_can_still_be_drawn(headless_machine):
    headless_machine()
    video.headless(mujoco=False)
    assert os.environ["SDL_VIDEODRIVER"] == "dummy" and "MUJOCO_GL" not in os.environ


def test_a_display_is_used(headless_machine):
    headless_machine("egl", DISPLAY=":0")
    video.headless(mujoco=True)
    assert "MUJOCO_GL" not in os.environ and "SDL_VIDEODRIVER" not in os.environ


def test_elsewhere_than_on_linux_nothing_is_chosen(headless_machine, monkeypatch):
    headless_machine("egl")
    monkeypatch.setattr(sys, "platform", "darwin")
    video.headless(mujoco=True)
    assert "MUJOCO_GL" not in os.environ and "SDL_VIDEODRIVER" not in os.environ


def test_choices_of_the_user_stay(headless_machine):
    headless_machine("egl", "osmesa", MUJOCO_GL="osmesa", SDL_VIDEODRIVER="offscreen")
    video.headless(mujoco=True)
    assert os.environ["MUJOCO_GL"] == "osmesa" and os.environ["SDL_VIDEODRIVER"] == "offscreen"


@pytest.mark.parametrize("chosen", ["osmesa", "glfw", "off"])
def test_a_choice_that_cannot_work_is_refused(headless_machine, chosen):
    headless_machine("egl", MUJOCO_GL=chosen)
    with pytest.raises(InputError, match=f"MUJOCO_GL={chosen}"):
        video.headless(mujoco=True)


def test_variables_that_may_be_the_reason_are_named(headless_machine):
    headless_machine(PYOPENGL_PLATFORM="glx")
    with pytest.raises(InputError, match=r"PYOPENGL_PLATFORM=glx .* unset that, or install"):
        video.headless(mujoco=True)


def test_missing_mujoco_is_reported(headless_machine, monkeypatch):
    headless_machine("egl")
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"gymnasium\[mujoco\]"):
        video.headless(mujoco=True)


def test_a_backend_that_hangs_or_fails_cannot_draw(monkeypatch):
    def hang(*args: Any, **kwargs: Any) -> None:
        raise subprocess.TimeoutExpired("python", kwargs["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert not video._can_draw.__wrapped__("egl")
    for code in (0, 1, -11):
        monkeypatch.setattr(subprocess, "run", lambda *args, code=code, **kwargs: SimpleNamespace(returncode=code))
        assert video._can_draw.__wrapped__("egl") == (code == 0)


def test_the_test_of_a_backend_runs_nothing_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "mujoco.py").write_text(record(tmp_path, "mujoco"))
    video._can_draw.__wrapped__("no_such_backend")
    assert not ran(tmp_path)


DRAW = """
import os, sys
from capax.envs import video
from capax.core.errors import InputError
os.environ.pop("DISPLAY", None)
try:
    video.headless(mujoco=True)
except InputError as error:
    sys.exit(str(error))
import gymnasium
env = gymnasium.make("InvertedPendulum-v5", render_mode="rgb_array", width=96, height=64)
env.reset(seed=0)
frame = video.frame_of(env.render)
env.close()
print(*frame.shape, len(set(map(tuple, frame.reshape(-1, 3)))) > 10)
"""


def test_mujoco_draws_here_or_says_why_not():
    pytest.importorskip("mujoco")
    pytest.importorskip("imageio")  # Gymnasium's renderer imports it
    done = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True)
    if done.returncode:
        assert done.stderr.startswith("MuJoCo cannot draw") and done.stderr.count("\n") == 1
    else:
        assert done.stdout == "64 96 3 True\n"
