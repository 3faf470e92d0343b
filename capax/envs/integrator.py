"""A point that is pushed along a line: a constrained task with a known optimum.

    x_t = x_{t−1} + δ a_t,   r_t = x_t,   c_t = x_t²,   |a_t| ≤ 1,   maximise Σ r_t  subject to  Σ c_t ≤ d.

With a multiplier λ, Σ x_t − λ x_t² = const − λ Σ (x_t − m)² for m = 1/(2λ). Every term is best when x_t is as near to m
as possible, and the point can be at min(x_0 + δt, m) at all t. So the optimum is to go to the level m at full speed and
to stay there. The limit gives m:

    Σ_{t≤k} (x_0 + δt)² + (T − k) m² = d,   where the first k points are the ones below m.

From x_0 = 0 with δ = .1, T = 50 and d = 25: k = 7, m = √(23.6/43) = .741, and the return is 34.66. A planner that only
limits the mean cost of a short horizon stays at √(d/T) = .707 and earns 33.2. Without the limit, full speed to the end
earns 127.5 at a cost of 429.25. Random actions earn 0 on average.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.core.errors import InputError

DELTA = 0.1
"""δ, the distance that a full action moves the point."""
STEPS = 50
"""T, the steps of an episode."""
NOISE = 0.05
"""The start is uniform in ±NOISE."""
SIDE = 200
"""Pixels of a picture's side."""
VIEW = 2.0
"""The picture shows the positions in ±VIEW."""


class Optimum(NamedTuple):
    """The best that a policy can do under the limit."""

    earned: float
    """The greatest return."""
    level: float
    """The position where the point stays; infinite if the limit does not bind."""


def optimum(start: float = 0.0, *, limit: float = 25.0, steps: int = STEPS, delta: float = DELTA) -> Optimum:
    """The optimum for a start at or below its level, from the formula at the top of this file."""
    ramp = start + delta * np.arange(1, steps + 1)
    paid = np.concatenate([[0.0], np.cumsum(ramp**2)])  # Σ of the first k points, for k = 0 … T
    earned = np.concatenate([[0.0], np.cumsum(ramp)])
    if paid[-1] <= limit:
        return Optimum(float(earned[-1]), np.inf)
    for k in range(steps):
        level = np.sqrt(max(0.0, limit - paid[k]) / (steps - k))
        if start + delta * k <= level <= ramp[k]:
            return Optimum(float(earned[k] + (steps - k) * level), float(level))
    raise InputError(f"start is {start} and limit {limit}: give a start that is low enough to stay under the limit.")


class Integrator(gym.Env[Array, Array]):
    """The point on its line: observation `[x]`, action in [-1, 1], reward x, cost x²."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, cost_limit: float = 25.0, discounted: bool = False, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode is {render_mode!r}: choose rgb_array or None.")
        self.cost_limit, self.discounted = cost_limit, discounted
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode = render_mode
        self.x = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-NOISE, NOISE))
        return np.array([self.x]), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.x += DELTA * float(np.clip(action, -1.0, 1.0)[0])
        return np.array([self.x]), self.x, False, False, {"cost": self.x**2}

    def render(self) -> Any:
        """The line with the point in blue, on a green band where the point may stay for the whole episode."""
        if self.render_mode is None:
            return None
        axis = np.linspace(-VIEW, VIEW, SIDE)
        right, up = np.meshgrid(axis, -axis)
        picture = np.full((SIDE, SIDE, 3), 255, np.uint8)
        picture[np.abs(right) <= np.sqrt(self.cost_limit / STEPS)] = (214, 240, 214)
        picture[np.abs(up) <= 0.02] = (120, 120, 120)
        picture[(np.abs(right) <= 0.02) & (np.abs(up) <= 0.12)] = (120, 120, 120)
        picture[np.hypot(right - np.clip(self.x, -VIEW, VIEW), up) <= 0.12] = (40, 70, 200)
        return picture
