"""Does the loop follow Algorithm 1, and is it a function of its key?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.random as jr
import numpy as np
import pytest
from cmdps import told

from capax.agents.calibrated import Calibrated
from capax.agents.tabular import TabularCAP
from capax.kappa import PI
from capax.loop import run
from capax.tabular import gridworld
from capax.tabular.sampler import WorldCollector
from capax.types import Episode, Spec


def bits(key: Any) -> tuple[int, ...]:
    return tuple(jr.key_data(key).tolist())


@dataclass
class Recorder:
    """An agent and a collector in one, which write down how they are called; the state counts what was done to it."""

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

    def collect(self, agent: Any, state: int, key: Any) -> Episode:
        assert agent is self
        self.calls.append(("collect", state))
        self.keys.append(bits(key))
        self.collected += 1
        nothing = np.zeros(0)
        return Episode(*[nothing] * 5, earned=0.0, paid=float(self.collected - 1), extras={"seen": self.collected})


def test_order_of_algorithm_one():
    # Collection 0 is the random start; plan i learns from collection i and is tried out in collection i + 1.
    recorder, logged = Recorder(), []
    state = run(recorder, recorder, episodes=2, key=jr.key(0), log=lambda *entry: logged.append(entry))
    assert recorder.calls == [
        ("init",), ("collect", 0),
        ("learn", 0, [0]), ("collect", 1), ("adapt", 1, 1),
        ("learn", 11, [1]), ("collect", 12), ("adapt", 12, 2),
    ]  # fmt: skip
    assert state == 22
    assert [(number, int(episode.paid), metrics) for number, episode, metrics in logged] == [
        (0, 1, {"learned": 0, "seen": 2, "adapted": 1}),
        (1, 2, {"learned": 11, "seen": 3, "adapted": 12}),
    ]


def test_keys_are_all_different():
    recorder = Recorder()
    run(recorder, recorder, episodes=5, key=jr.key(0), log=lambda *entry: None)
    assert len(recorder.keys) == 12 and len(set(recorder.keys)) == 12  # init, six collections, five times learn


def test_keys_are_a_function_of_the_key():
    one, same, other = Recorder(), Recorder(), Recorder()
    for recorder, seed in ((one, 0), (same, 0), (other, 1)):
        run(recorder, recorder, episodes=3, key=jr.key(seed), log=lambda *entry: None)
    assert one.keys == same.keys
    assert not set(one.keys) & set(other.keys)


def test_more_episodes_begin_like_fewer():
    few, many = Recorder(), Recorder()
    run(few, few, episodes=2, key=jr.key(0), log=lambda *entry: None)
    run(many, many, episodes=4, key=jr.key(0), log=lambda *entry: None)
    assert many.keys[: len(few.keys)] == few.keys


# The real agents under it.


def frozen(state: Any) -> Any:
    """A state with copies of its arrays."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, state)


@pytest.mark.parametrize("kind", ["cap", "calibrated"])
def test_learn_and_adapt_are_pure(kind):
    world = gridworld(np.random.default_rng(0), size=3, gamma=0.9)
    cmdp, spec = world.cmdp, Spec(0.15, 0.9)
    agent: Any = TabularCAP(told(world), spec, PI()) if kind == "cap" else Calibrated(told(world), spec)
    collector = WorldCollector(cmdp, 40)
    state = run(agent, collector, episodes=2, key=jr.key(0), log=lambda *entry: None)
    episode = collector.collect(agent, state, jr.key(1))
    before = frozen(state)
    first, _ = agent.learn(state, [episode], jr.key(2))
    agent.adapt(first, episode)
    second, _ = agent.learn(state, [episode], jr.key(2))
    for was, now in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(was, now)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_same_key_gives_the_same_run():
    world = gridworld(np.random.default_rng(1), size=3, gamma=0.9)
    cmdp = world.cmdp
    agent = TabularCAP(told(world), Spec(0.15, 0.9), PI())
    runs = []
    for seed in (0, 0, 1):
        paid: list[float] = []
        log = lambda number, episode, metrics, paid=paid: paid.append(episode.paid)  # noqa: E731
        run(agent, WorldCollector(cmdp, 20), episodes=4, key=jr.key(seed), log=log)
        runs.append(paid)
    assert runs[0] == runs[1] != runs[2]
