"""What does any environment look like to the rest of capax: flat float64 observations, actions in [-1, 1], and a cost?"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.errors import EnvironmentFailed, InputError

Cost = Callable[[Array, Array, Array, Mapping[str, Any]], Any]
"""`cost(obs, action, next_obs, info)`, with the action as the environment sees it."""


class Step(NamedTuple):
    """What one action brought."""

    obs: Array
    """`[S]`, float64."""
    reward: float
    cost: float
    terminated: bool
    """The task ended here: nothing can be earned or paid afterwards."""
    truncated: bool
    """The episode was cut off here, which is not an end of the task."""
    info: Mapping[str, Any]


class Task:
    """An environment whose spaces were checked once, with its cost found and its episodes cut after `episode_steps`.

    `cost_limit` and `discounted` are the ones that the environment is registered with, or None.
    """

    def __init__(self, env: Any, *, name: str, cost: Cost | None = None, episode_steps: int | None = None) -> None:
        missing = [part for part in ("reset", "step", "action_space", "observation_space") if not hasattr(env, part)]
        if missing:
            raise InputError(f"{name} has no {missing[0]}: give a Gymnasium environment.")
        self.env, self.name = env, name
        self.low, self.high = _action_bounds(env.action_space, name)
        self.action_dim = self.low.size
        self.obs_dim = _observation_size(env.observation_space, name)
        self.episode_steps = _episode_steps(env, name, episode_steps)
        self.cost_limit, self.discounted = limit_of(getattr(env, "spec", None), name)
        self._cost = cost
        self._obs: Array | None = None
        self._steps = 0

    def reset(self, seed: int) -> Array:
        """The first observation `[S]` of the episode that the seed decides."""
        self._steps = 0
        result = self._guarded(lambda: self.env.reset(seed=int(seed)))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise InputError(f"{self.name} does not return (observation, info) from reset: mend its reset.")
        self._obs = self._observation(result[0])
        return self._obs.copy()

    def step(self, action: Any) -> Step:
        """Act with `action` in [-1, 1]^A, which stands for [low, high]."""
        if self._obs is None:
            raise InputError(f"{self.name} was not reset: call reset before the first step.")
        self._steps += 1
        native = self._native(action)
        result = self._guarded(lambda: self.env.step(native))
        count = len(result) if isinstance(result, tuple | list) else 1
        if count not in (5, 6):
            raise InputError(
                f"{self.name} returns {count} item{'s' * (count != 1)} from step: return (observation, reward, "
                "terminated, truncated, info), or six items with the cost after the reward."
            )
        obs = self._observation(result[0])
        reward = self._number(result[1], "reward")
        terminated = bool(self._number(result[-3], "terminated flag"))
        truncated = bool(self._number(result[-2], "truncated flag"))
        info = result[-1] or {}
        if self._cost is not None:
            before = self._obs
            paid = self._guarded(lambda: self._cost(before, native, obs, info))  # type: ignore[misc]
        elif count == 6:
            paid = result[2]
        elif "cost" in info:
            paid = info["cost"]
        else:
            raise InputError(
                f"{self.name} reports no cost: put it into info['cost'], return it from step as the third of six "
                "items, or give a function cost(obs, action, next_obs, info)."
            )
        cut = self.episode_steps is not None and self._steps >= self.episode_steps
        self._obs = obs
        return Step(obs.copy(), reward, self._number(paid, "cost"), terminated, truncated or cut, info)

    def render(self) -> Any:
        """What the environment draws, or None if it cannot draw."""
        return self.env.render() if hasattr(self.env, "render") else None

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """What the environment's own code returns; what it raises is told with when it happened."""
        try:
            return call()
        except InputError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"{self.name} raised {type(error).__name__}{self._when()}: {error}") from error

    def _native(self, action: Any) -> Array:
        """The action in the environment's shape, range and type."""
        unit = np.asarray(action, np.float64).ravel()
        if unit.size != self.action_dim or not np.isfinite(unit).all():
            raise InputError(f"The action is {unit}{self._when()}: give {self.action_dim} finite numbers in [-1, 1].")
        share = 0.5 * (1.0 + unit)
        space = self.env.action_space
        native = ((1.0 - share) * self.low + share * self.high).reshape(space.shape).astype(space.dtype)
        # An action outside [-1, 1] has left the box, and a rounded number may have.
        return np.clip(native, space.low, space.high)

    def _observation(self, value: Any) -> Array:
        """A copy `[S]`: some environments write into the same array at each step."""
        obs = self._array(value, "observation")
        if obs.shape != (self.obs_dim,):
            raise InputError(
                f"The observation of {self.name} has shape {obs.shape}{self._when()}: "
                f"return shape ({self.obs_dim},), as its observation space says."
            )
        return obs

    def _number(self, value: Any, what: str) -> float:
        number = self._array(value, what)
        if number.size != 1:
            raise InputError(f"The {what} of {self.name} is {number.size} numbers{self._when()}: return one.")
        return float(number.item())

    def _array(self, value: Any, what: str) -> Array:
        try:
            array = np.array(value, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"The {what} of {self.name} is no number{self._when()}: return numbers.") from error
        if not np.isfinite(array).all():
            raise InputError(f"The {what} of {self.name} is not finite{self._when()}: return finite numbers.")
        return array

    def _when(self) -> str:
        return f" in step {self._steps} of the episode" if self._steps else " after the reset"


