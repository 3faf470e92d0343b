"""Does every environment take the one form, and is each that cannot refused in a sentence that helps?"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FlattenObservation, TimeLimit, TransformReward

from capax.envs.adapt import Task, limit_of, make
from capax.errors import EnvironmentFailed, InputError

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Toy(gym.Env):
    """Shows `[count of steps, seed]`; every part of it can be replaced."""

    def __init__(
        self,
        action_space: Any = UNIT,
        observation_space: Any = None,
        reply: Callable[[Toy], Any] | None = None,
        render_mode: str | None = None,
        **registered: Any,
    ) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.reply = reply or (lambda toy: (toy.obs(), 1.0, False, False, {"cost": 0.5}))
        self.render_mode = render_mode
        self.count, self.given = 0, 0
        self.acted: Any = None

    def obs(self) -> np.ndarray:
        return np.array([self.count, self.given], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.given = 0, seed
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.acted = action
        return self.reply(self)


def task(env: Any = None, **parts: Any) -> Task:
    made = Task(env or Toy(), name="toy", **parts)
    made.reset(0)
    return made


def resetting(reply: Callable[[Any, Any], Any]) -> Toy:
    """A toy that is reset by this function."""
    return type("Toy", (Toy,), {"reset": lambda self, *, seed=None, options=None: reply(self, seed)})()


def replying(*items: Any, **info: Any) -> Toy:
    """A toy whose step returns its observation and these items."""
    return Toy(reply=lambda toy: (toy.obs(), *items, info))


@pytest.fixture
def known(monkeypatch):
    """Registers a toy under an id, for one test."""

    def register(name: str, **spec: Any) -> str:
        monkeypatch.setitem(gym.registry, name, EnvSpec(name, **{"entry_point": Toy, **spec}))
        return name

    return register


# The one form.


def test_step_and_reset_have_the_one_form():
    made = Task(Toy(), name="toy")
    first = made.reset(7)
    assert first.dtype == np.float64 and first.tolist() == [0.0, 7.0]
    step = made.step([0.0, 0.0])
    assert step.obs.dtype == np.float64 and step.obs.tolist() == [1.0, 7.0]
    assert step[1:] == (1.0, 0.5, False, False, {"cost": 0.5}, (1.0,))
    assert [type(part) for part in step[1:5]] == [float, float, bool, bool]
    assert (made.name, made.obs_dim, made.action_dim, made.episode_steps) == ("toy", 2, 2, None)
    assert (made.cost_limit, made.discounted) == (None, None)
    assert (made.image, made.repeat, made.violation_rate) == (None, 1, None)


def test_reset_passes_a_seed_of_any_integer_type():
    made = Task(Toy(), name="toy")
    made.reset(np.int64(5))
    assert made.env.given == 5 and type(made.env.given) is int


def test_small_tasks_repeat_from_the_seed():
    def episode(seed: int) -> list[list[float]]:
        made = make("capax/PendulumSpeed-v0")
        rng = np.random.default_rng(seed)
        return [made.reset(seed).tolist(), *(made.step(a).obs.tolist() for a in rng.uniform(-1, 1, (30, 1)))]

    assert episode(0) == episode(0) != episode(1)


def test_what_is_returned_is_a_copy():
    # an environment that writes into one array, and a caller that writes into what it got
    shared = np.zeros(2)

    class Reuses(Toy):
        def obs(self) -> np.ndarray:
            shared[:] = self.count
            return shared

    seen = []
    made = task(Reuses(), cost=lambda obs, action, next_obs, info: seen.append((obs[0], next_obs[0])) or 0.0)
    first = made.step([0, 0]).obs
    assert first is not shared and first.tolist() == [1.0, 1.0]
    first[:] = 99.0
    made.step([0, 0])
    assert first.tolist() == [99.0, 99.0] and seen == [(0.0, 1.0), (1.0, 2.0)]


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.array(2.0), np.array([2.0]), [2.0], np.int64(2)])
def test_numbers_of_any_kind_are_taken(number):
    step = task(replying(number, False, False, cost=number)).step([0, 0])
    assert (step.reward, step.cost) == (2.0, 2.0) and type(step.reward) is type(step.cost) is float


@pytest.mark.parametrize("yes", [True, 1, np.True_, np.array(True), [True]])
def test_flags_of_any_kind_are_taken(yes):
    assert task(replying(0.0, yes, False, cost=0)).step([0, 0])[3:5] == (True, False)
    assert task(replying(0.0, False, yes, cost=0)).step([0, 0])[3:5] == (False, True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_observations_of_any_number_type_are_taken(dtype):
    toy = Toy(observation_space=spaces.Box(0, 9, (2,), dtype))
    assert task(toy).step([0, 0]).obs.dtype == np.float64


# Actions.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_mapped_to_the_bounds(dtype):
    # [-1, 3] has the middle 1, and a quarter of the way is 0; [-.3, -.1] is asymmetric and does not hold 0
    low, high = np.array([-1.0, -0.3], dtype), np.array([3.0, -0.1], dtype)
    made = task(Toy(spaces.Box(low, high, dtype=dtype)))
    assert made.low.dtype == made.high.dtype == np.float64
    np.testing.assert_array_equal(made.low, low)
    np.testing.assert_array_equal(made.high, high)
    for action, expected in ([-1, -1], low), ([1, 1], high), ([0, 0], (low + high) / 2), ([-0.5, 0.5], [0.0, -0.15]):
        made.step(np.array(action))
        assert made.env.acted.dtype == dtype and made.env.action_space.contains(made.env.acted)
        np.testing.assert_allclose(made.env.acted, expected, rtol=1e-6, atol=1e-7)
    made.step([-1.0, 1.0])
    assert made.env.acted[0] == low[0] and made.env.acted[1] == high[1]  # the ends exactly


def test_actions_have_the_shape_of_the_space_and_are_clipped():
    made = task(Toy(spaces.Box(-2.0, 2.0, (2, 3), np.float32)))
    assert made.action_dim == 6
    made.step(np.linspace(-3.0, 1.0, 6))
    np.testing.assert_allclose(made.env.acted, 2 * np.linspace(-3, 1, 6).clip(-1).reshape(2, 3), rtol=1e-6)


@pytest.mark.parametrize(
    "action", [[0.0], [0.0, np.nan], [0.0, np.inf], [0.0, 0.0, 0.0], "up", None, [[0.0], [0.0, 1.0]]]
)
def test_bad_actions_are_refused(action):
    made = task()
    made.step([0, 0])
    with pytest.raises(InputError, match=r"^The action is .* in step 2 of the episode: give 2 finite numbers in \[-1"):
        made.step(action)


WANTED = r": give an environment whose actions are a Box of floats with finite low and high\.$"


@pytest.mark.parametrize(("space", "said"), [
    (spaces.Discrete(3), "^toy has Discrete actions"),
    (spaces.MultiDiscrete([2, 2]), "^toy has MultiDiscrete actions"),
    (spaces.Dict(a=UNIT), "^toy has Dict actions"),
    (spaces.Tuple([UNIT]), "^toy has Tuple actions"),
    (spaces.Box(-np.inf, np.inf, (2,)), "^toy has unbounded actions"),
    (spaces.Box(np.array([-1.0, -1.0]), np.array([1.0, np.inf]), dtype=np.float64), "^toy has unbounded actions"),
    (spaces.Box(np.array([-np.inf, -1.0]), np.array([1.0, 1.0]), dtype=np.float64), "^toy has unbounded actions"),
    (spaces.Box(0, 5, (2,), np.int64), "^toy has int64 actions"),
    (spaces.Box(0.0, 1.0, (0,)), "^toy has empty actions"),
])  # fmt: skip
def test_other_action_spaces_are_refused(space, said):
    with pytest.raises(InputError, match=said + WANTED):
        Task(Toy(space), name="toy")


# Observations.


@pytest.mark.parametrize(("space", "said"), [
    (spaces.Dict(a=UNIT), r"^toy has Dict observations: wrap it in gymnasium\.wrappers\.FlattenObservation\.$"),
    (spaces.Discrete(4), r"^toy has Discrete observations: wrap it in gymnasium\.wrappers\.FlattenObservation\.$"),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), r"^toy has images of shape \(8, 8, 3\): make them \(64, 64, 3\) or"),
    (spaces.Box(0, 255, (64, 64, 4), np.uint8), r"^toy has images of shape \(64, 64, 4\): make them \(64, 64, 3\) or"),
    (spaces.Box(-1, 1, (64, 64, 3)), r"^toy has images of float32 between -1 and 1: give uint8, or floats from 0 to 1"),
    (spaces.Box(0, 255, (64, 64, 3), np.int32), r"^toy has images of int32 between 0 and 255: give uint8, or floats"),
    (spaces.Box(-1, 1, (8, 8)), r"^toy has observations of shape \(8, 8\), which must be flat: wrap"),
    (spaces.Box(0.0, 1.0, ()), r"^toy has observations of shape \(\), which must be flat: wrap"),
    (spaces.Box(0.0, 1.0, (0,)), "^toy has empty observations: give"),
])  # fmt: skip
def test_other_observation_spaces_are_refused(space, said):
    with pytest.raises(InputError, match=said):
        Task(Toy(observation_space=space), name="toy")


def test_advice_for_nested_observations_works():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1.0, 1.0, (2, 2)))

    class Nested(Toy):
        def obs(self) -> Any:
            return {"a": 1, "b": np.ones((2, 2), np.float32)}

    made = Task(FlattenObservation(Nested(observation_space=space)), name="nested")
    assert made.obs_dim == 6 and made.reset(0).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_wrong_observations_are_refused():
    made = task(Toy(reply=lambda toy: (np.zeros(3), 0.0, False, False, {"cost": 0})))
    said = r"^The observation of toy has shape \(3,\) in step 1 of the episode: return shape \(2,\), as"
    with pytest.raises(EnvironmentFailed, match=said):
        made.step([0, 0])

    class Wrong(Toy):
        def obs(self) -> Any:
            return np.full(2, np.inf)

    with pytest.raises(EnvironmentFailed, match=r"^The observation of toy is not finite after the reset: return"):
        task(Wrong())


# Cost, reward and ends.


def six(cost: Any) -> Toy:
    return Toy(reply=lambda toy: (toy.obs(), 1.0, cost, False, True, {"cost": 9.0}))


def test_cost_is_the_third_of_six_items():
    assert task(six(3.0)).step([0, 0])[1:5] == (1.0, 3.0, False, True)  # not the 9 of info


def test_cost_function_goes_first_and_sees_the_native_action():
    seen = []

    def cost(obs, action, next_obs, info):
        seen.append((obs.tolist(), action.tolist(), action.dtype, next_obs.tolist(), info))
        return np.array([4.0])

    made = task(six(3.0), cost=cost)
    made.env.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert made.step([1.0, 0.0]).cost == 4.0
    assert seen == [([0.0, 0.0], [1.0, 0.0], np.float32, [1.0, 0.0], {"cost": 9.0})]
    scaled = task(Toy(spaces.Box(0.0, 8.0, (1, 2))), cost=lambda obs, action, next_obs, info: action.sum())
    assert scaled.step([1.0, 0.0]).cost == 12.0  # 8 + 4


@pytest.mark.parametrize(
    "env", [replying(0.0, False, False), Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, None))]
)
def test_missing_cost_names_the_three_ways(env):
    said = (
        r"^toy reports no cost in step 1 of the episode: put it into info\['cost'\], return it .* third of six items, or "
        r"give a function cost\("
    )
    with pytest.raises(EnvironmentFailed, match=said):
        task(env).step([0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float16(np.inf)])
@pytest.mark.parametrize("what", ["reward", "cost", "observation"])
def test_what_is_not_finite_is_named_with_its_step(what, bad):
    def reply(toy):
        late = toy.count == 3
        obs = [bad, 0.0] if late and what == "observation" else toy.obs()
        reward, cost = (bad if late and what == name else 0.0 for name in ("reward", "cost"))
        return obs, reward, False, False, {"cost": cost}

    made = task(Toy(reply=reply))
    for _ in range(2):
        made.step([0, 0])
    said = f"^The {what} of toy is not finite in step 3 of the episode: return finite"
    with pytest.raises(EnvironmentFailed, match=said):
        made.step([0, 0])


def test_step_is_counted_from_the_last_reset():
    made = task(Toy(reply=lambda toy: (toy.obs(), np.nan, False, False, {"cost": 0})))
    for _ in range(2):
        made.reset(0)
        with pytest.raises(EnvironmentFailed, match="in step 1 of the episode"):
            made.step([0, 0])


class Odd:
    """No number, and not even to be printed."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError


