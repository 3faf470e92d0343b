"""Episodes of an environment, played with an agent's policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from capax.core.contracts import Agent, Collector
from capax.core.keys import StepKeys, split_episode_key
from capax.core.types import Episode, Key, Metrics, Spec
from capax.envs.task import GymTask, Step


class EpisodeBuilder:
    """Collects the steps of an episode."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._transitions: list[Metrics] = []
        self._metrics: list[Metrics] = []
        self._frames: list[tuple[float, ...]] = []
        self._truncated = False

    def __len__(self) -> int:
        return len(self._transitions)

    def add(self, obs: Any, action: Any, step: Step, metrics: Metrics) -> None:
        """A step was taken from `obs` with `action`; the agent returned these metrics."""
        self._transitions.append(
            dict(
                obs=obs,
                action=action,
                reward=step.reward,
                cost=step.cost,
                next_obs=step.obs,
                terminated=step.terminated,
            )
        )
        self._metrics.append(metrics)
        self._frames.append(step.frames)
        self._truncated = step.truncated and not step.terminated

    def episode(self) -> Episode:
        """The episode, with its return and cost in the task's convention."""
        columns, spec = _columns(self._transitions), self._spec
        episode = Episode(
            **columns,
            earned=float(columns["reward"].sum()),
            paid=spec.paid(columns["cost"]),
            extras=_columns(self._metrics),
            truncated=self._truncated,
        )
        return episode if spec.repeat == 1 else episode._replace(frames=_padded(self._frames, spec.repeat))


@dataclass(frozen=True)
class EpisodeCollector(Collector):
    """Plays one episode of a task."""

    task: GymTask
    spec: Spec
    on_reset: Callable[[Array], None] = lambda obs: None
    """Called with the first observation of an episode."""
    on_step: Callable[[Array, Step], None] = lambda action, step: None
    """Called after each step, with the action in [−1, 1] and its outcome."""
    on_cost: Callable[[float], None] = lambda cost: None
    """Called before that, with the cost of a step, even if the rest of the step is refused."""

    def collect(self, agent: Agent[Any], state: Any, key: Key, max_steps: int | None = None) -> Episode:
        """From a seeded reset to the episode's end, or until `max_steps` environment steps were taken."""
        seed, k_act = split_episode_key(key)
        obs = self.task.reset(int(seed))
        self.on_reset(obs)
        carry, keys = agent.begin(state), StepKeys(k_act)
        builder, ended = EpisodeBuilder(self.spec), False
        while not ended and (max_steps is None or len(builder) * self.spec.repeat < max_steps):
            action, carry, metrics = agent.act(state, carry, obs.copy(), keys(len(builder)))
            step = self.task.step(action, self.on_cost)
            builder.add(obs, np.array(action), step, metrics)
            carry = agent.observe_cost(carry, step.cost)
            obs, ended = step.obs, step.terminated or step.truncated
            self.on_step(action, step)
        return builder.episode()


def _padded(rows: list[tuple[float, ...]], width: int) -> Array:
    """Rows of at most `width` numbers as one array, filled up with NaN."""
    return np.array([[*row, *[np.nan] * (width - len(row))] for row in rows])


def _columns(rows: list[Metrics]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
