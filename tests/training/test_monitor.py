"""Warnings tell of a run that does not go well, and ordinary runs have none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.small_settings import VECTOR
from support.tiny_runs import train_tiny
from support.toy_envs import Toy, limited

from capax.runs.config import RunConfig
from capax.training.monitor import RECENT, WINDOW, Monitor, binomial_tail

CONFIG = RunConfig(
    task="T", kind="vector", method="cap", kappa="conformal", steps=1000, seed=0, gamma=0.99, discounted=False,
    cost_limit=20.0, violation_rate=0.02, episode_steps=10, capacity=1000, obs_dim=1, action_low=(-1.0,),
    action_high=(1.0,), action_shape=(1,),
)  # fmt: skip


def warnings_of(returns: Any, costs: Any = 1.0, config: RunConfig = CONFIG, **columns: Any) -> list[list[str]]:
    """The warnings after each episode with these returns and costs."""
    monitor, costs = Monitor(config), np.broadcast_to(costs, np.shape(returns))
    rows = [
        {"phase": "plan", "return": float(earned), "cost": float(paid), "discounted_cost": float(paid) / 2.0} | columns
        for earned, paid in zip(returns, costs, strict=True)
    ]
    return [list(monitor.warnings(row)) for row in rows]


def fall(count: int = 4 * WINDOW) -> np.ndarray:
    """Returns that are near 100 in the first half, and near 50 in the second one."""
    return np.where(np.arange(count) < count // 2, 100.0, 50.0) + np.tile([0.0, 1.0], count // 2)


def test_a_cost_far_below_the_limit_while_the_return_falls_is_warned_of_once():
    warnings = warnings_of(fall())
    (number,) = (number for number, messages in enumerate(warnings) if messages)
    (message,) = warnings[number]
    # the fall begins with episode 2·WINDOW, and is clear before as many episodes as WINDOW are compared with those before
    assert 2 * WINDOW <= number < 3 * WINDOW
    assert message.startswith(
        "the cost of the last 10 episodes is 5% of the limit, and their return has fallen from 100 to "
    )
    assert "--kappa 0.1" in message and "\n" not in message


def test_the_means_in_the_warning_by_hand():
    # 20 episodes: the first 10 have returns 100 and 101 in turn, the last 10 have 50 and 51
    (message,) = warnings_of(fall(2 * WINDOW))[-1]
    assert "has fallen from 100 to 50.5: " in message  # 100.5 with three digits is 100, as ties go to even


@pytest.mark.parametrize(("returns", "costs", "changes"), [
    (fall(), 5.0, {}),  # a quarter of the limit
    (fall()[::-1], 1.0, {}),  # the return rises
    (fall(), 1.0, {"cost_limit": None}),
    (fall(), 0.0, {"cost_limit": 0.0}),
    (fall(), 1.0, {"method": "cem", "kappa": None}),  # it is not held to the limit
    (fall(2 * WINDOW)[1:], 1.0, {}),  # too few episodes
    (np.full(4 * WINDOW, 3.0), 1.0, {}),
])  # fmt: skip
def test_other_runs_are_not_warned_of(returns, costs, changes):
    assert not any(warnings_of(returns, costs, replace(CONFIG, **changes)))


@pytest.mark.parametrize("method", ["ccem", "ppo-lag"])
def test_a_method_without_kappa_that_ends_its_episodes_is_warned_of(method):
    messages = [m for one in warnings_of(fall(), 1.0, replace(CONFIG, method=method, kappa=None)) for m in one]
    assert len(messages) == 1 and messages[0].endswith("See whether ending an episode should cost something.")
    assert "--kappa" not in messages[0]


def test_a_run_that_continues_is_compared_with_what_it_was():
    rows = [{"phase": "plan", "return": float(earned), "cost": 1.0} for earned in fall()]
    half = len(rows) // 2
    continued = Monitor(CONFIG, rows[:half])
    assert sum(len(list(continued.warnings(row))) for row in rows[half:]) == 1
    assert not any(list(Monitor(CONFIG, rows).warnings(row)) for row in rows[half:])  # it was warned of before


def test_a_return_below_that_of_random_actions_is_warned_of():
    # a robot that falls over at once: it never earned more in a planned episode
    monitor, random = Monitor(CONFIG), {"phase": "random", "cost": 8.0, "discounted_cost": 4.0}
    planned = {"phase": "plan", "cost": 1.0, "discounted_cost": 0.5}
    assert not any(list(monitor.warnings({**random, "return": 20.0 + n % 3})) for n in range(WINDOW))
    messages = [list(monitor.warnings({**planned, "return": -4.0 + n % 2})) for n in range(2 * WINDOW)]
    assert [number for number, warnings in enumerate(messages) if warnings] == [WINDOW - 1]
    assert "has fallen from 20.9 in the random start to -3.5: " in messages[WINDOW - 1][0]


def test_a_discounted_limit_is_compared_with_the_discounted_cost():
    config = replace(CONFIG, discounted=True)
    assert any(warnings_of(fall(), 9.0, config)) and not any(
        warnings_of(fall(), 11.0, config)
    )  # half is below 5, or above


def test_random_episodes_do_not_count():
    assert not any(warnings_of(fall(), phase="random"))


def test_returns_that_only_scatter_are_not_warned_of():
    rng = np.random.default_rng(0)
    warned = [any(warnings_of(100.0 + 30.0 * rng.normal(size=300))) for _ in range(40)]
    assert sum(warned) <= 1


@pytest.mark.parametrize(("columns", "words"), [
    ({"feasible": 0.0}, "in a whole episode no plan was within the limit of 20"),
    ({"bad_fits": 1}, "a fit gave a model that is not finite"),
    ({"plan_bad": 0.5}, "a plan was not finite"),
])  # fmt: skip
def test_failures_of_fits_and_plans_are_warned_of(columns, words):
    (messages,) = warnings_of([1.0], **columns)
    assert len(messages) == 1 and messages[0].startswith(words)


def test_without_a_limit_no_plan_is_feasible_only_if_none_is_finite():
    for config in (replace(CONFIG, cost_limit=None), replace(CONFIG, method="cem", kappa=None)):
        ((message,),) = warnings_of([1.0], config=config, feasible=0.0)
        assert message.startswith("in a whole episode no plan was finite")


def test_binomial_tail_by_hand():
    # of 3 with ½: 2 or more in 3 + 1 of 8 cases
    assert binomial_tail(2, 3, 0.5) == 0.5
    assert binomial_tail(0, 3, 0.1) == pytest.approx(1.0)


def first_warned(messages: list[list[str]]) -> int | None:
    """The first episode with a warning."""
    return next((number for number, warnings in enumerate(messages) if warnings), None)


@pytest.mark.parametrize(("pattern", "rate", "warned"), [
    ([1, 1, 1, 0, 0], 0.02, 2),
    ([1, 0, 1, 0, 1], 0.02, 4),
    ([1, 0, 1, 0, 0, 1, 0, 0, 1], 0.02, None),  # at most two in any five
    ([1, 1, 1, 1, 1], 0.4, None),  # .4⁵ = .01: it happens by chance
])  # fmt: skip
def test_a_run_that_does_not_keep_its_limit_is_warned_of(pattern, rate, warned):
    config = replace(CONFIG, violation_rate=rate)
    monitor = Monitor(config)
    row = {"phase": "plan", "return": 1.0, "cost": 30.0}
    messages = [list(monitor.warnings(row | {"violation": bool(one)})) for one in pattern]
    assert first_warned(messages) == warned
    assert warned is None or "violate the limit of 20, so it is not being kept" in messages[warned][0]


def test_a_method_without_a_limit_is_not_warned_of_violations():
    assert not any(warnings_of(np.ones(9), 30.0, replace(CONFIG, method="cem", kappa=None), violation=True))


def test_a_model_that_does_not_predict_the_reward_is_warned_of():
    messages = warnings_of(np.ones(RECENT), reward_explained=0.05)
    assert first_warned(messages) == RECENT - 1 and "the agent does not learn what to do" in messages[-1][0]
    assert not any(warnings_of(np.ones(9), reward_explained=0.2))
    assert not any(warnings_of(np.ones(9)))  # methods without a model


def test_an_agent_that_does_nothing_is_warned_of():
    messages = warnings_of(np.ones(RECENT), activity=0.01)
    assert first_warned(messages) == RECENT - 1 and "almost nothing" in messages[-1][0]
    assert not any(warnings_of(np.ones(9), activity=0.1))
    assert not any(warnings_of(np.ones(9), 6.0, activity=0.01))  # resting costs, so it does something for the limit
    assert any(warnings_of(np.ones(9), 0.0, replace(CONFIG, cost_limit=0.0), activity=0.01))


# In runs.


def fading() -> Toy:
    """Each episode earns less than the one before, and costs nothing."""
    return Toy(reply=lambda toy: (toy.obs(), -float(toy.resets), False, False, {"cost": 0.0}))


def warnings_in(text: str) -> list[str]:
    """The warnings among the lines of a run."""
    return [line for line in text.splitlines() if line.startswith("warning: ")]


def test_a_run_whose_return_falls_far_below_the_limit_prints_the_warning_once(tmp_path, capsys):
    episodes = 2 * WINDOW + 3
    train_tiny(tmp_path, limited(fading, 4), steps=6 + 4 * episodes, kappa=0.1)
    (warning,) = warnings_in(capsys.readouterr().err)
    assert "the cost of the last 10 episodes is 0% of the limit" in warning


@pytest.mark.parametrize("cost_limit", [25.0, 1000.0], ids=["limit within reach", "limit that no episode reaches"])
def test_an_ordinary_run_is_not_called_too_careful(cost_limit, tmp_path, capsys):
    settings = VECTOR | {"start_steps": 50, "least_updates": 100, "most_updates": 100, "learning_rate": 3e-3}
    run = train_tiny(tmp_path, "capax/Integrator-v0", steps=1250, settings=settings, cost_limit=cost_limit)
    assert len(run.episodes) == 25 and math.isfinite(run.episodes[-1]["model_loss"])
    assert not [warning for warning in warnings_in(capsys.readouterr().err) if "too careful" in warning]
