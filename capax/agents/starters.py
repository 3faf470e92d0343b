"""Policies for the start of a run, before a model is learned: random actions, or a policy that the user trusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.random as jr
import numpy as np

from capax.core.actions import ActionBox
from capax.core.checks import error_text, numbers, short_repr
from capax.core.contracts import Agent
from capax.core.errors import InputError
from capax.core.types import Episode, Key, Metrics, Spec

QUIET_SHARES = (1.0, 1.0, 0.5, 0.1, 0.0)
"""Shares of the way from doing nothing to a random action, as likely as each other."""
QUIET_HOLD = 4
"""Steps that such an action is held for, on average."""


@dataclass(frozen=True)
class Starter(Agent[None]):
    """A policy that learns nothing."""

    spec: Spec
    action_dim: int

    def init(self, key: Key) -> None:
        return None

    def can_act(self, state: None) -> bool:
        return True

    def begin(self, state: None) -> Any:
        return None

    def learn(self, state: None, episodes: Sequence[Episode], key: Key) -> tuple[None, Metrics]:
        return state, {}


@dataclass(frozen=True)
class Random(Starter):
    """Uniform actions."""

    low: tuple[float, ...] = ()
    """The least random action, in [−1, 1]; empty: −1."""
    high: tuple[float, ...] = ()
    """The greatest one; empty: 1."""

    def act(self, state: None, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        return self.in_range(np.asarray(uniform(key, self.action_dim))), carry, {}

    def in_range(self, action: Any) -> Any:
        """An action that is uniform in [−1, 1], moved to the range of random actions."""
        if not self.low:
            return action
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        return low + (high - low) * (action + 1.0) / 2.0


@dataclass(frozen=True)
class StickyRandom(Random):
    """Random actions that are held for some steps. New actions in every step would cancel out: a car would hardly move,
    and the first data would say nothing about driving."""

    hold: int = 1
    """Steps that an action is held for, on average."""

    def act(self, state: None, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        *fresh, coin = np.asarray(uniform(key, self.action_dim + 1))
        new = carry is None or (coin + 1.0) / 2.0 < 1.0 / self.hold
        action = self.in_range(np.array(fresh)) if new else carry
        return action, action, {}


@dataclass(frozen=True)
class QuietRandom(StickyRandom):
    """Random actions that are often near to doing nothing. Under a budget for what actions cost, the agent will act there, and
    a model that has only seen great efforts predicts too much for small ones."""

    rest: tuple[float, ...] = ()
    """The action in [−1, 1] that is nearest to doing nothing."""

    def act(self, state: None, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        *fresh, coin, size = np.asarray(uniform(key, self.action_dim + 2))
        if carry is None or (coin + 1.0) / 2.0 < 1.0 / self.hold:
            rest, share = np.asarray(self.rest, np.float32), QUIET_SHARES[int(len(QUIET_SHARES) * (size + 1.0) / 2.0)]
            carry = rest + np.float32(share) * (self.in_range(np.array(fresh)) - rest)
        return carry, carry, {}


@dataclass(frozen=True)
class Scripted(Starter):
    """A user's policy, from an observation to an action in the environment's own units."""

    policy: Callable[[Any], Any]
    action_box: ActionBox

    def begin(self, state: None) -> None:
        if hasattr(self.policy, "reset"):  # the policy of another run
            self.policy.reset()

    def act(self, state: None, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        try:
            action = numbers(self.policy(np.array(obs))).reshape(-1)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"initial_policy failed on an observation ({error_text(error)}): give a function obs -> action."
            ) from error
        if action.shape != (self.action_dim,) or not np.isfinite(action).all():
            raise InputError(
                f"initial_policy returned {short_repr(action.tolist())}: give {self.action_dim} finite numbers between "
                f"{self.action_box.low.tolist()} and {self.action_box.high.tolist()}."
            )
        return self.action_box.to_unit(action), carry, {}


@partial(jax.jit, static_argnums=1)
def uniform(key: Key, size: int) -> Any:
    """An action that is uniform in [−1, 1]."""
    return jr.uniform(key, (size,), minval=-1.0, maxval=1.0)
