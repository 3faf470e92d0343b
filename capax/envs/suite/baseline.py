"""Returns of the reference and of doing nothing in a task of the suite, between which an agent's return is placed."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from capax.envs.suite.catalogue import SuiteTask

EPISODES = 100
FIRST_SEED = 10_000
"""Seeds of these episodes; those of training runs follow from the run's own."""


class Baseline(NamedTuple):
    """Mean returns over the same episodes."""

    nothing: float
    """R₀, of the action that is nearest to 0."""
    reference: float
    """R_ref, of the task's own controller."""

    def share(self, earned: float) -> float:
        """(R − R₀) / (R_ref − R₀)."""
        return (earned - self.nothing) / (self.reference - self.nothing)


@cache
def baseline(task: SuiteTask) -> Baseline:
    """Play the episodes of a task with both controllers."""
    env: Any = gym.make(task.id).unwrapped
    returns = {
        name: [_episode(env, name, FIRST_SEED + seed) for seed in range(EPISODES)] for name in ("rest", "reference")
    }
    return Baseline(*(float(np.mean(returns[name])) for name in ("rest", "reference")))


def _episode(env: Any, controller: str, seed: int) -> float:
    env.reset(seed=seed)
    earned = 0.0
    for _ in range(env.steps):
        _, reward, terminated, _, _ = env.step(env.reference() if controller == "reference" else env.rest())
        earned += reward
        if terminated:
            break
    return earned
