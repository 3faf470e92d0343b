"""What does a checkpoint cost? Time and memory with 200,000 images in the buffer, and the share of a small training run.

python benchmarks/checkpoint.py [--images 200000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

import capax
from capax.agents.planet import Planet, PlanetSettings
from capax.conformal import Conformal
from capax.loop import Progress
from capax.runs import checkpoint
from capax.runs.checkpoint import Checkpoints
from capax.types import Episode, Spec

EPISODE = 1000
"""Images between two checkpoints."""
FASTEST = 30 * 60.0
"""Seconds in which a run over 200,000 frames is meant to be done on the fastest machine; all others take longer."""
MIB = 1 << 20


def resident() -> float:
    """Peak memory since `forget_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def images(folder: Path, count: int) -> None:
    """The image agent at the paper's sizes, with a state as it is after each of `count` / 1000 episodes."""
    agent = Planet(Spec(0.0, 0.99, False, 500, 2), Conformal(0.4), (64, 64, 3), 3, PlanetSettings())
    state = agent.init(jr.key(0))
    state = state._replace(good=state.model)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.model))
    rng, one = np.random.default_rng(0), np.zeros(EPISODE, np.float32)
    checkpoints, took, config = Checkpoints(folder), [], {"steps": count}
    episode, peak, held = None, 0.0, 0.0
    for done in range(EPISODE, count + 1, EPISODE):
        if episode is not None:
            state = state._replace(buffer=state.buffer.add(episode, count))
        frames = rng.integers(0, 255, (EPISODE + 1, 64, 64, 3), np.uint8)
        episode = Episode(frames[:-1], np.zeros((EPISODE, 3)), one, one, frames[1:], 0.0, 0.0, {}, one)
        forget_peak()
        before, began = resident(), time.perf_counter()
        checkpoints.save(Progress(done // EPISODE, done, state, (episode,)), {"episode": done // EPISODE}, config)
        took.append(time.perf_counter() - began)
        peak = max(peak, resident() - before)
    held = sum(seen.image.nbytes for seen in state.buffer.episodes) / MIB
    disk = sum(path.stat().st_size for path in (folder / "checkpoints").iterdir()) / MIB
    print(f"{count} images and {parameters} parameters: {held:.0f} MiB of images in memory, {disk:.0f} MiB on disk")
    tenth, ms = len(took) // 10, [1e3 * seconds for seconds in took]
    print(
        f"  a checkpoint every {EPISODE} images: median {statistics.median(ms):.0f} ms, slowest {max(ms):.0f} ms; "
        f"first tenth {statistics.median(ms[:tenth]):.0f} ms, last tenth {statistics.median(ms[-tenth:]):.0f} ms"
    )
    whole = FASTEST * count / 200_000
    print(
        f"  all {len(took)}: {sum(took):.1f} s, {100 * sum(took) / whole:.1f} % of a training in {whole / 60:.0f} minutes"
    )
    print(f"  memory on top while saving: {peak:.0f} MiB at most")
    size = state.buffer.size
    del state, episode, frames
    forget_peak()
    before, began = resident(), time.perf_counter()
    saved, _ = Checkpoints(folder).newest(config, agent.like(jr.key(0)))
    assert saved is not None and saved.progress.state.buffer.size == size
    print(f"  loading: {time.perf_counter() - began:.1f} s, {resident() - before:.0f} MiB at its peak")


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
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write; a temporary folder if it is not given"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        os.sync()
        images(folder, options.images)
        training(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
