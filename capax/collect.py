"""How does an agent's policy become an episode of a Gymnasium environment?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from numpy import ndarray as Array

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
        carry, length = agent.begin(state), 0
        seen: list[tuple[Any, ...]] = []
        sums: defaultdict[str, float] = defaultdict(float)
        ended: list[int] = []
        for number in range(self.steps):
            action, carry, extras = agent.act(state, carry, obs, jr.fold_in(k_act, number))
            next_obs, reward, terminated, truncated, info = self.env.step(action)
            if not np.isfinite(info.get("cost", np.nan)) or not np.isfinite(float(reward)):
                raise InputError(
                    f'{self.env} gives no number as info["cost"] or as reward: put one there in each step.'
                )
            seen.append((obs, action, reward, info["cost"], next_obs))
            for name, value in extras.items():
                sums[name] += value
            obs, length = next_obs, length + 1
            if terminated or truncated:
                ended.append(length)
                length = 0
                if number + 1 < self.steps:
                    obs, _ = self.env.reset()
                    carry = agent.begin(state)
        obs, action, reward, cost, next_obs = (np.asarray(column) for column in zip(*seen, strict=True))
        means = {name: total / len(seen) for name, total in sums.items()}
        earned, paid = (_discounted(signal, ended, self.gamma) for signal in (reward, cost))
        return Episode(obs, action, reward, cost, next_obs, earned, paid, means)


def _discounted(signal: Array, ended: list[int], gamma: float) -> float:
    """The mean over episodes, of the lengths `ended`, of (1−γ) Σ γ^t x_t.

    An episode that was cut off is left out; if there is no other, it is taken for as much of one as it is.
    """
    weights = (1.0 - gamma) * gamma ** np.arange(len(signal))
    if not ended:
        return float(weights @ signal) / float(weights.sum())
    parts = np.split(signal[: sum(ended)], np.cumsum(ended)[:-1])
    return float(np.mean([weights[: len(part)] @ part for part in parts]))


@jax.jit
def split(key: Key) -> tuple[Any, Key]:
    """The environment's seed and the actions' key of one collection: the one place where streams part."""
    k_env, k_act = jr.split(key)
    return jr.bits(k_env, dtype=jnp.uint32) >> 1, k_act
