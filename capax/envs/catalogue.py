"""List of the tasks for `capax tasks`. `capax/envs/__init__.py` registers those of capax."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym

import capax.envs as _envs  # noqa: F401  registers the environments
from capax.envs.task import limit_of


class TaskRow(NamedTuple):
    """A task as it is registered."""

    id: str
    limit: float
    discounted: bool | None
    """Whether the limit is on the discounted cost; None if the environment does not say."""
    episode_steps: int | None


def tasks() -> list[TaskRow]:
    """Every environment in Gymnasium's registry with an argument `cost_limit`, sorted by id."""
    rows = []
    for name, spec in sorted(gym.registry.items()):
        limit, discounted = limit_of(spec, name)
        if limit is not None:
            rows.append(TaskRow(name, limit, discounted, spec.max_episode_steps))
    return rows
