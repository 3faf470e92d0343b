"""A ferry that calls at stops in gusts: noise in the dynamics, and noise in the cost, which is the fuel of a step.

Thrust acts against drag, and a wind that changes at random pushes the ferry off its course. The reward is the way made
towards the stop, and 1 for reaching it; then another stop is drawn. The cost is ‖a‖², times 1 plus noise of 40%, never
below 0; the limit is 20. It is hard because the same thrust costs more in one step than in another, and because fuel is
scarce: full thrust uses it up in a few steps.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.2
LAKE, STOP = 2.0, 0.3
"""Stops lie within ±LAKE, and are reached at this distance."""
FUEL_NOISE = 0.4


class GustyFerry(SuiteEnv):
    """State: position, velocity, wind, and the next stop, in the plane. The action is the thrust."""

    obs_dim, low, high, steps = 8, (-1.0, -1.0), (1.0, 1.0), 120

    def start(self, random: np.random.Generator) -> Array:
        place, stop = random.uniform(-LAKE, LAKE, (2, 2))
        return np.concatenate([place, np.zeros(2), 0.5 * random.normal(size=2), stop])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        place, speed, wind, stop = np.split(state, 4)
        wind = 0.93 * wind + 0.18 * random.normal(size=2)
        speed = speed + DT * (1.2 * action + 0.4 * wind - 0.6 * speed) + 0.01 * random.normal(size=2)
        moved = place + DT * speed
        reward = float(np.linalg.norm(place - stop) - np.linalg.norm(moved - stop))
        if np.linalg.norm(moved - stop) < STOP:
            reward, stop = reward + 1.0, random.uniform(-LAKE, LAKE, 2)
        cost = float(action @ action) * max(0.0, 1.0 + FUEL_NOISE * random.normal())
        return Change(np.concatenate([moved, speed, wind, stop]), reward, cost)

    def reference(self) -> Array:
        place, speed, _, stop = np.split(self.state, 4)
        offset = stop - place
        course = offset / max(float(np.linalg.norm(offset)), 1e-6)
        action = 0.65 * course - 0.8 * speed
        power = float(action @ action)
        # a step takes at most a third of what is left, even if fuel is dear by four standard deviations
        share = max(self.left, 0.0) / 3.0 / (1.0 + 4.0 * FUEL_NOISE)
        return np.clip(action if power <= share else action * np.sqrt(share / power), -1.0, 1.0)
