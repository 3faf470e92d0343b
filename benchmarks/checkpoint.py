"""Measures what a checkpoint costs: time and memory with 200,000 images, and the share of a small training run.

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
from capax.core.loop import Progress
from capax.core.types import Episode, Spec
from capax.kappa.conformal import Conformal
from capax.runs.checkpoint import Checkpoints
from capax.runs.config import RunConfig
from capax.runs.folder import Folder
from capax.runs.state import state_like
from capax.runtime import cpu_devices

EPISODE_IMAGES = 1000
"""Images between two checkpoints."""
FASTEST_RUN_SECONDS = 30 * 60.0
"""Seconds that a run over 200,000 frames is meant to take on the fastest machine."""
MIB = 1 << 20


def peak_memory() -> float:
    """Peak memory of this process since `forget_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def forget_peak() -> None:
    """Let the peak start again from the present memory."""
    Path("/proc/self/clear_refs").write_text("5")


def config_of(steps: int) -> RunConfig:
    """The configuration that the checkpoints belong to."""
    return RunConfig(
        task="capax/CarRacingSkid-v0", kind="image", method="cap", steps=steps, seed=0, gamma=0.99, discounted=False,
        violation_rate=0.4, capacity=steps, repeat=2, image=(64, 64, 3),
        action_low=(-1.0,) * 3, action_high=(1.0,) * 3, action_shape=(3,),
    )  # fmt: skip


def measure_images(folder: Path, count: int) -> list[dict[str, Any]]:
    """Save the image agent at the paper's sizes after each of `count` / 1000 episodes, and load it once."""
    agent = Planet(Spec(0.0, 0.99, False, 500, 2), Conformal(0.4), (64, 64, 3), 3, PlanetSettings())
    state = agent.init(jr.key(0))
    state = state._replace(good=state.model)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.model))
    rng, zeros = np.random.default_rng(0), np.zeros(EPISODE_IMAGES, np.float32)
    checkpoints, durations, config = Checkpoints(Folder(folder)), [], config_of(count)
    episode, peak = None, 0.0
    for done in range(EPISODE_IMAGES, count + 1, EPISODE_IMAGES):
        if episode is not None:
            state = state._replace(buffer=state.buffer.add(episode, count))
        frames = rng.integers(0, 255, (EPISODE_IMAGES + 1, 64, 64, 3), np.uint8)
        episode = Episode(frames[:-1], np.zeros((EPISODE_IMAGES, 3)), zeros, zeros, frames[1:], 0.0, 0.0, {}, zeros)
        forget_peak()
        before, start = peak_memory(), time.perf_counter()
        checkpoints.save(
            Progress(done // EPISODE_IMAGES, done, state, (episode,)), {"episode": done // EPISODE_IMAGES}, config
        )
        durations.append(time.perf_counter() - start)
        peak = max(peak, peak_memory() - before)
    memory = sum(part.image.nbytes for part in state.buffer.episodes) / MIB
    disk = sum(path.stat().st_size for path in (folder / "checkpoints").iterdir()) / MIB
    print(f"{count} images and {parameters} parameters: {memory:.0f} MiB of images in memory, {disk:.0f} MiB on disk")
    tenth, ms = max(1, len(durations) // 10), [1e3 * seconds for seconds in durations]
    print(
        f"  a checkpoint every {EPISODE_IMAGES} images: median {statistics.median(ms):.0f} ms, slowest {max(ms):.0f} ms; "
        f"first tenth {statistics.median(ms[:tenth]):.0f} ms, last tenth {statistics.median(ms[-tenth:]):.0f} ms"
    )
    run_seconds = FASTEST_RUN_SECONDS * count / 200_000
    print(
        f"  all {len(durations)}: {sum(durations):.1f} s, {100 * sum(durations) / run_seconds:.1f} % of a training in "
        f"{run_seconds / 60:.0f} minutes"
    )
    print(f"  extra memory while saving: {peak:.0f} MiB at most")
    size = state.buffer.size
    del state, episode, frames
    forget_peak()
    before, start = peak_memory(), time.perf_counter()
    saved, _ = Checkpoints(Folder(folder)).newest(config, state_like(agent, jr.key(0)))
    assert saved is not None and saved.progress.state.buffer.size == size
    loading = time.perf_counter() - start
    print(f"  loading: {loading:.1f} s, {peak_memory() - before:.0f} MiB at its peak")
    what = f"with {count} images and {parameters} parameters"
    return [
        {"what": f"a checkpoint {what}, median, s", "figure": statistics.median(durations)},
        {"what": "extra memory for it, MiB", "figure": peak},
        {"what": "loading it, s", "figure": loading},
        {"what": "the folder on the disk, MiB", "figure": disk},
    ]


def measure_training(folder: Path) -> dict[str, Any]:
    """Train on the pendulum, and add up the time in checkpoints."""
    saving, save = [0.0], Checkpoints.save

    def timed_save(*arguments: Any) -> None:
        start = time.perf_counter()
        save(*arguments)
        saving[0] += time.perf_counter() - start

    Checkpoints.save = timed_save  # type: ignore[method-assign]
    try:
        start = time.perf_counter()
        run = capax.train("capax/PendulumSpeed-v0", steps=2000, preset="fast", out=folder / "run")
        total = time.perf_counter() - start
    finally:
        Checkpoints.save = save  # type: ignore[method-assign]
    print(
        f"capax/PendulumSpeed-v0, preset fast, {len(run.episodes)} episodes: {saving[0]:.2f} s of {total:.1f} s in checkpoints "
        f"({100 * saving[0] / total:.1f} %)"
    )
    return {"what": "share of a training of the pendulum, %", "figure": 100 * saving[0] / total}


def main() -> None:
    from record import save

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; None: a temporary folder")
    options = parser.parse_args()
    cpu_devices.claim()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        os.sync()
        save("checkpoint", [*measure_images(folder, options.images), measure_training(folder)])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
