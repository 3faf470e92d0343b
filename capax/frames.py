"""What was seen so far, where it is images: whole episodes in uint8, from which sequences are drawn.

Episodes are kept as they came, one array of frames each: adding one copies nothing, and no sequence crosses an end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.errors import Damaged, InputError
from capax.types import Episode, Record


class Seen(NamedTuple):
    """One episode of T steps."""

    image: Array
    """`[T+1, H, W, C]`, uint8: one more than there are steps."""
    action: Array
    """`[T, A]`."""
    reward: Array
    cost: Array


class Pieces(NamedTuple):
    """Which sequences are drawn, in any shape."""

    episode: Array
    """Its place among those that are held."""
    first: Array
    """The step of it that a piece begins with."""


class Drawn(NamedTuple):
    """B pieces of L steps each."""

    image: Array
    """`[B, L+1, H, W, C]`."""
    action: Array
    """`[B, L, A]`."""
    reward: Array
    """`[B, L]`."""
    cost: Array


class Frames(NamedTuple):
    """Episodes, oldest first."""

    episodes: tuple[Seen, ...]
    added: int = 0
    """Steps that ever came in, those that have left again included."""

    @property
    def size(self) -> int:
        """Steps that are held."""
        return sum(len(seen.reward) for seen in self.episodes)

    def add(self, episode: Episode, most: int) -> Frames:
        """With an episode appended; the oldest leave when there are more than `most` steps."""
        image = np.concatenate([episode.obs[:1], episode.next_obs])
        parts = (np.asarray(part, np.float32) for part in (episode.action, episode.reward, episode.cost))
        episodes, size = (*self.episodes, Seen(image, *parts)), self.size + len(episode.reward)
        while size > most and len(episodes) > 1:
            size -= len(episodes[0].reward)
            episodes = episodes[1:]
        return Frames(episodes, self.added + len(episode.reward))

    def pick(self, rng: np.random.Generator, shape: tuple[int, ...], chunk: int) -> Pieces:
        """Pieces of `chunk` steps; shorter episodes have none.

        A piece lies anywhere that it would touch its episode, and is then pushed inside: every step is in as many pieces as
        one in the middle or more. Were it every place alike, the first step would be in one piece where the middle is in
        `chunk`, and the start of an episode is where a return is made.
        """
        steps = np.array([len(seen.reward) for seen in self.episodes])
        places = np.where(steps >= chunk, steps + chunk - 1, 0)
        if not places.sum():
            raise InputError(
                f"no episode so far has {chunk} steps, the longest has {steps.max()}: choose a smaller chunk."
            )
        ends = np.cumsum(places)
        found = rng.integers(0, ends[-1], shape)
        which = np.searchsorted(ends, found, side="right")
        first = found - (ends[which] - places[which]) - (chunk - 1)
        return Pieces(which, np.clip(first, 0, steps[which] - chunk))

    def take(self, pieces: Pieces, chunk: int) -> Drawn:
        """What was seen in a batch of pieces."""
        found = [(self.episodes[e], slice(b, b + chunk), slice(b, b + chunk + 1)) for e, b in zip(*pieces, strict=True)]
        return Drawn(
            np.stack([seen.image[images] for seen, _, images in found]),
            *(np.stack([getattr(seen, name)[steps] for seen, steps, _ in found]) for name in Seen._fields[1:]),
        )

    def since(self, count: int) -> list[Record]:
        """The episodes that came in after the first `count` steps, for a log."""
        records: list[Record] = []
        after = self.added
        for seen in reversed(self.episodes):
            if after <= count:
                break
            records.insert(0, (dict(seen._asdict()), after))
            after -= len(seen.reward)
        return records

    @classmethod
    def restored(cls, log: Iterable[Record], size: int, added: int, most: int) -> Frames:
        """The episodes that held the last `size` of `added` steps."""
        episodes: list[Seen] = []
        for arrays, after in log:
            seen = Seen(**arrays)
            steps = len(seen.reward)
            if not (len(seen.image) - 1 == len(seen.action) == len(seen.cost) == steps):
                raise Damaged("an episode in it has arrays of different lengths")
            if added - size < after <= added:
                episodes.append(seen)
        if sum(len(seen.reward) for seen in episodes) != size:
            raise Damaged(f"it does not hold {size} steps")
        return cls(tuple(episodes), added)

    @property
    def layout(self) -> dict[str, Any]:
        """Type and shape of a step's part of each array."""
        return {n: (getattr(self.episodes[0], n).dtype, getattr(self.episodes[0], n).shape[1:]) for n in Seen._fields}
