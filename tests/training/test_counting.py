"""Every cost of a run is counted once, in one way: rows, interrupted episodes, evaluation and rules for κ agree."""

from __future__ import annotations

import json
from typing import Any

import jax.random as jr
import numpy as np
import pytest
from support import toy_envs
from support.interruption import Stop
from support.small_settings import GRADIENT
from support.tiny_runs import train_random, train_tiny
from support.toy_envs import Toy, limited

import capax
from capax.core.costs import ROUNDING, violates
from capax.core.errors import EnvironmentFailed, InputError
from capax.core.types import Feedback, Spec
from capax.envs.task import GymTask
from capax.kappa.conformal import Conformal
from capax.runs import journal
from capax.runs.run import Run
from capax.runtime import lanes
from capax.training import collect, recorder, run_loop

# The step that fails.


def failing(cost: float, **broken: Any) -> Any:
    """A function that makes a toy which pays 1 in every step, and `cost` in its sixth, whose result is broken."""
    steps: list[int] = []

    def reply(toy: Toy) -> Any:
        steps.append(toy.count)
        last = len(steps) == 6
        obs = broken.get("obs", toy.obs()) if last else toy.obs()
        return obs, broken.get("reward", 0.0) if last else 0.0, False, False, {"cost": cost if last else 1.0}

    return limited(lambda: Toy(reply=reply), 4)


@pytest.mark.parametrize("broken", [{"obs": np.full(2, np.nan)}, {"reward": "much"}])
def test_the_cost_of_a_step_that_fails_is_in_the_interrupted_row(broken, tmp_path):
    with pytest.raises(EnvironmentFailed, match="in step 2 of the episode"):
        train_random(tmp_path, env=failing(1000.0, **broken))
    (row,) = Run(tmp_path).interrupted
    assert (row["episode"], row["length"], row["cost"], row["violation"]) == (1, 2, 1001.0, True)
    assert row["discounted_cost"] == pytest.approx(1.0 + 0.99 * 1000.0)


def test_the_first_step_may_be_the_one_that_fails(tmp_path):
    # a step was taken and paid for, so the folder stays
    env = limited(lambda: Toy(reply=lambda toy: (np.full(2, np.nan), 0.0, False, False, {"cost": 30.0})), 4)
    with pytest.raises(EnvironmentFailed, match=r"capax\.resume"):
        train_random(tmp_path / "run", env=env)
    assert [(row["length"], row["cost"]) for row in Run(tmp_path / "run").interrupted] == [(1, 30.0)]


def test_the_cost_of_a_step_that_fails_among_episodes_side_by_side_is_counted(tmp_path):
    steps: list[int] = []

    def reply(toy: Toy) -> Any:
        steps.append(toy.count)
        obs = np.full(2, np.nan) if len(steps) == 4 else toy.obs()  # the second step of the second of two episodes
        return obs, 0.0, False, False, {"cost": 10.0 * len(steps)}

    with pytest.raises(EnvironmentFailed):
        train_random(
            tmp_path, env=limited(lambda: Toy(reply=reply), 4), method="ppo", settings=GRADIENT | dict(batch=8)
        )
    assert [(row["episode"], row["length"], row["cost"]) for row in Run(tmp_path).interrupted] == [
        (0, 2, 40.0),
        (1, 2, 60.0),
    ]


@pytest.mark.parametrize("cost", [np.inf, 1e39])
def test_an_infinite_cost_is_a_violation(cost, tmp_path):
    with pytest.raises(EnvironmentFailed, match="the cost of Toy is"):
        train_random(tmp_path, env=failing(cost))
    (row,) = Run(tmp_path).interrupted
    assert row["violation"] is True and row["cost"] == (None if cost == np.inf else 1e39)
    capax.resume(tmp_path, env=failing(1.0))
    capax.report(tmp_path, tmp_path / "picture.png")


def test_a_refused_negative_cost_offsets_nothing(tmp_path):
    with pytest.raises(EnvironmentFailed, match="--allow-negative-costs"):
        train_random(tmp_path, env=failing(-5.0))
    assert [(row["length"], row["cost"]) for row in Run(tmp_path).interrupted] == [(1, 1.0)]