NO_NUMBERS = [
    ("much", "'much'"), ("3.5", "'3.5'"), (b"3", "b'3'"), (None, "None"), ({}, "{}"), (1j, "1j"), (np.array([1j]), "array"),
    (np.datetime64("2020-01-01"), "np.datetime64"), (np.timedelta64(3, "s"), "np.timedelta64"), (len, "<built-in"),
    (np.array([0.0, 1.0], object), "array"), ([[1.0], [1.0, 2.0]], r"\[\[1.0\]"), (Odd(), "a value of type Odd"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "named"), NO_NUMBERS)
@pytest.mark.parametrize("what", ["reward", "cost", "observation", "terminated flag"])
def test_what_is_no_number_is_named(what, value, named):
    def reply(toy):
        parts = {"observation": toy.obs(), "reward": 0.0, "cost": 0.0, "terminated flag": False} | {what: value}
        return parts["observation"], parts["reward"], parts["terminated flag"], False, {"cost": parts["cost"]}

    said = f"^The {what} of toy is {named}.* in step 1 of the episode, which is no number: return numbers"
    with pytest.raises(EnvironmentFailed, match=said):
        task(Toy(reply=reply)).step([0, 0])


def test_two_costs_are_refused():
    with pytest.raises(EnvironmentFailed, match=r"^The cost of toy is 2 numbers in step 1 of the episode: return one"):
        task(replying(0.0, False, False, cost=[1, 2])).step([0, 0])


