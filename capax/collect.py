"""How does an agent's policy become an episode of a Gymnasium environment?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from numpy import ndarray as Array

from capax.envs.adapt import Step, Task
from capax.errors import InputError
from capax.types import Agent, Episode, Key, Metrics, Spec

BLOCK = 50
"""Steps whose keys are made at once."""


@dataclass(frozen=True)
class GymCollector:
    """Acts in a Gymnasium env whose cost arrives as `info["cost"]`; return and cost are those of the episodes seen."""

    env: gym.Env[Any, Any]
    steps: int
    """Steps of a collection; an episode that ends earlier is followed by another."""
    gamma: float
    """Discount of a step: what is earned and paid is discounted and normalised, (1−γ) Σ γ^t r_t."""

    def collect(self, agent: Agent[Any], state: Any, key: Key, most: int | None = None) -> Episode:
        """Act with the agent, step by step; a collection is always whole."""
        seed, k_act = split(key)
        obs, _ = self.env.reset(seed=int(seed))
        carry, length, keys = agent.begin(state), 0, Keys(k_act)
        seen: list[Metrics] = []
        extras: list[Metrics] = []
        ended: list[int] = []
        for number in range(self.steps):
            action, carry, said = agent.act(state, carry, obs, keys(number))
            next_obs, reward, terminated, truncated, info = self.env.step(action)
            if not np.isfinite(info.get("cost", np.nan)) or not np.isfinite(float(reward)):
                raise InputError(
                    f'{self.env} gives no number as info["cost"] or as reward: put one there in each step.'
                )
            seen.append(_transition(obs, action, reward, info["cost"], next_obs, terminated))
            extras.append(said)
            obs, length = next_obs, length + 1
            if terminated or truncated:
                ended.append(length)
                length = 0
                if number + 1 < self.steps:
                    obs, _ = self.env.reset()
                    carry = agent.begin(state)
        columns = _columns(seen)
        earned, paid = (_discounted(columns[signal], ended, self.gamma) for signal in ("reward", "cost"))
        return Episode(**columns, earned=earned, paid=paid, extras=_columns(extras))


class Notes:
    """An episode as it is played."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._seen: list[Metrics] = []
        self._extras: list[Metrics] = []
        self._frames: list[Any] = []

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, obs: Any, action: Any, step: Step, said: Metrics) -> None:
        self._seen.append(_transition(obs, action, step.reward, step.cost, step.obs, step.terminated))
        self._extras.append(said)
        self._frames.append(step.frames)

    def episode(self) -> Episode:
        """Return and cost are those of the episode, in the task's convention."""
        columns, spec = _columns(self._seen), self._spec
        paid = float(spec.weights(len(self)) @ columns["cost"])
        episode = Episode(**columns, earned=float(columns["reward"].sum()), paid=paid, extras=_columns(self._extras))
        return episode if spec.repeat == 1 else episode._replace(frames=_ragged(self._frames, spec.repeat))


@dataclass(frozen=True)
class EpisodeCollector:
    """Acts out one episode of a task."""

    task: Task
    spec: Spec
    on_reset: Callable[[Array], None] = lambda obs: None
    """Called with the first observation of an episode."""
    on_step: Callable[[Array, Step], None] = lambda action, step: None
    """Called after each step, with the action in [−1, 1] and what came of it."""

    def collect(self, agent: Agent[Any], state: Any, key: Key, most: int | None = None) -> Episode:
        """From a seeded reset to the episode's end, or until `most` steps were taken."""
        seed, k_act = split(key)
        obs = self.task.reset(int(seed))
        self.on_reset(obs)
        carry, keys = agent.begin(state), Keys(k_act)
        notes, ended = Notes(self.spec), False
        paid_for = getattr(agent, "paid", lambda carry, cost: carry)
        while not ended and (most is None or len(notes) * self.spec.repeat < most):
            action, carry, said = agent.act(state, carry, obs, keys(len(notes)))
            step = self.task.step(action)
            notes.add(obs, action, step, said)
            carry = paid_for(carry, step.cost)
            obs, ended = step.obs, step.terminated or step.truncated
            self.on_step(action, step)
        return notes.episode()


def _ragged(rows: list[Any], width: int) -> Array:
    """Rows of at most `width` numbers as one array, filled up with NaN."""
    return np.array([[*row, *[np.nan] * (width - len(row))] for row in rows])


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


class Keys:
    """A key for each step of an episode, `jr.fold_in(key, step)`, made in blocks: made singly, they hold up a fast plan."""

    def __init__(self, key: Key) -> None:
        self._key, self._first = key, -BLOCK
        self._known: tuple[Key, ...] = ()

    def __call__(self, step: int) -> Key:
        if not 0 <= step - self._first < BLOCK:
            self._first, self._known = step, _block(self._key, step)
        return self._known[step - self._first]


@jax.jit
def _block(key: Key, first: int) -> tuple[Key, ...]:
    return tuple(jax.vmap(jr.fold_in, (None, 0))(key, first + jnp.arange(BLOCK)))


@jax.jit
def split(key: Key) -> tuple[Any, Key]:
    """The environment's seed and the actions' key of one collection: the one place where streams part."""
    k_env, k_act = jr.split(key)
    return jr.bits(k_env, dtype=jnp.uint32) >> 1, k_act
