"""Adapter from any Gymnasium environment to one form: float64 or image observations, actions in [-1, 1], and a cost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy import ndarray as Array

from capax.core.actions import ActionBox
from capax.core.checks import LARGEST, error_text, failure_text, is_number, numbers, short_repr, whole
from capax.core.contracts import EnvTask, Kind
from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.spaces import action_bounds, image_shape, observation_size, random_range
from capax.runtime.processes import contained
from capax.runtime.signals import after_user_code, closing

MAX_NUMBER = float(np.finfo(np.float32).max)
"""The largest number that the networks, in float32, can read."""
NO_SEED = re.compile(r"unexpected keyword argument 'seed'|takes no keyword arguments")
"""Python's error message for a reset without `seed`, as in old Gym."""
Cost = Callable[[Array, Array, Array, Mapping[str, Any]], Any]
"""`cost(obs, action, next_obs, info)`, with the action in the environment's own units."""


class Step(NamedTuple):
    """The result of one action."""

    obs: Array
    """`[S]`, float64, or an image `[64, 64, C]`, uint8."""
    reward: float
    cost: float
    terminated: bool
    """The task ended here: no reward and no cost can follow."""
    truncated: bool
    """The episode was cut off here, but the task did not end."""
    info: Mapping[str, Any]
    frames: tuple[float, ...] = (0.0,)
    """The reward of each frame during which the action was repeated."""


