"""The log of collected transitions, which only grows, and its parity, from which a damaged record is repaired.

`buffer.log` holds records of an archive, each with its digest. For each of them `buffer.parity` holds a smaller record, in the
same order, whose length follows from that of the first: a damaged record hides none that come after it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.core.checks import error_text
from capax.core.errors import Damaged, InputError
from capax.core.types import Record
from capax.runs import archive, parity
from capax.runs.folder import Folder

LOG, PARITY = "buffer.log", "buffer.parity"
HEAD = struct.Struct("<qq")
"""The place of a record in the log, and its length. Checksums, parity and a SHA-256 sum of it all follow."""


class Extent(NamedTuple):
    """A part of a log, from its beginning."""

    rows: int = 0
    """Transitions in it."""
    bytes: int = 0
    parity_bytes: int = 0


class BufferLog:
    """The log of one run. `end` is the end of what belongs to the newest checkpoint."""

    def __init__(self) -> None:
        self.end = Extent()
        self._places: list[tuple[int, int]] = []
        """Of each record that was read: where it is, and where its parity is."""
        self.warnings: list[str] = []
        """What was damaged when the log was read last."""

    def append(self, folder: Folder, buffer: Any) -> None:
        """Append what the log does not hold; what an interrupted write left behind its end is overwritten."""
        end = self.end
        if end.bytes and buffer.added == end.rows:
            return
        with folder.update(LOG) as log, folder.update(PARITY) as parities:
            for file, size in ((log, end.bytes), (parities, end.parity_bytes)):
                file.truncate(size)
                file.seek(size)
            for arrays, added in buffer.since(end.rows):
                parts = archive.encoded(arrays, json.dumps({"added": added}))
                length = sum(map(len, parts))
                for part in parts:
                    log.write(part)
                size = _write_parity(parities, parts, length, end.bytes)
                end = Extent(added, end.bytes + length, end.parity_bytes + size)
            parities.flush()  # if the disk loses it, `cut` writes it anew
            log.flush()
            os.fsync(log.fileno())
        self.end = end._replace(rows=buffer.added)

    def restore(self, folder: Folder, length: int, size: int, added: int, kind: Any, *, repair: bool = True) -> Any:
        """The buffer that held the last `size` of `added` transitions when the log was `length` bytes long.

        Damaged records are repaired, with `repair` also in the file. One that the buffer does not need is skipped.
        """
        try:
            with folder.update(LOG) if repair and folder.stat(LOG) is not None else folder.reader(LOG) as log:
                reader = _Reader(folder, log, length, repair)
                buffer = kind.restored(reader.records(), size, added, reader.most_bytes)
        except FileNotFoundError:
            raise InputError(f"{folder.path / LOG} is missing: restore it, or retrain with --force.") from None
        except OSError as error:
            raise InputError(f"{folder.path / LOG} cannot be read ({error.strerror}).") from None
        except Damaged as error:
            raise Damaged("; ".join([*reader.lost, str(error)] if reader.lost else [f"{LOG}: {error}"])) from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise Damaged(f"{LOG} holds no transitions, {error_text(error)}") from None
        skipped = [f"{text}: nothing needs it any more, so it was skipped" for text in reader.lost]
        self.warnings = [f"{folder.path / text}." for text in (*reader.repaired, *skipped)]
        self.end, self._places = Extent(added, length, reader.parity_bytes), reader.places
        return buffer

    def cut(self, folder: Folder) -> None:
        """Cut off what follows the end, and write parity anew if it is missing or damaged."""
        end = self.end
        if folder.stat(LOG) is not None:
            with folder.update(LOG) as log:
                log.truncate(end.bytes)
        if end.bytes and not self._parity_is_whole(folder):
            with folder.atomic(PARITY) as parities, folder.reader(LOG) as log:
                at = 0
                while at < end.bytes:
                    log.seek(at)
                    length = archive.claimed_length(log, end.bytes - at)
                    log.seek(at)
                    _write_parity(parities, [log.read(length)], length, at)
                    at += length

    def _parity_is_whole(self, folder: Folder) -> bool:
        try:
            with folder.reader(PARITY) as file:
                for at, place in self._places:
                    _read_parity(file, place, at)
        except (FileNotFoundError, Damaged):
            return False
        return True


class _Reader:
    """Reads a log from its beginning, and repairs what is damaged."""

    def __init__(self, folder: Folder, log: BinaryIO, length: int, repair: bool) -> None:
        self._folder, self._log, self._length, self._repair = folder, log, length, repair
        self.places: list[tuple[int, int]] = []
        self.parity_bytes = 0
        """Of the parity of the records so far."""
        self.repaired: list[str] = []
        self.lost: list[str] = []

    @property
    def most_bytes(self) -> int:
        """The transitions in the log cannot be more than this."""
        status = self._folder.stat(PARITY)
        parities = 0 if status is None else status.st_size
        return min(self._length, os.fstat(self._log.fileno()).st_size + parity.MOST_STRIPES * parities)

    def records(self) -> Iterator[Record]:
        """The records that are whole, or whole again."""
        at = 0
        while at < self._length:
            self._log.seek(at)
            self.places.append((at, self.parity_bytes))
            try:
                arrays, text, length = archive.read(self._log, self._length - at)
            except Damaged as error:
                where = f"{LOG}, byte {at}: {error}"
                record = self._repaired_record(at)
                if record is None:
                    self.lost.append(f"{where}, and {PARITY} cannot repair it")
                    self._log.seek(at)
                    length = archive.claimed_length(self._log, self._length - at)
                    at, self.parity_bytes = at + length, self.parity_bytes + _parity_size(length)
                    continue
                arrays, text, length = archive.read(io.BytesIO(record), len(record))
                self.repaired.append(f"{where}; it was repaired from {PARITY}")
            yield arrays, int(json.loads(text)["added"])
            at, self.parity_bytes = at + length, self.parity_bytes + _parity_size(length)

    def _repaired_record(self, at: int) -> bytes | None:
        """The record at this byte as its parity says that it was; None if that cannot be told."""
        try:
            with self._folder.reader(PARITY) as file:
                length, sums, xor = _read_parity(file, self.parity_bytes, at)
        except (OSError, Damaged):
            return None
        if length > self._length - at:
            return None
        self._log.seek(at)
        record = parity.repaired(self._log.read(length).ljust(length, b"\0"), xor, sums)
        try:
            if record is None or archive.read(io.BytesIO(record), len(record))[2] != length:
                return None
        except Damaged:
            return None
        if self._repair:
            self._log.seek(at)
            self._log.write(record)
            self._log.flush()
            os.fsync(self._log.fileno())
        return record


def _write_parity(file: BinaryIO, parts: list[bytes | memoryview], length: int, at: int) -> int:
    """Append the parity of the record at byte `at`; returns its number of bytes."""
    xor, sums = parity.parity_of(parts, length)
    content = HEAD.pack(at, length) + sums.astype("<u4").tobytes() + xor.tobytes()
    return file.write(content + hashlib.sha256(content).digest())


def _read_parity(file: BinaryIO, place: int, at: int) -> tuple[int, Array, Array]:
    """The length, checksums and parity of the record at byte `at`, from this place of the file of parities."""
    file.seek(place)
    head = file.read(HEAD.size)
    length = HEAD.unpack(head)[1] if len(head) == HEAD.size else 0
    size = _parity_size(length) - HEAD.size
    if not 0 < size <= os.fstat(file.fileno()).st_size - place:
        raise Damaged("it ends too early")
    content = head + file.read(size)
    count = parity.layout(length)[0]
    if HEAD.unpack(head)[0] != at or hashlib.sha256(content[:-32]).digest() != content[-32:]:
        raise Damaged("its checksum does not fit its content")
    body = content[HEAD.size : -32]
    return length, np.frombuffer(body[: 4 * count], "<u4"), np.frombuffer(body[4 * count :], np.uint8)


def _parity_size(length: int) -> int:
    """Bytes of the parity of a record of `length` bytes."""
    count, size = parity.layout(max(length, 0))
    return HEAD.size + 4 * count + size + 32
