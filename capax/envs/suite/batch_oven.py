"""An oven whose overheating shows late: the damage of a step is charged as its cost six steps afterwards.

The element heats the air, and both lag. Hotter air bakes faster, which is the reward, also above the temperature from
which it damages the goods. Damage grows with the excess, and the limit is on its sum: 4. What is under way when the
episode ends is not charged. A new batch cools the air without warning. It is hard because the heat in the element
cannot be taken back, and because more damage is under way than has been charged.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.2
HOT = 2.0
"""Temperature (100 °C) of the air above which the goods suffer."""
DELAY = 6
"""Steps from a damage to its cost."""


class BatchOven(SuiteEnv):
    """State: temperatures of element and air, and the damage under way, the next to be charged first."""

    obs_dim, low, high, steps = 2 + DELAY, (0.0,), (1.0,), 120

    def start(self, random: np.random.Generator) -> Array:
        air = random.uniform(1.0, 1.6)
        return np.concatenate([[air + random.uniform(0.0, 0.6), air], np.zeros(DELAY)])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        element, air, *under_way = state
        flow = 1.2 * (element - air)
        element += DT * (1.45 * float(action[0]) - flow)
        air += DT * (flow - 0.4 * (air - 0.2)) + 0.01 * random.normal()
        if random.random() < 0.03:
            air -= random.uniform(0.1, 0.4)
        cost, *under_way = *under_way, max(0.0, air - HOT)
        reward = 1.0 / (1.0 + np.exp(-5.0 * (air - HOT)))
        return Change(np.array([element, air, *under_way]), float(reward), float(cost))

    def reference(self) -> Array:
        element, air, *under_way = self.state
        spare = self.left - sum(under_way)
        wish = HOT + 0.8 * spare / max(self.steps - self.time, 10)
        flow = 0.4 * (wish - 0.2) + 1.5 * (wish - air)
        heat = flow + 4.0 * (air + flow / 1.2 - element)
        return np.array([np.clip(heat / 1.45, 0.0, 1.0)])
