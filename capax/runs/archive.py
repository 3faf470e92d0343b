"""Files of arrays and JSON that can hold nothing else, and that show when they are damaged.

The layout is that of safetensors: the length of a header (8 bytes, little-endian), the header (JSON: type, shape and place
of each array, and some text), then the arrays' bytes. The last array, `sha256`, is the digest of all that comes before it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy import ndarray as Array

from capax.core.checks import short_repr
from capax.core.errors import Damaged

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
TEXT = "__metadata__"
DIGEST = "sha256"
LARGEST_HEADER = 64 << 20
"""Bytes; a header that claims more is damaged."""


class Piece(NamedTuple):
    """One array of a header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def encoded(arrays: Mapping[str, Array], text: str) -> list[bytes | memoryview]:
    """A record of arrays and a text, in parts: no large array is copied."""
    header: dict[str, Any] = {TEXT: {"capax": text}}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    header[DIGEST] = {"dtype": "U8", "shape": [32], "data_offsets": [at, at + 32]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    parts: list[bytes | memoryview] = [len(head).to_bytes(8, "little"), head]
    for array in arrays.values():
        flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts.append(memoryview(flat))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [*parts, digest.digest()]


def write(file: BinaryIO, arrays: Mapping[str, Array], text: str) -> int:
    """Append arrays and a text to a file; returns the number of bytes."""
    return sum(file.write(part) for part in encoded(arrays, text))


def claimed_length(file: BinaryIO, left: int) -> int:
    """The bytes of the next record, if its header is right: its content is not checked."""
    size = int.from_bytes(file.read(8), "little")
    if not 0 < size <= min(LARGEST_HEADER, left - 8):
        raise Damaged(f"its header claims {size} bytes")
    length = 8 + size + parse(file.read(size))[1][-1].end
    if length > left:
        raise Damaged(f"its header claims {length} bytes")
    return length


def read(file: BinaryIO, left: int) -> tuple[dict[str, Array], str, int]:
    """Arrays, text and length of the next record of a file that has `left` bytes left.

    Every number is checked before it is used: no length beyond the file's is ever allocated.
    """
    digest = hashlib.sha256()

    def read_bytes(count: int, what: str) -> bytes:
        nonlocal left
        if count > left:
            raise Damaged(f"it ends within {what}")
        data = file.read(count)
        if len(data) != count:
            raise Damaged(f"it ends within {what}")
        left -= count
        return data

    length = read_bytes(8, "the length of its header")
    size = int.from_bytes(length, "little")
    if size > LARGEST_HEADER:
        raise Damaged(f"its header claims {size} bytes")
    encoded = read_bytes(size, "its header")
    digest.update(length)
    digest.update(encoded)
    text, pieces = parse(encoded)
    arrays: dict[str, Array] = {}
    for piece in pieces:
        data = read_bytes(piece.end - piece.begin, f"the array {short_repr(piece.name)}")
        if piece.name == DIGEST:
            if data != digest.digest():
                raise Damaged("its checksum does not fit its content")
            continue
        digest.update(data)
        arrays[piece.name] = np.frombuffer(bytearray(data), piece.dtype).reshape(piece.shape)
    return arrays, text, 8 + size + pieces[-1].end


def parse(encoded: bytes) -> tuple[str, list[Piece]]:
    """The text and the arrays that a header lists, in the order of the file."""
    try:
        header = json.loads(encoded)
        text = header.pop(TEXT)["capax"]
        pieces = [piece_of(name, entry) for name, entry in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"its header is not one of capax ({type(error).__name__})") from None
    at = 0
    for piece in pieces:
        if piece.begin != at or piece.end - at != math.prod(piece.shape) * piece.dtype.itemsize:
            raise Damaged(
                f"the shape {short_repr(piece.shape)} of its array {short_repr(piece.name)} does not fit its bytes"
            )
        at = piece.end
    if not isinstance(text, str) or not pieces or pieces[-1].name != DIGEST or pieces[-1].end - pieces[-1].begin != 32:
        raise Damaged("its header is not one of capax (no checksum)")
    return text, pieces


def piece_of(name: str, entry: Any) -> Piece:
    """An entry of a header, with every number checked to be one."""
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    dtype = DTYPES[entry["dtype"]]
    if len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**62 for n in (*shape, begin, end)):
        raise ValueError(name)
    if math.prod(max(n, 1) for n in shape) * dtype.itemsize >= 2**62:  # an empty array may be too wide for numpy, too
        raise ValueError(name)
    return Piece(name, dtype, shape, begin, end)
