"""How are several episodes played side by side? One policy acts in all of them at once, in a Gymnasium vector environment.

An episode is decided by its own key, and its place among the others by its number, so that a run that is stopped among them
and goes on with the rest has the same episodes. One that has ended waits for the others. Where there is only one environment to
be had, they are played one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from capax.collect import EpisodeCollector, Keys, Notes, split
from capax.envs.adapt import Step, Task
from capax.errors import EnvironmentFailed, InputError
from capax.types import Episode, Key, Spec


class Place(gym.Env[Any, Any]):
    """A task among others. It tells of a step in `info["step"]`, where rewards and costs are checked and complete, and does
    nothing when its episode is over, or when it was reset without a seed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        if task.image is None:
            self.observation_space: Any = spaces.Box(-np.inf, np.inf, (task.obs_dim,), np.float64)
        else:
            self.observation_space = spaces.Box(0, 255, task.image, np.uint8)
        self.action_space: Any = spaces.Box(-np.inf, np.inf, (task.action_dim,), np.float32)
        self.note: Callable[[Any, Step], None] = lambda action, step: None
        """Called after each step, before another place takes one: whatever happens there, this one is known."""
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
        step = self.task.step(action)
        self._last, self._over = step.obs, step.terminated or step.truncated
        self.note(action, step)
        return step.obs, step.reward, False, False, {"step": step}

    def close(self) -> None:
        self.task.close()


@dataclass(frozen=True)
class GroupCollector:
    """Acts out the episodes of a group; the first of them is in the task that is at hand."""

    task: Task
    make: Callable[[], Task]
    """Another one like it."""
    spec: Spec
    size: int
    """Episodes in a whole group."""
    on_reset: Callable[[int, Any], None] = lambda ahead, obs: None
    """Called when an episode begins, the first one or the so many-th after it, with its first observation."""
    on_step: Callable[[int, Any, Step], None] = lambda ahead, action, step: None
    """Called after each step of an episode."""
    _more: list[Task] = field(default_factory=list)

    @cached_property
    def places(self) -> gym.vector.SyncVectorEnv | None:
        """In one process: a step of most environments takes less than to tell another process of it. None if there is only one
        environment to be had."""
        try:
            self._more.extend(self.make() for _ in range(self.size - 1))
        except (EnvironmentFailed, InputError):  # the first could be made: a robot, or a port
            return None
        tasks = self.task, *self._more
        if len({id(inner(task.env)) for task in tasks}) < self.size:
            return None
        for task in self._more:
            same(self.task, task)
            task.episode_steps = self.task.episode_steps
        return gym.vector.SyncVectorEnv([partial(Place, task) for task in tasks])

    def close(self) -> None:
        """Done with those that were made here."""
        for task in self._more:
            if inner(task.env) is not inner(self.task.env):
                task.close()

    def collect_all(self, agent: Any, state: Any, keys: Sequence[Key], first: int) -> list[Episode]:
        """An episode for each key, in the places from `first` on."""
        if self.places is None:
            return [self._alone(agent, state, key, ahead) for ahead, key in enumerate(keys)]
        seeds: list[int | None] = [None] * self.size
        acting = [keys[0]] * self.size
        playing = range(first, first + len(keys))
        for place, key in zip(playing, keys, strict=True):
            seed, k_act = split(key)
            seeds[place], acting[place] = int(seed), Keys(k_act)(0)
            self.places.envs[place].note = partial(self.on_step, place - first)  # type: ignore[attr-defined]
        seen, _ = self.places.reset(seed=seeds)
        for place in playing:
            self.on_reset(place - first, seen[place])
        carries: Sequence[Any] = [agent.begin(state) for _ in range(self.size)]
        notes = [Notes(self.spec) for _ in range(self.size)]
        left = set(playing)
        while left:
            actions, carries = agent.act_all(state, carries, seen, acting)
            before = seen
            seen, _, _, _, infos = self.places.step(actions)
            for place in sorted(left):
                step = infos["step"][place]
                notes[place].add(before[place], actions[place], step, {})
                if step.terminated or step.truncated:
                    left.remove(place)
        return [notes[place].episode() for place in playing]

    def _alone(self, agent: Any, state: Any, key: Key, ahead: int) -> Episode:
        noted = partial(self.on_reset, ahead), partial(self.on_step, ahead)
        return EpisodeCollector(self.task, self.spec, *noted).collect(agent, state, key)


def inner(env: Any) -> Any:
    """What is within all wrappers."""
    return getattr(env, "unwrapped", env)


def same(task: Task, other: Task) -> None:
    """Refuse environments that differ from one call to the next."""
    for name in ("image", "obs_dim", "low", "high"):
        if not np.array_equal(getattr(task, name), getattr(other, name)):
            raise InputError(
                f"{task.name} is made with other observations or actions in a second call ({name}: {getattr(task, name)}, then "
                f"{getattr(other, name)}): let the function that makes it always make the same."
            )
