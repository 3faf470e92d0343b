"""Errors of an environment become one sentence, with the step and what to fix."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward
from support.toy_envs import Toy, raising, reset_task, resetting

from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.make import make
from capax.envs.task import GymTask
from capax.runtime import signals
from capax.runtime.signals import Stop

# Environments that raise.


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(("error", "text"), [
    (ZeroDivisionError("division by zero"), r"ZeroDivisionError \(division by zero\)"),
    (ValueError("two\n  lines. "), r"ValueError \(two lines\)"),
    (InputError("its own"), r"InputError \(its own\)"),
    (AssertionError(), "AssertionError"),
    (Unprintable(), "Unprintable"),
    (RuntimeError("x" * 5000), r"RuntimeError \(x{159}…\)"),
])  # fmt: skip
def test_an_error_is_reported_with_its_step_and_chained(error, text):
    def reply(toy):
        if toy.count == 2:
            raise error
        return toy.obs(), 0.0, False, False, {"cost": 0.0}

    task = reset_task(Toy(reply=reply))
    task.step([0, 0])
    with pytest.raises(
        EnvironmentFailed, match=rf"^toy raised {text} in step 2 of the episode: fix its step\.$"
    ) as raised:
        task.step([0, 0])
    assert raised.value.__cause__ is error

    def raise_error(self: Any, seed: Any) -> Any:
        raise error

    with pytest.raises(EnvironmentFailed, match=rf"^toy raised {text} after the reset: fix its reset\.$"):
        reset_task(resetting(raise_error))
    with pytest.raises(
        EnvironmentFailed, match=rf"^the cost function raised {text} in step 1 of the episode: fix it\.$"
    ):
        reset_task(cost=lambda *transition: raise_error(None, None)).step([0, 0])


class Abort(BaseException):
    """An exception of a user's that is no `Exception`."""


def raiser(error: BaseException) -> Any:
    """A function that raises the error, whatever it gets."""

    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stop()], ids=repr)
def test_ctrl_c_passes(error):
    with pytest.raises(type(error)):
        reset_task(Toy(reply=raiser(error))).step([0, 0])


@pytest.mark.parametrize(("error", "words"), [
    (SystemExit(0), r"called sys\.exit\(0\)"),
    (SystemExit(), r"called sys\.exit\(\)"),
    (SystemExit("bye"), r"called sys\.exit\('bye'\)"),
    (GeneratorExit(), "raised GeneratorExit"),
    (asyncio.CancelledError("late"), r"raised CancelledError \(late\)"),
    (Abort("enough"), r"raised Abort \(enough\)"),
], ids=repr)  # fmt: skip
def test_an_environment_cannot_end_the_process_without_a_word(error, words):
    fail = raiser(error)
    with pytest.raises(EnvironmentFailed, match=rf"^toy {words} in step 1 of the episode: fix its step\.$"):
        reset_task(Toy(reply=fail)).step([0, 0])
    with pytest.raises(EnvironmentFailed, match=rf"^toy {words} after the reset: fix its reset\.$"):
        reset_task(Toy(start=fail))
    with pytest.raises(EnvironmentFailed, match=rf"^the cost function {words} in step 1 of the episode: fix it\.$"):
        reset_task(cost=fail).step([0, 0])
    with pytest.raises(EnvironmentFailed, match=rf"^the function that makes the environment {words}: fix it"):
        make(fail)
    toy = Toy()
    toy.close, toy.render = fail, fail  # type: ignore[method-assign]
    task = reset_task(toy)
    task.close()
    with pytest.raises(EnvironmentFailed, match=rf"^toy {words} in render"):
        task.render()


def test_a_keyboard_interrupt_that_no_key_has_sent_is_the_environments():
    with (
        signals.leaving(lambda: ""),
        pytest.raises(EnvironmentFailed, match=r"^toy raised KeyboardInterrupt in step 1 of the episode"),
    ):
        reset_task(Toy(reply=raiser(KeyboardInterrupt()))).step([0, 0])


