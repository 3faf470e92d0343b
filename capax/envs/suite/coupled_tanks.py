"""Two tanks in a row: the pump fills the first, which drains into the second, whose level should be high and steady.

Water above the brim of the first tank spills, which costs: rarely, but with noise in the pump it must be expected.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.5
BRIM = 1.3
"""Level of the first tank above which water spills."""


class CoupledTanks(SuiteEnv):
    """State: both levels and the target of the second. The target changes at times."""

    obs_dim, low, high, steps = 3, (0.0,), (1.0,), 120

    def start(self, random: np.random.Generator) -> Array:
        return np.array([random.uniform(0.2, 0.6), random.uniform(0.1, 0.3), random.uniform(0.6, 1.1)])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        first, second, target = state
        if random.random() < 0.02:
            target = random.uniform(0.4, 1.1)
        flow = 0.45 * np.sqrt(max(first, 0.0))
        inflow = 0.8 * float(action[0]) * max(0.0, 1.0 + 0.15 * random.normal())
        spilled = max(0.0, first + DT * (inflow - flow) - BRIM)
        first = max(0.0, first + DT * (inflow - flow) - 0.5 * spilled)
        second = max(0.0, second + DT * (flow - 0.45 * np.sqrt(max(second, 0.0))))
        reward = 1.0 - min(1.0, 2.0 * abs(second - target))
        return Change(np.array([first, second, target]), reward, 10.0 * spilled)

    def reference(self) -> Array:
        first, second, target = self.state
        wish = np.clip(target + 1.5 * (target - second), 0.0, BRIM - 0.2)
        inflow = 0.45 * np.sqrt(max(first, 0.0)) + 0.8 * (wish - first)
        return np.array([np.clip(inflow / 0.8, 0.0, 1.0)])