@pytest.mark.parametrize("info", [3, "cost", [("cost", 1.0)], np.zeros(2)])
def test_info_that_is_no_mapping_is_named(info):
    with pytest.raises(EnvironmentFailed, match=r"^The info of toy is .* in step 1 of the episode: return a dict"):
        task(Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, info))).step([0, 0])
    with pytest.raises(EnvironmentFailed, match=r"^The info of toy is .* after the reset: return a dict"):
        task(resetting(lambda self, seed: (self.obs(), info)))


class Lost(dict):
    def __getitem__(self, key: Any) -> Any:
        raise OSError("the sensor is gone")


def test_info_that_fails_is_told():
    toy = Toy(reply=lambda toy: (toy.obs(), 0.0, False, False, Lost(cost=1.0)))
    with pytest.raises(
        EnvironmentFailed, match=r"^toy raised OSError \(the sensor is gone\) in step 1 .*: mend its info\.$"
    ):
        task(toy).step([0, 0])


# Environments that raise.


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(("error", "told"), [
    (ZeroDivisionError("division by zero"), r"ZeroDivisionError \(division by zero\)"),
    (ValueError("two\n  lines. "), r"ValueError \(two lines\)"),
    (InputError("its own"), r"InputError \(its own\)"),
    (AssertionError(), "AssertionError"),
    (Mute(), "Mute"),
    (RuntimeError("x" * 5000), r"RuntimeError \(x{159}…\)"),
])  # fmt: skip
def test_what_is_raised_is_told_with_its_step_and_chained(error, told):
    def reply(toy):
        if toy.count == 2:
            raise error
        return toy.obs(), 0.0, False, False, {"cost": 0.0}

    made = task(Toy(reply=reply))
    made.step([0, 0])
    with pytest.raises(
        EnvironmentFailed, match=rf"^toy raised {told} in step 2 of the episode: mend its step\.$"
    ) as raised:
        made.step([0, 0])
    assert raised.value.__cause__ is error

    def raising(self: Any, seed: Any) -> Any:
        raise error

    with pytest.raises(EnvironmentFailed, match=rf"^toy raised {told} after the reset: mend its reset\.$"):
        task(resetting(raising))
    with pytest.raises(
        EnvironmentFailed, match=rf"^The cost function raised {told} in step 1 of the episode: mend it\.$"
    ):
        task(cost=lambda *seen: raising(None, None)).step([0, 0])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes(error):
    def reply(toy):
        raise error

    with pytest.raises(error):
        task(Toy(reply=reply)).step([0, 0])


