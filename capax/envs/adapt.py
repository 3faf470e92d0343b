"""What does any environment look like to the rest of capax: flat float64 observations, actions in [-1, 1], and a cost?"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy import ndarray as Array

from capax.checks import LARGEST, is_number, nearest, numbers, one_line, said, shown, whole
from capax.envs.spaces import action_bounds, image_shape, observation_size
from capax.errors import EnvironmentFailed, InputError

READABLE = float(np.finfo(np.float32).max)
"""The largest number that the networks can read."""
NO_SEED = re.compile(r"unexpected keyword argument 'seed'|takes no keyword arguments")
"""What Python says of a reset without `seed`, as old Gym had it."""
Cost = Callable[[Array, Array, Array, Mapping[str, Any]], Any]
"""`cost(obs, action, next_obs, info)`, with the action as the environment sees it."""


class Step(NamedTuple):
    """What one action brought."""

    obs: Array
    """`[S]`, float64, or an image `[64, 64, C]`, uint8."""
    reward: float
    cost: float
    terminated: bool
    """The task ended here: nothing can be earned or paid afterwards."""
    truncated: bool
    """The episode was cut off here, which is not an end of the task."""
    info: Mapping[str, Any]
    frames: tuple[float, ...] = (0.0,)
    """The reward of each frame that the action was repeated for."""


class Task:
    """An environment whose spaces were checked once, with its cost found and its episodes cut after `episode_steps`.

    `cost_limit`, `discounted`, `violation_rate` and `repeat` are the ones that the environment is registered with, or None
    (and 1). Observations are flat, or images: `image` is then their shape, and `obs_dim` 0. What the environment, or
    the cost function, does wrong in a reset or a step is `EnvironmentFailed`: one sentence that says what and when.
    """

    def __init__(self, env: Any, *, name: str, cost: Cost | None = None, episode_steps: int | None = None) -> None:
        if cost is not None and not callable(cost):
            raise InputError(f"cost is {shown(cost)}: give a function cost(obs, action, next_obs, info).")
        for part in ("reset", "step"):
            _part(env, name, part)
        self.env, self.name = env, name
        self._space = _part(env, name, "action_space")
        self.low, self.high = action_bounds(self._space, name)
        self.action_dim = self.low.size
        space = _part(env, name, "observation_space")
        self.image = image_shape(space, name)
        self.obs_dim = 0 if self.image is not None else observation_size(space, name)
        self._dtype = getattr(space, "dtype", None)
        spec = _part(env, name, "spec", None)
        self.repeat, self.violation_rate = repeat_of(spec, name)
        self.episode_steps = _episode_steps(env, spec, name, episode_steps)
        self.cost_limit, self.discounted = limit_of(spec, name)
        self._cost = cost
        self._obs: Array | None = None
        self._steps = 0

    def reset(self, seed: int) -> Array:
        """The first observation `[S]` of the episode that the seed decides."""
        self._steps, self._obs, seed = 0, None, int(seed)
        result = self._guarded(lambda: self.env.reset(seed=seed), "reset")
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise EnvironmentFailed(
                f"{self.name} does not return (observation, info) from reset but {shown(result)}: return both, where "
                "old Gym had the observation alone."
            )
        self._info(result[1])
        self._obs = self._observation(result[0])
        return self._obs.copy()

    def step(self, action: Any) -> Step:
        """Act with `action` in [-1, 1]^A, which stands for [low, high]."""
        if self._obs is None:
            raise InputError(f"{self.name} was not reset: call reset before the first step.")
        self._steps += 1
        native = self._native(action)
        result = self._guarded(lambda: self.env.step(native), "step")
        count = len(result) if isinstance(result, tuple | list) else 1
        if count not in (5, 6):
            raise EnvironmentFailed(
                f"{self.name} returns {count} item{'s' * (count != 1)}{self._when()}: return (observation, reward, "
                "terminated, truncated, info), or six items with the cost after the reward."
            )
        obs = self._observation(result[0])
        reward = self._number(result[1], "reward")
        terminated = bool(self._number(result[-3], "terminated flag"))
        truncated = bool(self._number(result[-2], "truncated flag"))
        info = self._info(result[-1])
        if self._cost is not None:
            seen = self._obs.copy(), native, obs.copy(), info
            paid = self._guarded(lambda: self._cost(*seen), "", "The cost function")  # type: ignore[misc]
        elif count == 6:
            paid = result[2]
        elif self._guarded(lambda: "cost" in info, "info"):
            paid = self._guarded(lambda: info["cost"], "info")
        else:
            raise EnvironmentFailed(
                f"{self.name} reports no cost{self._when()}: put it into info['cost'], return it from step as the "
                "third of six items, or give a function cost(obs, action, next_obs, info)."
            )
        cut = self.episode_steps is not None and self._steps >= self.episode_steps
        self._obs = obs
        frames = (reward,) if self.repeat == 1 else self._frames(info)
        return Step(obs.copy(), reward, self._number(paid, "cost"), terminated, truncated or cut, info, frames)

    def render(self) -> Any:
        """What the environment draws, or None if it cannot draw."""
        try:
            return self.env.render() if hasattr(self.env, "render") else None
        except gym.error.DependencyNotInstalled as error:
            raise InputError(f"{self.name} cannot be drawn, {said(error)}: install what it needs.") from error
        except Exception as error:
            raise EnvironmentFailed(f"{self.name} raised {said(error)} as it was drawn: mend its render.") from error

    def close(self) -> None:
        """Done with it; what goes wrong now is of no matter any more."""
        with suppress(Exception):
            self.env.close()

    def _guarded(self, call: Callable[[], Any], part: str, who: str = "") -> Any:
        """What the user's own code returns; what it raises is told with when it happened."""
        try:
            return call()
        except EnvironmentFailed:
            raise
        except Exception as error:
            advice = f"mend its {part}" if part else "mend it"
            if part == "reset" and isinstance(error, TypeError) and NO_SEED.search(said(error)):
                advice = "let it take seed, as in def reset(self, *, seed=None, options=None)"
            raise EnvironmentFailed(f"{who or self.name} raised {said(error)}{self._when()}: {advice}.") from error

    def _native(self, action: Any) -> Array:
        """The action in the environment's shape, range and type."""
        try:
            unit = numbers(action).ravel()
        except (TypeError, ValueError):
            unit = np.zeros(0)
        if unit.size != self.action_dim or not np.isfinite(unit).all():
            raise InputError(
                f"The action is {shown(action)}{self._when()}: give {self.action_dim} finite numbers in [-1, 1]."
            )
        share, space = 0.5 * (1.0 + unit), self._space
        native = ((1.0 - share) * self.low + share * self.high).reshape(space.shape).astype(space.dtype)
        # An action outside [-1, 1] has left the box, and a rounded number may have.
        return np.clip(native, space.low, space.high)

    def _frames(self, info: Mapping[str, Any]) -> tuple[float, ...]:
        """What each frame of a repeated action earned."""
        rewards = self._array(info.get("rewards"), "info['rewards']").ravel()
        if not 1 <= rewards.size <= self.repeat:
            raise EnvironmentFailed(
                f"{self.name} repeats actions {self.repeat} times but has {rewards.size} numbers in info['rewards']"
                f"{self._when()}: put the reward of each frame there."
            )
        return tuple(rewards.tolist())

    def _picture(self, value: Any) -> Array:
        """A copy of an image, in uint8."""
        try:
            image = np.array(value)
        except Exception as error:
            raise EnvironmentFailed(
                f"The observation of {self.name} is {shown(value)}{self._when()}, which is no image: return an array."
            ) from error
        if image.shape != self.image or image.dtype != self._dtype:
            raise EnvironmentFailed(
                f"The observation of {self.name} is {image.dtype} of shape {image.shape}{self._when()}: return "
                f"{self._dtype} of shape {self.image}, as its observation space says."
            )
        if image.dtype == np.uint8:
            return image
        if not (image >= 0.0).all() or not (image <= 1.0).all():  # NaN is neither
            raise EnvironmentFailed(
                f"The image of {self.name} has numbers outside of [0, 1]{self._when()}: return floats between, or uint8."
            )
        return np.round(255.0 * image).astype(np.uint8)

    def _observation(self, value: Any) -> Array:
        """A copy: some environments write into the same array at each step."""
        if self.image is not None:
            return self._picture(value)
        obs = self._array(value, "observation")
        if obs.shape != (self.obs_dim,):
            raise EnvironmentFailed(
                f"The observation of {self.name} has shape {obs.shape}{self._when()}: "
                f"return shape ({self.obs_dim},), as its observation space says."
            )
        return obs

    def _number(self, value: Any, what: str) -> float:
        if isinstance(value, float | bool) and abs(value) <= READABLE:  # nearly always so, and NaN is not
            return float(value)
        number = self._array(value, what)
        if number.size != 1:
            raise EnvironmentFailed(f"The {what} of {self.name} is {number.size} numbers{self._when()}: return one.")
        return float(number.item())

    def _info(self, value: Any) -> Mapping[str, Any]:
        if value is not None and not isinstance(value, Mapping):
            raise EnvironmentFailed(f"The info of {self.name} is {shown(value)}{self._when()}: return a dict.")
        return {} if value is None else value

    def _array(self, value: Any, what: str) -> Array:
        try:
            array = numbers(value)
        except Exception as error:
            raise EnvironmentFailed(
                f"The {what} of {self.name} is {shown(value)}{self._when()}, which is no number: return numbers."
            ) from error
        if np.abs(array).max(initial=0.0) <= READABLE:  # NaN is not
            return array
        if not np.isfinite(array).all():
            raise EnvironmentFailed(f"The {what} of {self.name} is not finite{self._when()}: return finite numbers.")
        raise EnvironmentFailed(f"The {what} of {self.name} is too large for float32{self._when()}: rescale it.")

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
        made = called(env)
        name = _name_of(made)
        if render_mode is not None and _part(made, name, "render_mode", None) != render_mode:
            _close(made)
            raise InputError(f"{name} was not made with render_mode={render_mode!r}: do so in the function.")
        return _closed_if_refused(made, name, cost, episode_steps)
    spec = _registered(env)
    # Task cuts the episodes itself, as Gymnasium's TimeLimit cannot pass on a sixth item.
    unlimited = dataclasses.replace(spec, max_episode_steps=None)
    arguments: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        made = gym.make(unlimited, disable_env_checker=True, **arguments)
    except (InputError, EnvironmentFailed):
        raise
    except (ImportError, gym.error.Error) as error:
        raise InputError(f"{env} cannot be made, {said(error)}: install what it needs.") from error
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'|takes no arguments", said(error))
        if isinstance(error, TypeError) and unknown is not None:
            name = unknown[1] or ", ".join((*spec.kwargs, *arguments))
            raise InputError(f"{env} does not take {name}: add this argument to its constructor.") from error
        raise EnvironmentFailed(f"{env} cannot be made, it raised {said(error)}: mend its constructor.") from error
    if episode_steps is None and spec.max_episode_steps is not None:
        episode_steps = min([_length(spec.max_episode_steps, env), *_time_limits(made, env)])
    return _closed_if_refused(made, env, cost, episode_steps)


