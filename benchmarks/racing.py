"""How many frames per second does CarRacingSkid play on one core, beside Gymnasium's own CarRacing-v3?

python benchmarks/racing.py          rounds of whole episodes of 1,000 frames, one after the other; `racing.py 10` for ten

All play the same tracks and the same actions. Gymnasium's draws its 96×96 observation in every frame; ours is 64×64, of
every second frame. The figures are those of the best round, as others may use the machine; the ratios are of figures of
one round, and their median is given.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

import capax.envs  # noqa: F401  # registers

FRAMES = 1000
"""Of an episode."""
HELD = 8
"""Steps that an action is held for, so that the car gets somewhere."""


def actions(seed: int, count: int) -> Iterator[np.ndarray]:
    """Random ones, each held for a while: steering, and mostly gas."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        if k % HELD == 0:
            action = rng.uniform([-0.4, -0.2, -4.0], [0.4, 0.6, 0.5]).astype(np.float32)
        yield action


def theirs(env: Any, seed: int) -> int:
    """Play an episode: its frames."""
    env.reset(seed=seed)
    frames = 0
    for action in actions(seed, FRAMES // 2):
        for _ in range(2):
            *_, terminated, _, _ = env.step(np.clip(action, [-1, 0, 0], 1).astype(np.float32))
            frames += 1
            if terminated:
                return frames
    return frames


def ours(env: Any, seed: int) -> int:
    """Play an episode: its frames."""
    env.reset(seed=seed)
    frames = 0
    for action in actions(seed, FRAMES // 2):
        *_, terminated, _, info = env.step(action)
        frames += info["frames"]
        if terminated:
            break
    return frames


def rate(play: Callable[[Any, int], int], env: Any, seed: int) -> float:
    """Frames per second."""
    began = time.perf_counter()
    frames = play(env, seed)
    return frames / (time.perf_counter() - began)


def main(rounds: int) -> None:
    task = {drawing: gym.make("capax/CarRacingSkid-v0", drawing=drawing).unwrapped for drawing in ("plain", "fast")}
    racing = gym.make("CarRacing-v3", disable_env_checker=True).unwrapped
    players = {
        "CarRacing-v3": (theirs, racing),
        "ours, plain": (ours, task["plain"]),
        "ours, fast": (ours, task["fast"]),
    }
    for play, env in players.values():
        play(env, 0)
    rates = [{name: rate(play, env, seed) for name, (play, env) in players.items()} for seed in range(1, rounds + 1)]
    for name in players:
        ratio = statistics.median(one[name] / one["CarRacing-v3"] for one in rates)
        print(f"{name:>12}: {max(one[name] for one in rates):6.0f} frames/s, {ratio:5.2f} times CarRacing-v3")
    resets = []
    for seed in range(20):
        began = time.perf_counter()
        task["fast"].reset(seed=seed)
        resets.append(time.perf_counter() - began)
    print(f"a reset of ours, fast: {1e3 * statistics.median(resets):.1f} ms, track and first picture")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