class GymTask(EnvTask):
    """An environment with checked spaces, a cost in each step, and episodes that are cut after `episode_steps`.

    `cost_limit`, `discounted`, `violation_rate`, `repeat` and the range of random actions are those that the environment
    is registered with, or None (`repeat`: 1; the range: all). Observations are flat or images. For images `image` is
    their shape and `obs_dim` is 0. An error of the environment or of the cost function in a reset or a step raises
    `EnvironmentFailed`, which says what happened and when. So does a negative cost, unless `allow_negative_costs`: it
    would offset others.
    """

    def __init__(
        self,
        env: Any,
        *,
        name: str,
        cost: Cost | None = None,
        episode_steps: int | None = None,
        allow_negative_costs: bool = False,
    ) -> None:
        if cost is not None and not callable(cost):
            raise InputError(f"cost is {short_repr(cost)}: give a function cost(obs, action, next_obs, info).")
        for part in ("reset", "step"):
            part_of(env, name, part)
        self.env, self.name = env, name
        self._space = part_of(env, name, "action_space")
        self.low, self.high = action_bounds(self._space, name)
        self.action_box = ActionBox(self.low, self.high, self._space.shape, str(self._space.dtype))
        self.action_dim = self.action_box.size
        space = part_of(env, name, "observation_space")
        self.image = image_shape(space, name)
        self.kind: Kind = "vector" if self.image is None else "image"
        self.obs_dim = 0 if self.image is not None else observation_size(space, name)
        self._dtype = getattr(space, "dtype", None)
        spec = part_of(env, name, "spec", None)
        self.repeat, self.violation_rate = repeat_of(spec, name)
        self.episode_steps = _episode_steps(env, spec, name, episode_steps)
        self.cost_limit, self.discounted = limit_of(spec, name)
        self.random_low, self.random_high = random_range(_registered(spec, "random_actions"), self.action_box, name)
        self._cost, self.allow_negative_costs = cost, allow_negative_costs
        self._obs: Array | None = None
        self._steps = 0
        after_user_code()

    def reset(self, seed: int) -> Array:
        """Begin the episode of this seed and return its first observation `[S]`."""
        self._steps, self._obs, seed = 0, None, int(seed)
        result = self._guarded(lambda: self.env.reset(seed=seed), "reset")
        self._obs = self._guarded(lambda: self._first_observation(result), "reset")
        return self._obs.copy()

    def _first_observation(self, result: Any) -> Array:
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise EnvironmentFailed(
                f"{self.name} does not return (observation, info) from reset but {short_repr(result)}: return both; old "
                "Gym returned the observation alone."
            )
        self._info(result[1])
        return self._observation(result[0])

    def step(self, action: Any, on_cost: Callable[[float], None] = lambda cost: None) -> Step:
        """Act with `action` in [-1, 1]^A, which is scaled to [low, high].

        `on_cost` is called with the cost of the step before anything else about the step can be refused. The environment
        gets a copy of the action, so the cost function gets what was sent, whatever the environment made of it.
        """
        if self._obs is None:
            raise InputError(f"{self.name} was not reset: call reset before the first step.")
        self._steps += 1
        sent = self._native(action)
        result = self._guarded(lambda: self.env.step(sent.copy()), "step")
        cost, unknown = 0.0, None
        try:
            cost = self._guarded(lambda: self._cost_of(result, sent), "step")
        except EnvironmentFailed as error:
            unknown = error
        if unknown is None and (cost >= 0.0 or self.allow_negative_costs):
            on_cost(cost)
        try:
            step = self._guarded(lambda: self._checked(result, cost), "step")
        except EnvironmentFailed as error:
            if unknown is None or self._cost is None:
                raise
            raise EnvironmentFailed(f"{str(error).rstrip('.')} (the cost of this step is unknown).") from error
        if unknown is not None:
            raise unknown
        self._check_cost(cost)
        self._obs = step.obs.copy()
        return step

    def _cost_of(self, result: Any, sent: Array) -> float:
        """The cost of a step, which may be too large or negative; EnvironmentFailed if it is unknown."""
        items = result if isinstance(result, tuple | list) and len(result) > 1 else (result, None)
        own_cost = self._cost
        if own_cost is not None:
            assert self._obs is not None
            try:
                next_obs = self._observation(items[0])
            except EnvironmentFailed:  # it will be refused, but the step has a cost
                next_obs = self._guarded(lambda: np.array(items[0]), "step")
            transition = self._obs.copy(), sent, next_obs, _snapshot(items[-1])
            paid = self._guarded(lambda: own_cost(*transition), "", "the cost function")
        elif len(items) == 6:
            paid = items[2]
        elif isinstance(items[-1], Mapping) and self._guarded(lambda: "cost" in items[-1], "info"):
            paid = self._guarded(lambda: items[-1]["cost"], "info")
        else:
            raise EnvironmentFailed(
                f"{self.name} reports no cost{self._when()}: put it into info['cost'], return it from step as the "
                "third of six items, or give a function cost(obs, action, next_obs, info), as cost= or --cost MODULE:FUNCTION."
            )
        cost = self._scalar(paid, "cost") + 0.0  # −0 becomes 0
        if math.isnan(cost):
            raise self._not_finite("cost")
        return cost

    def _check_cost(self, cost: float) -> None:
        """Refuse a cost that an agent cannot learn from, or that would offset others."""
        self._number(cost, "cost")
        if cost < 0.0 and not self.allow_negative_costs:
            raise EnvironmentFailed(
                f"the cost of {self.name} is {cost:g}{self._when()}: let no cost be negative, or, if it may offset other "
                "costs, give --allow-negative-costs (allow_negative_costs=True)."
            )

    def _checked(self, result: Any, cost: float) -> Step:
        """All of a step, with its cost."""
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
        cut = self.episode_steps is not None and self._steps >= self.episode_steps
        frames = (reward,) if self.repeat == 1 else self._frames(info)
        return Step(obs, reward, cost, terminated, truncated or cut, info, frames)

    def render(self) -> Any:
        """The environment's picture, or None if it cannot draw."""
        try:
            return contained(lambda: self.env.render() if hasattr(self.env, "render") else None)
        except gym.error.DependencyNotInstalled as error:
            raise InputError(f"{self.name} cannot be drawn, {error_text(error)}: install what it needs.") from error
        except BaseException as error:
            after_user_code(error)
            raise EnvironmentFailed(f"{self.name} {failure_text(error)} in render: fix its render.") from error

    def close(self) -> None:
        """Close the environment, which may take its time. Errors are ignored."""
        close_env(self.env, self.name)

    def _guarded(self, call: Callable[[], Any], part: str, who: str = "") -> Any:
        """The result of the user's code. An error becomes `EnvironmentFailed`, which says when it happened."""
        try:
            result = contained(call)
        except EnvironmentFailed:
            raise
        except BaseException as error:
            after_user_code(error)
            advice = f"fix its {part}" if part else "fix it"
            if part == "reset" and isinstance(error, TypeError) and NO_SEED.search(error_text(error)):
                advice = "let it take seed, as in def reset(self, *, seed=None, options=None)"
            raise EnvironmentFailed(f"{who or self.name} {failure_text(error)}{self._when()}: {advice}.") from error
        if part != "info":
            after_user_code()
        return result

    def _native(self, action: Any) -> Array:
        """The action in the environment's shape, range and type."""
        try:
            unit = numbers(action).ravel()
        except (TypeError, ValueError):
            unit = np.zeros(0)
        if unit.size != self.action_dim or not np.isfinite(unit).all():
            raise InputError(
                f"the action is {short_repr(action)}{self._when()}: give {self.action_dim} finite numbers in [-1, 1]."
            )
        return self.action_box.to_env(unit)

    def _frames(self, info: Mapping[str, Any]) -> tuple[float, ...]:
        """The reward of each frame of a repeated action."""
        rewards = self._array(info.get("rewards"), "info['rewards']").ravel()
        if not 1 <= rewards.size <= self.repeat:
            raise EnvironmentFailed(
                f"{self.name} repeats actions {self.repeat} times but has {rewards.size} numbers in info['rewards']"
                f"{self._when()}: put the reward of each frame there."
            )
        return tuple(rewards.tolist())

    def _picture(self, value: Any) -> Array:
        """A copy of an image observation, in uint8."""
        try:
            image = np.array(value)
        except Exception as error:
            raise EnvironmentFailed(
                f"the observation of {self.name} is {short_repr(value)}{self._when()}, not an image: return an array."
            ) from error
        if image.shape != self.image or image.dtype != self._dtype:
            raise EnvironmentFailed(
                f"the observation of {self.name} is {image.dtype} of shape {image.shape}{self._when()}: return "
                f"{self._dtype} of shape {self.image}, as its observation space says."
            )
        if image.dtype == np.uint8:
            return image
        if not (image >= 0.0).all() or not (image <= 1.0).all():  # NaN is neither
            raise EnvironmentFailed(
                f"the image of {self.name} has numbers outside of [0, 1]{self._when()}: return floats in it, or uint8."
            )
        return np.round(255.0 * image).astype(np.uint8)

    def _observation(self, value: Any) -> Array:
        """A copy of an observation: some environments write into the same array at each step."""
        if self.image is not None:
            return self._picture(value)
        obs = self._array(value, "observation")
        if obs.shape != (self.obs_dim,):
            raise EnvironmentFailed(
                f"the observation of {self.name} has shape {obs.shape}{self._when()}: "
                f"return shape ({self.obs_dim},), as its observation space says."
            )
        return obs

    def _number(self, value: Any, what: str) -> float:
        number = self._scalar(value, what)
        if not abs(number) <= MAX_NUMBER:  # NaN is not
            self._check_range(np.array(number), what)
        return number

    def _scalar(self, value: Any, what: str) -> float:
        """One number, which may be infinite or NaN."""
        if type(value) in (float, bool, np.float64):  # the usual case
            return float(value)
        number = self._numbers(value, what)
        if number.size != 1:
            raise EnvironmentFailed(f"the {what} of {self.name} is {number.size} numbers{self._when()}: return one.")
        return float(number.item())

    def _info(self, value: Any) -> Mapping[str, Any]:
        if value is not None and not isinstance(value, Mapping):
            raise EnvironmentFailed(f"the info of {self.name} is {short_repr(value)}{self._when()}: return a dict.")
        return {} if value is None else _snapshot(value)

    def _array(self, value: Any, what: str) -> Array:
        array = self._numbers(value, what)
        self._check_range(array, what)
        return array

    def _numbers(self, value: Any, what: str) -> Array:
        """A float64 copy of numbers, which may be infinite or NaN."""
        try:
            return numbers(value)
        except Exception as error:
            raise EnvironmentFailed(
                f"the {what} of {self.name} is {short_repr(value)}{self._when()}, not a number: return numbers."
            ) from error

    def _check_range(self, array: Array, what: str) -> None:
        if np.abs(array).max(initial=0.0) <= MAX_NUMBER:  # False for NaN
            return
        if not np.isfinite(array).all():
            raise self._not_finite(what)
        raise EnvironmentFailed(f"the {what} of {self.name} is too large for float32{self._when()}: rescale it.")

    def _not_finite(self, what: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"the {what} of {self.name} is not finite{self._when()}: return finite numbers.")

    def _when(self) -> str:
        return f" in step {self._steps} of the episode" if self._steps else " after the reset"


