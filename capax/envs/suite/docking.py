"""Docking a craft: the episode terminates when it has docked, which is the goal. Thrust costs fuel.

Each step of waiting loses reward; docking slowly enough earns a bonus, docking too fast loses one.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.2
DOCK, GENTLE = 0.15, 0.35
"""Distance at which the craft docks, and the greatest speed at which that is gentle."""


class Docking(SuiteEnv):
    """State: position and velocity in the plane, relative to the dock."""

    obs_dim, low, high, steps = 4, (-1.0, -1.0), (1.0, 1.0), 100

    def start(self, random: np.random.Generator) -> Array:
        angle, distance = random.uniform(0.0, 2.0 * np.pi), random.uniform(2.0, 3.0)
        return np.array([distance * np.cos(angle), distance * np.sin(angle), 0.0, 0.0])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        place, speed = np.split(state, 2)
        speed = speed + DT * 0.8 * action + 0.005 * random.normal(size=2)
        moved = place + DT * speed
        reward = 0.3 * float(np.linalg.norm(place) - np.linalg.norm(moved)) - 0.03
        docked = bool(np.linalg.norm(moved) < DOCK)
        if docked:
            reward += 2.0 if np.linalg.norm(speed) < GENTLE else -1.0
        return Change(np.concatenate([moved, speed]), reward, float(np.abs(action).sum()), docked)

    def reference(self) -> Array:
        place, speed = np.split(self.state, 2)
        distance = float(np.linalg.norm(place))
        wish = -place / max(distance, 1e-6) * min(0.45, 0.12 + 0.3 * distance)
        action = np.clip(2.0 * (wish - speed), -1.0, 1.0)
        action[np.abs(action) < 0.04] = 0.0
        used = float(np.abs(action).sum())
        return action if used <= max(self.left, 0.0) else action * max(self.left, 0.0) / used
