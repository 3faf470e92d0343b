"""The tiny runs that the tests of `capax.train` share, and the environment in which they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import capax
from capax.runs.run import Run

TINY: dict[str, Any] = dict(
    members=2, hidden=8, layers=1, particles=2, batch=32, least_updates=5, most_updates=5, horizon=2, iterations=1,
    population=8, elites=2, start_steps=6,
)  # fmt: skip


class Counting(gym.Env):
    """Earns 1, 2, 3, … and pays 10, 20, 30, … in its steps; it ends by itself after `ends` of them."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, ends: int | None = None, low: float = -1.0, high: float = 3.0, on_step: Any = None) -> None:
        self.action_space = spaces.Box(low, high, (1,), np.float64)
        self.ends, self.on_step, self.count, self.seen = ends, on_step, 0, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.at = 0, self.np_random.normal()
        return np.array([self.at, 0.0]), {}

    def step(self, action: Any) -> Any:
        if self.on_step is not None:
            self.on_step()
        self.count += 1
        self.seen.append(float(action[0]))
        obs = np.array([self.at, float(self.count)])
        return obs, float(self.count), self.count == self.ends, False, {"cost": 10.0 * self.count}


def counting(steps: int | None = 4, **parts: Any) -> Callable[[], Any]:
    return lambda: Counting(**parts) if steps is None else TimeLimit(Counting(**parts), steps)


def trained(out: Path, env: Any = None, **options: Any) -> Run:
    """A run of ten steps in episodes of four, of which six are random."""
    given = {"steps": 10, "settings": TINY, "cost_limit": 65.0, **options}
    return capax.train(env or counting(), out=out, **given)


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "time"}
