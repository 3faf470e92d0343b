"""How does an agent's policy become an episode of a Gymnasium environment?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.random as jr
import numpy as np

from capax.errors import InputError
from capax.types import Agent, Episode, Key


@dataclass(frozen=True)
class GymCollector:
    """Acts in a Gymnasium env whose cost arrives as `info["cost"]`; return and cost are those of the episodes seen."""

    env: gym.Env[Any, Any]
    steps: int
    """Steps of a collection; an episode that ends earlier is followed by another."""
    gamma: float
    """Discount of a step: what is earned and paid is discounted and normalised, (1−γ) Σ γ^t r_t."""

    def collect(self, agent: Agent[Any], state: Any, key: Key) -> Episode:
        """Act with the agent, step by step."""
        seed, k_act = split(key)
        obs, _ = self.env.reset(seed=int(seed))
        carry, weight, episodes = agent.begin(state), 1.0 - self.gamma, 1
        seen: list[tuple[Any, ...]] = []
        sums: defaultdict[str, float] = defaultdict(float)
        earned = paid = 0.0
        for number in range(self.steps):
            action, carry, extras = agent.act(state, carry, obs, jr.fold_in(k_act, number))
            next_obs, reward, terminated, truncated, info = self.env.step(action)
            if "cost" not in info:
                raise InputError(f'{self.env} gives no info["cost"]: put the cost of each step there.')
            seen.append((obs, action, reward, info["cost"], next_obs))
            for name, value in extras.items():
                sums[name] += value
            earned, paid = earned + weight * float(reward), paid + weight * info["cost"]
            obs, weight = next_obs, weight * self.gamma
            if (terminated or truncated) and number + 1 < self.steps:
                obs, _ = self.env.reset()
                carry, weight, episodes = agent.begin(state), 1.0 - self.gamma, episodes + 1
        obs, action, reward, cost, next_obs = (np.asarray(column) for column in zip(*seen, strict=True))
        means = {name: total / len(seen) for name, total in sums.items()}
        return Episode(obs, action, reward, cost, next_obs, earned / episodes, paid / episodes, means)


@jax.jit
def split(key: Key) -> tuple[Any, Key]:
    """The environment's seed and the actions' key of one collection: the one place where streams part."""
    k_env, k_act = jr.split(key)
    return jr.bits(k_env) >> 1, k_act