def called(make: Callable[[], Any]) -> Any:
    """What a user's function makes; what it raises is told in a sentence."""
    try:
        return make()
    except (InputError, EnvironmentFailed):
        raise
    except Exception as error:
        raise EnvironmentFailed(
            f"The function that makes the environment raised {said(error)}: mend it, and let it need no arguments."
        ) from error


def _closed_if_refused(made: Any, name: str, cost: Cost | None, episode_steps: int | None) -> Task:
    try:
        return Task(made, name=name, cost=cost, episode_steps=episode_steps)
    except (InputError, EnvironmentFailed):
        _close(made)
        raise


def _close(env: Any) -> None:
    with suppress(Exception):
        env.close()


def _name_of(env: Any) -> str:
    """The id that it is registered with, or its class."""
    try:
        name = getattr(getattr(env, "spec", None), "id", None) or type(getattr(env, "unwrapped", env)).__name__
        return one_line(str(name), 80)
    except Exception:
        return type(env).__name__


def _part(env: Any, name: str, part: str, *default: Any) -> Any:
    """An attribute of the environment; some compute theirs, and fail."""
    try:
        return getattr(env, part, *default)
    except AttributeError:
        raise InputError(f"{name} has no {part}: give a Gymnasium environment.") from None
    except Exception as error:
        raise EnvironmentFailed(f"{name} raised {said(error)} when asked for its {part}: mend that.") from error


