"""Base class of the suite's environments: a state, its dynamics, a cost in each step, and a reference controller.

A subclass says how an episode starts (`start`), what a step does (`advance`), what is observed (`observe`), and what a
controller within the limit does (`reference`). Everything else is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array


class Change(NamedTuple):
    """The outcome of a step."""

    state: Array
    reward: float
    cost: float
    terminated: bool = False


class SuiteEnv(gym.Env[Array, Array], ABC):
    """A small task with a cost limit and a controller that keeps it."""

    obs_dim: ClassVar[int]
    low: ClassVar[tuple[float, ...]]
    """Smallest action."""
    high: ClassVar[tuple[float, ...]]
    steps: ClassVar[int] = 100
    """Steps after which an episode is truncated."""
    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, cost_limit: float, discounted: bool = False, render_mode: None = None) -> None:
        self.cost_limit, self.discounted, self.render_mode = cost_limit, discounted, render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.obs_dim,), np.float64)
        self.action_space = spaces.Box(
            np.array(self.low, np.float32), np.array(self.high, np.float32), dtype=np.float32
        )
        self.state, self.time, self.paid = np.zeros(0), 0, 0.0

    @abstractmethod
    def start(self, random: np.random.Generator) -> Array:
        """The state in which an episode starts."""

    @abstractmethod
    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        """The outcome of an action, in the environment's units."""

    def observe(self, state: Array) -> Array:
        """The observation of a state."""
        return state

    @abstractmethod
    def reference(self) -> Array:
        """The action of the reference controller now. It may look at the whole state, at `time` and at `paid`."""

    def rest(self) -> Array:
        """The action of doing nothing: the one nearest to 0."""
        return np.clip(np.zeros(len(self.low)), self.low, self.high)

    @property
    def left(self) -> float:
        """What the episode may still cost."""
        return self.cost_limit - self.paid

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.time, self.paid = np.asarray(self.start(self.np_random), np.float64), 0, 0.0
        return self.observe(self.state).copy(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        bounded = np.clip(np.asarray(action, np.float64), self.low, self.high)
        change = self.advance(self.state, bounded, self.np_random)
        self.state, self.time, self.paid = change.state, self.time + 1, self.paid + change.cost
        return self.observe(self.state).copy(), change.reward, change.terminated, False, {"cost": change.cost}