@pytest.mark.parametrize(("cost", "said"), [
    (lambda: 0.0, r"The cost function raised TypeError \(.*takes 0 positional"),
    (lambda *seen: None, "The cost of toy is None in step 1 of the episode, which is no number"),
    (lambda *seen: np.nan, "The cost of toy is not finite in step 1"),
    (lambda *seen: [1.0, 2.0], "The cost of toy is 2 numbers in step 1"),
])  # fmt: skip
def test_faults_of_the_cost_function_are_told(cost, said):
    with pytest.raises(EnvironmentFailed, match=f"^{said}"):
        task(cost=cost).step([0, 0])


def test_a_cost_function_cannot_change_what_was_seen():
    def cost(obs, action, next_obs, info):
        obs[:], next_obs[:] = np.nan, np.nan
        return 0.0

    made = task(cost=cost)
    assert made.step([0, 0]).obs.tolist() == [1.0, 0.0] and made.step([0, 0]).obs.tolist() == [2.0, 0.0]


def test_cost_must_be_a_function():
    with pytest.raises(InputError, match=r"^cost is 3: give a function cost\(obs, action, next_obs, info\)"):
        Task(Toy(), name="toy", cost=3)  # type: ignore[arg-type]


def test_closing_never_fails_and_drawing_is_told():
    class Stuck(Toy):
        def close(self) -> None:
            raise RuntimeError("the window is gone")

        def render(self) -> Any:
            raise RuntimeError("no display")

    made = task(Stuck())
    made.close()
    with pytest.raises(
        EnvironmentFailed, match=r"^toy raised RuntimeError \(no display\) as it was drawn: mend its render\.$"
    ):
        made.render()
    made.env.render = fails(gym.error.DependencyNotInstalled("pygame is missing"))
    with pytest.raises(InputError, match=r"^toy cannot be drawn, .*pygame is missing\): install what it needs\.$"):
        made.render()


