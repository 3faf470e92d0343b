"""Every environment gets the one form of `Task`; others are refused with a message that helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from support.toy_envs import UNIT_BOX, Toy, replying, reset_task, resetting, six_items

from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.make import make
from capax.envs.task import GymTask

# The one form.


def test_step_and_reset_have_the_one_form():
    task = GymTask(Toy(), name="toy")
    first = task.reset(7)
    assert first.dtype == np.float64 and first.tolist() == [0.0, 7.0]
    step = task.step([0.0, 0.0])
    assert step.obs.dtype == np.float64 and step.obs.tolist() == [1.0, 7.0]
    assert step[1:] == (1.0, 0.5, False, False, {"cost": 0.5}, (1.0,))
    assert [type(part) for part in step[1:5]] == [float, float, bool, bool]
    assert (task.name, task.obs_dim, task.action_dim, task.episode_steps) == ("toy", 2, 2, None)
    assert (task.cost_limit, task.discounted) == (None, None)
    assert (task.image, task.repeat, task.violation_rate) == (None, 1, None)


def test_reset_passes_a_seed_of_any_integer_type():
    task = GymTask(Toy(), name="toy")
    task.reset(np.int64(5))
    assert task.env.seed == 5 and type(task.env.seed) is int


def test_small_tasks_repeat_from_the_seed():
    def episode(seed: int) -> list[list[float]]:
        task = make("capax/PendulumSpeed-v0")
        rng = np.random.default_rng(seed)
        return [task.reset(seed).tolist(), *(task.step(a).obs.tolist() for a in rng.uniform(-1, 1, (30, 1)))]

    assert episode(0) == episode(0) != episode(1)


def test_observations_are_copies():
    # an environment that reuses one array, and a caller that writes into an observation
    shared = np.zeros(2)

    class Reuses(Toy):
        def obs(self) -> np.ndarray:
            shared[:] = self.count
            return shared

    pairs = []
    task = reset_task(Reuses(), cost=lambda obs, action, next_obs, info: pairs.append((obs[0], next_obs[0])) or 0.0)
    first = task.step([0, 0]).obs
    assert first is not shared and first.tolist() == [1.0, 1.0]
    first[:] = 99.0
    task.step([0, 0])
    assert first.tolist() == [99.0, 99.0] and pairs == [(0.0, 1.0), (1.0, 2.0)]


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.array(2.0), np.array([2.0]), [2.0], np.int64(2)])
def test_numbers_of_any_kind_are_accepted(number):
    step = reset_task(replying(number, False, False, cost=number)).step([0, 0])
    assert (step.reward, step.cost) == (2.0, 2.0) and type(step.reward) is type(step.cost) is float


@pytest.mark.parametrize("yes", [True, 1, np.True_, np.array(True), [True]])
def test_flags_of_any_kind_are_accepted(yes):
    assert reset_task(replying(0.0, yes, False, cost=0)).step([0, 0])[3:5] == (True, False)
    assert reset_task(replying(0.0, False, yes, cost=0)).step([0, 0])[3:5] == (False, True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_observations_of_any_number_type_are_accepted(dtype):
    toy = Toy(observation_space=spaces.Box(0, 9, (2,), dtype))
    assert reset_task(toy).step([0, 0]).obs.dtype == np.float64


# Actions.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_mapped_to_the_bounds(dtype):
    # [-1, 3] has the middle 1, and a quarter of the way is 0; [-.3, -.1] is asymmetric and does not hold 0
    low, high = np.array([-1.0, -0.3], dtype), np.array([3.0, -0.1], dtype)
    task = reset_task(Toy(spaces.Box(low, high, dtype=dtype)))
    assert task.low.dtype == task.high.dtype == np.float64
    np.testing.assert_array_equal(task.low, low)
    np.testing.assert_array_equal(task.high, high)
    for action, expected in ([-1, -1], low), ([1, 1], high), ([0, 0], (low + high) / 2), ([-0.5, 0.5], [0.0, -0.15]):
        task.step(np.array(action))
        assert task.env.action.dtype == dtype and task.env.action_space.contains(task.env.action)
        np.testing.assert_allclose(task.env.action, expected, rtol=1e-6, atol=1e-7)
    task.step([-1.0, 1.0])
    assert task.env.action[0] == low[0] and task.env.action[1] == high[1]  # the ends exactly


def test_actions_have_the_shape_of_the_space_and_are_clipped():
    task = reset_task(Toy(spaces.Box(-2.0, 2.0, (2, 3), np.float32)))
    assert task.action_dim == 6
    task.step(np.linspace(-3.0, 1.0, 6))
    np.testing.assert_allclose(task.env.action, 2 * np.linspace(-3, 1, 6).clip(-1).reshape(2, 3), rtol=1e-6)


@pytest.mark.parametrize(
    "action", [[0.0], [0.0, np.nan], [0.0, np.inf], [0.0, 0.0, 0.0], "up", None, [[0.0], [0.0, 1.0]]]
)
def test_bad_actions_are_refused(action):
    task = reset_task()
    task.step([0, 0])
    with pytest.raises(InputError, match=r"^the action is .* in step 2 of the episode: give 2 finite numbers in \[-1"):
        task.step(action)


ADVICE = r": give an environment whose actions are a Box of floats with finite low and high\.$"


@pytest.mark.parametrize(("space", "message"), [
    (spaces.Discrete(3), "^toy has Discrete actions"),
    (spaces.MultiDiscrete([2, 2]), "^toy has MultiDiscrete actions"),
    (spaces.Dict(a=UNIT_BOX), "^toy has Dict actions"),
    (spaces.Tuple([UNIT_BOX]), "^toy has Tuple actions"),
    (spaces.Box(-np.inf, np.inf, (2,)), "^toy has unbounded actions"),
    (spaces.Box(np.array([-1.0, -1.0]), np.array([1.0, np.inf]), dtype=np.float64), "^toy has unbounded actions"),
    (spaces.Box(np.array([-np.inf, -1.0]), np.array([1.0, 1.0]), dtype=np.float64), "^toy has unbounded actions"),
    (spaces.Box(0, 5, (2,), np.int64), "^toy has int64 actions"),
    (spaces.Box(0.0, 1.0, (0,)), "^toy has empty actions"),
])  # fmt: skip
def test_other_action_spaces_are_refused(space, message):
    with pytest.raises(InputError, match=message + ADVICE):
        GymTask(Toy(space), name="toy")


# Observations.


@pytest.mark.parametrize(("space", "message"), [
    (spaces.Dict(a=UNIT_BOX), r"^toy has Dict observations: wrap it in gymnasium\.wrappers\.FlattenObservation\.$"),
    (spaces.Discrete(4), r"^toy has Discrete observations: wrap it in gymnasium\.wrappers\.FlattenObservation\.$"),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), r"^toy has images of shape \(8, 8, 3\): make them \(64, 64, 3\) or"),
    (spaces.Box(0, 255, (64, 64, 4), np.uint8), r"^toy has images of shape \(64, 64, 4\): make them \(64, 64, 3\) or"),
    (spaces.Box(-1, 1, (64, 64, 3)), r"^toy has images of float32 between -1 and 1: give uint8, or floats from 0 to 1"),
    (spaces.Box(0, 255, (64, 64, 3), np.int32), r"^toy has images of int32 between 0 and 255: give uint8, or floats"),
    (spaces.Box(-1, 1, (8, 8)), r"^toy has observations of shape \(8, 8\), which must be flat: wrap"),
    (spaces.Box(0.0, 1.0, ()), r"^toy has observations of shape \(\), which must be flat: wrap"),
    (spaces.Box(0.0, 1.0, (0,)), "^toy has empty observations: give"),
])  # fmt: skip
def test_other_observation_spaces_are_refused(space, message):
    with pytest.raises(InputError, match=message):
        GymTask(Toy(observation_space=space), name="toy")


def test_advice_for_nested_observations_works():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1.0, 1.0, (2, 2)))

    class Nested(Toy):
        def obs(self) -> Any:
            return {"a": 1, "b": np.ones((2, 2), np.float32)}

    task = GymTask(FlattenObservation(Nested(observation_space=space)), name="nested")
    assert task.obs_dim == 6 and task.reset(0).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_wrong_observations_are_refused():
    task = reset_task(Toy(reply=lambda toy: (np.zeros(3), 0.0, False, False, {"cost": 0})))
    message = r"^the observation of toy has shape \(3,\) in step 1 of the episode: return shape \(2,\), as"
    with pytest.raises(EnvironmentFailed, match=message):
        task.step([0, 0])

    class Wrong(Toy):
        def obs(self) -> Any:
            return np.full(2, np.inf)

    with pytest.raises(EnvironmentFailed, match=r"^the observation of toy is not finite after the reset: return"):
        reset_task(Wrong())


# Cost, reward and ends.


def test_cost_is_the_third_of_six_items():
    assert reset_task(six_items(3.0)).step([0, 0])[1:5] == (1.0, 3.0, False, True)  # not the 9 of info


def test_cost_function_comes_first_and_gets_the_native_action():
    calls = []

    def cost(obs, action, next_obs, info):
        calls.append((obs.tolist(), action.tolist(), action.dtype, next_obs.tolist(), info))
        return np.array([4.0])

    task = reset_task(six_items(3.0), cost=cost)
    task.env.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert task.step([1.0, 0.0]).cost == 4.0
    assert calls == [([0.0, 0.0], [1.0, 0.0], np.float32, [1.0, 0.0], {"cost": 9.0})]
    scaled = reset_task(Toy(spaces.Box(0.0, 8.0, (1, 2))), cost=lambda obs, action, next_obs, info: action.sum())
    assert scaled.step([1.0, 0.0]).cost == 12.0  # 8 + 4


@pytest.mark.parametrize(
    "env", [replying(0.0, False, False), Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, None))]
)
def test_missing_cost_names_the_three_ways(env):
    message = (
        r"^toy reports no cost in step 1 of the episode: put it into info\['cost'\], return it .* third of six items, or "
        r"give a function cost\(obs, action, next_obs, info\), as cost= or --cost MODULE:FUNCTION\.$"
    )
    with pytest.raises(EnvironmentFailed, match=message):
        reset_task(env).step([0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float16(np.inf)])
@pytest.mark.parametrize("part", ["reward", "cost", "observation"])
def test_a_part_that_is_not_finite_is_named_with_its_step(part, bad):
    def reply(toy):
        late = toy.count == 3
        obs = [bad, 0.0] if late and part == "observation" else toy.obs()
        reward, cost = (bad if late and part == name else 0.0 for name in ("reward", "cost"))
        return obs, reward, False, False, {"cost": cost}

    task = reset_task(Toy(reply=reply))
    for _ in range(2):
        task.step([0, 0])
    message = f"^the {part} of toy is not finite in step 3 of the episode: return finite"
    with pytest.raises(EnvironmentFailed, match=message):
        task.step([0, 0])


def test_step_is_counted_from_the_last_reset():
    task = reset_task(Toy(reply=lambda toy: (toy.obs(), np.nan, False, False, {"cost": 0})))
    for _ in range(2):
        task.reset(0)
        with pytest.raises(EnvironmentFailed, match="in step 1 of the episode"):
            task.step([0, 0])


class Odd:
    """Neither a number nor printable."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError


