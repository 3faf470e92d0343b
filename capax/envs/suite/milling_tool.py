"""A milling tool that breaks when it is overloaded: rare, but a break costs 10 at once, and the limit of 10 allows one.

The reward is the feed, which follows its command late. The load follows hardness times feed, later still; above 1 the
tool breaks, and the machine stands still until it has been replaced. It is hard because the reward grows up to the edge,
no cost warns of the edge before it is crossed, and the hardness of the workpiece jumps at hard spots.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

BREAK = 1.0
"""Load above which the tool breaks."""
BREAK_COST, REPAIR_STEPS = 10.0, 12.0


class MillingTool(SuiteEnv):
    """State: feed, load, hardness of the workpiece, and the steps until the tool is replaced."""

    obs_dim, low, high, steps = 4, (0.0,), (1.5,), 120

    def start(self, random: np.random.Generator) -> Array:
        return np.array([0.0, 0.0, random.uniform(0.7, 1.1), 0.0])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        feed, load, hardness, repair = state
        hardness += 0.1 * (0.9 - hardness) + 0.03 * random.normal()
        if random.random() < 0.04:
            hardness += random.uniform(0.2, 0.5)
        hardness = float(np.clip(hardness, 0.5, 1.6))
        if repair > 0.0:
            return Change(np.array([0.0, 0.0, hardness, repair - 1.0]), 0.0, 0.0)
        feed += 0.4 * (float(action[0]) - feed)
        load += 0.35 * (hardness * feed - load) + 0.01 * random.normal()
        if load > BREAK:
            return Change(np.array([0.0, 0.0, hardness, REPAIR_STEPS]), 0.0, BREAK_COST)
        return Change(np.array([feed, load, hardness, 0.0]), feed, 0.0)

    def reference(self) -> Array:
        feed, load, hardness, _ = self.state
        wish = min(0.83, 1.66 - load) / hardness
        # a command that brings the feed there in the next step
        return np.array([np.clip(feed + (wish - feed) / 0.4, 0.0, 1.5)])
