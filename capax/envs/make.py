"""Make a `GymTask` from a Gymnasium id or from a function that makes an environment; errors become one sentence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import gymnasium as gym

from capax.core.checks import error_text, failure_text, nearest, one_line, short_repr
from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.task import Cost, GymTask, close_env, episode_length, part_of, time_limits
from capax.runtime.modules import import_named, safe_children
from capax.runtime.processes import contained
from capax.runtime.signals import after_user_code

OURS = ("capax.", "gymnasium.")
"""Where the code of the registered environments is that is not the user's."""


def make(
    env: str | Callable[[], Any],
    *,
    cost: Cost | None = None,
    episode_steps: int | None = None,
    render_mode: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    allow_negative_costs: bool = False,
) -> GymTask:
    """The task of a Gymnasium id (`Id-v0` or `module:Id-v0`), or of a function that makes an environment.

    `env_kwargs` are arguments of the constructor that an id stands for.
    """
    if not isinstance(env, str):
        if not callable(env):
            raise InputError(
                f"env is of type {type(env).__name__}: give an id, or a function that makes the environment."
            )
        user_env = call_user_code(env)
        name = _name_of(user_env)
        if render_mode is not None and part_of(user_env, name, "render_mode", None) != render_mode:
            close_env(user_env, name)
            raise InputError(f"{name} was not made with render_mode={render_mode!r}: do so in the function.")
        return _task_or_close(user_env, name, cost, episode_steps, allow_negative_costs)
    spec = registered_spec(env)
    # GymTask cuts the episodes itself, because Gymnasium's TimeLimit does not pass on a sixth item.
    arguments = {**spec.kwargs, **(env_kwargs or {})}
    unlimited = dataclasses.replace(spec, max_episode_steps=None, kwargs=arguments)
    render: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        with safe_children() if str(spec.entry_point).startswith(OURS) else nullcontext():  # MuJoCo's window library
            gym_env = contained(lambda: gym.make(unlimited, disable_env_checker=True, **render))
    except (InputError, EnvironmentFailed):
        raise
    except (ImportError, gym.error.Error) as error:
        raise InputError(f"{env} cannot be made, {error_text(error)}: install what it needs.") from error
    except BaseException as error:
        after_user_code(error)
        unknown = re.search(r"unexpected keyword argument '(\w+)'|takes no arguments", error_text(error))
        if isinstance(error, TypeError) and unknown is not None:
            name = unknown[1] or ", ".join((*arguments, *render))
            raise InputError(
                f"{env} does not take {name}: correct the name, or add this argument to its constructor."
            ) from error
        raise EnvironmentFailed(f"{env} cannot be made, it {failure_text(error)}: fix its constructor.") from error
    if episode_steps is None and spec.max_episode_steps is not None:
        episode_steps = min([episode_length(spec.max_episode_steps, env), *time_limits(gym_env, env)])
    return _task_or_close(gym_env, env, cost, episode_steps, allow_negative_costs)


def call_user_code(function: Callable[[], Any]) -> Any:
    """The result of a user's function. An error becomes `EnvironmentFailed` with one sentence."""
    try:
        return contained(function)
    except (InputError, EnvironmentFailed):
        raise
    except BaseException as error:
        after_user_code(error)
        raise EnvironmentFailed(
            f"the function that makes the environment {failure_text(error)}: fix it, and let it need no arguments "
            "but those of env_kwargs."
        ) from error


def _task_or_close(env: Any, name: str, cost: Cost | None, episode_steps: int | None, negative: bool) -> GymTask:
    """The task of an environment, which is closed if it is refused."""
    try:
        return GymTask(env, name=name, cost=cost, episode_steps=episode_steps, allow_negative_costs=negative)
    except (InputError, EnvironmentFailed):
        close_env(env, name)
        raise
    except Exception as error:  # an attribute that breaks when it is looked at
        close_env(env, name)
        raise EnvironmentFailed(
            f"{name} raised {error_text(error)} when its spaces and its spec were read: fix them."
        ) from error


def _name_of(env: Any) -> str:
    """The id that an environment is registered with, or the name of its class."""
    try:
        name = getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__
        return one_line(str(name), 80)
    except Exception:
        return type(env).__name__


def registered_spec(env: str) -> Any:
    """Gymnasium's spec of `Id-v0` or `module:Id-v0`."""
    module, colon, name = env.rpartition(":")
    if colon:
        try:
            named = contained(import_named, module)
        except (ImportError, ValueError, TypeError) as error:
            raise InputError(
                f"the module {short_repr(module)} of {short_repr(env)} cannot be imported, {error_text(error)}: install it."
            ) from error
        except BaseException as error:
            after_user_code(error)
            raise EnvironmentFailed(f"the module {short_repr(module)} {failure_text(error)}: fix it.") from error
    if name in gym.registry:
        return gym.registry[name]
    if colon and callable(vars(named).get(name)):
        raise InputError(
            f"{module} has not registered {name}: add gymnasium.register('{name}-v0', entry_point={name}) to it, and give "
            f"{module}:{name}-v0."
        )
    similar = nearest(name, gym.registry)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "give one that Gymnasium has, or module:Id-v0."
    raise InputError(f"there is no environment {short_repr(name)}: {hint}")