def close_env(env: Any, name: str) -> None:
    """Close an environment, which may take its time. Errors are ignored, and so is `sys.exit`."""
    with closing(name):
        try:
            contained(lambda: env.close())
        except BaseException as error:
            after_user_code(error)


def _snapshot(info: Any) -> Any:
    """An info as it is now: a dict is copied, so that nobody else's change to it shows."""
    return dict(info) if type(info) is dict else info


def part_of(env: Any, name: str, part: str, *default: Any) -> Any:
    """An attribute of the environment. Some environments compute it, which may fail."""
    try:
        return getattr(env, part, *default)
    except AttributeError:
        raise InputError(f"{name} has no {part}: give a Gymnasium environment.") from None
    except BaseException as error:
        after_user_code(error)
        raise EnvironmentFailed(f"{name} {failure_text(error)} when its {part} was read: fix that.") from error


def _registered(spec: Any, argument: str, default: Any = None) -> Any:
    """An argument that an environment is registered with."""
    registered = getattr(spec, "kwargs", None)
    return registered.get(argument, default) if isinstance(registered, Mapping) else default


def limit_of(spec: Any, name: str) -> tuple[float | None, bool | None]:
    """The `cost_limit` and `discounted` that an environment is registered with, or None for each."""
    limit, discounted = _registered(spec, "cost_limit"), _registered(spec, "discounted")
    if limit is not None:
        if not is_number(limit) or not np.isfinite(numbers(limit)):
            raise InputError(f"{name} is registered with cost_limit={short_repr(limit)}: register a finite number.")
        limit = float(limit)
    if discounted is not None and not isinstance(discounted, bool):
        raise InputError(f"{name} is registered with discounted={short_repr(discounted)}: register True or False.")
    return limit, discounted


