"""A task is made from any id or function, with its length and its limit; what makes no task is refused."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit, TransformReward
from support.toy_envs import UNIT_BOX, Toy, raising, reset_task, six_items

from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.make import make
from capax.envs.task import GymTask, limit_of


@pytest.fixture
def register(monkeypatch):
    """A function that registers a toy under an id, for one test."""

    def register_toy(name: str, **spec: Any) -> str:
        monkeypatch.setitem(gym.registry, name, EnvSpec(name, **{"entry_point": Toy, **spec}))
        return name

    return register_toy


# Length of episodes.


def length(task: GymTask, limit: int = 30) -> int | None:
    """Steps until the episode ends, or None if it does not."""
    task.reset(0)
    return next((k for k in range(1, limit) if any(task.step(np.zeros(task.action_dim))[3:5])), None)


def test_episode_is_cut_after_the_requested_steps():
    task = reset_task(episode_steps=4)
    assert task.episode_steps == 4 and length(task) == 4 and length(task) == 4
    task.reset(0)
    assert [task.step([0, 0])[3:5] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]


def test_episode_without_a_limit_does_not_end():
    assert reset_task().episode_steps is None and length(reset_task()) is None


def test_time_limit_is_found_in_the_wrappers():
    wrapped = TransformReward(TimeLimit(TimeLimit(TransformReward(Toy(), lambda r: 2 * r), 6), 9), lambda r: r + 1)
    task = GymTask(wrapped, name="toy")
    assert task.episode_steps == 6 and length(task) == 6
    task.reset(0)
    assert task.step([0, 0]).reward == 3.0  # 2·1 + 1
    assert length(GymTask(wrapped, name="toy", episode_steps=5)) == 5
    with pytest.raises(InputError, match=r"^episode_steps is 7, but toy ends after 6: give at most that many"):
        GymTask(wrapped, name="toy", episode_steps=7)


@pytest.mark.parametrize("steps", [0, -1, True, 2.5, "ten", float("inf"), [3]])
def test_episode_needs_a_step(steps, register):
    for build in (
        lambda: GymTask(Toy(), name="toy", episode_steps=steps),
        lambda: make(register("A-v0"), episode_steps=steps),
    ):
        with pytest.raises(InputError, match=r"^episode_steps is .*: give a whole number >= 1"):
            build()


@pytest.mark.parametrize("steps", [0, "ten", 2.5])
def test_a_bad_registered_length_is_refused(steps, register):
    toy = Toy()
    toy.spec = EnvSpec("A-v0", max_episode_steps=steps)
    for build in (lambda: GymTask(toy, name="A-v0"), lambda: make(register("A-v0", max_episode_steps=steps))):
        with pytest.raises(
            InputError, match=r"^the number of steps that A-v0 ends after is .*: give a whole number >= 1"
        ):
            build()


def test_registered_length_is_used_and_can_be_changed(register):
    name = register("test/Toy-v0", max_episode_steps=8)
    assert make(name).episode_steps == 8 and length(make(name)) == 8
    assert length(make(name, episode_steps=3)) == 3
    assert length(make(name, episode_steps=20)) == 20  # also longer than registered
    assert length(make(lambda: gym.make(name, disable_env_checker=True))) == 8
    register("test/Toy-v0", max_episode_steps=8, entry_point=lambda: TimeLimit(Toy(), 5))
    assert make(name).episode_steps == 5 and length(make(name)) == 5


def test_six_items_pass_under_a_registered_length(register):
    task = make(register("test/Six-v0", max_episode_steps=3, entry_point=lambda: six_items(2.0)))
    task.reset(0)
    assert task.step([0, 0]).cost == 2.0 and task.episode_steps == 3


def test_length_of_a_spec_is_used_without_a_wrapper():
    toy = Toy()
    toy.spec = EnvSpec("A-v0", max_episode_steps=4)
    assert GymTask(toy, name="toy").episode_steps == 4 and length(GymTask(toy, name="toy")) == 4


# Making a task.


def test_ids_make_tasks():
    task = make("capax/Integrator-v0")
    assert (task.name, task.cost_limit, task.discounted) == ("capax/Integrator-v0", 25.0, False)
    assert (task.episode_steps, task.obs_dim, task.action_dim) == (50, 1, 1)
    task.reset(0)
    steps = [task.step([1.0]) for _ in range(50)]
    assert [step.truncated for step in steps] == [False] * 49 + [True]
    # Σ (x_0 + .1 t)² = 50 x_0² + .2 x_0 Σt + .01 Σt²
    x = float(task.reset(0)[0])
    assert sum(step.cost for step in steps) == pytest.approx(50 * x * x + 0.2 * x * 1275 + 429.25)


def test_id_of_gymnasium_with_a_cost_function():
    task = make("Pendulum-v1", cost=lambda obs, action, next_obs, info: abs(next_obs[2]))
    task.reset(0)
    step = task.step([1.0])
    assert step.cost == abs(step.obs[2]) > 0.0 and task.high.tolist() == [2.0]
    assert (task.cost_limit, task.discounted, task.episode_steps) == (None, None, 200)


def test_module_of_an_id_is_imported(register, monkeypatch):
    name = register("test/Toy-v0")
    monkeypatch.setitem(sys.modules, "my_envs.toys", types.ModuleType("my_envs.toys"))
    monkeypatch.setitem(sys.modules, "my_envs", types.ModuleType("my_envs"))
    assert make(f"my_envs.toys:{name}").name == f"my_envs.toys:{name}"
    assert make("capax.envs:capax/Integrator-v0").episode_steps == 50


@pytest.mark.parametrize("module", ["no_such_module", "capax.no_such_part", ""])
def test_module_that_does_not_import_is_named(module):
    with pytest.raises(
        InputError, match=f"^the module '{module}' of '{module}:Toy-v0' cannot be imported, .*: install"
    ):
        make(f"{module}:Toy-v0")


def test_module_that_raises_is_reported(tmp_path, monkeypatch):
    (tmp_path / "my_broken_envs.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        EnvironmentFailed, match=r"^the module 'my_broken_envs' raised ZeroDivisionError \(.*\): fix it\.$"
    ):
        make("my_broken_envs:Toy-v0")


def test_a_class_that_its_module_has_not_registered_is_refused_with_the_line_to_add(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_toys", types.ModuleType("my_toys"))
    monkeypatch.setattr(sys.modules["my_toys"], "Toy", Toy, raising=False)
    line = r"gymnasium\.register\('Toy-v0', entry_point=Toy\)"
    words = rf"^my_toys has not registered Toy: add {line} to it, and give my_toys:Toy-v0\.$"
    with pytest.raises(InputError, match=words):
        make("my_toys:Toy")


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
        InputError, match=rf"^there is no environment '{name}': did you mean (.* or )*{meant}( or .*)?\?$"
    ):
        make(wrong)


def test_unknown_id_names_several():
    with pytest.raises(InputError, match=r"mean (\S+Velocity-v0 or ){2}\S+Velocity-v0\?$"):
        make("capax/RobotVelocity-v0")


def test_unknown_id_that_resembles_nothing():
    with pytest.raises(
        InputError, match=r"^there is no environment 'zzz': give one that Gymnasium has, or module:Id-v0"
    ):
        make("zzz")


def test_discrete_task_is_refused_by_its_actions():
    with pytest.raises(InputError, match=r"^capax/Gridworld-v0 has Discrete actions"):
        make("capax/Gridworld-v0")


def test_functions_make_tasks():
    task = make(Toy, episode_steps=2)
    assert (task.name, task.episode_steps, length(task)) == ("Toy", 2, 2)
    assert make(lambda: gym.make("capax/Integrator-v0")).name == "capax/Integrator-v0"
    assert make(lambda: gym.make("capax/Integrator-v0")).cost_limit == 25.0


@pytest.mark.parametrize(("env", "message"), [
    (3, "^env is of type int: give an id, or a function"),
    (lambda: None, "^NoneType has no reset: give a Gymnasium environment"),
])  # fmt: skip
def test_what_makes_no_environment_is_refused(env, message):
    with pytest.raises(InputError, match=message):
        make(env)


def test_environment_needs_no_spec_render_close_or_base_class():
    class Bare:
        action_space, observation_space = UNIT_BOX, spaces.Box(-1.0, 1.0, (1,))

        def reset(self, seed: int) -> Any:
            return [0.0], {}

        def step(self, action: Any) -> Any:
            return [1.0], 2.0, 3.0, False, False, {}

    task = make(Bare)
    task.reset(0)
    assert task.step([0, 0])[1:3] == (2.0, 3.0) and task.name == "Bare"
    assert task.render() is None
    task.close()


def test_render_mode_reaches_the_environment(register):
    task = make("capax/PendulumSpeed-v0", render_mode="rgb_array")
    task.reset(0)
    assert task.render().shape == (200, 200, 3)
    task.close()
    assert make("capax/PendulumSpeed-v0").env.render_mode is None
    assert make(lambda: Toy(render_mode="rgb_array"), render_mode="rgb_array").env.render_mode == "rgb_array"
    with pytest.raises(InputError, match=r"^Toy was not made with render_mode='rgb_array': do so in the function"):
        make(Toy, render_mode="rgb_array")


class Strict(Toy):
    def __init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize(("spec", "options", "argument"), [
    ({"entry_point": Strict}, {"render_mode": "rgb_array"}, "render_mode"),
    ({"entry_point": Strict, "kwargs": {"cost_limit": 1.0}}, {}, "cost_limit"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*render_mode")  # Gymnasium's own
def test_argument_that_a_constructor_does_not_take_is_named(spec, options, argument, register):
    with pytest.raises(
        InputError, match=f"^A-v0 does not take {argument}: correct the name, or add this argument to its constructor"
    ):
        make(register("A-v0", **spec), **options)


@pytest.mark.parametrize("error", [ModuleNotFoundError("no stuff"), gym.error.DependencyNotInstalled("no stuff")])
def test_what_an_environment_lacks_is_named(error, register):
    with pytest.raises(InputError, match=r"^A-v0 cannot be made, \w+ \(no stuff\): install what it needs"):
        make(register("A-v0", entry_point=raising(error)))


@pytest.mark.parametrize(
    "error", [TypeError("its own"), RuntimeError("its own"), OSError("its own"), KeyError("its own")]
)
def test_errors_of_a_constructor_are_reported(error, register):
    with pytest.raises(
        EnvironmentFailed, match=r"^A-v0 cannot be made, it raised \w+ \('?its own.*\): fix its constr"
    ) as raised:
        make(register("A-v0", entry_point=raising(error)))
    assert type(raised.value.__cause__) is type(error)
    message = r"^the function that makes the environment raised \w+ \('?its own'?\): fix it, and let it need no arguments but "
    with pytest.raises(EnvironmentFailed, match=message) as raised:
        make(raising(error))
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [InputError("its own sentence"), EnvironmentFailed("its own sentence")])
def test_a_message_of_capax_is_passed_on_unchanged(error, register):
    for env in (register("A-v0", entry_point=raising(error)), raising(error)):
        with pytest.raises(type(error), match=r"^its own sentence$"):
            make(env)


def test_a_refused_environment_is_closed():
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
def test_limit_is_the_registered_one(registered, limit, register):
    assert limit_of(types.SimpleNamespace(kwargs=registered), "toy") == limit
    assert type(limit_of(types.SimpleNamespace(kwargs={"cost_limit": 3}), "toy")[0]) is float
    assert limit_of(None, "toy") == (None, None)
    task = make(register("A-v0", kwargs=registered or {}))
    assert (task.cost_limit, task.discounted) == limit


@pytest.mark.parametrize(("registered", "message"), [
    ({"cost_limit": "3"}, "^toy is registered with cost_limit='3': register a finite number"),
    ({"cost_limit": float("nan")}, "^toy is registered with cost_limit=nan: register a finite number"),
    ({"cost_limit": True}, "^toy is registered with cost_limit=True: register a finite number"),
    ({"cost_limit": np.complex64(1)}, r"^toy is registered with cost_limit=np\.complex64"),
    ({"cost_limit": 10**400}, "^toy is registered with cost_limit=1000.*…: register a finite number"),
    ({"cost_limit": 1, "discounted": 0.99}, "^toy is registered with discounted=0.99: register True or False"),
])  # fmt: skip
def test_bad_limits_are_refused(registered, message):
    with pytest.raises(InputError, match=message):
        limit_of(types.SimpleNamespace(kwargs=registered), "toy")
