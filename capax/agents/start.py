"""How does a run begin when there is no model yet? At random, or with a policy that somebody trusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.random as jr
import numpy as np

from capax.checks import numbers, said, shown
from capax.envs.adapt import Task
from capax.errors import InputError
from capax.types import Episode, Key, Metrics

HOLD = 8
"""Steps that a random action is held for, in the mean, before a model of images is fitted."""


@dataclass(frozen=True)
class Random:
    """Uniform over the action space; it learns nothing."""

    action_dim: int

    def init(self, key: Key) -> None:
        return None

    def begin(self, state: None) -> None:
        return None

    def act(self, state: None, carry: None, obs: Any, key: Key) -> tuple[Any, None, Metrics]:
        return np.asarray(uniform(key, self.action_dim)), carry, {}

    def learn(self, state: None, episodes: Sequence[Episode], key: Key) -> tuple[None, Metrics]:
        return state, {}

    def adapt(self, state: None, episode: Episode) -> tuple[None, Metrics]:
        return state, {}


@dataclass(frozen=True)
class Held(Random):
    """The same with actions that last: drawn anew in every step they cancel each other, and a car hardly moves, so that what
    is learned first says nothing about driving."""

    def act(self, state: None, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        *drawn, other = np.asarray(uniform(key, self.action_dim + 1))
        action = np.array(drawn) if carry is None or (other + 1.0) / 2.0 < 1.0 / HOLD else carry
        return action, action, {}


@dataclass(frozen=True)
class Scripted(Random):
    """A policy of the user's, from an observation to an action in the environment's own units."""

    policy: Callable[[Any], Any]
    task: Task

    def begin(self, state: None) -> None:
        if hasattr(self.policy, "reset"):  # a policy of another run
            self.policy.reset()

    def act(self, state: None, carry: None, obs: Any, key: Key) -> tuple[Any, None, Metrics]:
        try:
            action = numbers(self.policy(np.array(obs))).reshape(-1)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"initial_policy failed on an observation ({said(error)}): give a function obs -> action."
            ) from error
        if action.shape != (self.action_dim,) or not np.isfinite(action).all():
            raise InputError(
                f"initial_policy returned {shown(action.tolist())}: give {self.action_dim} finite numbers between "
                f"{self.task.low.tolist()} and {self.task.high.tolist()}."
            )
        return to_unit(action, self.task.low, self.task.high), carry, {}


def to_unit(action: Any, low: Any, high: Any) -> Any:
    """From the environment's units to [−1, 1]; what is outside the bounds is put on them."""
    action = np.clip(action, low, high)
    return np.clip(2.0 * (action - low) / np.where(high > low, high - low, 1.0) - 1.0, -1.0, 1.0)


@partial(jax.jit, static_argnums=1)
def uniform(key: Key, size: int) -> Any:
    """Uniform in [−1, 1]."""
    return jr.uniform(key, (size,), minval=-1.0, maxval=1.0)
