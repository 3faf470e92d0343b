"""Sampling of steps in a finite world: one rule, shared by the Gymnasium environment and the compiled sampler."""

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

from capax.core.contracts import Agent, Collector
from capax.core.errors import InputError
from capax.core.keys import split_episode_key
from capax.core.types import Episode, Key
from capax.tabular.cmdp import CMDP, evaluate_unchecked, support

UNIFORMS_PER_STEP = 3
"""Uniform numbers of a step: one for the next state, one for the reward and one for the cost, in this order."""


class SamplingTable(NamedTuple):
    """A CMDP prepared for sampling: the K possible successors of each pair, and the thresholds between them."""

    successors: Int[Array, "S A K"]
    thresholds: Float[Array, "S A K"]
    r: Float[Array, "S A"]
    c: Float[Array, "S A"]
    start: Float[Array, " S"]
    """Thresholds of the distribution of the first state."""


def sampling_table(cmdp: CMDP) -> SamplingTable:
    """Prepare a CMDP for sampling."""
    successors, probability = support(cmdp)
    return SamplingTable(successors, thresholds(probability), cmdp.r, cmdp.c, thresholds(cmdp.mu0))


def thresholds(probability: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """Cumulative probabilities. From the last possible outcome on they are ∞, so rounding cannot draw beyond it."""
    cumulative = np.cumsum(probability, axis=-1)
    return np.where(cumulative < cumulative[..., -1:], cumulative, np.inf)


def draw_outcome(thresholds: Any, u: Any) -> Any:
    """The outcome for a uniform number u, by inversion. The last axis of `thresholds` holds the outcomes."""
    return (u >= thresholds).sum(-1)


def action_uniform(key: Key) -> Any:
    """The uniform number that selects an action."""
    return jr.uniform(key, dtype=jnp.float32)


@partial(jax.jit, static_argnames="steps")
def _episode_uniforms(key: Key, *, steps: int) -> tuple[Any, Any]:
    """The seed of the environment and the uniform numbers `[T]` that select actions, equal to a step-by-step collector's."""
    seed, k_act = split_episode_key(key)
    return seed, jax.vmap(lambda number: action_uniform(jr.fold_in(k_act, number)))(jnp.arange(steps))


@jax.jit
def _simulate(table: SamplingTable, policy: Any, u_action: Any, u_next: Any, first: Any) -> Any:
    """States, actions and next states `[3, T]`. `policy` holds thresholds; `first [T]` is a state, or −1 within an episode."""

    def step(s: Any, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        first, u_a, u_s = inputs
        s = jnp.where(first >= 0, first, s)
        a = draw_outcome(policy[s], u_a)
        s_next = table.successors[s, a, draw_outcome(table.thresholds[s, a], u_s)]
        return s_next, (s, a, s_next)

    return jnp.stack(jax.lax.scan(step, first[0], (first, u_action, u_next))[1])


@dataclass(frozen=True)
class WorldCollector(Collector):
    """Samples episodes of a tabular agent in compiled code and computes the exact return and cost of its policy.

    With `restarts` > 1, the steps are divided into that many episodes of equal length, each with a new first state.
    """

    cmdp: CMDP
    steps: int
    """Steps of a collection, summed over all restarts."""
    restarts: int = 1
    """Episodes of a collection."""

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.steps < self.restarts or self.steps % self.restarts:
            raise InputError(
                f"steps is {self.steps} and restarts is {self.restarts}: give steps that are a multiple of restarts."
            )
        if min(self.cmdp.r.min(), self.cmdp.c.min()) < 0.0 or max(self.cmdp.r.max(), self.cmdp.c.max()) > 1.0:
            raise InputError(
                "r or c has an entry outside [0, 1]: rewards and costs are drawn as 0 or 1, so give their probabilities."
            )

    @classmethod
    def divided(cls, cmdp: CMDP, steps: int, max_restarts: int) -> WorldCollector:
        """A collector whose steps are divided into the most restarts, up to `max_restarts`, that divide them evenly."""
        return cls(cmdp, steps, max(n for n in range(1, max_restarts + 1) if steps % n == 0))

    @cached_property
    def table(self) -> SamplingTable:
        """The CMDP prepared for sampling."""
        return sampling_table(self.cmdp)

    @cached_property
    def _device_table(self) -> SamplingTable:
        with jax.enable_x64(True):
            return jax.tree.map(jnp.asarray, self.table)

    def collect(self, agent: Agent[Any], state: Any, key: Key, max_steps: int | None = None) -> Episode:
        """Sample with the policy that `agent.begin` returns. A collection is never cut off: `max_steps` is ignored."""
        policy = agent.begin(state)
        seed, u_action = _episode_uniforms(key, steps=self.steps)
        # the order in which the environment draws them: one number at a reset, three at a step
        u = seeding.np_random(int(seed))[0].random(
            (self.restarts, 1 + UNIFORMS_PER_STEP * (self.steps // self.restarts))
        )
        u_step = u[:, 1:].reshape(-1, UNIFORMS_PER_STEP)
        first = np.full(self.steps, -1)
        first[:: self.steps // self.restarts] = draw_outcome(self.table.start, u[:, :1])
        with jax.enable_x64(True):
            s, a, s_next = np.asarray(_simulate(self._device_table, thresholds(policy), u_action, u_step[:, 0], first))
        reward, cost = (u_step[:, 1] < self.cmdp.r[s, a]) * 1.0, (u_step[:, 2] < self.cmdp.c[s, a]) * 1.0
        exact_return, exact_cost, _ = evaluate_unchecked(self.cmdp, policy)
        return Episode(s, a, reward, cost, s_next, exact_return, exact_cost, {}, np.zeros(self.steps, bool))
