"""What does a checkpoint cost? Time and memory with 200,000 images in the buffer, and the share of a small training run.

python benchmarks/checkpoint.py [--images 200000] [--parameters 5000000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import capax
from capax.buffer import Buffer
from capax.loop import Progress
from capax.runs import checkpoint, tree
from capax.runs.checkpoint import Checkpoints
from capax.types import Episode

EPISODE = 1000
"""Images between two checkpoints."""
FASTEST = 30 * 60.0
"""Seconds in which a run over 200,000 frames is meant to be done on the fastest machine; all others take longer."""
MIB = 1 << 20


class ImageState(NamedTuple):
    """What an agent that sees images remembers: parameters, two moments of each, and the frames."""

    parameters: Any
    moments: Any
    buffer: Buffer


tree.CLASSES["ImageState"] = ImageState


def resident() -> float:
    """Peak memory since `forget_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def seen(frames: np.ndarray, count: int) -> Buffer:
    """The first `count` frames, as a buffer; a sequence needs no second copy of them."""
    none, number = np.zeros((count, 0), np.float32), np.zeros(count, np.float32)
    return Buffer(frames[:count], np.zeros((count, 3), np.float32), number, number, none, number, added=count)


def images(folder: Path, count: int, parameters: int) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (count, 64, 64, 3), np.uint8)
    weights = np.random.default_rng(1).normal(size=parameters).astype(np.float32)
    moments = (weights.copy(), weights.copy())
    checkpoints, took = Checkpoints(folder), []
    config = {"steps": count}
    forget_peak()
    before = resident()
    for done in range(EPISODE, count + 1, EPISODE):
        last = frames[done - EPISODE : done]
        one = np.zeros(EPISODE, np.float32)
        fresh = Episode(last, np.zeros((EPISODE, 3)), one, one, last[:0], 0.0, 0.0, {}, one)
        state = ImageState(weights, moments, seen(frames, done - EPISODE))  # the last episode is yet to be learned from
        began = time.perf_counter()
        checkpoints.save(Progress(done // EPISODE, done, state, (fresh,)), {"episode": done // EPISODE}, config)
        took.append(time.perf_counter() - began)
    peak = resident() - before
    held = (frames.nbytes + 3 * weights.nbytes) / MIB
    disk = sum(path.stat().st_size for path in (folder / "checkpoints").iterdir()) / MIB
    total = sum(took)
    print(f"{count} images and {parameters} parameters: {held:.0f} MiB in memory, {disk:.0f} MiB on disk")
    tenth, ms = len(took) // 10, [1e3 * seconds for seconds in took]
    print(
        f"  a checkpoint every {EPISODE} images: median {statistics.median(ms):.0f} ms, slowest {max(ms):.0f} ms; "
        f"first tenth {statistics.median(ms[:tenth]):.0f} ms, last tenth {statistics.median(ms[-tenth:]):.0f} ms"
    )
    share = total / (FASTEST * count / 200_000)
    print(
        f"  all {len(took)}: {total:.1f} s, {100 * share:.1f} % of a training in {FASTEST * count / 200_000 / 60:.0f} minutes"
    )
    print(f"  memory on top while saving: {peak:.0f} MiB ({100 * peak / held:.1f} %)")
    like = ImageState(weights, moments, seen(frames, 0))
    del frames, state, last, fresh
    forget_peak()
    before, began = resident(), time.perf_counter()
    saved, _ = Checkpoints(folder).newest(config, like)
    assert saved is not None and saved.progress.state.buffer.size == count - EPISODE
    print(
        f"  loading: {time.perf_counter() - began:.1f} s, {resident() - before:.0f} MiB at its peak for "
        f"{saved.progress.state.buffer.obs.nbytes / MIB + 3 * weights.nbytes / MIB:.0f} MiB"
    )


def training(folder: Path) -> None:
    spent, real = [0.0], Checkpoints.save

    def timed(*arguments: Any) -> None:
        began = time.perf_counter()
        real(*arguments)
        spent[0] += time.perf_counter() - began

    checkpoint.Checkpoints.save = timed  # type: ignore[method-assign]
    try:
        began = time.perf_counter()
        run = capax.train("capax/PendulumSpeed-v0", steps=2000, preset="fast", out=folder / "run")
        took = time.perf_counter() - began
    finally:
        checkpoint.Checkpoints.save = real  # type: ignore[method-assign]
    print(
        f"capax/PendulumSpeed-v0, preset fast, {len(run.episodes)} episodes: {spent[0]:.2f} s of {took:.1f} s in checkpoints "
        f"({100 * spent[0] / took:.1f} %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--parameters", type=int, default=5_000_000)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write; a temporary folder if it is not given"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        os.sync()
        images(folder, options.images, options.parameters)
        training(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
