"""Each task of the suite is a sound environment, and its reference controller keeps the limit and earns more than rest."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from capax.core.costs import violates
from capax.envs.suite.catalogue import SUITE, SuiteTask

EPISODES = 20


class Played(NamedTuple):
    """What an episode came to."""

    earned: float
    paid: float
    costs: tuple[float, ...]


def play(env: Any, controller: str, seed: int) -> Played:
    """An episode with the controller of that name."""
    env.reset(seed=seed)
    earned, costs = 0.0, []
    for _ in range(env.steps):
        _, reward, terminated, _, info = env.step(getattr(env, controller)())
        earned += reward
        costs.append(info["cost"])
        if terminated:
            break
    return Played(earned, sum(costs), tuple(costs))


@pytest.fixture(params=SUITE, ids=lambda task: task.entry.partition(":")[2])
def task(request: pytest.FixtureRequest) -> SuiteTask:
    return request.param


def test_the_reference_keeps_the_limit_and_earns_more_than_doing_nothing(task):
    env = gym.make(task.id).unwrapped
    runs = {name: [play(env, name, seed) for seed in range(EPISODES)] for name in ("reference", "rest")}
    earned = {name: np.array([run.earned for run in group]) for name, group in runs.items()}
    error = np.sqrt(sum(values.var(ddof=1) / EPISODES for values in earned.values()))
    assert earned["reference"].mean() > earned["rest"].mean() + 5.0 * error
    kept = [not violates(run.paid, task.limit) for run in runs["reference"]]
    assert all(kept) if task.feasible else not any(kept)


def test_a_seed_gives_the_same_episode_twice(task):
    env = gym.make(task.id).unwrapped
    assert play(env, "reference", 3) == play(env, "reference", 3)


def test_observations_and_costs_are_what_the_spaces_say(task):
    env = gym.make(task.id).unwrapped
    obs, _ = env.reset(seed=0)
    assert obs.shape == env.observation_space.shape and obs.dtype == np.float64
    assert env.action_space.contains(env.rest().astype(np.float32))
    assert env.steps == task.steps == gym.spec(task.id).max_episode_steps
    rng = np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        for _ in range(task.steps):
            obs, reward, terminated, truncated, info = env.step(rng.uniform(env.low, env.high))
            assert np.isfinite(obs).all() and np.isfinite(reward) and info["cost"] >= 0.0 and not truncated
            if terminated:
                break


def test_a_reference_does_not_change_the_episode(task):
    # looking at the reference's action draws no random number and moves nothing
    env = gym.make(task.id).unwrapped
    plain = play(env, "rest", 5)
    env.reset(seed=5)
    costs = []
    for _ in range(len(plain.costs)):
        env.reference()
        *_, info = env.step(env.rest())
        costs.append(info["cost"])
    assert tuple(costs) == plain.costs
