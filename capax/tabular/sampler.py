"""How are steps of a finite world drawn: by one rule, shared by the Gymnasium env and by the compiled sampler."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gymnasium.utils import seeding
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.collect import split
from capax.errors import InputError
from capax.tabular.cmdp import CMDP, evaluate_trusted, support
from capax.types import Agent, Episode, Key

DRAWS = 3
"""Uniform numbers that a step uses: for the next state, the reward and the cost, in this order."""


class Table(NamedTuple):
    """A CMDP prepared for drawing: the K possible successors of each pair, and the thresholds between them."""

    successors: Int[Array, "S A K"]
    thresholds: Float[Array, "S A K"]
    r: Float[Array, "S A"]
    c: Float[Array, "S A"]
    start: Float[Array, " S"]
    """Thresholds of the first state."""


def table(cmdp: CMDP) -> Table:
    """Prepare a CMDP for drawing."""
    successors, probability = support(cmdp)
    return Table(successors, thresholds(probability), cmdp.r, cmdp.c, thresholds(cmdp.mu0))


def thresholds(probability: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """Cumulative probabilities, with infinity from the last possible outcome on: rounding cannot draw beyond it."""
    cumulative = np.cumsum(probability, axis=-1)
    return np.where(cumulative < cumulative[..., -1:], cumulative, np.inf)


def draw(thresholds: Any, u: Any) -> Any:
    """The outcome that the uniform number u falls on (inversion; the last axis of `thresholds` holds the outcomes)."""
    return (u >= thresholds).sum(-1)


def action_uniform(key: Key) -> Any:
    """The uniform number that chooses an action."""
    return jr.uniform(key, dtype=jnp.float32)


@partial(jax.jit, static_argnames="steps")
def _draws(key: Key, *, steps: int) -> tuple[Any, Any]:
    """The seed of the environment, and the uniform numbers that choose the actions `[T]`, as a step-by-step collector."""
    seed, k_act = split(key)
    return seed, jax.vmap(lambda number: action_uniform(jr.fold_in(k_act, number)))(jnp.arange(steps))


@jax.jit
def _walk(t: Table, policy: Any, u_action: Any, u_next: Any, first: Any) -> Any:
    """States, actions and next states `[3, T]`; `policy` holds thresholds, `first [T]` a state where an episode begins."""

    def one(s: Any, at: tuple[Any, ...]) -> tuple[Any, Any]:
        first, u_a, u_s = at
        s = jnp.where(first >= 0, first, s)
        a = draw(policy[s], u_a)
        s_next = t.successors[s, a, draw(t.thresholds[s, a], u_s)]
        return s_next, (s, a, s_next)

    return jnp.stack(jax.lax.scan(one, first[0], (first, u_action, u_next))[1])


@dataclass(frozen=True)
class WorldCollector:
    """Draws episodes of a tabular agent in compiled code, and knows the exact return and cost of its policy.

    With `restarts` > 1 the steps are taken as that many episodes of equal length, each from a fresh start.
    """

    cmdp: CMDP
    steps: int
    """Steps of a collection, all restarts together."""
    restarts: int = 1

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.steps < self.restarts or self.steps % self.restarts:
            raise InputError(
                f"steps is {self.steps} and restarts {self.restarts}: steps must be a multiple of restarts."
            )
        if min(self.cmdp.r.min(), self.cmdp.c.min()) < 0.0 or max(self.cmdp.r.max(), self.cmdp.c.max()) > 1.0:
            raise InputError(
                "r or c leaves [0, 1]: rewards and costs are drawn as 0 or 1, so give their probabilities."
            )

    @cached_property
    def table(self) -> Table:
        return table(self.cmdp)

    @cached_property
    def _on_device(self) -> Table:
        with jax.enable_x64(True):
            return jax.tree.map(jnp.asarray, self.table)

    def collect(self, agent: Agent[Any], state: Any, key: Key, most: int | None = None) -> Episode:
        """Act out the policy that `agent.begin` returns; a collection is always whole."""
        policy = agent.begin(state)
        seed, u_action = _draws(key, steps=self.steps)
        # in the order in which an env draws them: one number at a reset, three at a step
        u = seeding.np_random(int(seed))[0].random((self.restarts, 1 + DRAWS * (self.steps // self.restarts)))
        u_step = u[:, 1:].reshape(-1, DRAWS)
        first = np.full(self.steps, -1)
        first[:: self.steps // self.restarts] = draw(self.table.start, u[:, :1])
        with jax.enable_x64(True):
            s, a, s_next = np.asarray(_walk(self._on_device, thresholds(policy), u_action, u_step[:, 0], first))
        reward, cost = (u_step[:, 1] < self.cmdp.r[s, a]) * 1.0, (u_step[:, 2] < self.cmdp.c[s, a]) * 1.0
        earned, paid, _ = evaluate_trusted(self.cmdp, policy)
        return Episode(s, a, reward, cost, s_next, earned, paid, {}, np.zeros(self.steps, bool))