NO_NUMBERS = [
    ("much", "'much'"), ("3.5", "'3.5'"), (b"3", "b'3'"), (None, "None"), ({}, "{}"), (1j, "1j"), (np.array([1j]), "array"),
    (np.datetime64("2020-01-01"), "np.datetime64"), (np.timedelta64(3, "s"), "np.timedelta64"), (len, "<built-in"),
    (np.array([0.0, 1.0], object), "array"), ([[1.0], [1.0, 2.0]], r"\[\[1.0\]"), (Odd(), "a value of type Odd"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "name"), NO_NUMBERS)
@pytest.mark.parametrize("part", ["reward", "cost", "observation", "terminated flag"])
def test_a_part_that_is_not_a_number_is_named(part, value, name):
    def reply(toy):
        parts = {"observation": toy.obs(), "reward": 0.0, "cost": 0.0, "terminated flag": False} | {part: value}
        return parts["observation"], parts["reward"], parts["terminated flag"], False, {"cost": parts["cost"]}

    message = f"^the {part} of toy is {name}.* in step 1 of the episode, not a number: return numbers"
    with pytest.raises(EnvironmentFailed, match=message):
        reset_task(Toy(reply=reply)).step([0, 0])


def test_two_costs_are_refused():
    with pytest.raises(EnvironmentFailed, match=r"^the cost of toy is 2 numbers in step 1 of the episode: return one"):
        reset_task(replying(0.0, False, False, cost=[1, 2])).step([0, 0])


@pytest.mark.parametrize("info", [3, "cost", [("cost", 1.0)], np.zeros(2)])
def test_info_that_is_not_a_mapping_is_named(info):
    with pytest.raises(EnvironmentFailed, match=r"^the info of toy is .* in step 1 of the episode: return a dict"):
        reset_task(Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, info))).step([0, 0])
    with pytest.raises(EnvironmentFailed, match=r"^the info of toy is .* after the reset: return a dict"):
        reset_task(resetting(lambda self, seed: (self.obs(), info)))


class Lost(dict):
    def __getitem__(self, key: Any) -> Any:
        raise OSError("the sensor is gone")


def test_info_that_raises_is_reported():
    toy = Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, Lost(cost=1.0)))
    with pytest.raises(
        EnvironmentFailed, match=r"^toy raised OSError \(the sensor is gone\) in step 1 .*: fix its info\.$"
    ):
        reset_task(toy).step([0, 0])