def test_a_lane_that_is_stopped_after_a_step_counts_it(tmp_path, monkeypatch):
    def stop_in_step_6() -> None:
        calls.append(1)
        if len(calls) == 6:
            raise Stop

    calls: list[int] = []
    monkeypatch.setattr(lanes, "stop_if_requested", stop_in_step_6)
    with pytest.raises(Stop):
        train_random(tmp_path)
    assert [(row["length"], row["cost"]) for row in Run(tmp_path).interrupted] == [(2, 30.0)]  # 10 + 20


def test_a_process_killed_while_it_checks_a_step_has_counted_it(tmp_path, monkeypatch):
    # nothing is done on the way out, as after kill -9
    monkeypatch.setattr(run_loop, "count_interrupted", lambda *_: None)

    class Deadly:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise Stop

    with pytest.raises(Stop):
        train_random(tmp_path, env=failing(1000.0, obs=Deadly()))
    monkeypatch.undo()
    run = capax.resume(tmp_path, env=failing(1.0))
    assert [(row["length"], row["cost"], row["reason"]) for row in run.interrupted] == [(2, 1001.0, "killed")]


def test_an_agent_that_fails_after_a_step_does_not_lose_it(tmp_path, monkeypatch):
    def fail(self: Any, carry: Any, cost: float) -> Any:
        raise Stop

    monkeypatch.setattr(collect.Agent, "observe_cost", fail)
    with pytest.raises(Stop):
        train_random(tmp_path)
    assert [(row["length"], row["cost"]) for row in Run(tmp_path).interrupted] == [(1, 10.0)]


def test_a_step_is_counted_once_in_the_journal(tmp_path):
    # its cost alone, then all of it; a step that stopped in between has only its cost
    head = {"episode": 0, "steps": 0, "phase": "plan", "first": 0, "after": 0}
    lines = [head, [None, 2.0, None, None], [1.0, 2.0, 5, 6], [None, 3.0, None, None]]
    (tmp_path / journal.RUNNING).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (trace,) = journal.left_over(tmp_path)
    assert trace.steps == [(1.0, 2.0, 5, 6), (0.0, 3.0, None, None)]


# One sum, and one comparison.


def tenths(toy: Toy) -> Any:
    """A step that costs a tenth."""
    return toy.obs(), 0.0, False, False, {"cost": 0.1}


@pytest.mark.parametrize("discounted", [False, True])
@pytest.mark.parametrize("steps", [3, 12, 100])
def test_a_cost_equal_to_the_limit_up_to_rounding_is_no_violation(steps, discounted, tmp_path):
    # 0.1 + 0.1 + 0.1 > 0.3 in floats, and sums of 12 and of 100 tenths depend on their order
    limit = float(sum(0.1 * 0.99**t for t in range(steps))) if discounted else steps / 10
    options: dict[str, Any] = dict(
        method="random", cost_limit=limit, discounted=discounted, steps=steps, episode_steps=steps
    )
    run = train_tiny(tmp_path / "run", limited(lambda: Toy(reply=tenths), steps), **options)
    (row,) = run.episodes
    assert row["violation"] is False and row["violations"] == 0 and row[run.config.cost_name] == pytest.approx(limit)

    trace = journal.InterruptedEpisode(0, 0, "plan", 0, [(0.0, 0.1, 0, 0)] * steps, 0)
    interrupted = journal.interrupted_row(trace, limit, run.config.spec(), "stopped")
    assert all(interrupted[name] == row[name] for name in ("cost", "discounted_cost", "violation"))
    lower = options | {"cost_limit": limit * (1.0 - 1e-8)}  # no rounding
    above = train_tiny(tmp_path / "above", limited(lambda: Toy(reply=tenths), steps), **lower)
    assert above.episodes[0]["violation"] is True


def test_what_counts_as_equal_is_a_share_of_the_limit():
    assert not violates(1.0 + 0.5 * ROUNDING, 1.0) and violates(1.0 + 2.0 * ROUNDING, 1.0)
    assert violates(152.0 + 4.9e-6, 152.0)  # the smallest violation among the runs in results/
    assert violates(5e-324, 0.0) and not violates(0.0, 0.0)
    assert not violates(1e300, np.inf) and violates(np.inf, 1e300) and not violates(np.inf, np.inf)
    assert not violates(0.1 + 5e-7, 0.1, exact=True) and violates(0.1 + 2e-6, 0.1, exact=True)


def test_a_rule_sees_the_violations_that_rows_count():
    for paid, violated in ((0.1 + 0.1 + 0.1, False), (0.3 * (1.0 + 1e-8), True)):
        feedback = Feedback(paid, 0.3, residual=0.0, unit=1.0)
        assert feedback.violated is violated
        assert (Conformal().update(Conformal().init(), feedback).k > 0.0) is violated