def test_a_space_that_cannot_be_asked_for_is_told():
    class Broken(Toy):
        @property
        def observation_space(self) -> Any:
            raise RuntimeError("no model")

        @observation_space.setter
        def observation_space(self, space: Any) -> None: ...

    with pytest.raises(
        EnvironmentFailed, match=r"^toy raised RuntimeError \(no model\) when asked for its observation_sp"
    ):
        Task(Broken(), name="toy")


@pytest.mark.parametrize(("reply", "count"), [((1, 2, 3, 4), "4 items"), ((1,) * 7, "7 items"), (None, "1 item")])
def test_other_counts_of_items_are_refused(reply, count):
    said = rf"^toy returns {count} in step 1 of the episode: return \(observation, reward, terminated, truncated, info\), or six"
    with pytest.raises(EnvironmentFailed, match=said):
        task(Toy(reply=lambda toy: reply)).step([0, 0])


@pytest.mark.parametrize("reply", [np.zeros(2), [1.0, 2.0, 3.0], None, (), (1, 2, 3)])
def test_old_reset_is_refused(reply):
    said = r"^toy does not return \(observation, info\) from reset but .*: return both, where old Gym had the observation al"
    with pytest.raises(EnvironmentFailed, match=said):
        task(resetting(lambda self, seed: reply))


def test_reset_without_a_seed_is_told_what_to_take():
    class Old(Toy):
        def reset(self) -> Any:  # type: ignore[override]
            return np.zeros(2)

    said = r"^toy raised TypeError \(.*'seed'\) after the reset: let it take seed, as in def reset\(self, \*, seed=None, opt"
    with pytest.raises(EnvironmentFailed, match=said):
        task(Old())
    with pytest.raises(EnvironmentFailed, match=said):
        task(TransformReward(Old(), lambda r: r))


def test_a_failed_reset_leaves_nothing_to_step_from():
    made = task()
    made.env.reset = fails(RuntimeError())
    with pytest.raises(EnvironmentFailed):
        made.reset(0)
    with pytest.raises(InputError, match="was not reset"):
        made.step([0, 0])


def test_step_needs_a_reset():
    with pytest.raises(InputError, match=r"^toy was not reset: call reset"):
        Task(Toy(), name="toy").step([0, 0])


# Length of episodes.


def length(made: Task, most: int = 30) -> int | None:
    """Steps until the episode ends, or None if it does not."""
    made.reset(0)
    return next((k for k in range(1, most) if any(made.step(np.zeros(made.action_dim))[3:5])), None)


