"""What does a policy without a model see? Vectors in deviations from what was seen so far, or the last few images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from capax.models.actor import SEEN
from capax.types import Episode

FAR = 10.0
"""Deviations beyond which an observation is cut."""


class Moments(NamedTuple):
    """Of the observations so far."""

    number: float
    mean: Any
    square: Any
    """Σ (x − mean)²."""

    def seen(self, obs: Any) -> Moments:
        """With more of them (Chan's update)."""
        n, mean = len(obs), obs.mean(0, dtype=np.float64)
        number, apart = self.number + n, mean - self.mean
        square = self.square + np.square(obs - mean).sum(0) + np.square(apart) * self.number * n / number
        return Moments(number, self.mean + apart * n / number, square)

    def normal(self, obs: Any) -> Any:
        """In deviations from the mean."""
        sd = np.sqrt(self.square / self.number) + 1e-8 if self.number else 1.0
        return np.clip((obs - self.mean) / sd, -FAR, FAR).astype(np.float32)


class Table(NamedTuple):
    """What a batch reads observations from: `rows[here]` are those before its N actions, `rows[following]` those after."""

    rows: Any
    here: Any
    """`[N]`, or `[N, SEEN]` of images."""
    following: Any


class Vectors(NamedTuple):
    """Observations are vectors of a size."""

    size: int

    def begin(self) -> Moments:
        """What is remembered of observations, before any."""
        return Moments(0.0, np.zeros(self.size), np.zeros(self.size))

    def look(self, moments: Moments, before: Any, obs: Any) -> Any:
        """What the policy sees, `[S]`; `before` is what it saw one step earlier, None in the first."""
        return moments.normal(obs)

    def table(self, moments: Moments, episodes: Sequence[Episode]) -> Table:
        rows = [moments.normal(getattr(episode, name)) for name in ("obs", "next_obs") for episode in episodes]
        here = np.arange(sum(map(len, rows)) // 2, dtype=np.int32)
        return Table(np.concatenate(rows), here, here + np.int32(len(here)))

    def learned(self, moments: Moments, episodes: Sequence[Episode]) -> Moments:
        return moments.seen(np.concatenate([episode.obs for episode in episodes]))


class Images(NamedTuple):
    """Observations are images, of which the last SEEN are seen; at an episode's begin, the first one as often as need be."""

    shape: tuple[int, int, int]

    def begin(self) -> Moments:
        return Moments(0.0, np.zeros(0), np.zeros(0))

    def look(self, moments: Moments, before: Any, obs: Any) -> Any:
        """`[SEEN, h, w, C]`, the present one last."""
        return np.stack([obs] * SEEN) if before is None else np.concatenate([before[1:], obs[None]])

    def table(self, moments: Moments, episodes: Sequence[Episode]) -> Table:
        """Every image once, with the one that an episode ends with."""
        back, rows, ends, first = np.arange(1 - SEEN, 1), [], [], 0
        for episode in episodes:
            length = len(episode.obs)
            rows += [episode.obs, episode.next_obs[-1:]]
            ends.append(first + np.maximum(np.arange(length + 1)[:, None] + back, 0))
            first += length + 1
        here, following = (np.concatenate([end[cut] for end in ends]) for cut in (slice(-1), slice(1, None)))
        return Table(np.concatenate(rows), here.astype(np.int32), following.astype(np.int32))

    def learned(self, moments: Moments, episodes: Sequence[Episode]) -> Moments:
        return moments
