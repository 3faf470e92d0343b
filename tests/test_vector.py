"""Are episodes that are played side by side those that would have been played one after the other?"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax.random as jr
import numpy as np
import pytest
from gymnasium import spaces

import capax
from capax.agents import ppo
from capax.agents.onpolicy import OnPolicy, OnPolicySettings
from capax.agents.sight import Vectors
from capax.collect import EpisodeCollector
from capax.envs.adapt import make
from capax.errors import EnvironmentFailed, InputError
from capax.kappa import Fixed
from capax.runs.run import Run
from capax.types import Spec
from capax.vector import GroupCollector

SPEC = Spec(5.0, 0.99, False, 6)
SETTINGS = OnPolicySettings(hidden=8, batch=18)


class Drift(gym.Env[Any, Any]):
    """Goes where it is pushed; some begin nearer to the end of the world than others."""

    made: list[Drift]

    def __init__(self, fails_at: float = np.inf) -> None:
        self.observation_space, self.action_space = spaces.Box(-9.0, 9.0, (2,)), spaces.Box(-1.0, 1.0, (1,))
        self.fails_at, self.closed, self.resets = fails_at, 0, 0
        Drift.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t, self.resets = self.np_random.uniform(0.0, 3.0), 0, self.resets + 1
        return np.array([self.x, 0.0]), {}

    def step(self, action: Any) -> Any:
        self.x, self.t = self.x + 0.3 * float(action[0]) + 0.4, self.t + 1
        if self.t >= self.fails_at:
            raise RuntimeError("no fuel")
        return np.array([self.x, self.t]), self.x, self.x > 4.0, False, {"cost": float(self.x > 2.0)}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def counted() -> None:
    Drift.made = []


def agent() -> OnPolicy:
    return OnPolicy(SPEC, Fixed(0.0), Vectors(2), 1, SETTINGS, ppo.surrogate)


def test_a_group_is_as_large_as_a_batch_and_no_larger_than_16():
    def together(batch: int, steps: int | None) -> int:
        spec = SPEC._replace(episode_steps=steps)
        return OnPolicy(spec, Fixed(0.0), Vectors(2), 1, OnPolicySettings(batch=batch), ppo.surrogate).together

    assert [together(*sizes) for sizes in ((2048, 1000), (2048, 500), (2048, 2048), (100, 1000), (2048, 10))] == [
        3, 5, 1, 1, 16,
    ]  # fmt: skip
    assert together(2048, None) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_episodes_side_by_side_are_those_one_after_the_other(first):
    made, keys = agent(), [jr.key(number) for number in range(3 - first)]
    state = made.init(jr.key(9))
    told: list[tuple[int, float]] = []
    begun: list[int] = []
    group = GroupCollector(
        make(Drift, episode_steps=6), lambda: make(Drift), SPEC, made.together,
        lambda ahead, obs: begun.append(ahead), lambda ahead, action, step: told.append((ahead, step.reward)),
    )  # fmt: skip
    together = group.collect_all(made, state, keys, first)
    alone = [EpisodeCollector(make(Drift, episode_steps=6), SPEC).collect(made, state, key) for key in keys]
    lengths = [len(episode.reward) for episode in together]
    assert lengths == [len(episode.reward) for episode in alone]
    for one, other in zip(together, alone, strict=True):
        for name in ("obs", "action", "reward", "cost", "next_obs", "terminated"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
        assert one.paid == other.paid and one.earned == pytest.approx(other.earned)
    assert begun == list(range(len(keys)))
    for ahead, episode in enumerate(together):  # each was told step by step
        np.testing.assert_allclose([reward for at, reward in told if at == ahead], episode.reward)
    assert [env.resets for env in Drift.made[:3]] == [
        int(place >= first) for place in range(3)
    ]  # nobody else was moved


def test_some_end_earlier_than_others():
    made = agent()
    group = GroupCollector(make(Drift, episode_steps=6), lambda: make(Drift), SPEC, 3)
    episodes = group.collect_all(made, made.init(jr.key(9)), [jr.key(number) for number in range(3)], 0)
    lengths = [len(episode.reward) for episode in episodes]
    assert min(lengths) < max(lengths) == 6
    assert all(bool(episode.terminated[-1]) == (episode.next_obs[-1][0] > 4.0) for episode in episodes)


def trained(out: Any, env: Any = Drift, **options: Any) -> Any:
    settings = dict(batch=18, minibatch=6, epochs=1, hidden=4)
    given = dict(method="ppo", steps=60, cost_limit=5.0, episode_steps=6, settings=settings, out=out)
    return capax.train(env, **{**given, **options})


def test_as_many_environments_are_made_as_are_played_and_all_are_closed(tmp_path):
    run = trained(tmp_path)
    assert len(Drift.made) == 3 and all(env.closed == 1 for env in Drift.made)
    assert run.episodes[-1]["steps"] >= 60 and run.episodes[-2]["steps"] < 60 + 2 * 6
    assert all(0.0 < row["time"]["steps_per_second"] < 1e6 for row in run.episodes)


def test_an_environment_that_fails_among_others_is_told(tmp_path):
    with pytest.raises(EnvironmentFailed, match=r"^Drift raised RuntimeError \(no fuel\) in step 2 of the episode"):
        trained(tmp_path, lambda: Drift(fails_at=2))
    assert all(env.closed == 1 for env in Drift.made)
    assert [(row["episode"], row["length"]) for row in Run(tmp_path).interrupted] == [(0, 1), (1, 1), (2, 1)]


def test_what_the_others_paid_is_known_when_one_fails(tmp_path):
    made: list[Drift] = []

    def third_fails() -> Drift:
        made.append(Drift(fails_at=3 if len(made) == 2 else np.inf))
        return made[-1]

    with pytest.raises(EnvironmentFailed):
        trained(tmp_path, third_fails)
    taken = {row["episode"]: row["length"] for row in Run(tmp_path).interrupted}
    assert taken == {0: made[0].t, 1: made[1].t, 2: 2} and taken[0] == 3


def once(make: Any) -> Any:
    known: list[Any] = []

    def only() -> Any:
        if known:
            raise OSError("the port is taken")
        known.append(make())
        return known[0]

    return only


@pytest.mark.parametrize("what", ["the same one again", "one that can be made once", "one in other wrappers"])
def test_where_there_is_only_one_environment_episodes_are_played_in_turn(what, tmp_path):
    env = Drift()
    makers = {
        "the same one again": lambda: env,
        "one that can be made once": once(Drift),
        "one in other wrappers": lambda: gym.wrappers.TimeLimit(env, 6),
    }
    run, whole = trained(tmp_path / "one", makers[what]), trained(tmp_path / "three")
    assert [row["length"] for row in run.episodes] == [row["length"] for row in whole.episodes]
    for name in ("return", "cost"):
        np.testing.assert_allclose(*([row[name] for row in made.episodes] for made in (run, whole)), rtol=1e-3)


def test_environments_that_differ_are_refused(tmp_path):
    class Other(Drift):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1.0, float(len(Drift.made)), (1,))

    with pytest.raises(InputError, match=r"^Other is made with other observations or actions in a second call \(high"):
        trained(tmp_path, Other)
    assert all(env.closed == 1 for env in Drift.made)


def test_a_policy_that_was_never_improved_is_none(tmp_path):
    run = trained(tmp_path, steps=18)
    with pytest.raises(InputError, match="has not learned a policy yet, so train on"):
        capax.load(run)
    policy = capax.load(capax.resume(run, env=Drift, steps=36))
    policy.reset()
    policy(np.zeros(2))
    assert policy.episodes == 0 and policy.steps == 1


def test_the_same_seed_twice_gives_the_same_rows(tmp_path):
    def rows(name: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "time"} for row in trained(tmp_path / name).episodes]

    assert rows("one") == rows("two")
