"""Scaling of actions between [−1, 1], where agents act, and the range, shape and type of an action space."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array


class ActionBox(NamedTuple):
    """The action space of an environment."""

    low: Array
    """`[A]`, float64."""
    high: Array
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """A, the count of numbers in an action."""
        return int(self.low.size)

    @property
    def rest(self) -> Array:
        """The action in [−1, 1] that is nearest to doing nothing, 0 in the environment's units."""
        return self.to_unit(np.zeros(self.size))

    def to_env(self, unit: Array) -> Array:
        """An action in [−1, 1] in the environment's units, clipped to the box."""
        share = 0.5 * (1.0 + unit)
        action = ((1.0 - share) * self.low + share * self.high).reshape(self.shape).astype(self.dtype)
        low, high = (bound.reshape(self.shape).astype(self.dtype) for bound in (self.low, self.high))
        return np.clip(action, low, high)  # the action may lie outside [−1, 1], and rounding may leave the box

    def to_unit(self, action: Any) -> Array:
        """An action in the environment's units scaled to [−1, 1], clipped to it."""
        action = np.clip(action, self.low, self.high)
        scaled = 2.0 * (action - self.low) / np.where(self.high > self.low, self.high - self.low, 1.0) - 1.0
        return np.clip(scaled, -1.0, 1.0)
