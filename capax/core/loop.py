"""The loop of Algorithm 1, the same for every agent: learn, collect an episode with plans, move κ by its true cost, report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.random as jr

from capax.core.contracts import Agent, Collector
from capax.core.types import Episode, Key, Metrics

STARTER_NUMBER = 2**31 - 1
"""Takes the place of an episode number in the key of the start policy."""


class Progress(NamedTuple):
    """State of a run between two episodes. All random numbers follow from the run's key and the number of the next
    episode, so a run that continues from here does the same as one that was never stopped."""

    number: int
    """Number of the next episode; random episodes count."""
    steps: int
    """Environment steps so far."""
    state: Any
    """State of the agent."""
    fresh: tuple[Episode, ...]
    """Episodes that the agent has not learned from yet."""


class Outcome(NamedTuple):
    """An episode and the progress of the run after it. The caller logs it, saves the progress, or stops."""

    number: int
    """Number of the episode."""
    episode: Episode
    metrics: Metrics
    """Metrics that the agent returned from learning, acting and adapting."""
    progress: Progress

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self.progress.steps

    @property
    def state(self) -> Any:
        """The agent's state after the episode."""
        return self.progress.state


def begin(agent: Agent[Any], key: Key, initial: Sequence[Episode] = ()) -> Progress:
    """The progress before the first episode; `initial` are logged data."""
    k_init, _ = jr.split(key)
    return Progress(0, 0, agent.init(k_init), tuple(initial))


def run(
    agent: Agent[Any],
    collector: Collector,
    *,
    start: float,
    steps: int,
    key: Key,
    starter: Agent[Any] | None = None,
    at: Progress | None = None,
) -> Iterator[Outcome]:
    """Run an agent until `steps` environment steps are done, the first `start` of them random (CAP, Algorithm 1).

    These are lines 2 (random start), 5 and 6 (learn and plan), 7 (collect), 9 and 10 (adapt) of the paper's algorithm.
    `starter` acts during the start; without one, the untrained agent does. The last episode of the start may be cut
    short. Later episodes are played to their end, so the last one may pass `steps`. With an infinite start no data are
    kept. The agent learns once it has `steps_before_learning` new steps, and only between two groups of
    `episodes_at_once`.
    """
    _, k_run = jr.split(key)
    number, done, state, fresh = begin(agent, key) if at is None else at
    group = agent.episodes_at_once
    longest = math.inf if agent.spec.episode_steps is None else agent.spec.episode_steps * agent.spec.repeat
    start_state = starter.init(_keys(k_run, STARTER_NUMBER)[0]) if starter is not None else None
    if starter is not None and done < start:
        for _ in range(number):  # a start policy that counts its episodes counts these too
            starter.begin(start_state)
    while done < steps:
        k_learn, k_collect = _keys(k_run, number)
        random = done < start
        learned: Metrics = {}
        if random:
            actor = (agent, state) if starter is None else (starter, start_state)
            episodes = [collector.collect(*actor, k_collect, int(min(start, steps)) - done)]
        else:
            place = number % group
            if place == 0 and sum(len(episode.reward) for episode in fresh) >= agent.steps_before_learning:
                state, learned = agent.learn(state, fresh, k_learn)
                fresh = ()
            if group == 1:
                episodes = [collector.collect(agent, state, k_collect)]
            else:
                count = min(group - place, max(1, math.ceil((steps - done) / longest)))
                keys = [_keys(k_run, number + ahead)[1] for ahead in range(count)]
                episodes = collector.collect_group(agent, state, keys, place)
        for episode in episodes:
            episode = episode._replace(random=random)
            if start < math.inf:
                fresh = (*fresh, episode)
            state, adapted = agent.adapt(state, episode)
            done += episode.env_steps
            number += 1
            metrics = {**learned, **episode.means, **adapted}
            learned = {}
            yield Outcome(number - 1, episode, metrics, Progress(number, done, state, fresh))


@jax.jit
def _keys(key: Key, number: int) -> tuple[Key, Key]:
    """The keys of episode `number`: one to learn with, one to collect with."""
    k_learn, k_collect = jr.split(jr.fold_in(key, number))
    return k_learn, k_collect
