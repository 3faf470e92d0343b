"""Replay buffer of transitions with flat observations, on the host."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.core.errors import Damaged
from capax.core.types import Episode, Record

COLUMNS = ("obs", "action", "reward", "cost", "next_obs", "terminated")


class TransitionBuffer(NamedTuple):
    """Transitions `[n, ...]`, oldest first, in float32 for the networks."""

    obs: Array
    action: Array
    reward: Array
    cost: Array
    next_obs: Array
    terminated: Array
    added: int = 0
    """Transitions that were ever added, including those that were dropped later."""

    @property
    def columns(self) -> tuple[Array, ...]:
        """The six arrays, without `added`."""
        return self[:6]

    @staticmethod
    def empty(obs_dim: int, action_dim: int) -> TransitionBuffer:
        """A buffer without transitions."""
        width = {"obs": (obs_dim,), "action": (action_dim,), "next_obs": (obs_dim,)}
        return TransitionBuffer(**{name: np.zeros((0, *width.get(name, ())), np.float32) for name in COLUMNS}, added=0)

    @property
    def size(self) -> int:
        """Transitions in the buffer."""
        return len(self.reward)

    def add(self, episode: Episode, capacity: int) -> TransitionBuffer:
        """The buffer with an episode's transitions appended. Of more than `capacity`, the oldest are dropped."""
        new = {name: np.asarray(getattr(episode, name), np.float32) for name in COLUMNS}
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), new[name]])[-capacity:] for name in COLUMNS
        }
        return TransitionBuffer(**columns, added=self.added + len(episode.reward))

    def since(self, count: int) -> list[Record]:
        """The transitions that were added after the first `count` and are still held, as a record of a log."""
        new = min(self.added - count, self.size)
        return [({name: getattr(self, name)[self.size - new :] for name in COLUMNS}, self.added)]

    @classmethod
    def restored(cls, log: Iterable[Record], size: int, added: int, max_bytes: int) -> TransitionBuffer:
        """The buffer that held the last `size` of `added` transitions, from its log. It takes at most `max_bytes`."""
        columns: dict[str, Any] = {}
        filled, first = 0, added - size
        for arrays, after in log:
            rows = len(arrays["reward"])
            if not columns:
                width = sum(math.prod(arrays[name].shape[1:]) * arrays[name].itemsize for name in COLUMNS)
                if size * width > max_bytes:
                    raise Damaged(f"{size} transitions do not fit into it")
                columns = {n: np.empty((size, *arrays[n].shape[1:]), arrays[n].dtype) for n in COLUMNS}
            begin, end, before = max(first, after - rows), min(added, after), after - rows
            if begin < end:
                for name, column in columns.items():
                    column[begin - first : end - first] = arrays[name][begin - before : end - before]
                filled += end - begin
        if filled != size:
            raise Damaged(f"it holds {filled} of {size} transitions")
        return cls(**columns, added=added)

    @property
    def layout(self) -> dict[str, Any]:
        """Type and shape of one row of each array."""
        return {name: (getattr(self, name).dtype, getattr(self, name).shape[1:]) for name in COLUMNS}

    def padded(self, capacity: int) -> TransitionBuffer:
        """The buffer with zeros appended up to `capacity`: a growing buffer keeps the shape that was compiled for."""
        missing = capacity - self.size
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        for name, column in columns.items():
            columns[name] = np.concatenate([column, np.zeros((missing, *column.shape[1:]), column.dtype)])
        return self._replace(**columns)
