"""A store that buys cheap and sells dear. Throughput wears it out: its budget is best spent late, when prices swing most."""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv


class Storage(SuiteEnv):
    """State: level, phase of the price (two numbers), and the share of the episode that has passed."""

    obs_dim, low, high, steps = 4, (-1.0,), (1.0,), 96

    def start(self, random: np.random.Generator) -> Array:
        return np.array([0.5, random.uniform(0.0, 2.0 * np.pi), 0.0])

    def price(self, state: Array) -> float:
        """The price in a state: a wave that grows over the episode."""
        return float((0.2 + 1.8 * state[2]) * np.sin(state[1]))

    def observe(self, state: Array) -> Array:
        return np.array([state[0], np.sin(state[1]), np.cos(state[1]), state[2]])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        level, phase, passed = state
        moved = float(np.clip(0.25 * action[0], -level, 1.0 - level))  # above 0 buys, below 0 sells
        reward = -self.price(state) * moved
        phase = phase + 2.0 * np.pi / 24.0 + 0.03 * random.normal()
        return Change(np.array([level + moved, phase, passed + 1.0 / self.steps]), reward, abs(float(action[0])) * 0.25)

    def reference(self) -> Array:
        level, _, passed = self.state
        price = self.price(self.state)
        if passed < 0.45 or abs(np.sin(self.state[1])) < 0.85:
            return np.zeros(1)
        wish = 1.0 if price < 0.0 else -1.0
        room = (1.0 - level if wish > 0.0 else level) / 0.25
        return np.array([wish * min(1.0, room, max(self.left, 0.0) / 0.25)])