def test_evaluation_counts_like_training(tmp_path):
    run = train_tiny(tmp_path, limited(lambda: Toy(reply=tenths), 12), cost_limit=1.2, steps=7, kappa=0.1)
    result = capax.evaluate(run, env=limited(lambda: Toy(reply=tenths), 12), episodes=2)
    assert result.violations == 0 and [row["cost"] for row in result.rows] == [run.episodes[1]["cost"]] * 2


def test_an_interrupted_policy_of_a_finite_world_has_its_exact_cost(tmp_path, monkeypatch):
    # its rows are exact and normalised, and so is the limit: sums of sampled costs would be of another size
    def stop(*_: Any) -> None:
        raise Stop

    options: dict[str, Any] = dict(steps=150, episode_steps=50, seed=1)
    whole = capax.train("capax/Gridworld-v0", out=tmp_path / "whole", **options)
    monkeypatch.setattr(recorder, "make_row", stop)
    with pytest.raises(Stop):
        capax.train("capax/Gridworld-v0", out=tmp_path / "cut", **options)
    (row,), exact = Run(tmp_path / "cut").interrupted, whole.episodes[0]
    for name in ("return", "discounted_return", "cost", "discounted_cost", "violation", "length"):
        assert row[name] == exact[name], name


def test_a_sum_in_the_convention_of_the_limit():
    cost = np.array([1.0, 2.0, 4.0])
    assert Spec(1.0, 0.5, False).paid(cost) == 7.0 and Spec(1.0, 0.5, True).paid(cost) == 1.0 + 1.0 + 1.0


# Negative costs.


def rebate(toy: Toy) -> Any:
    """Pays 10 in the first step of an episode and gets 2 back in each of the others."""
    return toy.obs(), 0.0, False, False, {"cost": 10.0 if toy.count == 1 else -2.0}


def test_negative_costs_offset_others_only_if_that_is_allowed(tmp_path):
    env = limited(lambda: Toy(reply=rebate), 4)
    with pytest.raises(EnvironmentFailed, match=r"is -2 in step 2 of the episode: .*--allow-negative-costs"):
        train_tiny(tmp_path / "refused", env)
    assert [row["cost"] for row in Run(tmp_path / "refused").interrupted] == [10.0]

    run = train_tiny(tmp_path / "run", env, allow_negative_costs=True, on_episode=lambda row: row["episode"] < 1)
    assert run.config.allow_negative_costs and [row["cost"] for row in run.episodes] == [4.0, 8.0]
    run = capax.resume(run, env=env)  # from the configuration
    assert len(run.episodes) == 3 and capax.evaluate(run, env=env, episodes=1).rows[0]["cost"] == 4.0
    with pytest.raises(InputError, match=r"begun with other settings \(allow_negative_costs True\)"):
        train_tiny(tmp_path / "run", env, resume=True)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_allow_negative_costs_is_a_flag(value, tmp_path):
    with pytest.raises(InputError, match=r"^allow_negative_costs is .*: give True or False\.$"):
        train_tiny(tmp_path / "run", allow_negative_costs=value)


# What is stored.


class Reusing(capax.Agent[None]):
    """An agent that writes each action into the same array, and into the observation that it gets."""

    spec = Spec(1.0, 0.99, False)

    def init(self, key: Any) -> None:
        return None

    def begin(self, state: None) -> Any:
        return np.zeros(1)

    def act(self, state: None, carry: Any, obs: Any, key: Any) -> Any:
        carry += 0.25
        obs[:] = -1.0
        return carry, carry, {}

    def learn(self, state: None, episodes: Any, key: Any) -> Any:
        return state, {}


def test_transitions_are_those_that_happened_whoever_writes_into_his_arrays():
    task = GymTask(toy_envs.counting(low=-1.0, high=1.0), name="toy", episode_steps=3)
    episode = collect.EpisodeCollector(task, Spec(1.0, 0.99, False)).collect(Reusing(), None, jr.key(0))
    assert episode.action.ravel().tolist() == [0.25, 0.5, 0.75]
    assert np.concatenate(task.env.actions).tolist() == [0.25, 0.5, 0.75]
    assert episode.obs[:, 1].tolist() == [0.0, 1.0, 2.0] and episode.next_obs[:, 1].tolist() == [1.0, 2.0, 3.0]
