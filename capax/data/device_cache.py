"""Copies of frames and transitions on a GPU, so that a fit copies none of them from the host.

`ImageCache` holds the rows of all episodes that are long enough to sample from, one episode after the other. Only new
episodes are uploaded. An episode that left the buffer keeps its rows until the cache is full. Then all rows are written
again. `TransitionCache` holds transitions in the order of the buffer.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from capax.data.image_episodes import ImageBatch, ImageBuffer, ImageEpisode
from capax.data.transitions import COLUMNS, TransitionBuffer
from capax.runtime import lanes

MEMORY_SHARE = 0.4
"""Share of the device's memory that the rows may take."""
BLOCK_ROWS = 128
"""Rows that are uploaded at once. The number is fixed, so that no length of an episode is compiled for."""


def max_rows(row_bytes: int) -> int:
    """Number of rows of `row_bytes` bytes that the device may hold: 0 on a CPU, where a copy gains nothing."""
    if jax.default_backend() == "cpu":
        return 0
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    lane_count = lanes.lane_count()
    copies = 2 * lane_count if lane_count > 1 else 1  # lanes that fit together have their rows copied into one array
    return int(MEMORY_SHARE * limit) // (row_bytes * copies)


class ImageCache:
    """The frames of a buffer on the device."""

    def __init__(self, capacity: int, chunk: int) -> None:
        """A cache for `capacity` steps, from which pieces of `chunk` steps are sampled.

        An eighth more is for episodes that have left the buffer. The cache doubles when more steps come than that, if
        the device has room.
        """
        self._chunk = chunk
        self._capacity = capacity + capacity // chunk + capacity // 8 + BLOCK_ROWS
        self._rows: ImageEpisode | None = None
        self._used = 0
        self._begins: dict[int, tuple[Any, int]] = {}
        """The first row of each episode, by the identity of its images."""

    def sync(self, buffer: ImageBuffer) -> tuple[ImageEpisode, Int[np.ndarray, " episodes"]] | None:
        """Upload what is new. Returns the rows and the first row of each episode, or None if the device has no room.

        Episodes that are shorter than a chunk are not uploaded.
        """
        long = [episode for episode in buffer.episodes if len(episode.reward) >= self._chunk]
        limit, needed = max_rows(sum(part[0].nbytes for part in long[0])), _frame_count(long) + BLOCK_ROWS
        if needed > limit:
            self._clear()
            return None
        while needed > self._capacity:
            self._capacity *= 2
            self._clear()
        size = min(self._capacity, limit)
        if self._rows is None:
            self._rows = _zero_rows(long[0], size)
        new = [episode for episode in long if self._begin(episode) is None]
        if self._used + _frame_count(new) + BLOCK_ROWS > size:
            self._used, self._begins, new = 0, {}, long
        for episode in new:
            self._rows = _write_episode(self._rows, episode, self._used)
            self._begins[id(episode.image)] = weakref.ref(episode.image), self._used
            self._used += len(episode.image)
        return self._rows, np.array([self._begin(episode) or 0 for episode in buffer.episodes])

    def _begin(self, episode: ImageEpisode) -> int | None:
        image, begin = self._begins.get(id(episode.image), (lambda: None, 0))
        return begin if image() is episode.image else None

    def _clear(self) -> None:
        self._rows, self._used, self._begins = None, 0, {}


class TransitionCache:
    """The transitions of a buffer on the device."""

    def __init__(self) -> None:
        self._rows: Any = None
        self._last: TransitionBuffer | None = None

    def sync(self, buffer: TransitionBuffer, capacity: int) -> TransitionBuffer:
        """The buffer with zeros up to `capacity`: on the device, or on the host if the device has no room."""
        columns = dict(zip(COLUMNS, buffer.columns, strict=True))
        if capacity + BLOCK_ROWS > max_rows(sum(column[0].nbytes for column in columns.values())):
            self._rows = self._last = None
            return buffer.padded(capacity)
        last = self._last
        begin = (
            0
            if last is None or len(self._rows["reward"]) != capacity + BLOCK_ROWS or not _extends(last, buffer)
            else last.size
        )
        if begin == 0:
            self._rows = _zero_rows(columns, capacity + BLOCK_ROWS)
        for at in range(begin, buffer.size, BLOCK_ROWS):
            block = {name: _padded_block(column[at : at + BLOCK_ROWS]) for name, column in columns.items()}
            self._rows = _write_block(self._rows, block, np.int32(at))
        self._last = buffer
        return TransitionBuffer(**self._rows, added=buffer.added)


def _extends(before: TransitionBuffer, after: TransitionBuffer) -> bool:
    """Whether `after` is `before` with rows appended."""
    pairs = zip(before.columns, after.columns, strict=True)
    return before.size <= after.size and all(np.array_equal(one, other[: before.size]) for one, other in pairs)


def gather_chunks(rows: ImageEpisode, at: Int[Array, "B L+1"]) -> ImageBatch:
    """The pieces whose images are these rows."""
    return ImageBatch(rows.image[at], *(part[at[:, :-1]] for part in rows[1:]))


def _frame_count(episodes: list[ImageEpisode]) -> int:
    return sum(len(episode.image) for episode in episodes)


def _zero_rows(like: Any, size: int) -> Any:
    return jax.tree.map(lambda part: jnp.zeros((size, *part.shape[1:]), part.dtype), like)


def _write_episode(rows: ImageEpisode, episode: ImageEpisode, at: int) -> ImageEpisode:
    """Write an episode from row `at` on. Fewer than `BLOCK_ROWS` rows after it become zero."""
    for begin in range(0, len(episode.image), BLOCK_ROWS):
        block = ImageEpisode(*(_padded_block(part[begin : begin + BLOCK_ROWS]) for part in episode))
        rows = _write_block(rows, block, np.int32(at + begin))
    return rows


def _padded_block(part: np.ndarray) -> np.ndarray:
    """An array with zeros appended up to `BLOCK_ROWS` rows."""
    return np.pad(part, [(0, BLOCK_ROWS - len(part))] + [(0, 0)] * (part.ndim - 1))


@partial(jax.jit, donate_argnums=0)
def _write_block(rows: Any, block: Any, at: Any) -> Any:
    return jax.tree.map(lambda into, part: jax.lax.dynamic_update_slice_in_dim(into, part, at, 0), rows, block)
