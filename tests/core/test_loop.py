"""The loop follows Algorithm 1, and all of it follows from its key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.random as jr
import numpy as np
import pytest
from support.cmdps import agent_knowledge

from capax.agents.calibrated import Calibrated
from capax.agents.tabular import TabularCAP
from capax.core.contracts import Agent, Collector
from capax.core.loop import begin, run
from capax.core.types import Episode, Spec
from capax.kappa.pi import PI
from capax.tabular import gridworld
from capax.tabular.sampler import WorldCollector


def bits(key: Any) -> tuple[int, ...]:
    """The numbers of a key."""
    return tuple(jr.key_data(key).tolist())


@dataclass
class CallRecorder(Agent[int], Collector):
    """An agent and a collector in one that record their calls. The state counts the calls of learn, and ten times adapt."""

    spec: ClassVar[Spec] = Spec(1.0, 0.99)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    keys: list[tuple[int, ...]] = field(default_factory=list)
    collected: int = 0

    def init(self, key: Any) -> int:
        self.calls.append(("init",))
        self.keys.append(bits(key))
        return 0

    def learn(self, state: int, episodes: Any, key: Any) -> Any:
        self.calls.append(("learn", state, [int(episode.paid) for episode in episodes]))
        self.keys.append(bits(key))
        return state + 1, {"learned": state}

    def adapt(self, state: int, episode: Any) -> Any:
        self.calls.append(("adapt", state, int(episode.paid)))
        return state + 10, {"adapted": state}

    def collect(self, agent: Any, state: int, key: Any, max_steps: int | None = None) -> Episode:
        assert agent is self
        self.calls.append(("collect", state) if max_steps is None else ("collect", state, max_steps))
        self.keys.append(bits(key))
        self.collected += 1
        one = np.zeros(1)
        extras = {"collected": np.array([self.collected])}
        return Episode(*[one] * 5, earned=0.0, paid=float(self.collected - 1), extras=extras, terminated=one)


def test_order_of_algorithm_one():
    # Collections 0 and 1 are the random start of two steps; the first plan learns from both.
    recorder = CallRecorder()
    outcomes = list(run(recorder, recorder, start=2, steps=4, key=jr.key(0)))
    assert recorder.calls == [
        ("init",),
        ("collect", 0, 2), ("adapt", 0, 0),
        ("collect", 10, 1), ("adapt", 10, 1),
        ("learn", 20, [0, 1]), ("collect", 21), ("adapt", 21, 2),
        ("learn", 31, [2]), ("collect", 32), ("adapt", 32, 3),
    ]  # fmt: skip
    assert [(o.number, o.steps, o.episode.random, int(o.episode.paid), o.metrics, o.state) for o in outcomes] == [
        (0, 1, True, 0, {"collected": 1, "adapted": 0}, 10),
        (1, 2, True, 1, {"collected": 2, "adapted": 10}, 20),
        (2, 3, False, 2, {"learned": 20, "collected": 3, "adapted": 21}, 31),
        (3, 4, False, 3, {"learned": 31, "collected": 4, "adapted": 32}, 42),
    ]


def test_a_starter_acts_first_and_initial_data_are_learned_from():
    recorder, starter = CallRecorder(), CallRecorder()
    actors: list[Any] = []

    class ActorCollector(Collector):
        """Calls the collector of the agent that acts."""

        def collect(self, agent: Any, state: Any, key: Any, max_steps: int | None = None) -> Episode:
            actors.append(agent)
            return agent.collect(agent, state, key, max_steps)

    logged = starter.collect(starter, 0, jr.key(1))
    at = begin(recorder, jr.key(0), [logged])
    outcomes = list(run(recorder, ActorCollector(), start=1, steps=2, key=jr.key(0), starter=starter, at=at))
    assert [actor is starter for actor in actors] == [True, False]
    assert ("learn", 10, [0, 1]) in recorder.calls  # the logged episode, then the starter's
    assert [outcome.episode.random for outcome in outcomes] == [True, False]


def test_nothing_is_random_if_the_start_is_zero():
    recorder = CallRecorder()
    list(run(recorder, recorder, start=0, steps=1, key=jr.key(0)))
    assert recorder.calls == [("init",), ("learn", 0, []), ("collect", 1), ("adapt", 1, 0)]


def test_keys_are_all_different():
    recorder = CallRecorder()
    list(run(recorder, recorder, start=1, steps=6, key=jr.key(0)))
    assert len(recorder.keys) == 12 and len(set(recorder.keys)) == 12  # init, six collections, five times learn


def test_keys_are_a_function_of_the_key():
    one, same, other = CallRecorder(), CallRecorder(), CallRecorder()
    for recorder, seed in ((one, 0), (same, 0), (other, 1)):
        list(run(recorder, recorder, start=1, steps=4, key=jr.key(seed)))
    assert one.keys == same.keys
    assert not set(one.keys) & set(other.keys)


def test_more_episodes_begin_like_fewer():
    few, many = CallRecorder(), CallRecorder()
    list(run(few, few, start=1, steps=3, key=jr.key(0)))
    list(run(many, many, start=1, steps=5, key=jr.key(0)))
    assert many.keys[: len(few.keys)] == few.keys


# Real agents in the loop.


def with_copied_arrays(state: Any) -> Any:
    """A state with copies of its arrays."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, state)


@pytest.mark.parametrize("kind", ["cap", "calibrated"])
def test_learn_and_adapt_are_pure(kind):
    world = gridworld(np.random.default_rng(0), size=3, gamma=0.9)
    cmdp, spec = world.cmdp, Spec(0.15, 0.9)
    agent: Any = (
        TabularCAP(agent_knowledge(world), spec, PI()) if kind == "cap" else Calibrated(agent_knowledge(world), spec)
    )
    collector = WorldCollector(cmdp, 40)
    *_, last = run(agent, collector, start=40, steps=120, key=jr.key(0))
    state = last.state
    episode = collector.collect(agent, state, jr.key(1))
    before = with_copied_arrays(state)
    first, _ = agent.learn(state, [episode], jr.key(2))
    agent.adapt(first, episode)
    second, _ = agent.learn(state, [episode], jr.key(2))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(old, new)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_same_key_gives_the_same_run():
    world = gridworld(np.random.default_rng(1), size=3, gamma=0.9)
    cmdp = world.cmdp
    agent = TabularCAP(agent_knowledge(world), Spec(0.15, 0.9), PI())
    runs = []
    for seed in (0, 0, 1):
        outcomes = run(agent, WorldCollector(cmdp, 20), start=20, steps=100, key=jr.key(seed))
        runs.append([outcome.episode.paid for outcome in outcomes])
    assert runs[0] == runs[1] != runs[2]
