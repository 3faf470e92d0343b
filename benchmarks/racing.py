"""Compares the frames per second of CarRacingSkid on one core with those of Gymnasium's own CarRacing-v3.

python benchmarks/racing.py [ROUNDS]      each round plays an episode of 1,000 frames in each environment

All play the same tracks and the same actions. Gymnasium's draws its 96×96 observation in every frame; ours is 64×64, of
every second frame. Rates are those of the best round, since others may use the machine. Ratios are computed within a
round, and their median is printed.
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

EPISODE_FRAMES = 1000
HOLD_STEPS = 8
"""Steps that an action is held for, so that the car gets somewhere."""


def actions(seed: int, count: int) -> Iterator[np.ndarray]:
    """Random actions, each held for some steps: steering, and mostly gas."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        if k % HOLD_STEPS == 0:
            action = rng.uniform([-0.4, -0.2, -4.0], [0.4, 0.6, 0.5]).astype(np.float32)
        yield action


def play_gymnasium(env: Any, seed: int) -> int:
    """Play an episode of CarRacing-v3; returns its frames."""
    env.reset(seed=seed)
    frames = 0
    for action in actions(seed, EPISODE_FRAMES // 2):
        for _ in range(2):
            *_, terminated, _, _ = env.step(np.clip(action, [-1, 0, 0], 1).astype(np.float32))
            frames += 1
            if terminated:
                return frames
    return frames


def play_capax(env: Any, seed: int) -> int:
    """Play an episode of CarRacingSkid; returns its frames."""
    env.reset(seed=seed)
    frames = 0
    for action in actions(seed, EPISODE_FRAMES // 2):
        *_, terminated, _, info = env.step(action)
        frames += info["frames"]
        if terminated:
            break
    return frames


def rate(play: Callable[[Any, int], int], env: Any, seed: int) -> float:
    """Frames per second."""
    start = time.perf_counter()
    frames = play(env, seed)
    return frames / (time.perf_counter() - start)


def main(rounds: int) -> None:
    from record import save

    rows = []
    task = {drawing: gym.make("capax/CarRacingSkid-v0", drawing=drawing).unwrapped for drawing in ("plain", "fast")}
    racing = gym.make("CarRacing-v3", disable_env_checker=True).unwrapped
    players = {
        "CarRacing-v3": (play_gymnasium, racing),
        "ours, plain": (play_capax, task["plain"]),
        "ours, fast": (play_capax, task["fast"]),
    }
    for play, env in players.values():
        play(env, 0)
    rates = [{name: rate(play, env, seed) for name, (play, env) in players.items()} for seed in range(1, rounds + 1)]
    for name in players:
        ratio = statistics.median(by_name[name] / by_name["CarRacing-v3"] for by_name in rates)
        best = max(by_name[name] for by_name in rates)
        print(f"{name:>12}: {best:6.0f} frames/s, {ratio:5.2f} times CarRacing-v3")
        rows.append({"drawing": name, "frames/s, best": best, "times CarRacing-v3, median": ratio})
    resets = []
    for seed in range(20):
        start = time.perf_counter()
        task["fast"].reset(seed=seed)
        resets.append(time.perf_counter() - start)
    print(f"a reset of ours, fast: {1e3 * statistics.median(resets):.1f} ms, track and first picture")
    save("racing", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
