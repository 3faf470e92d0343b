"""A collector that takes a Gymnasium environment step by step: the oracle of the compiled sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy import ndarray as Array

from capax.core.contracts import Agent, Collector
from capax.core.errors import InputError
from capax.core.keys import StepKeys, split_episode_key
from capax.core.types import Episode, Key, Metrics


@dataclass(frozen=True)
class StepCollector(Collector):
    """Acts in a Gymnasium env whose cost is `info["cost"]`; return and cost are those of the sampled episodes."""

    env: gym.Env[Any, Any]
    steps: int
    """Steps of a collection; an episode that ends earlier is followed by another."""
    gamma: float
    """Discount of a step: what is earned and paid is discounted and normalised, (1−γ) Σ γ^t r_t."""

    def collect(self, agent: Agent[Any], state: Any, key: Key, max_steps: int | None = None) -> Episode:
        """Act with the agent, step by step; a collection is always whole."""
        seed, k_act = split_episode_key(key)
        obs, _ = self.env.reset(seed=int(seed))
        carry, length, keys = agent.begin(state), 0, StepKeys(k_act)
        transitions: list[Metrics] = []
        extras: list[Metrics] = []
        ended: list[int] = []
        for number in range(self.steps):
            action, carry, metrics = agent.act(state, carry, obs, keys(number))
            next_obs, reward, terminated, truncated, info = self.env.step(action)
            if not np.isfinite(info.get("cost", np.nan)) or not np.isfinite(float(reward)):
                raise InputError(
                    f'{self.env} gives no number as info["cost"] or as reward: put one there in each step.'
                )
            transitions.append(_transition(obs, action, reward, info["cost"], next_obs, terminated))
            extras.append(metrics)
            obs, length = next_obs, length + 1
            if terminated or truncated:
                ended.append(length)
                length = 0
                if number + 1 < self.steps:
                    obs, _ = self.env.reset()
                    carry = agent.begin(state)
        columns = _columns(transitions)
        earned, paid = (_discounted(columns[signal], ended, self.gamma) for signal in ("reward", "cost"))
        return Episode(**columns, earned=earned, paid=paid, extras=_columns(extras))


def _transition(obs: Any, action: Any, reward: Any, cost: Any, next_obs: Any, terminated: Any) -> Metrics:
    return dict(obs=obs, action=action, reward=reward, cost=cost, next_obs=next_obs, terminated=terminated)


def _columns(rows: list[Metrics]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _discounted(signal: Array, ended: list[int], gamma: float) -> float:
    """The mean over episodes, of the lengths `ended`, of (1−γ) Σ γ^t x_t.

    An episode that was cut off is left out; if there is no other, it is taken for as much of one as it is.
    """
    weights = (1.0 - gamma) * gamma ** np.arange(len(signal))
    if not ended:
        return float(weights @ signal) / float(weights.sum())
    parts = np.split(signal[: sum(ended)], np.cumsum(ended)[:-1])
    return float(np.mean([weights[: len(part)] @ part for part in parts]))
