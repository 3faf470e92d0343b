"""The toy environment that the tests of the adapter share, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from capax.envs.adapt import Task

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Toy(gym.Env):
    """Shows `[count of steps, seed]`; every part of it can be replaced."""

    def __init__(
        self,
        action_space: Any = UNIT,
        observation_space: Any = None,
        reply: Callable[[Toy], Any] | None = None,
        render_mode: str | None = None,
        **registered: Any,
    ) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.reply = reply or (lambda toy: (toy.obs(), 1.0, False, False, {"cost": 0.5}))
        self.render_mode = render_mode
        self.count, self.given = 0, 0
        self.acted: Any = None

    def obs(self) -> np.ndarray:
        return np.array([self.count, self.given], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.given = 0, seed
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.acted = action
        return self.reply(self)


def task(env: Any = None, **parts: Any) -> Task:
    made = Task(env or Toy(), name="toy", **parts)
    made.reset(0)
    return made


def resetting(reply: Callable[[Any, Any], Any]) -> Toy:
    """A toy that is reset by this function."""
    return type("Toy", (Toy,), {"reset": lambda self, *, seed=None, options=None: reply(self, seed)})()


def replying(*items: Any, **info: Any) -> Toy:
    """A toy whose step returns its observation and these items."""
    return Toy(reply=lambda toy: (toy.obs(), *items, info))


def six(cost: Any) -> Toy:
    return Toy(reply=lambda toy: (toy.obs(), 1.0, cost, False, True, {"cost": 9.0}))


def fails(error: Exception) -> Callable[[], Any]:
    def entry_point() -> Any:
        raise error

    return entry_point
