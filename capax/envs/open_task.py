"""Open the task of a run: a `GymTask` (by `make`), or a `FiniteTask` where the environment is a finite world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym

from capax.core.checks import flag, short_repr
from capax.core.errors import InputError
from capax.envs.finite_task import FiniteTask
from capax.envs.gridworld import Gridworld
from capax.envs.make import call_user_code, make
from capax.envs.task import Cost, GymTask

FINITE = "capax.envs.gridworld:Gridworld"
"""Entry point of the environment that is a finite world."""


def open_task(
    env: str | Callable[..., Any],
    cost: Cost | None = None,
    episode_steps: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    allow_negative_costs: bool = False,
) -> GymTask | FiniteTask:
    """The task of an environment, whose constructor gets `env_kwargs`."""
    options: dict[str, Any] = dict(
        cost=cost, episode_steps=episode_steps, allow_negative_costs=flag("allow_negative_costs", allow_negative_costs)
    )
    kwargs = {} if env_kwargs is None else env_kwargs
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise InputError(f"env_kwargs is {short_repr(env_kwargs)}: give names with values.")
    if isinstance(env, str):
        spec = gym.registry.get(env)
        if spec is not None and spec.entry_point == FINITE:
            inner = call_user_code(partial(gym.make, env, disable_env_checker=True, **kwargs)).unwrapped
            return FiniteTask(inner.world, env)
        return make(env, **options, env_kwargs=kwargs)
    if not callable(env):
        return make(env, **options)
    instance = call_user_code(partial(env, **kwargs))
    inner = call_user_code(lambda: getattr(instance, "unwrapped", instance))
    if call_user_code(lambda: isinstance(inner, Gridworld)):
        return FiniteTask(inner.world)
    return make(lambda: instance, **options)