@pytest.mark.parametrize(("cost", "message"), [
    (lambda: 0.0, r"the cost function raised TypeError \(.*takes 0 positional"),
    (lambda *transition: None, "the cost of toy is None in step 1 of the episode, not a number"),
    (lambda *transition: np.nan, "the cost of toy is not finite in step 1"),
    (lambda *transition: [1.0, 2.0], "the cost of toy is 2 numbers in step 1"),
])  # fmt: skip
def test_errors_of_the_cost_function_are_reported(cost, message):
    with pytest.raises(EnvironmentFailed, match=f"^{message}"):
        reset_task(cost=cost).step([0, 0])


def test_a_cost_function_cannot_change_observations():
    def cost(obs, action, next_obs, info):
        obs[:], next_obs[:] = np.nan, np.nan
        return 0.0

    task = reset_task(cost=cost)
    assert task.step([0, 0]).obs.tolist() == [1.0, 0.0] and task.step([0, 0]).obs.tolist() == [2.0, 0.0]


def test_cost_must_be_a_function():
    with pytest.raises(InputError, match=r"^cost is 3: give a function cost\(obs, action, next_obs, info\)"):
        GymTask(Toy(), name="toy", cost=3)  # type: ignore[arg-type]


def test_close_never_fails_and_an_error_of_render_is_reported():
    class Stuck(Toy):
        def close(self) -> None:
            raise RuntimeError("the window is gone")

        def render(self) -> Any:
            raise RuntimeError("no display")

    task = reset_task(Stuck())
    task.close()
    with pytest.raises(
        EnvironmentFailed, match=r"^toy raised RuntimeError \(no display\) in render: fix its render\.$"
    ):
        task.render()
    task.env.render = raising(gym.error.DependencyNotInstalled("pygame is missing"))
    with pytest.raises(InputError, match=r"^toy cannot be drawn, .*pygame is missing\): install what it needs\.$"):
        task.render()


def test_a_space_that_cannot_be_read_is_reported():
    class Broken(Toy):
        @property
        def observation_space(self) -> Any:
            raise RuntimeError("no model")

        @observation_space.setter
        def observation_space(self, space: Any) -> None: ...

    with pytest.raises(
        EnvironmentFailed,
        match=r"^toy raised RuntimeError \(no model\) when its observation_space was read: fix that\.$",
    ):
        GymTask(Broken(), name="toy")


@pytest.mark.parametrize(("reply", "count"), [((1, 2, 3, 4), "4 items"), ((1,) * 7, "7 items"), (None, "1 item")])
def test_other_numbers_of_items_are_refused(reply, count):
    message = (
        rf"^toy returns {count} in step 1 of the episode: return \(observation, reward, terminated, .*, info\), or six"
    )
    with pytest.raises(EnvironmentFailed, match=message):
        reset_task(Toy(reply=lambda toy: reply)).step([0, 0])


@pytest.mark.parametrize("reply", [np.zeros(2), [1.0, 2.0, 3.0], None, (), (1, 2, 3)])
def test_old_reset_is_refused(reply):
    message = r"^toy does not return \(observation, info\) from reset but .*: return both; old Gym returned the observation al"
    with pytest.raises(EnvironmentFailed, match=message):
        reset_task(resetting(lambda self, seed: reply))


def test_reset_without_a_seed_is_refused_with_advice():
    class Old(Toy):
        def reset(self) -> Any:  # type: ignore[override]
            return np.zeros(2)

    message = r"^toy raised TypeError \(.*'seed'\) after the reset: let it take seed, as in def reset\(self, \*, seed=None, opt"
    with pytest.raises(EnvironmentFailed, match=message):
        reset_task(Old())
    with pytest.raises(EnvironmentFailed, match=message):
        reset_task(TransformReward(Old(), lambda r: r))


def test_a_failed_reset_needs_another_before_a_step():
    task = reset_task()
    task.env.reset = raising(RuntimeError())
    with pytest.raises(EnvironmentFailed):
        task.reset(0)
    with pytest.raises(InputError, match="was not reset"):
        task.step([0, 0])


def test_step_needs_a_reset():
    with pytest.raises(InputError, match=r"^toy was not reset: call reset"):
        GymTask(Toy(), name="toy").step([0, 0])
