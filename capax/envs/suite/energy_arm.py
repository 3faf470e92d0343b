"""An arm with two joints that reaches for a target and holds it, with a budget of energy that is best spent early.

Each joint is a damped mass, moved by its torque. The cost is ‖a‖², the limit is on its sum over the episode. The reward
falls with the distance to the target, so a fast arm earns more, and holding costs little.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.1


class EnergyArm(SuiteEnv):
    """State: two angles, two speeds, two target angles."""

    obs_dim, low, high, steps = 6, (-1.0, -1.0), (1.0, 1.0), 80

    def start(self, random: np.random.Generator) -> Array:
        side = random.choice([-1.0, 1.0], 2)
        return np.concatenate([np.zeros(4), side * random.uniform(0.8, 1.6, 2)])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        angle, speed, target = np.split(state, 3)
        speed = speed + DT * (4.0 * action - 1.0 * speed)
        angle = angle + DT * speed
        distance = float(np.linalg.norm(angle - target))
        return Change(np.concatenate([angle, speed, target]), np.exp(-distance), float(action @ action))

    def reference(self) -> Array:
        angle, speed, target = np.split(self.state, 3)
        action = 0.45 * (target - angle) - 0.22 * speed
        power = float(action @ action)
        return action if power <= max(self.left, 0.0) else action * np.sqrt(max(self.left, 0.0) / power)