def repeat_of(spec: Any, name: str) -> tuple[int, float | None]:
    """The `action_repeat` and `violation_rate` that an environment is registered with, or 1 and None."""
    rate = _registered(spec, "violation_rate")
    if rate is not None and not (is_number(rate) and 0.0 < rate < 1.0):
        raise InputError(f"{name} is registered with violation_rate={short_repr(rate)}: register one between 0 and 1.")
    return whole(f"action_repeat of {name}", _registered(spec, "action_repeat", 1)), None if rate is None else float(
        rate
    )


def time_limits(env: Any, name: str) -> list[int]:
    """The limits of each TimeLimit among an environment's wrappers."""
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            limits.append(episode_length(env._max_episode_steps, name))
        env = env.env
    return limits


def episode_length(steps: Any, name: str) -> int:
    """The length of an episode that an environment names. It is capped at `LARGEST`, which no episode reaches."""
    return min(LARGEST, whole(f"the number of steps that {name} ends after", steps, most=2**63))


def _episode_steps(env: Any, spec: Any, name: str, requested: int | None) -> int | None:
    """Steps until an episode is cut: `requested`, or the environment's own limit, or None."""
    limits = time_limits(env, name)
    if requested is None:
        registered = getattr(spec, "max_episode_steps", None)
        return min(limits) if limits else None if registered is None else episode_length(registered, name)
    requested = whole("episode_steps", requested)
    if limits and requested > min(limits):
        raise InputError(f"episode_steps is {requested}, but {name} ends after {min(limits)}: give at most that many.")
    return requested
