"""Episodes that are played side by side are those that would have been played one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax.random as jr
import numpy as np
import pytest
from gymnasium import spaces
from support.tiny_runs import without_times
from support.toy_envs import Maker, Toy

import capax
from capax.agents.policy_gradient.agent import PolicyGradient
from capax.agents.policy_gradient.observations import VectorObservations
from capax.agents.policy_gradient.ppo import ppo_surrogate
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.core.errors import EnvironmentFailed, InputError
from capax.core.types import Spec
from capax.envs.make import make
from capax.kappa.fixed import Fixed
from capax.runs.run import Run
from capax.training.collect import EpisodeCollector
from capax.training.collect_group import GroupCollector

SPEC = Spec(5.0, 0.99, False, 6)


def drift(fails_at: int | None = None, high: float = 1.0) -> Toy:
    """Goes where it is pushed; some episodes begin nearer to the end of the world, x = 4, than others."""

    def start(toy: Toy) -> Any:
        return np.array([toy.np_random.uniform(0.0, 3.0), 0.0])

    def move(toy: Toy) -> Any:
        if toy.count == fails_at:
            raise RuntimeError("no fuel")
        x = toy.x[0] + 0.3 * float(toy.action[0]) + 0.4
        return np.array([x, toy.count]), x, {"cost": float(x > 2.0)}

    box = spaces.Box(-1.0, high, (1,))
    return Toy(box, spaces.Box(-9.0, 9.0, (2,)), start=start, move=move, terminates=lambda toy: toy.x[0] > 4.0)


def agent(batch: int = 18, episode_steps: int | None = 6) -> PolicyGradient:
    """PPO for the toy."""
    spec, settings = SPEC._replace(episode_steps=episode_steps), PolicyGradientSettings(hidden=8, batch=batch)
    return PolicyGradient(spec, Fixed(0.0), VectorObservations(2), 1, settings, ppo_surrogate)


def task(make_toy: Callable[[], Any] = drift) -> Any:
    """The toy with episodes of at most six steps."""
    return make(make_toy, episode_steps=6)


def train_group(out: Any, env: Any = drift, **options: Any) -> Run:
    """PPO with groups of three episodes, for 60 steps."""
    settings = dict(batch=18, minibatch=6, epochs=1, hidden=4)
    return capax.train(
        env, **dict(method="ppo", steps=60, cost_limit=5.0, episode_steps=6, settings=settings, out=out) | options
    )


@pytest.mark.parametrize(
    ("batch", "episode_steps", "size"),
    [(2048, 1000, 3), (2048, 500, 5), (2048, 2048, 1), (100, 1000, 1), (2048, 10, 16), (2048, None, 1)],
)
def test_a_group_is_as_large_as_a_batch_and_no_larger_than_16(batch, episode_steps, size):
    assert agent(batch, episode_steps).episodes_at_once == size


@pytest.mark.parametrize("first", [0, 1])
def test_episodes_side_by_side_are_those_one_after_the_other(first):
    learner, keys = agent(), [jr.key(number) for number in range(3 - first)]
    state, maker = learner.init(jr.key(9)), Maker(drift)
    rewards: list[tuple[int, float]] = []
    resets: list[int] = []
    group = GroupCollector(
        task(maker), lambda: make(maker), SPEC, learner.episodes_at_once,
        lambda ahead, obs: resets.append(ahead), lambda ahead, action, step: rewards.append((ahead, step.reward)),
    )  # fmt: skip
    together = group.collect_group(learner, state, keys, first)
    alone = [EpisodeCollector(task(), SPEC).collect(learner, state, key) for key in keys]
    assert [len(episode.reward) for episode in together] == [len(episode.reward) for episode in alone]
    for one, other in zip(together, alone, strict=True):
        for name in ("obs", "action", "reward", "cost", "next_obs", "terminated"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
        assert one.paid == other.paid and one.earned == pytest.approx(other.earned)
    assert resets == list(range(len(keys)))
    for ahead, episode in enumerate(together):  # each was reported step by step
        np.testing.assert_allclose([reward for place, reward in rewards if place == ahead], episode.reward)
    assert [toy.resets for toy in maker.toys] == [int(place >= first) for place in range(3)]  # no other was moved


def test_some_episodes_end_earlier_than_others():
    learner = agent()
    group = GroupCollector(task(), lambda: make(drift), SPEC, 3)
    episodes = group.collect_group(learner, learner.init(jr.key(9)), [jr.key(number) for number in range(3)], 0)
    lengths = [len(episode.reward) for episode in episodes]
    assert min(lengths) < max(lengths) == 6
    assert all(bool(episode.terminated[-1]) == (episode.next_obs[-1][0] > 4.0) for episode in episodes)


def test_as_many_environments_are_made_as_are_played_and_all_are_closed(tmp_path):
    maker = Maker(drift)
    run = train_group(tmp_path, maker)
    assert len(maker.toys) == 3 and all(toy.closes == 1 for toy in maker.toys)
    assert run.episodes[-1]["steps"] >= 60 and run.episodes[-2]["steps"] < 60 + 2 * 6
    assert all(0.0 < row["time"]["steps_per_second"] < 1e6 for row in run.episodes)


def test_an_environment_that_fails_among_others_is_reported(tmp_path):
    maker = Maker(drift, fails_at=2)
    with pytest.raises(EnvironmentFailed, match=r"^Toy raised RuntimeError \(no fuel\) in step 2 of the episode"):
        train_group(tmp_path, maker)
    assert all(toy.closes == 1 for toy in maker.toys)
    assert [(row["episode"], row["length"]) for row in Run(tmp_path).interrupted] == [(0, 1), (1, 1), (2, 1)]


def test_steps_of_the_other_episodes_are_kept_when_one_fails(tmp_path):
    toys: list[Toy] = []

    def third_fails() -> Toy:
        toys.append(drift(fails_at=3 if len(toys) == 2 else None))
        return toys[-1]

    with pytest.raises(EnvironmentFailed):
        train_group(tmp_path, third_fails)
    lengths = {row["episode"]: row["length"] for row in Run(tmp_path).interrupted}
    assert lengths == {0: toys[0].count, 1: toys[1].count, 2: 2} and lengths[0] == 3


def once(make: Callable[[], Any]) -> Callable[[], Any]:
    """A function that can make one environment only."""
    envs: list[Any] = []

    def make_first() -> Any:
        if envs:
            raise OSError("the port is taken")
        envs.append(make())
        return envs[0]

    return make_first


@pytest.mark.parametrize("maker", ["the same one again", "one that can be made once", "one in other wrappers"])
def test_where_there_is_only_one_environment_episodes_are_played_in_turn(maker, tmp_path):
    env = drift()
    makers = {
        "the same one again": lambda: env,
        "one that can be made once": once(drift),
        "one in other wrappers": lambda: gym.wrappers.TimeLimit(env, 6),
    }
    in_turn, side_by_side = train_group(tmp_path / "one", makers[maker]), train_group(tmp_path / "three")
    assert [row["length"] for row in in_turn.episodes] == [row["length"] for row in side_by_side.episodes]
    for name in ("return", "cost"):
        columns = [[row[name] for row in run.episodes] for run in (in_turn, side_by_side)]
        np.testing.assert_allclose(*columns, rtol=1e-3)


def test_environments_that_differ_are_refused(tmp_path):
    toys: list[Toy] = []

    def wider_each_time() -> Toy:
        toys.append(drift(high=1.0 + len(toys)))
        return toys[-1]

    with pytest.raises(InputError, match=r"^Toy is made with other observations or actions in a second call \(high"):
        train_group(tmp_path, wider_each_time)
    assert all(toy.closes == 1 for toy in toys)


def test_a_policy_that_was_never_improved_is_none(tmp_path):
    run = train_group(tmp_path, steps=18)
    with pytest.raises(InputError, match="has not learned a policy yet, so resume it"):
        capax.load(run)
    policy = capax.load(capax.resume(run, env=drift, steps=36))
    policy.reset()
    policy(np.zeros(2))
    assert policy.episodes == 0 and policy.steps == 1


def test_the_same_seed_twice_gives_the_same_rows(tmp_path):
    one, other = (without_times(train_group(tmp_path / name).episodes) for name in ("one", "other"))
    assert one == other
