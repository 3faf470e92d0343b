"""A pendulum that a motor turns round and round, under a limit on its squared speed.

The angle θ is 0 when upright. The motor is stronger than gravity, so it can hold any speed:

    θ̇' = θ̇ + (g sin θ + u) δ,   θ' = θ + θ̇' δ,   r = θ̇',   c = θ̇'².

The limit d is on Σ c over the T = 200 steps of an episode. So no policy within it earns more than Σ θ̇ ≤ √(T d) (Cauchy
and Schwarz; see `best_return`). This is 400 at d = 800: a steady 2 rad/s, where the motor could reach 8. Gravity speeds
the pendulum up on its way down and slows it on its way up. A policy must learn to balance this to come near the bound
without passing the limit.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.core.errors import InputError

DELTA = 0.05
"""Seconds of a step."""
GRAVITY = 9.81
"""Greatest angular acceleration by gravity, in rad/s²."""
TORQUE = 15.0
"""Greatest angular acceleration by the motor, in rad/s²; more than GRAVITY."""
LIMIT = 800.0
"""On the sum of an episode's squared speeds, in (rad/s)²."""
STEPS = 200
"""T, the steps of an episode."""
TOP_SPEED = 8.0
"""The greatest speed, in rad/s."""
NOISE = 0.05
"""The start is uniform in π ± NOISE, at a speed in ±NOISE."""
SIDE = 200
"""Pixels of a picture's side."""


def best_return(*, limit: float = LIMIT, steps: int = STEPS) -> float:
    """Upper bound on the return within the limit:  Σ θ̇ ≤ √(T Σ θ̇²) ≤ √(T d), and no speed is above TOP_SPEED."""
    return float(min(np.sqrt(steps * limit), TOP_SPEED * steps))


class PendulumSpeed(gym.Env[Array, Array]):
    """The pendulum: observation `[cos θ, sin θ, θ̇]`, action in [-1, 1] times TORQUE."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, cost_limit: float = LIMIT, discounted: bool = False, render_mode: str | None = None) -> None:
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
        acceleration = GRAVITY * np.sin(self.theta) + TORQUE * float(np.clip(action, -1.0, 1.0)[0])
        self.speed = float(np.clip(self.speed + acceleration * DELTA, -TOP_SPEED, TOP_SPEED))
        self.theta += self.speed * DELTA
        return self.observation(), self.speed, False, False, {"cost": self.speed**2}

    def render(self) -> Any:
        """The rod and its bob: blue, or red while it is faster than the limit allows on average."""
        if self.render_mode is None:
            return None
        axis = np.linspace(-1.4, 1.4, SIDE)
        right, up = np.meshgrid(axis, -axis)
        x, y = np.sin(self.theta), np.cos(self.theta)
        along = np.clip(right * x + up * y, 0.0, 1.0)  # the point of the rod that is nearest to each pixel
        picture = np.full((SIDE, SIDE, 3), 255, np.uint8)
        picture[np.hypot(right - along * x, up - along * y) <= 0.04] = (120, 120, 120)
        picture[np.hypot(right, up) <= 0.08] = (60, 60, 60)
        bob = (210, 50, 40) if self.speed**2 > self.cost_limit / STEPS else (40, 70, 200)
        picture[np.hypot(right - x, up - y) <= 0.17] = bob
        return picture
