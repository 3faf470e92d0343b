"""Inputs of policy-gradient networks: vectors normalised by running moments, or the last few images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from capax.core.types import Episode
from capax.models.actor_critic import STACKED_IMAGES

MAX_DEVIATIONS = 10.0
"""Normalised observations are clipped to this many standard deviations."""


class Moments(NamedTuple):
    """Running mean and variance of all observations so far."""

    number: float
    """Observations so far."""
    mean: Any
    squared_deviations: Any
    """Σ (x − mean)²."""

    def updated(self, obs: Any) -> Moments:
        """The moments with more observations included (Chan's update)."""
        n, mean = len(obs), obs.mean(0, dtype=np.float64)
        number, shift = self.number + n, mean - self.mean
        squared_deviations = (
            self.squared_deviations + np.square(obs - mean).sum(0) + np.square(shift) * self.number * n / number
        )
        return Moments(number, self.mean + shift * n / number, squared_deviations)

    def normalise(self, obs: Any) -> Any:
        """Observations in standard deviations from the mean, clipped; float32."""
        sd = np.sqrt(self.squared_deviations / self.number) + 1e-8 if self.number else 1.0
        return np.clip((obs - self.mean) / sd, -MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.float32)


class ObservationTable(NamedTuple):
    """Observations of a batch of N actions, each stored once.

    `rows[obs_index]` are the inputs before the actions, `rows[next_obs_index]` those after them.
    """

    rows: Any
    obs_index: Any
    """`[N]`, or `[N, K]` of images."""
    next_obs_index: Any
    """`[N]`, or `[N, K]` of images."""


class VectorObservations(NamedTuple):
    """Observations are vectors of S = `size` numbers. The policy reads them normalised."""

    size: int

    def initial_moments(self) -> Moments:
        """The moments before any observation."""
        return Moments(0.0, np.zeros(self.size), np.zeros(self.size))

    def network_input(self, moments: Moments, previous: Any, obs: Any) -> Any:
        """The policy's input `[S]`. `previous` is the input one step earlier, None in the first step."""
        return moments.normalise(obs)

    def table(self, moments: Moments, episodes: Sequence[Episode]) -> ObservationTable:
        """The normalised observations of episodes: first all those before an action, then all those after one."""
        rows = [moments.normalise(getattr(episode, name)) for name in ("obs", "next_obs") for episode in episodes]
        obs_index = np.arange(sum(map(len, rows)) // 2, dtype=np.int32)
        return ObservationTable(np.concatenate(rows), obs_index, obs_index + np.int32(len(obs_index)))

    def updated_moments(self, moments: Moments, episodes: Sequence[Episode]) -> Moments:
        """The moments with the observations of episodes included."""
        return moments.updated(np.concatenate([episode.obs for episode in episodes]))


class ImageObservations(NamedTuple):
    """Images. The policy reads the last K = STACKED_IMAGES; at the start of an episode the first is repeated."""

    shape: tuple[int, int, int]

    def initial_moments(self) -> Moments:
        """Empty moments: images are not normalised."""
        return Moments(0.0, np.zeros(0), np.zeros(0))

    def network_input(self, moments: Moments, previous: Any, obs: Any) -> Any:
        """The policy's input `[K, h, w, C]`, the latest image last."""
        return np.stack([obs] * STACKED_IMAGES) if previous is None else np.concatenate([previous[1:], obs[None]])

    def table(self, moments: Moments, episodes: Sequence[Episode]) -> ObservationTable:
        """Every image of the episodes once, the one after the last action included."""
        back, rows, stacks, first = np.arange(1 - STACKED_IMAGES, 1), [], [], 0
        for episode in episodes:
            length = len(episode.obs)
            rows += [episode.obs, episode.next_obs[-1:]]
            stacks.append(first + np.maximum(np.arange(length + 1)[:, None] + back, 0))
            first += length + 1
        obs_index = np.concatenate([stack[:-1] for stack in stacks])
        next_obs_index = np.concatenate([stack[1:] for stack in stacks])
        return ObservationTable(np.concatenate(rows), obs_index.astype(np.int32), next_obs_index.astype(np.int32))

    def updated_moments(self, moments: Moments, episodes: Sequence[Episode]) -> Moments:
        """The same moments."""
        return moments


Observations = VectorObservations | ImageObservations