def limit_of(spec: Any, name: str) -> tuple[float | None, bool | None]:
    """The `cost_limit` and `discounted` that an environment is registered with, each None where it is not there."""
    registered = getattr(spec, "kwargs", None)
    registered = registered if isinstance(registered, Mapping) else {}
    limit, discounted = registered.get("cost_limit"), registered.get("discounted")
    if limit is not None:
        if not is_number(limit) or not np.isfinite(numbers(limit)):
            raise InputError(f"{name} is registered with cost_limit={shown(limit)}: register a finite number.")
        limit = float(limit)
    if discounted is not None and not isinstance(discounted, bool):
        raise InputError(f"{name} is registered with discounted={shown(discounted)}: register True or False.")
    return limit, discounted


def repeat_of(spec: Any, name: str) -> tuple[int, float | None]:
    """The `action_repeat` and `violation_rate` that an environment is registered with: 1 and None where it is not."""
    registered = getattr(spec, "kwargs", None)
    registered = registered if isinstance(registered, Mapping) else {}
    rate = registered.get("violation_rate")
    if rate is not None and not (is_number(rate) and 0.0 < rate < 1.0):
        raise InputError(f"{name} is registered with violation_rate={shown(rate)}: register one between 0 and 1.")
    return whole(f"action_repeat of {name}", registered.get("action_repeat", 1)), None if rate is None else float(rate)