def make(
    env: str | Callable[[], Any],
    *,
    cost: Cost | None = None,
    episode_steps: int | None = None,
    render_mode: str | None = None,
) -> Task:
    """The task of an id that Gymnasium knows (`Id-v0`, or `module:Id-v0`), or of a function that makes an environment."""
    if not isinstance(env, str):
        if not callable(env):
            raise InputError(
                f"env is of type {type(env).__name__}: give an id, or a function that makes the environment."
            )
        made = env()
        name = getattr(getattr(made, "spec", None), "id", None) or type(getattr(made, "unwrapped", made)).__name__
        if render_mode is not None and getattr(made, "render_mode", None) != render_mode:
            raise InputError(f"{name} was not made with render_mode={render_mode!r}: do so in the function.")
        return _closed_if_refused(made, str(name), cost, episode_steps)
    spec = _registered(env)
    # Task cuts the episodes itself, as Gymnasium's TimeLimit cannot pass on a sixth item.
    unlimited = dataclasses.replace(spec, max_episode_steps=None)
    arguments: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        made = gym.make(unlimited, disable_env_checker=True, **arguments)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'|takes no arguments", str(error))
        if unknown is None:
            raise
        name = unknown[1] or ", ".join((*spec.kwargs, *arguments))
        raise InputError(f"{env} does not take {name}: add this argument to its constructor.") from error
    except (ImportError, gym.error.Error) as error:
        raise InputError(f"{env} cannot be made ({error}): install what it needs.") from error
    if episode_steps is None and spec.max_episode_steps is not None:
        episode_steps = min([spec.max_episode_steps, *_time_limits(made)])
    return _closed_if_refused(made, env, cost, episode_steps)


def _closed_if_refused(made: Any, name: str, cost: Cost | None, episode_steps: int | None) -> Task:
    try:
        return Task(made, name=name, cost=cost, episode_steps=episode_steps)
    except InputError:
        if hasattr(made, "close"):
            made.close()
        raise


def limit_of(spec: Any, name: str) -> tuple[float | None, bool | None]:
    """The `cost_limit` and `discounted` that an environment is registered with, each None where it is not there."""
    registered = getattr(spec, "kwargs", None) or {}
    limit, discounted = registered.get("cost_limit"), registered.get("discounted")
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int | float | np.number) or not math.isfinite(limit):
            raise InputError(f"{name} is registered with cost_limit={limit!r}: register a finite number.")
        limit = float(limit)
    if discounted is not None and not isinstance(discounted, bool):
        raise InputError(f"{name} is registered with discounted={discounted!r}: register True or False.")
    return limit, discounted


def _registered(env: str) -> Any:
    """Gymnasium's spec of `Id-v0` or `module:Id-v0`."""
    module, colon, name = env.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            raise InputError(f"The module {module!r} of {env} cannot be imported ({error}): install it.") from error
    if name in gym.registry:
        return gym.registry[name]
    known = {key.lower(): key for key in gym.registry}
    near = [known[key] for key in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else "give one that Gymnasium has, or module:Id-v0."
    raise InputError(f"There is no environment {name!r}: {hint}")


def _observation_size(space: Any, name: str) -> int:
    if not isinstance(space, spaces.Box):
        raise InputError(
            f"{name} has {type(space).__name__} observations: wrap it in gymnasium.wrappers.FlattenObservation."
        )
    if len(space.shape) != 1:
        raise InputError(
            f"{name} has observations of shape {space.shape}, which must be flat: wrap it in "
            "gymnasium.wrappers.FlattenObservation."
        )
    if space.shape[0] == 0:
        raise InputError(f"{name} has empty observations: give an environment that shows at least one number.")
    return int(space.shape[0])


def _action_bounds(space: Any, name: str) -> tuple[Array, Array]:
    wanted = "give an environment whose actions are a Box of floats with finite low and high."
    if not isinstance(space, spaces.Box):
        raise InputError(f"{name} has {type(space).__name__} actions: {wanted}")
    if not np.issubdtype(space.dtype, np.floating):
        raise InputError(f"{name} has {space.dtype} actions: {wanted}")
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
    if low.size == 0:
        raise InputError(f"{name} has empty actions: {wanted}")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InputError(f"{name} has unbounded actions: {wanted}")
    return low, high


def _time_limits(env: Any) -> list[int]:
    """The limits of Gymnasium's TimeLimit in the chain of wrappers."""
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return limits


def _episode_steps(env: Any, name: str, wanted: int | None) -> int | None:
    """Steps until an episode is cut: the wanted number, or the environment's own, or None."""
    limits = _time_limits(env)
    if wanted is None:
        return min(limits, default=getattr(getattr(env, "spec", None), "max_episode_steps", None))
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or wanted < 1:
        raise InputError(f"episode_steps is {wanted!r}: give a whole number >= 1.")
    if limits and wanted > min(limits):
        raise InputError(f"episode_steps is {wanted}, but {name} ends after {min(limits)}: give at most that many.")
    return int(wanted)
