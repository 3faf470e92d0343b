"""Is what an environment raises told in one sentence, with its step and what to mend?"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward
from toys import Toy, fails, resetting, task

from capax.envs.adapt import Task
from capax.errors import EnvironmentFailed, InputError

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
