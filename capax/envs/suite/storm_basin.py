"""A rain basin that is too small for the storm: water over its brim costs, and no controller can keep the limit of 1.

Fronts of rain pass one after the other, the first is the heaviest. The gate drains by its opening and the level, the pump
by its power. The reward is 1 at the level that the plants need, less the pump's energy. The cost is the water over the
brim. It is impossible because gate and pump together, fully open from the first step on, cannot drain what the first
front brings; draining early lessens the cost.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

BRIM, WISHED = 1.0, 0.4
"""Level above which water flows over, and the level that the plants need."""


class StormBasin(SuiteEnv):
    """State: level, steps until the next front is here (over 10), its strength. Actions: gate and pump."""

    obs_dim, low, high, steps = 3, (0.0, 0.0), (1.0, 1.0), 100

    def start(self, random: np.random.Generator) -> Array:
        return np.array([random.uniform(0.5, 0.8), random.uniform(1.5, 2.5), random.uniform(0.35, 0.45)])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        level, until, strength = state
        rain = 0.02 + strength * np.exp(-0.5 * (until / 0.8) ** 2) * max(0.0, 1.0 + 0.1 * random.normal())
        level += rain - 0.08 * float(action[0]) * np.sqrt(level) - 0.05 * float(action[1])
        spilled = max(0.0, level - BRIM)
        level = float(np.clip(level, 0.0, BRIM))
        until -= 0.1
        if until < -2.0:
            until, strength = random.uniform(2.0, 3.0), random.uniform(0.05, 0.2)
        reward = 1.0 - min(1.0, 1.5 * abs(level - WISHED)) - 0.1 * float(action[1])
        return Change(np.array([level, until, strength]), reward, spilled)

    def reference(self) -> Array:
        level, until, strength = self.state
        coming = 0.02 + strength * np.exp(-0.5 * ((until - 0.1 * np.arange(12)) / 0.8) ** 2)
        drain = max(coming[0] + 0.5 * (level - WISHED), coming.sum() - 12 * 0.1 + level - 0.7)
        gate = np.clip(drain / 0.08 / max(np.sqrt(level), 0.1), 0.0, 1.0)
        return np.array([gate, np.clip((drain - 0.08 * gate * np.sqrt(level)) / 0.05, 0.0, 1.0)])
