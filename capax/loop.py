"""Algorithm 1, once, for every agent: learn, plan, collect, let the true cost move κ, report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.random as jr

from capax.types import Agent, Collector, Episode, Key, Metrics


class Outcome(NamedTuple):
    """What is known after an episode; the caller logs it, saves the state, or stops."""

    number: int
    """Of the episode, random ones included."""
    steps: int
    """Environment steps so far."""
    episode: Episode
    metrics: Metrics
    """What the agent reported of learning, acting and adapting."""
    state: Any
    """The agent's state after the episode."""


def run(
    agent: Agent[Any],
    collector: Collector,
    *,
    start: int,
    steps: int,
    key: Key,
    starter: Agent[Any] | None = None,
    initial: Sequence[Episode] = (),
) -> Iterator[Outcome]:
    """Run an agent for `steps` environment steps, the first `start` of them random (CAP, Algorithm 1).

    Lines 2 (random start), 5 and 6 (learn and plan), 7 (collect) and 9 and 10 (adapt) of the paper's algorithm. The
    start is acted out by `starter` (by the agent's untrained state if there is none) and may be cut short; later
    episodes are played to their end, so the last one may pass `steps`. `initial` is data that somebody else collected.
    """
    k_init, k_run = jr.split(key)
    state = agent.init(k_init)
    k_starter, _ = _keys(k_init, 0)
    waiting = starter.init(k_starter) if starter is not None else None
    fresh, number, done = list(initial), 0, 0
    while done < steps:
        k_learn, k_collect = _keys(k_run, number)
        random = done < start
        learned: Metrics = {}
        if random and starter is not None:
            episode = collector.collect(starter, waiting, k_collect, min(start, steps) - done)
        elif random:
            episode = collector.collect(agent, state, k_collect, min(start, steps) - done)
        else:
            state, learned = agent.learn(state, fresh, k_learn)
            fresh = []
            episode = collector.collect(agent, state, k_collect)
        episode = episode._replace(random=random)
        fresh.append(episode)
        state, adapted = agent.adapt(state, episode)
        done += len(episode.reward)
        yield Outcome(number, done, episode, {**learned, **episode.means, **adapted}, state)
        number += 1


@jax.jit
def _keys(key: Key, number: int) -> tuple[Key, Key]:
    k_learn, k_collect = jr.split(jr.fold_in(key, number))
    return k_learn, k_collect
