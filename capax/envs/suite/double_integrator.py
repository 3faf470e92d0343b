"""A mass on a line that is pushed to its target, where every push costs: the cost is |u|, with a budget per episode."""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.1


class DoubleIntegrator(SuiteEnv):
    """State: position and velocity. The reward is 1 at the target and falls with the distance."""

    obs_dim, low, high, steps = 2, (-2.0,), (2.0,), 100

    def start(self, random: np.random.Generator) -> Array:
        return np.array([random.choice([-1.0, 1.0]) * random.uniform(1.5, 2.5), 0.0])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        x, v = state
        v += DT * float(action[0]) + 0.005 * random.normal()
        x += DT * v
        return Change(np.array([x, v]), 1.0 / (1.0 + x * x), abs(float(action[0])))

    def reference(self) -> Array:
        x, v = self.state
        u = float(np.clip(-0.35 * x - 1.0 * v, -1.2, 1.2))
        u = 0.0 if abs(u) < 0.02 else u
        return np.array([np.clip(u, -max(self.left, 0.0), max(self.left, 0.0))])
