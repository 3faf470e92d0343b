"""An arm with two joints and six muscles: more actions than needed, and five observed numbers that mean nothing.

A muscle only pulls: three pairs move the shoulder, the elbow, and both. Joints are damped masses. The reward falls with
the distance to target angles that change at times. The cost is the effort ‖a‖², the limit on its sum is 12. It is hard
because most of the action space is wasted effort (muscles of a pair that pull against each other), and because the
numbers that mean nothing are as large as the rest.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.1
LEVERS = np.array([[1.0, -1.0, 0.0, 0.0, 0.7, -0.7], [0.0, 0.0, 0.8, -0.8, 0.5, -0.5]])
"""Torque of each muscle on each joint `[2, 6]`."""
CHANNELS = 5
"""Observed numbers that mean nothing."""


class MuscleArm(SuiteEnv):
    """State: two angles, two speeds, two target angles, and the noise channels."""

    obs_dim, low, high, steps = 6 + CHANNELS, (0.0,) * 6, (1.0,) * 6, 100

    def start(self, random: np.random.Generator) -> Array:
        return np.concatenate([np.zeros(4), self.target(random), random.normal(size=CHANNELS)])

    def target(self, random: np.random.Generator) -> Array:
        """Angles to reach."""
        return random.choice([-1.0, 1.0], 2) * random.uniform(0.4, 1.2, 2)

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        angle, speed, target = np.split(state[:6], 3)
        if random.random() < 0.03:
            target = self.target(random)
        speed = speed + DT * (2.0 * LEVERS @ action - 1.5 * speed) + 0.01 * random.normal(size=2)
        angle = angle + DT * speed
        reward = float(np.exp(-2.0 * np.linalg.norm(angle - target)))
        noise = random.normal(size=CHANNELS)
        return Change(np.concatenate([angle, speed, target, noise]), reward, float(action @ action))

    def reference(self) -> Array:
        angle, speed, target = np.split(self.state[:6], 3)
        torque = 0.8 * (target - angle) - 0.3 * speed
        # the muscles of each pair that pull the right way, with the least effort
        action = np.clip(LEVERS.T @ np.linalg.solve(LEVERS @ LEVERS.T, torque), 0.0, 1.0)
        effort = float(action @ action)
        return action if effort <= max(self.left, 0.0) else action * np.sqrt(max(self.left, 0.0) / effort)