def test_episode_is_cut_after_the_wanted_steps():
    made = task(episode_steps=4)
    assert made.episode_steps == 4 and length(made) == 4 and length(made) == 4
    made.reset(0)
    assert [made.step([0, 0])[3:5] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]


def test_episode_without_a_limit_goes_on():
    assert task().episode_steps is None and length(task()) is None


def test_time_limit_is_found_in_the_wrappers():
    wrapped = TransformReward(TimeLimit(TimeLimit(TransformReward(Toy(), lambda r: 2 * r), 6), 9), lambda r: r + 1)
    made = Task(wrapped, name="toy")
    assert made.episode_steps == 6 and length(made) == 6
    made.reset(0)
    assert made.step([0, 0]).reward == 3.0  # 2·1 + 1
    assert length(Task(wrapped, name="toy", episode_steps=5)) == 5
    with pytest.raises(InputError, match=r"^episode_steps is 7, but toy ends after 6: give at most that many"):
        Task(wrapped, name="toy", episode_steps=7)


@pytest.mark.parametrize("steps", [0, -1, True, 2.5, "ten", float("inf"), [3]])
def test_episode_needs_a_step(steps, known):
    for given in (
        lambda: Task(Toy(), name="toy", episode_steps=steps),
        lambda: make(known("A-v0"), episode_steps=steps),
    ):
        with pytest.raises(InputError, match=r"^episode_steps is .*: give a whole number >= 1"):
            given()


@pytest.mark.parametrize("steps", [0, "ten", 2.5])
def test_a_registered_length_that_is_none_is_refused(steps, known):
    toy = Toy()
    toy.spec = EnvSpec("A-v0", max_episode_steps=steps)
    for given in (lambda: Task(toy, name="A-v0"), lambda: make(known("A-v0", max_episode_steps=steps))):
        with pytest.raises(
            InputError, match=r"^the number of steps that A-v0 ends after is .*: give a whole number >= 1"
        ):
            given()


def test_registered_length_is_taken_and_can_be_changed(known):
    name = known("test/Toy-v0", max_episode_steps=8)
    assert make(name).episode_steps == 8 and length(make(name)) == 8
    assert length(make(name, episode_steps=3)) == 3
    assert length(make(name, episode_steps=20)) == 20  # longer than registered, too
    assert length(make(lambda: gym.make(name, disable_env_checker=True))) == 8
    known("test/Toy-v0", max_episode_steps=8, entry_point=lambda: TimeLimit(Toy(), 5))
    assert make(name).episode_steps == 5 and length(make(name)) == 5


def test_six_items_pass_under_a_registered_length(known):
    made = make(known("test/Six-v0", max_episode_steps=3, entry_point=lambda: six(2.0)))
    made.reset(0)
    assert made.step([0, 0]).cost == 2.0 and made.episode_steps == 3


def test_length_of_a_spec_is_taken_without_a_wrapper():
    toy = Toy()
    toy.spec = EnvSpec("A-v0", max_episode_steps=4)
    assert Task(toy, name="toy").episode_steps == 4 and length(Task(toy, name="toy")) == 4


# Making one.


def test_ids_make_tasks():
    made = make("capax/Integrator-v0")
    assert (made.name, made.cost_limit, made.discounted) == ("capax/Integrator-v0", 25.0, False)
    assert (made.episode_steps, made.obs_dim, made.action_dim) == (50, 1, 1)
    made.reset(0)
    steps = [made.step([1.0]) for _ in range(50)]
    assert [step.truncated for step in steps] == [False] * 49 + [True]
    # Σ (x_0 + .1 t)² = 50 x_0² + .2 x_0 Σt + .01 Σt²
    x = float(made.reset(0)[0])
    assert sum(step.cost for step in steps) == pytest.approx(50 * x * x + 0.2 * x * 1275 + 429.25)


def test_id_of_gymnasium_with_a_cost_function():
    made = make("Pendulum-v1", cost=lambda obs, action, next_obs, info: abs(next_obs[2]))
    made.reset(0)
    step = made.step([1.0])
    assert step.cost == abs(step.obs[2]) > 0.0 and made.high.tolist() == [2.0]
    assert (made.cost_limit, made.discounted, made.episode_steps) == (None, None, 200)


