"""The cost of a step: counted before anything about the step can be refused, for the action that was sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from support.toy_envs import Toy, image_space, replying, reset_task, six_items

from capax.core.errors import EnvironmentFailed
from capax.data.logged_data import initial_episode
from capax.envs.task import GymTask


def counted_before_refusal(task: GymTask) -> tuple[list[float], str]:
    """What a step that is refused has cost, and the refusal."""
    counted: list[float] = []
    with pytest.raises(EnvironmentFailed) as refused:
        task.step([0.0, 0.0], counted.append)
    return counted, str(refused.value)


class Failing:
    """An object that cannot be read as anything."""

    def fail(self, *args: Any) -> Any:
        raise OSError("gone")

    __array__ = __float__ = __len__ = fail


NAN, ZEROS = np.full(2, np.nan), np.zeros(2)
BROKEN: dict[str, tuple[Any, ...]] = {
    "an observation that is NaN": (NAN, 0.0, False, False),
    "an observation of another shape": (np.zeros(3), 0.0, False, False),
    "no observation": (None, 0.0, False, False),
    "an unreadable observation": (Failing(), 0.0, False, False),
    "a reward that is NaN": (ZEROS, np.nan, False, False),
    "an unreadable reward": (ZEROS, Failing(), False, False),
    "no flag": (ZEROS, 0.0, "no", False),
    "an unreadable flag": (ZEROS, 0.0, False, Failing()),
    "old Gym's four items": (ZEROS, 0.0, False),
    "seven items": (ZEROS, 0.0, False, False, 1, 2),
}
"""The items of a step before its info."""


@pytest.mark.parametrize("name", BROKEN)
def test_the_cost_in_info_is_counted_whatever_else_is_refused(name):
    task = reset_task(Toy(reply=lambda toy: (*BROKEN[name], {"cost": 1000.0})))
    assert counted_before_refusal(task)[0] == [1000.0]


@pytest.mark.parametrize("info", [3, {"rewards": [1.0] * 9}, Failing()])
def test_the_third_of_six_items_is_counted_although_the_info_is_refused(info):
    toy = Toy(reply=lambda toy: (ZEROS, 0.0, 1000.0, False, False, info))
    task = reset_task(toy)
    task.repeat = 4
    assert counted_before_refusal(task)[0] == [1000.0]


@pytest.mark.parametrize("name", [name for name in BROKEN if "items" not in name])
def test_the_cost_function_is_asked_although_the_step_is_refused(name):
    toy = Toy(reply=lambda toy: (*BROKEN[name], {}))
    counted, message = counted_before_refusal(reset_task(toy, cost=lambda obs, action, next_obs, info: 7.0))
    if name == "an unreadable observation":  # there is nothing to ask it about
        assert counted == [] and message.endswith("(the cost of this step is unknown).")
    else:
        assert counted == [7.0] and "unknown" not in message


@pytest.mark.parametrize("cost", [lambda *transition: 1 / 0, lambda obs, action, next_obs, info: next_obs.sum()])
def test_a_cost_function_that_cannot_tell_the_cost_of_a_refused_step_is_mentioned(cost):
    toy = Toy(reply=lambda toy: (NAN, 0.0, False, False, {}))
    assert counted_before_refusal(reset_task(toy, cost=cost)) == (
        [],
        "the observation of toy is not finite in step 1 of the episode: return finite numbers (the cost of this step is "
        "unknown).",
    )


@pytest.mark.parametrize(("cost", "counted", "words"), [
    (np.inf, [np.inf], "is not finite"), (1e39, [1e39], "is too large for float32"), (10**400, [np.inf], "is not finite"),
    (np.nan, [], "is not finite"), ([1.0, 2.0], [], "is 2 numbers"), (None, [], "is None"),
])  # fmt: skip
def test_a_cost_that_cannot_be_learned_from_is_counted_if_it_is_one(cost, counted, words):
    for toy in (replying(0.0, False, False, cost=cost), six_items(cost)):
        paid, message = counted_before_refusal(reset_task(toy))
        assert paid == counted and f"the cost of toy {words} in step 1 of the episode" in message


def test_the_image_of_a_refused_step_reaches_the_cost_function():
    small = np.zeros((2, 2, 3), np.uint8)
    toy = Toy(observation_space=image_space(), start=lambda toy: 0, show=lambda x: np.zeros((64, 64, 3), np.uint8),
              reply=lambda toy: (small, 0.0, False, False, {}))  # fmt: skip
    task = reset_task(toy, cost=lambda obs, action, next_obs, info: float(next_obs.size))
    assert counted_before_refusal(task)[0] == [12.0]


# What was sent.


def squared(obs: Any, action: Any, next_obs: Any, info: Any) -> float:
    """A cost function."""
    return float(np.square(action).sum())


def test_the_cost_function_gets_the_action_that_was_sent():
    def spoil(toy: Toy) -> Any:
        toy.action *= 0.01
        return toy.obs(), 0.0, False, False, {}

    assert reset_task(Toy(reply=spoil), cost=squared).step([1.0, -1.0]).cost == 2.0


def test_a_cost_function_that_writes_into_its_arguments_changes_nothing():
    def spoil(obs: Any, action: Any, next_obs: Any, info: Any) -> float:
        for array in (obs, action, next_obs):
            array[:] = np.nan
        info.clear()
        return 1.0

    toy = Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, {"rewards": [0.5, 0.25]}))
    task = reset_task(toy, cost=spoil)
    task.repeat = 2
    step = task.step([1.0, -1.0])
    assert step.obs.tolist() == [1.0, 0.0] and step.frames == (0.5, 0.25) and "rewards" in step.info
    assert toy.actions[0].tolist() == [1.0, -1.0]  # the environment may still read the array that it was sent


def test_an_environment_that_keeps_what_it_returned_cannot_change_it():
    obs, info = np.zeros(2), {"cost": 1.0}

    def reply(toy: Toy) -> Any:
        obs[:], info["cost"] = toy.count, float(toy.count)
        return obs, 0.0, False, False, info

    task = reset_task(Toy(reply=reply))
    first = task.step([0.0, 0.0])
    task.step([0.0, 0.0])
    assert first.obs.tolist() == [1.0, 1.0] and first.info["cost"] == first.cost == 1.0


def test_an_environment_that_changes_its_bounds_does_not_change_what_actions_mean():
    box = spaces.Box(-1.0, 1.0, (2,), np.float64)
    task = reset_task(Toy(box))
    box.high[:] = 100.0
    task.step([1.0, 1.0])
    assert task.env.actions[0].tolist() == [1.0, 1.0]


# Negative costs.


@pytest.mark.parametrize("cost", [-1.0, -1e-12, np.float32(-2.0), -np.inf])
def test_a_negative_cost_is_refused_and_not_counted(cost):
    counted, message = counted_before_refusal(reset_task(replying(0.0, False, False, cost=cost)))
    assert counted == []
    if np.isfinite(cost):
        assert message == (
            f"the cost of toy is {cost:g} in step 1 of the episode: let no cost be negative, or, if it may offset other costs, "
            "give --allow-negative-costs (allow_negative_costs=True)."
        )


def test_a_negative_cost_that_is_allowed_is_counted():
    counted: list[float] = []
    task = reset_task(replying(0.0, False, False, cost=-1.5), allow_negative_costs=True)
    assert task.step([0.0, 0.0], counted.append).cost == -1.5 and counted == [-1.5]


def test_minus_zero_is_zero():
    step = reset_task(replying(0.0, False, False, cost=-0.0)).step([0.0, 0.0])
    assert step.cost == 0.0 and not np.signbit(step.cost)


def test_negative_costs_of_logged_data_are_refused_unless_they_are_allowed():
    data = dict(obs=np.zeros((3, 2)), action=np.zeros((3, 2)), reward=np.zeros(3), cost=[1.0, -0.5, 0.0],
                next_obs=np.zeros((3, 2)))  # fmt: skip
    with pytest.raises(ValueError, match=r"^'cost' of the initial data is negative in row 1: .*--allow-negative-costs"):
        initial_episode(data, GymTask(Toy(), name="toy"))
    allowed = initial_episode(data, GymTask(Toy(), name="toy", allow_negative_costs=True))
    assert allowed.cost.tolist() == [1.0, -0.5, 0.0]
