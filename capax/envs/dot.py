"""A dot that must go around a hazard to its goal: a task with image observations that a small model learns in minutes.

Places are (x, y) in pixels of the 64×64 picture, y downwards. The dot moves by SPEED times the action, within the
picture. It starts on the left. The goal is 48 pixels to the right. The hazard lies on the straight line between them, a
bit below its middle: the shorter way around leads above it. A step earns a tenth of the distance by which the dot came
nearer to the goal. So an episode earns a tenth of the first distance less the last,

    Σ r = (|p_0 − g| − |p_T − g|) / 10 ≤ |p_0 − g| / 10 ≈ 4.8,

whichever way the dot took. A step that ends with the dot's centre in the hazard costs 1. The straight way takes 16
steps and costs 4 to 6. The way around takes 17 steps.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.core.errors import InputError

SIDE = 64
"""Pixels of the picture's side."""
START, GOAL, HAZARD = np.array([8.0, 32.0]), np.array([56.0, 32.0]), np.array([32.0, 35.0])
JITTER = 2.0
"""The start is uniform in START ± JITTER, in x and in y."""
RADIUS, GOAL_RADIUS, HAZARD_RADIUS = 6.0, 6.0, 9.0
SPEED = 3.0
"""Pixels that a step can move the dot, in x and in y."""
REWARD = 0.1
"""Reward for each pixel that the dot came nearer to the goal."""
STEPS = 50
"""Steps of an episode."""
GROUND, BLUE, GREEN, RED = (
    np.array(colour) for colour in ((235, 235, 235), (20, 60, 230), (30, 180, 60), (230, 40, 30))
)
"""Colours of the ground, the dot, the goal and the hazard."""
ZOOM = 4
"""Side of a pixel in a rendered picture."""


def inside(place: Array) -> bool:
    """Whether the centre of a dot at `place` is in the hazard."""
    return bool(np.hypot(*(place - HAZARD)) < HAZARD_RADIUS)


def paint(picture: Array, place: Array, radius: float, colour: Array) -> None:
    """Draw a disc into `picture` `[64, 64, 3]`. A pixel at its edge is mixed with the share of it that is covered."""
    first = np.maximum(np.floor(place - radius).astype(int) - 1, 0)
    (left, top), (right, bottom) = first.tolist(), (np.ceil(place + radius).astype(int) + 1).tolist()
    patch = picture[top:bottom, left:right]
    x, y = np.arange(patch.shape[1]) + (left + 0.5 - place[0]), np.arange(patch.shape[0]) + (top + 0.5 - place[1])
    covered = np.clip(radius + 0.5 - np.sqrt(x * x + (y * y)[:, None]), 0.0, 1.0)[..., None]
    patch[:] = np.rint(patch + covered * (colour - patch))


class Dot(gym.Env[Array, Array]):
    """The dot: observation an image of 64×64×3 bytes, action a velocity (right, down) in [-1, 1]²."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        cost_limit: float = 0.0,
        discounted: bool = False,
        violation_rate: float = 0.2,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode is {render_mode!r}: choose rgb_array or None.")
        self.cost_limit, self.discounted, self.violation_rate = cost_limit, discounted, violation_rate
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.render_mode = render_mode
        self.place = START
        self.backdrop = np.full((SIDE, SIDE, 3), GROUND, np.uint8)
        paint(self.backdrop, HAZARD, HAZARD_RADIUS, RED)
        paint(self.backdrop, GOAL, GOAL_RADIUS, GREEN)

    def observation(self) -> Array:
        picture = self.backdrop.copy()
        paint(picture, self.place, RADIUS, BLUE)
        return picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = START + self.np_random.uniform(-JITTER, JITTER, 2)
        return self.observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        before, move = self.place, SPEED * np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        self.place = np.clip(before + move, RADIUS, SIDE - RADIUS)
        approach = np.hypot(*(before - GOAL)) - np.hypot(*(self.place - GOAL))
        return self.observation(), REWARD * float(approach), False, False, {"cost": float(inside(self.place))}

    def render(self) -> Any:
        """The observation, enlarged."""
        if self.render_mode is None:
            return None
        return self.observation().repeat(ZOOM, axis=0).repeat(ZOOM, axis=1)
