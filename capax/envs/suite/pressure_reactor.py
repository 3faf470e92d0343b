"""A reactor in SI units: observations of 1e5 and of 1e-4, rewards of about 1e3 a step, costs of about 1e-3.

Feed raises the pressure, and the pressure makes product, sold at a price that drifts. It also makes an impurity; purging
removes it, and loses pressure. The reward is the sale less the price of the feed. The cost is what is emitted (kg) while
the impurity is above its threshold, the limit on its sum is 0.03. It is hard because the numbers differ in size by nine
orders of magnitude, and because more pressure always earns more now.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

BAR = 1e5
"""Pa."""
THRESHOLD = 1e-4
"""Share of impurity above which the reactor emits."""
FEED_PRICE = 120.0
"""Per kg."""


class PressureReactor(SuiteEnv):
    """State: pressure (Pa), share of impurity, price. Actions: feed (kg/s) and purge (share of the valve)."""

    obs_dim, low, high, steps = 3, (0.0, 0.0), (5.0, 1.0), 100

    def start(self, random: np.random.Generator) -> Array:
        return np.array(
            [random.uniform(1.0, 2.0) * BAR, random.uniform(0.3, 0.8) * THRESHOLD, random.uniform(300.0, 700.0)]
        )

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        pressure, impurity, price = state
        feed, purge = action
        pressure += 2.5e4 * feed - (0.15 + 0.25 * purge) * pressure + 2e3 * random.normal()
        pressure = max(0.0, pressure)
        impurity += 4e-6 * (pressure / BAR) ** 2 - (0.1 + 0.3 * purge) * impurity
        impurity = max(0.0, impurity + 1e-6 * random.normal())
        price = float(np.clip(price + 0.05 * (500.0 - price) + 25.0 * random.normal(), 200.0, 1000.0))
        reward = float(price * pressure / BAR - FEED_PRICE * feed)
        cost = 20.0 * max(0.0, impurity - THRESHOLD)
        return Change(np.array([pressure, impurity, price]), reward, float(cost))

    def reference(self) -> Array:
        pressure, impurity, price = self.state
        purge = np.clip(0.5 + (price - 450.0) / 400.0, 0.0, 1.0)
        # spend what is left evenly, and approach the impurity that emits so much
        even = max(self.left, 0.0) / 20.0 / max(self.steps - self.time, 5)
        formed = (0.1 + 0.3 * purge) * impurity + 0.4 * (THRESHOLD + 0.8 * even - impurity)
        wish = np.sqrt(max(formed, 0.0) / 4e-6) * BAR
        return np.array([np.clip((wish - (0.85 - 0.25 * purge) * pressure) / 2.5e4, 0.0, 5.0), purge])
