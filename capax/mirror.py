"""How are frames and transitions kept on a GPU, so that a fit copies none of them from the host?

A mirror is a cache: the rows of all episodes that something can be drawn from, one episode after the other. Only what
is new is uploaded. An episode that has left keeps its rows until there is no room; then all are written anew. Transitions are
a cache of the same kind, in the order of the buffer.
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

from capax import lanes
from capax.buffer import COLUMNS, Buffer
from capax.frames import Drawn, Frames, Seen

SHARE = 0.4
"""Of the device's memory, that frames may take."""
BLOCK = 128
"""Rows that are uploaded at once: always as many, so that no episode's length has to be compiled for."""


def room(row: int) -> int:
    """Rows of `row` bytes that the device may hold; a CPU's memory has them already."""
    if jax.default_backend() == "cpu":
        return 0
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    shares = (
        2 * lanes.count() if lanes.count() > 1 else 1
    )  # where several are fitted as one, their rows are copied together
    return int(SHARE * limit) // (row * shares)


class Mirror:
    """What of the frames is on the device."""

    def __init__(self, most: int, chunk: int) -> None:
        """For `most` steps, of which pieces of `chunk` are drawn; an eighth more is for episodes that have left. Doubled where
        more come than were meant to, and the device has room."""
        self._chunk = chunk
        self._most = most + most // chunk + most // 8 + BLOCK
        self._rows: Seen | None = None
        self._used = 0
        self._places: dict[int, tuple[Any, int]] = {}
        """Where an episode begins, by the identity of its images."""

    def follow(self, frames: Frames) -> tuple[Seen, Int[np.ndarray, " episodes"]] | None:
        """The rows, and where each episode begins among them; None if they would take too much of the device.

        Episodes that are shorter than a piece are not among them.
        """
        long = [seen for seen in frames.episodes if len(seen.reward) >= self._chunk]
        held, least = room(sum(part[0].nbytes for part in long[0])), _rows(long) + BLOCK
        if least > held:
            self._forget()
            return None
        while least > self._most:
            self._most *= 2
            self._forget()
        size = min(self._most, held)
        if self._rows is None:
            self._rows = _blank(long[0], size)
        new = [seen for seen in long if self._place(seen) is None]
        if self._used + _rows(new) + BLOCK > size:
            self._used, self._places, new = 0, {}, long
        for seen in new:
            self._rows = _written(self._rows, seen, self._used)
            self._places[id(seen.image)] = weakref.ref(seen.image), self._used
            self._used += len(seen.image)
        return self._rows, np.array([self._place(seen) or 0 for seen in frames.episodes])

    def _place(self, seen: Seen) -> int | None:
        image, begin = self._places.get(id(seen.image), (lambda: None, 0))
        return begin if image() is seen.image else None

    def _forget(self) -> None:
        self._rows, self._used, self._places = None, 0, {}


class Transitions:
    """What of a buffer is on the device."""

    def __init__(self) -> None:
        self._rows: Any = None
        self._last: Buffer | None = None

    def follow(self, buffer: Buffer, capacity: int) -> Buffer:
        """The buffer, padded to `capacity`: on the device where that has room, and else on the host as it is."""
        columns = dict(zip(COLUMNS, buffer.columns, strict=True))
        if capacity + BLOCK > room(sum(column[0].nbytes for column in columns.values())):
            self._rows = self._last = None
            return buffer.padded(capacity)
        last = self._last
        begin = (
            0
            if last is None or len(self._rows["reward"]) != capacity + BLOCK or not _grown(last, buffer)
            else last.size
        )
        if begin == 0:
            self._rows = _blank(columns, capacity + BLOCK)
        for at in range(begin, buffer.size, BLOCK):
            block = {name: _block(column[at : at + BLOCK]) for name, column in columns.items()}
            self._rows = _put(self._rows, block, np.int32(at))
        self._last = buffer
        return Buffer(**self._rows, added=buffer.added)


def _grown(before: Buffer, after: Buffer) -> bool:
    """Whether the one is the other with rows appended."""
    pairs = zip(before.columns, after.columns, strict=True)
    return before.size <= after.size and all(np.array_equal(one, other[: before.size]) for one, other in pairs)


def drawn(rows: Seen, begins: Int[Array, " B"], chunk: int) -> Drawn:
    """The pieces that begin at these rows."""
    at = begins[:, None] + jnp.arange(chunk + 1)
    return Drawn(rows.image[at], *(part[at[:, :-1]] for part in rows[1:]))


def _rows(episodes: list[Seen]) -> int:
    return sum(len(seen.image) for seen in episodes)


def _blank(like: Any, size: int) -> Any:
    return jax.tree.map(lambda part: jnp.zeros((size, *part.shape[1:]), part.dtype), like)


def _written(rows: Seen, seen: Seen, at: int) -> Seen:
    """With an episode's rows from `at` on; up to a block after it is zero."""
    for begin in range(0, len(seen.image), BLOCK):
        block = Seen(*(_block(part[begin : begin + BLOCK]) for part in seen))
        rows = _put(rows, block, np.int32(at + begin))
    return rows


def _block(part: np.ndarray) -> np.ndarray:
    """With zeros up to a block."""
    return np.pad(part, [(0, BLOCK - len(part))] + [(0, 0)] * (part.ndim - 1))


@partial(jax.jit, donate_argnums=0)
def _put(rows: Any, block: Any, at: Any) -> Any:
    return jax.tree.map(lambda into, part: jax.lax.dynamic_update_slice_in_dim(into, part, at, 0), rows, block)
