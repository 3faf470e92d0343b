"""What was seen so far: transitions on the host, handed to a model in one piece."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.types import Episode


class Buffer(NamedTuple):
    """Transitions `[n, ...]`, oldest first; float32, since networks read them."""

    obs: Array
    action: Array
    reward: Array
    cost: Array
    next_obs: Array
    terminated: Array

    @staticmethod
    def empty(obs_dim: int, action_dim: int) -> Buffer:
        """No transition yet."""
        width = (obs_dim, action_dim, None, None, obs_dim, None)
        return Buffer(*(np.zeros((0,) if w is None else (0, w), np.float32) for w in width))

    @property
    def size(self) -> int:
        """Transitions that are held."""
        return len(self.reward)

    def add(self, episode: Episode, most: int) -> Buffer:
        """With an episode's transitions appended; the oldest leave when there are more than `most`."""
        new = (episode.obs, episode.action, episode.reward, episode.cost, episode.next_obs, episode.terminated)
        return Buffer(
            *(
                np.concatenate([old, np.asarray(part, np.float32)])[-most:]
                for old, part in zip(tuple(self), new, strict=True)
            )
        )

    def padded(self, capacity: int) -> Buffer:
        """With zeros appended up to `capacity`, so that a growing buffer keeps the shape that was compiled for."""
        return Buffer(*(np.concatenate([a, np.zeros((capacity - len(a), *a.shape[1:]), a.dtype)]) for a in tuple(self)))
