"""A pendulum that must be lifted without haste: is a hard limit kept while something is learned?

The angle θ is 0 when upright. The motor can hold the pendulum everywhere, so nothing forces it to swing:

    θ̇' = θ̇ + (g sin θ + u) δ,   θ' = θ + θ̇' δ,   r = (1 + cos θ')/2,   c = 1 if |θ̇'| > v_max else 0.

A policy that never exceeds v_max turns by at most v_max δ in a step, so after t steps |θ_t| ≥ |θ_0| − v_max δ t, and
r falls with |θ|. That bounds its return (`best_return`): 179.56 of 200 from hanging, in a lift of 2.1 s. Without the limit
the lift takes less than 1 s and earns 190, at the price of 16 steps above v_max and a speed of 5 rad/s.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.errors import InputError

DELTA = 0.05
"""Seconds of a step."""
GRAVITY = 9.81
"""Greatest angular acceleration by gravity, in rad/s²."""
TORQUE = 15.0
"""Greatest angular acceleration by the motor, in rad/s²; more than GRAVITY."""
SPEED_LIMIT = 1.5
"""v_max, in rad/s."""
TOP_SPEED = 8.0
"""The motor cannot turn faster, in rad/s."""
NOISE = 0.05
"""The start is uniform in π ± NOISE, at a speed in ±NOISE."""
SIDE = 200
"""Pixels of a picture's side."""


def best_return(theta: float = np.pi, *, steps: int = 200, speed_limit: float = SPEED_LIMIT) -> float:
    """Σ_{t=1}^{T} (1 + cos max(0, |θ_0| − v_max δ t))/2, which bounds the return of any policy without a violation."""
    angle = abs((theta + np.pi) % (2 * np.pi) - np.pi)
    nearest = np.maximum(0.0, angle - speed_limit * DELTA * np.arange(1, steps + 1))
    return float(np.sum(1.0 + np.cos(nearest)) / 2.0)


class PendulumSpeed(gym.Env[Array, Array]):
    """The pendulum; observation `[cos θ, sin θ, θ̇]`, action in [-1, 1] times TORQUE, cost 1 for a step too fast."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, cost_limit: float = 0.0, discounted: bool = False, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode is {render_mode!r}: choose rgb_array or None.")
        self.cost_limit, self.discounted = cost_limit, discounted
        edge = np.array([1.0, 1.0, TOP_SPEED])
        self.observation_space = spaces.Box(-edge, edge, dtype=np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode = render_mode
        self.theta, self.speed = np.pi, 0.0

    def observation(self) -> Array:
        return np.array([np.cos(self.theta), np.sin(self.theta), self.speed])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        noise = self.np_random.uniform(-NOISE, NOISE, 2)
        self.theta, self.speed = float(np.pi + noise[0]), float(noise[1])
        return self.observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        pushed = GRAVITY * np.sin(self.theta) + TORQUE * float(np.clip(action, -1.0, 1.0)[0])
        self.speed = float(np.clip(self.speed + pushed * DELTA, -TOP_SPEED, TOP_SPEED))
        self.theta += self.speed * DELTA
        cost = float(abs(self.speed) > SPEED_LIMIT)
        return self.observation(), float(1.0 + np.cos(self.theta)) / 2.0, False, False, {"cost": cost}

    def render(self) -> Any:
        """The rod and its bob, which is blue, or red while it is too fast."""
        if self.render_mode is None:
            return None
        at = np.linspace(-1.4, 1.4, SIDE)
        right, up = np.meshgrid(at, -at)
        x, y = np.sin(self.theta), np.cos(self.theta)
        along = np.clip(right * x + up * y, 0.0, 1.0)  # the rod's point that is nearest to each pixel
        picture = np.full((SIDE, SIDE, 3), 255, np.uint8)
        picture[np.hypot(right - along * x, up - along * y) <= 0.04] = (120, 120, 120)
        picture[np.hypot(right, up) <= 0.08] = (60, 60, 60)
        bob = (210, 50, 40) if abs(self.speed) > SPEED_LIMIT else (40, 70, 200)
        picture[np.hypot(right - x, up - y) <= 0.17] = bob
        return picture
