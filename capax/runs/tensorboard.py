"""How do numbers come to be curves in TensorBoard, without TensorFlow?"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits reversed


class Events:
    """An event file that TensorBoard finds in `folder`. A run that goes on after a stop opens another beside it."""

    def __init__(self, folder: Path) -> None:
        """Start a file whose name sorts behind those that were started before."""
        folder.mkdir(parents=True, exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())
        self._file = (folder / f"events.out.tfevents.{time.time():.6f}.{host}.{os.getpid()}").open("xb")
        self._began = False
        self._put(_field(1, FIXED64, struct.pack("<d", time.time())) + _string(3, "brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float], wall_time: float) -> None:
        """Write one point per curve, at `step`; they are on disk when this returns."""
        when = _field(1, FIXED64, struct.pack("<d", wall_time)) + _field(2, VARINT, _varint(step))
        if not self._began:  # a session starts: what an earlier file says about this step and later ones is undone
            self._put(when + _message(7, _field(1, VARINT, _varint(1))))
            self._began = True
        self._put(when + _message(5, b"".join(_message(1, _value(tag, value)) for tag, value in values.items())))

    def close(self) -> None:
        """Close the file; twice does no harm."""
        self._file.close()

    def _put(self, event: bytes) -> None:
        """One TFRecord: the length, its checksum, the event, its checksum."""
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))
        self._file.flush()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), as in RFC 3720, appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _byte_remainder(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = [_byte_remainder(byte) for byte in range(256)]


def _checksum(data: bytes) -> bytes:
    """TFRecord's masked checksum: rotated by 15 bits, then moved by a constant, modulo 2³²."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _value(tag: str, value: float) -> bytes:
    """Summary.Value: a tag and a float32; what is too large for one is infinite."""
    with np.errstate(over="ignore"):
        return _string(1, tag) + _field(2, FIXED32, np.array(value).astype("<f4").tobytes())


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as its 64-bit complement."""
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _field(number: int, wire: int, payload: bytes) -> bytes:
    return _varint(number << 3 | wire) + payload


def _message(number: int, payload: bytes) -> bytes:
    return _field(number, BYTES, _varint(len(payload)) + payload)


def _string(number: int, text: str) -> bytes:
    return _message(number, text.encode())