def test_module_of_an_id_is_imported(known, monkeypatch):
    name = known("test/Toy-v0")
    monkeypatch.setitem(sys.modules, "my_envs.toys", types.ModuleType("my_envs.toys"))
    monkeypatch.setitem(sys.modules, "my_envs", types.ModuleType("my_envs"))
    assert make(f"my_envs.toys:{name}").name == f"my_envs.toys:{name}"
    assert make("capax.envs:capax/Integrator-v0").episode_steps == 50


@pytest.mark.parametrize("module", ["no_such_module", "capax.no_such_part", ""])
def test_module_that_does_not_import_is_named(module):
    with pytest.raises(
        InputError, match=f"^The module '{module}' of '{module}:Toy-v0' cannot be imported, .*: install"
    ):
        make(f"{module}:Toy-v0")


def test_module_that_fails_is_told(tmp_path, monkeypatch):
    (tmp_path / "my_broken_envs.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        EnvironmentFailed, match=r"^The module 'my_broken_envs' raised ZeroDivisionError \(.*\): mend it\.$"
    ):
        make("my_broken_envs:Toy-v0")


@pytest.mark.parametrize(("wrong", "meant"), [
    ("capax/Integrater-v0", "capax/Integrator-v0"),
    ("halfcheetahvelocity-v0", "capax/HalfCheetahVelocity-v0"),
    ("HALFCHEETAHVELOCITY-V0", "capax/HalfCheetahVelocity-v0"),
    ("capax/PendulumSpeed", "capax/PendulumSpeed-v0"),
    ("capax.envs:capax/PendulumSpeed-v1", "capax/PendulumSpeed-v0"),
])  # fmt: skip
def test_unknown_id_names_the_nearest(wrong, meant):
    name = wrong.rpartition(":")[2]
    with pytest.raises(
        InputError, match=rf"^There is no environment '{name}': did you mean (.* or )*{meant}( or .*)?\?$"
    ):
        make(wrong)


def test_unknown_id_names_several():
    with pytest.raises(InputError, match=r"mean (\S+Velocity-v0 or ){2}\S+Velocity-v0\?$"):
        make("capax/RobotVelocity-v0")


def test_unknown_id_that_is_near_to_nothing():
    with pytest.raises(
        InputError, match=r"^There is no environment 'zzz': give one that Gymnasium has, or module:Id-v0"
    ):
        make("zzz")


def test_discrete_task_is_refused_by_its_actions():
    with pytest.raises(InputError, match=r"^capax/Gridworld-v0 has Discrete actions"):
        make("capax/Gridworld-v0")


def test_functions_make_tasks():
    made = make(Toy, episode_steps=2)
    assert (made.name, made.episode_steps, length(made)) == ("Toy", 2, 2)
    assert make(lambda: gym.make("capax/Integrator-v0")).name == "capax/Integrator-v0"
    assert make(lambda: gym.make("capax/Integrator-v0")).cost_limit == 25.0


@pytest.mark.parametrize(("env", "said"), [
    (3, "^env is of type int: give an id, or a function"),
    (lambda: None, "^NoneType has no reset: give a Gymnasium environment"),
])  # fmt: skip
def test_what_makes_no_environment_is_refused(env, said):
    with pytest.raises(InputError, match=said):
        make(env)


def test_environment_needs_no_spec_render_close_or_base_class():
    class Bare:
        action_space, observation_space = UNIT, spaces.Box(-1.0, 1.0, (1,))

        def reset(self, seed: int) -> Any:
            return [0.0], {}

        def step(self, action: Any) -> Any:
            return [1.0], 2.0, 3.0, False, False, {}

    made = make(Bare)
    made.reset(0)
    assert made.step([0, 0])[1:3] == (2.0, 3.0) and made.name == "Bare"
    assert made.render() is None
    made.close()


def test_render_mode_reaches_the_environment(known):
    made = make("capax/PendulumSpeed-v0", render_mode="rgb_array")
    made.reset(0)
    assert made.render().shape == (200, 200, 3)
    made.close()
    assert make("capax/PendulumSpeed-v0").env.render_mode is None
    assert make(lambda: Toy(render_mode="rgb_array"), render_mode="rgb_array").env.render_mode == "rgb_array"
    with pytest.raises(InputError, match=r"^Toy was not made with render_mode='rgb_array': do so in the function"):
        make(Toy, render_mode="rgb_array")


