"""Parity of a record: enough to repair it where one of its stripes is damaged.

A record is cut into stripes. Their exclusive or is kept elsewhere, with a checksum of each: a stripe whose checksum does not
fit is the exclusive or of that and of all other stripes. A small record is one stripe, and its parity a copy of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy import ndarray as Array

SMALLEST_STRIPE = 64 << 10
"""Bytes; damage usually covers a sector or a page of a disk, so a smaller stripe would be no help."""
MOST_STRIPES = 16
"""Parity takes this share of the space of a large record."""
Part = bytes | memoryview


def layout(length: int) -> tuple[int, int]:
    """How many stripes a record of `length` bytes has, and the bytes of each; the last one may be shorter."""
    count = min(MOST_STRIPES, max(1, length // SMALLEST_STRIPE))
    size = -(-length // count)
    return -(-length // max(size, 1)), size


def parity_of(parts: Iterable[Part], length: int) -> tuple[Array, Array]:
    """The exclusive or of a record's stripes, uint8 `[size]`, and their checksums, uint32 `[count]`."""
    count, size = layout(length)
    parity, sums, at = np.zeros(size, np.uint8), [0] * count, 0
    for part in parts:
        rest = memoryview(part)
        while len(rest):
            stripe, place = divmod(at, size)
            piece, rest = rest[: size - place], rest[size - place :]
            parity[place : place + len(piece)] ^= np.frombuffer(piece, np.uint8)
            sums[stripe] = zlib.crc32(piece, sums[stripe])
            at += len(piece)
    return parity, np.array(sums, np.uint32)


def repaired(record: bytes, parity: Array, sums: Array) -> bytes | None:
    """The record with its one damaged stripe restored; None if there are more. Missing bytes are zeros in it."""
    count, size = layout(len(record))
    if parity.shape != (size,) or sums.shape != (count,):
        return None
    stripes = [record[at : at + size] for at in range(0, len(record), size)]
    wrong = [number for number, stripe in enumerate(stripes) if zlib.crc32(stripe) != sums[number]]
    if len(wrong) > 1:
        return None
    for number in wrong:
        missing: Any = parity.copy()
        for other, stripe in enumerate(stripes):
            if other != number:
                missing[: len(stripe)] ^= np.frombuffer(stripe, np.uint8)
        stripes[number] = missing[: len(stripes[number])].tobytes()
    return b"".join(stripes)
