"""Following a car that brakes without warning: a step that is too close costs 1, and the limit is 0.

Driving close and fast earns most. Only a gap that leaves time to brake is safe.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.2
CLOSE = 4.0
"""Gap (m) below which a step costs 1."""


class CarFollowing(SuiteEnv):
    """State: gap, own speed, speed of the car ahead, its acceleration."""

    obs_dim, low, high, steps = 4, (-4.0,), (2.0,), 100

    def start(self, random: np.random.Generator) -> Array:
        speed = random.uniform(8.0, 12.0)
        return np.array([random.uniform(18.0, 25.0), speed, speed, 0.0])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        gap, own, ahead, pull = state
        if random.random() < 0.06:
            pull = float(random.choice([-2.5, 0.0, 1.5]))
        own = float(np.clip(own + DT * (action[0] - 0.1 * own), 0.0, 20.0))
        ahead = float(np.clip(ahead + DT * pull, 2.0, 16.0))
        gap = gap + DT * (ahead - own)
        reward = own / 10.0 * np.exp(-max(gap, 0.0) / 40.0)
        return Change(np.array([gap, own, ahead, pull]), reward, float(gap < CLOSE))

    def reference(self) -> Array:
        gap, own, ahead, _ = self.state
        slowed = max(2.0, ahead - DT * 2.5)
        spare = gap + DT * (slowed - own) - CLOSE - 0.5
        # from this speed the gap stays open if both brake, by 4.0 and by 2.5, from the next step on
        safe = slowed + np.sign(spare) * np.sqrt(2.0 * 1.5 * abs(spare))
        return np.array([np.clip((safe - own) / DT + 0.1 * own, -4.0, 2.0)])
