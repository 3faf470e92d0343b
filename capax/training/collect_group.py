"""Episodes that are played side by side: one policy acts in all of them at once, in a Gymnasium vector environment.

An episode is decided by its own key, and its place among the others by its number. So a run that is stopped within a group and
continues with the rest has the same episodes. An episode that has ended waits for the others. If only one environment is
available, the episodes are played one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from capax.core.contracts import Agent, Collector
from capax.core.errors import EnvironmentFailed, InputError
from capax.core.keys import StepKeys, split_episode_key
from capax.core.types import Episode, Key, Spec
from capax.envs.task import GymTask, Step
from capax.training.collect import EpisodeBuilder, EpisodeCollector


class TaskSlot(gym.Env[Any, Any]):
    """A task in a vector environment. `info["step"]` holds the checked step. It does nothing after its episode is over, or when
    it was reset without a seed."""

    def __init__(self, task: GymTask) -> None:
        self.task = task
        if task.image is None:
            self.observation_space: Any = spaces.Box(-np.inf, np.inf, (task.obs_dim,), np.float64)
        else:
            self.observation_space = spaces.Box(0, 255, task.image, np.uint8)
        self.action_space: Any = spaces.Box(-np.inf, np.inf, (task.action_dim,), np.float32)
        self.on_step: Callable[[Any, Step], None] = lambda action, step: None
        """Called after each step, before another slot takes one: whatever fails there, this step is recorded."""
        self.on_cost: Callable[[float], None] = lambda cost: None
        self._last = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        self._over = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._over = seed is None
        if seed is not None:
            self._last = self.task.reset(seed)
        return self._last, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._over:
            return self._last, 0.0, False, False, {}
        step = self.task.step(action, self.on_cost)
        self._last, self._over = step.obs, step.terminated or step.truncated
        self.on_step(action, step)
        return step.obs, step.reward, False, False, {"step": step}

    def close(self) -> None:
        self.task.close()


@dataclass(frozen=True)
class GroupCollector(Collector):
    """Plays the episodes of a group; the first of them in the task that exists already."""

    task: GymTask
    make: Callable[[], GymTask]
    """Makes another task like it."""
    spec: Spec
    size: int
    """Episodes in a whole group."""
    on_reset: Callable[[int, Any], None] = lambda ahead, obs: None
    """Called when an episode begins, with its distance from the first one and its first observation."""
    on_step: Callable[[int, Any, Step], None] = lambda ahead, action, step: None
    """Called after each step of an episode."""
    on_cost: Callable[[int, float], None] = lambda ahead, cost: None
    """Called before that, with the cost of a step, even if the rest of the step is refused."""
    _more: list[GymTask] = field(default_factory=list)

    @cached_property
    def slots(self) -> gym.vector.SyncVectorEnv | None:
        """The vector environment, in this process: a step of most environments is faster than a message to another process.
        None if only one environment is available."""
        try:
            self._more.extend(self.make() for _ in range(self.size - 1))
        except (EnvironmentFailed, InputError):  # the first could be made: a robot, or a port
            return None
        tasks = self.task, *self._more
        if len({id(inner(task.env)) for task in tasks}) < self.size:
            return None
        for task in self._more:
            check_same_spaces(self.task, task)
            task.episode_steps = self.task.episode_steps
        return gym.vector.SyncVectorEnv([partial(TaskSlot, task) for task in tasks])

    def close(self) -> None:
        """Close the environments that were made here."""
        with ExitStack() as closes:  # all of them, whatever one raises
            for task in self._more:
                if inner(task.env) is not inner(self.task.env):
                    closes.callback(task.close)

    def collect(self, agent: Agent[Any], state: Any, key: Key, max_steps: int | None = None) -> Episode:
        """One episode alone, in the first task."""
        return self._alone(agent, state, key, 0, max_steps)

    def collect_group(self, agent: Agent[Any], state: Any, keys: Sequence[Key], first: int) -> list[Episode]:
        """An episode for each key, in the slots from `first` on."""
        if self.slots is None:
            return [self._alone(agent, state, key, ahead) for ahead, key in enumerate(keys)]
        seeds: list[int | None] = [None] * self.size
        acting = [keys[0]] * self.size
        playing = range(first, first + len(keys))
        for place, key in zip(playing, keys, strict=True):
            seed, k_act = split_episode_key(key)
            seeds[place], acting[place] = int(seed), StepKeys(k_act)(0)
            slot, ahead = cast(TaskSlot, self.slots.envs[place]), place - first
            slot.on_step, slot.on_cost = partial(self.on_step, ahead), partial(self.on_cost, ahead)
        obs, _ = self.slots.reset(seed=seeds)
        for place in playing:
            self.on_reset(place - first, obs[place])
        carries: Sequence[Any] = [agent.begin(state) for _ in range(self.size)]
        builders = [EpisodeBuilder(self.spec) for _ in range(self.size)]
        left = set(playing)
        while left:
            actions, carries = agent.act_together(state, carries, obs, acting)
            before = obs
            obs, _, _, _, infos = self.slots.step(actions)
            for place in sorted(left):
                step = infos["step"][place]
                builders[place].add(before[place], actions[place], step, {})
                if step.terminated or step.truncated:
                    left.remove(place)
        return [builders[place].episode() for place in playing]

    def _alone(self, agent: Agent[Any], state: Any, key: Key, ahead: int, max_steps: int | None = None) -> Episode:
        hooks = (partial(hook, ahead) for hook in (self.on_reset, self.on_step, self.on_cost))
        return EpisodeCollector(self.task, self.spec, *hooks).collect(agent, state, key, max_steps)


def inner(env: Any) -> Any:
    """The environment within all wrappers."""
    return getattr(env, "unwrapped", env)


def check_same_spaces(task: GymTask, other: GymTask) -> None:
    """Refuse environments whose spaces differ from one call to the next."""
    for name in ("image", "obs_dim", "low", "high"):
        if not np.array_equal(getattr(task, name), getattr(other, name)):
            raise InputError(
                f"{task.name} is made with other observations or actions in a second call ({name}: {getattr(task, name)}, then "
                f"{getattr(other, name)}): let the function that makes it always make the same."
            )