def _registered(env: str) -> Any:
    """Gymnasium's spec of `Id-v0` or `module:Id-v0`."""
    module, colon, name = env.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except (ImportError, ValueError, TypeError) as error:
            raise InputError(
                f"The module {shown(module)} of {shown(env)} cannot be imported, {said(error)}: install it."
            ) from error
        except Exception as error:
            raise EnvironmentFailed(f"The module {shown(module)} raised {said(error)}: mend it.") from error
    if name in gym.registry:
        return gym.registry[name]
    near = nearest(name, gym.registry)
    hint = f"did you mean {' or '.join(near)}?" if near else "give one that Gymnasium has, or module:Id-v0."
    raise InputError(f"There is no environment {shown(name)}: {hint}")


def _time_limits(env: Any, name: str) -> list[int]:
    """The limits of Gymnasium's TimeLimit in the chain of wrappers."""
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            limits.append(_length(env._max_episode_steps, name))
        env = env.env
    return limits


def _length(steps: Any, name: str) -> int:
    """The length of an episode that an environment itself names; one that nobody reaches is none."""
    return min(LARGEST, whole(f"the number of steps that {name} ends after", steps, most=2**63))


def _episode_steps(env: Any, spec: Any, name: str, wanted: int | None) -> int | None:
    """Steps until an episode is cut: the wanted number, or the environment's own, or None."""
    limits = _time_limits(env, name)
    if wanted is None:
        registered = getattr(spec, "max_episode_steps", None)
        return min(limits) if limits else None if registered is None else _length(registered, name)
    wanted = whole("episode_steps", wanted)
    if limits and wanted > min(limits):
        raise InputError(f"episode_steps is {wanted}, but {name} ends after {min(limits)}: give at most that many.")
    return wanted
