"""What was seen so far: transitions on the host, handed to a model in one piece."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.errors import Damaged
from capax.types import Episode, Record

COLUMNS = ("obs", "action", "reward", "cost", "next_obs", "terminated")


class Buffer(NamedTuple):
    """Transitions `[n, ...]`, oldest first; float32, since networks read them."""

    obs: Array
    action: Array
    reward: Array
    cost: Array
    next_obs: Array
    terminated: Array
    added: int = 0
    """Transitions that ever came in, those that have left again included."""

    @property
    def columns(self) -> tuple[Array, ...]:
        """The arrays alone."""
        return self[:6]

    @staticmethod
    def empty(obs_dim: int, action_dim: int) -> Buffer:
        """No transition yet."""
        width = {"obs": (obs_dim,), "action": (action_dim,), "next_obs": (obs_dim,)}
        return Buffer(**{name: np.zeros((0, *width.get(name, ())), np.float32) for name in COLUMNS}, added=0)

    @property
    def size(self) -> int:
        """Transitions that are held."""
        return len(self.reward)

    def add(self, episode: Episode, most: int) -> Buffer:
        """With an episode's transitions appended; the oldest leave when there are more than `most`."""
        new = {name: np.asarray(getattr(episode, name), np.float32) for name in COLUMNS}
        grown: dict[str, Any] = {name: np.concatenate([getattr(self, name), new[name]])[-most:] for name in COLUMNS}
        return Buffer(**grown, added=self.added + len(episode.reward))

    def since(self, count: int) -> list[Record]:
        """What came in after the first `count` transitions, as far as it is still held, for a log."""
        new = min(self.added - count, self.size)
        return [({name: getattr(self, name)[self.size - new :] for name in COLUMNS}, self.added)]

    @classmethod
    def restored(cls, log: Iterable[Record], size: int, added: int, most: int) -> Buffer:
        """The buffer that held the last `size` of `added` transitions; no more than `most` bytes are taken for it."""
        columns: dict[str, Any] = {}
        filled, first = 0, added - size
        for arrays, after in log:
            rows = len(arrays["reward"])
            if not columns:
                width = sum(math.prod(arrays[name].shape[1:]) * arrays[name].itemsize for name in COLUMNS)
                if size * width > most:
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
        """Type and shape of a row of each array."""
        return {name: (getattr(self, name).dtype, getattr(self, name).shape[1:]) for name in COLUMNS}

    def padded(self, capacity: int) -> Buffer:
        """With zeros appended up to `capacity`, so that a growing buffer keeps the shape that was compiled for."""
        short = capacity - self.size
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        for name, a in columns.items():
            columns[name] = np.concatenate([a, np.zeros((short, *a.shape[1:]), a.dtype)])
        return self._replace(**columns)