class Strict(Toy):
    def __init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize(("spec", "asked", "said"), [
    ({"entry_point": Strict}, {"render_mode": "rgb_array"}, "render_mode"),
    ({"entry_point": Strict, "kwargs": {"cost_limit": 1.0}}, {}, "cost_limit"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*render_mode")  # Gymnasium's own
def test_constructor_that_does_not_take_its_arguments_is_named(spec, asked, said, known):
    with pytest.raises(InputError, match=f"^A-v0 does not take {said}: add this argument to its constructor"):
        make(known("A-v0", **spec), **asked)


def fails(error: Exception) -> Callable[[], Any]:
    def entry_point() -> Any:
        raise error

    return entry_point


@pytest.mark.parametrize("error", [ModuleNotFoundError("no stuff"), gym.error.DependencyNotInstalled("no stuff")])
def test_what_an_environment_lacks_is_named(error, known):
    with pytest.raises(InputError, match=r"^A-v0 cannot be made, \w+ \(no stuff\): install what it needs"):
        make(known("A-v0", entry_point=fails(error)))


@pytest.mark.parametrize(
    "error", [TypeError("its own"), RuntimeError("its own"), OSError("its own"), KeyError("its own")]
)
def test_faults_of_an_environment_that_is_made_are_told(error, known):
    with pytest.raises(
        EnvironmentFailed, match=r"^A-v0 cannot be made, it raised \w+ \('?its own.*\): mend its constr"
    ) as raised:
        make(known("A-v0", entry_point=fails(error)))
    assert type(raised.value.__cause__) is type(error)
    said = (
        r"^The function that makes the environment raised \w+ \('?its own'?\): mend it, and let it need no arguments\.$"
    )
    with pytest.raises(EnvironmentFailed, match=said) as raised:
        make(fails(error))
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [InputError("its own sentence"), EnvironmentFailed("its own sentence")])
def test_a_sentence_of_ours_stays_as_it_is(error, known):
    for env in (known("A-v0", entry_point=fails(error)), fails(error)):
        with pytest.raises(type(error), match=r"^its own sentence$"):
            make(env)


def test_what_is_refused_is_closed():
    closed = []

    class Closing(Toy):
        def close(self) -> None:
            closed.append(self)
            raise RuntimeError

    for options in ({"episode_steps": 0}, {"cost": 3}, {"render_mode": "human"}):
        with pytest.raises(InputError):
            make(Closing, **options)
    assert len(closed) == 3


# The registered limit.


@pytest.mark.parametrize(("registered", "limit"), [
    (None, (None, None)),
    ({}, (None, None)),
    ({"cost_limit": 3}, (3.0, None)),
    ({"cost_limit": np.float32(0.5), "discounted": True}, (0.5, True)),
    ({"discounted": False}, (None, False)),
])  # fmt: skip
def test_limit_is_the_registered_one(registered, limit, known):
    assert limit_of(types.SimpleNamespace(kwargs=registered), "toy") == limit
    assert type(limit_of(types.SimpleNamespace(kwargs={"cost_limit": 3}), "toy")[0]) is float
    assert limit_of(None, "toy") == (None, None)
    made = make(known("A-v0", kwargs=registered or {}))
    assert (made.cost_limit, made.discounted) == limit


@pytest.mark.parametrize(("registered", "said"), [
    ({"cost_limit": "3"}, "^toy is registered with cost_limit='3': register a finite number"),
    ({"cost_limit": float("nan")}, "^toy is registered with cost_limit=nan: register a finite number"),
    ({"cost_limit": True}, "^toy is registered with cost_limit=True: register a finite number"),
    ({"cost_limit": np.complex64(1)}, r"^toy is registered with cost_limit=np\.complex64"),
    ({"cost_limit": 10**400}, "^toy is registered with cost_limit=1000.*…: register a finite number"),
    ({"cost_limit": 1, "discounted": 0.99}, "^toy is registered with discounted=0.99: register True or False"),
])  # fmt: skip
def test_bad_limits_are_refused(registered, said):
    with pytest.raises(InputError, match=said):
        limit_of(types.SimpleNamespace(kwargs=registered), "toy")
