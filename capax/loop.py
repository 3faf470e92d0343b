"""Algorithm 1, once, for every agent: learn, plan, collect, let the true cost move κ, log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.random as jr

from capax.types import Agent, Collector, Episode, Key, Metrics

Log = Callable[[int, Episode, Metrics], None]
"""Receives the number of an executed policy (0 for the first), its episode and what the agent reported."""


def run(agent: Agent[Any], collector: Collector, *, episodes: int, key: Key, log: Log) -> Any:
    """Execute `episodes` policies after one random start (CAP, Algorithm 1); returns the agent's last state.

    Lines 2 (random start), 5 and 6 (learn and plan), 7 (collect) and 9 and 10 (adapt) of the paper's algorithm. The
    random start is data, not a policy of the agent: it is neither logged nor does it move κ.
    """
    k_init, k_run = jr.split(key)
    state = agent.init(k_init)
    _, k_collect = _keys(k_run, 0)
    episode = collector.collect(agent, state, k_collect)
    for number in range(episodes):
        k_learn, k_collect = _keys(k_run, number + 1)
        state, learned = agent.learn(state, [episode], k_learn)
        episode = collector.collect(agent, state, k_collect)
        state, adapted = agent.adapt(state, episode)
        log(number, episode, {**learned, **episode.extras, **adapted})
    return state


@jax.jit
def _keys(key: Key, number: int) -> tuple[Key, Key]:
    k_learn, k_collect = jr.split(jr.fold_in(key, number))
    return k_learn, k_collect
