"""Algorithm 1, once, for every agent: learn, plan, collect, let the true cost move κ, report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.random as jr

from capax.types import Agent, Collector, Episode, Key, Metrics

STARTER = 2**31 - 1
"""Number of the episode that is none: its key is the starter's."""


class Progress(NamedTuple):
    """Where a run stands between two episodes. All that is random follows from its key and the next episode's number, so
    a run that goes on from here does what it would have done without the stop."""

    number: int
    """Of the next episode, random ones included."""
    steps: int
    """Environment steps so far."""
    state: Any
    """The agent's."""
    fresh: tuple[Episode, ...]
    """What the agent has not learned from yet."""


class Outcome(NamedTuple):
    """What is known after an episode; the caller logs it, saves the progress, or stops."""

    number: int
    """Of the episode."""
    episode: Episode
    metrics: Metrics
    """What the agent reported of learning, acting and adapting."""
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
    """Before the first episode; `initial` is data that somebody else collected."""
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

    Lines 2 (random start), 5 and 6 (learn and plan), 7 (collect) and 9 and 10 (adapt) of the paper's algorithm. The
    start is acted out by `starter` (by the agent's untrained state if there is none) and may be cut short; later
    episodes are played to their end, so the last one may pass `steps`. A start without end keeps nothing to learn from.
    An agent that `wants` a number of steps learns once it has them, and one that plays several episodes `together` does so
    between two such groups.
    """
    _, k_run = jr.split(key)
    number, done, state, fresh = begin(agent, key) if at is None else at
    wants, together = getattr(agent, "wants", 0), getattr(agent, "together", 1)
    longest = agent.spec.episode_steps * agent.spec.repeat if together > 1 else math.inf  # type: ignore[attr-defined]
    waiting = starter.init(_keys(k_run, STARTER)[0]) if starter is not None else None
    if starter is not None and done < start:
        for _ in range(number):  # a policy that counts its episodes has seen these
            starter.begin(waiting)
    while done < steps:
        k_learn, k_collect = _keys(k_run, number)
        random = done < start
        learned: Metrics = {}
        if random:
            actor = (agent, state) if starter is None else (starter, waiting)
            episodes = [collector.collect(*actor, k_collect, int(min(start, steps)) - done)]
        else:
            place = number % together
            if place == 0 and sum(len(episode.reward) for episode in fresh) >= wants:
                state, learned = agent.learn(state, fresh, k_learn)
                fresh = ()
            if together == 1:
                episodes = [collector.collect(agent, state, k_collect)]
            else:
                count = min(together - place, math.ceil((steps - done) / longest))
                keys = [_keys(k_run, number + ahead)[1] for ahead in range(count)]
                episodes = collector.collect_all(agent, state, keys, place)  # type: ignore[attr-defined]
        for episode in episodes:
            episode = episode._replace(random=random)
            if start < math.inf:
                fresh = (*fresh, episode)
            state, adapted = agent.adapt(state, episode)
            done += episode.taken
            number += 1
            metrics = {**learned, **episode.means, **adapted}
            learned = {}
            yield Outcome(number - 1, episode, metrics, Progress(number, done, state, fresh))


@jax.jit
def _keys(key: Key, number: int) -> tuple[Key, Key]:
    k_learn, k_collect = jr.split(jr.fold_in(key, number))
    return k_learn, k_collect
