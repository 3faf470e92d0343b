"""Replay buffer of image observations: whole episodes in uint8, from which sequences are sampled.

Each episode keeps its own array of frames. Adding an episode copies no other, and no sequence crosses the end of an
episode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.core.errors import Damaged, InputError
from capax.core.types import Episode, Record


class ImageEpisode(NamedTuple):
    """One episode of T steps."""

    image: Array
    """`[T+1, H, W, C]`, uint8: one frame more than there are steps."""
    action: Array
    """`[T, A]`."""
    reward: Array
    cost: Array


class SequenceIndex(NamedTuple):
    """The position of sequences in a buffer; both arrays have the same shape."""

    episode: Array
    """Index of the episode in the buffer."""
    first: Array
    """First step of the sequence in its episode."""


class ImageBatch(NamedTuple):
    """B sequences of L steps each."""

    image: Array
    """`[B, L+1, H, W, C]`."""
    action: Array
    """`[B, L, A]`."""
    reward: Array
    """`[B, L]`."""
    cost: Array
    weight: Any = None
    """`[B, E]`: how often each sequence counts for each one-step model; None: once."""
    last: Any = None
    """`[B, L]`: whether each step is the last of its episode; None: no sequence crosses an episode's end."""


class ImageBuffer(NamedTuple):
    """Episodes, oldest first."""

    episodes: tuple[ImageEpisode, ...]
    added: int = 0
    """Steps that were ever added, including those that were dropped later."""

    @property
    def size(self) -> int:
        """Steps in the buffer."""
        return sum(len(episode.reward) for episode in self.episodes)

    def add(self, episode: Episode, capacity: int) -> ImageBuffer:
        """The buffer with an episode appended. Of more than `capacity` steps, the oldest episodes are dropped."""
        image = np.concatenate([episode.obs[:1], episode.next_obs])
        parts = (np.asarray(part, np.float32) for part in (episode.action, episode.reward, episode.cost))
        episodes, size = (*self.episodes, ImageEpisode(image, *parts)), self.size + len(episode.reward)
        while size > capacity and len(episodes) > 1:
            size -= len(episodes[0].reward)
            episodes = episodes[1:]
        return ImageBuffer(episodes, self.added + len(episode.reward))

    def pick(
        self, rng: np.random.Generator, shape: tuple[int, ...], chunk: int, anywhere: bool = False
    ) -> SequenceIndex:
        """Sample sequences of `chunk` steps. Shorter episodes have none, unless sequences begin `anywhere` in the buffer.

        A sequence is placed anywhere that it touches its episode, and is then moved inside. So every step is in at
        least as many sequences as a step in the middle. If all places inside were equally likely, the first step would
        be in one sequence where a middle step is in `chunk`, and the start of an episode decides much of its return.
        """
        steps = np.array([len(episode.reward) for episode in self.episodes])
        if anywhere:
            if self.size <= chunk:
                raise InputError(f"the episodes so far have {self.size} steps: choose a smaller chunk than {chunk}.")
            begin = rng.integers(0, self.size - chunk, shape)
            ends = np.cumsum(steps)
            which = np.searchsorted(ends, begin, side="right")
            return SequenceIndex(which, begin - (ends - steps)[which])
        places = np.where(steps >= chunk, steps + chunk - 1, 0)
        if not places.sum():
            raise InputError(
                f"no episode so far has {chunk} steps, the longest has {steps.max()}: choose a smaller chunk."
            )
        ends = np.cumsum(places)
        place = rng.integers(0, ends[-1], shape)
        which = np.searchsorted(ends, place, side="right")
        first = place - (ends[which] - places[which]) - (chunk - 1)
        return SequenceIndex(which, np.clip(first, 0, steps[which] - chunk))

    def rows(self, index: SequenceIndex, chunk: int, anywhere: bool = False) -> tuple[Array, Array, Array]:
        """The episode and the place in it of each of the `chunk` + 1 images of sequences, and which of their steps are the
        last of an episode.

        A sequence that crosses an episode's end goes on with the first image of the next episode, not with the last image
        of its own.
        """
        place = index.first[..., None] + np.arange(chunk + 1)
        which = np.broadcast_to(index.episode[..., None], place.shape)
        if not anywhere:
            return which, place, np.zeros((*place.shape[:-1], chunk), bool)
        steps = np.array([len(episode.reward) for episode in self.episodes])
        ends = np.cumsum(steps)
        row = (ends - steps)[which] + place
        which = np.searchsorted(ends, row, side="right")
        return which, row - (ends - steps)[which], row[..., :-1] == ends[which[..., :-1]] - 1

    def take(self, index: SequenceIndex, chunk: int, anywhere: bool = False) -> ImageBatch:
        """The sequences of `chunk` steps at these positions `[B]`."""
        if anywhere:
            return self._take_anywhere(index, chunk)
        slices = [(self.episodes[e], slice(b, b + chunk), slice(b, b + chunk + 1)) for e, b in zip(*index, strict=True)]
        return ImageBatch(
            np.stack([episode.image[images] for episode, _, images in slices]),
            *(
                np.stack([getattr(episode, name)[steps] for episode, steps, _ in slices])
                for name in ImageEpisode._fields[1:]
            ),
        )

    def _take_anywhere(self, index: SequenceIndex, chunk: int) -> ImageBatch:
        which, place, last = self.rows(index, chunk, anywhere=True)

        def gathered(name: str, count: int) -> Array:
            columns = [getattr(episode, name) for episode in self.episodes]
            pairs = zip(which[:, :count].ravel(), place[:, :count].ravel(), strict=True)
            return np.stack([columns[e][at] for e, at in pairs]).reshape(len(which), count, *columns[0].shape[1:])

        image, action, reward, cost = (gathered(name, chunk + (name == "image")) for name in ImageEpisode._fields)
        return ImageBatch(image, action, reward, cost, last=last)

    def since(self, count: int) -> list[Record]:
        """The episodes that were added after the first `count` steps, as records of a log."""
        records: list[Record] = []
        after = self.added
        for episode in reversed(self.episodes):
            if after <= count:
                break
            records.insert(0, (dict(episode._asdict()), after))
            after -= len(episode.reward)
        return records

    @classmethod
    def restored(cls, log: Iterable[Record], size: int, added: int, max_bytes: int) -> ImageBuffer:
        """The buffer that held the last `size` of `added` steps, from its log."""
        episodes: list[ImageEpisode] = []
        for arrays, after in log:
            episode = ImageEpisode(**arrays)
            steps = len(episode.reward)
            if not (len(episode.image) - 1 == len(episode.action) == len(episode.cost) == steps):
                raise Damaged("an episode in it has arrays of different lengths")
            if added - size < after <= added:
                episodes.append(episode)
        held = sum(len(episode.reward) for episode in episodes)
        if held != size:
            raise Damaged(f"it does not hold {size} steps, but {held}")
        return cls(tuple(episodes), added)

    @property
    def layout(self) -> dict[str, Any]:
        """Type and shape of one row of each array."""
        if not self.episodes:
            return {}
        first = self.episodes[0]
        return {name: (getattr(first, name).dtype, getattr(first, name).shape[1:]) for name in ImageEpisode._fields}
