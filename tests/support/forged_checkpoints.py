"""Changes to files of a run that keep their checksums right, and the refusal that must follow."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import capax
from capax.core.errors import InputError
from capax.runs import archive

HUGE = 10**400
"""A whole number that no float holds."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(HUGE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
"""Small JSON values of every kind."""
Content = dict[str, Any]
Arrays = dict[str, Any]
Change = Callable[[Content, Arrays], Any]


def newest_checkpoint(run: Path) -> Path:
    """The file of the newest checkpoint."""
    return max((run / "checkpoints").glob("episode-*.safetensors"))


def content_of(path: Path) -> tuple[Content, Arrays]:
    """The JSON of a checkpoint, and its arrays."""
    data = path.read_bytes()
    arrays, text, _ = archive.read(io.BytesIO(data), len(data))
    return json.loads(text), arrays


def write_signed(path: Path, content: Any, arrays: Arrays) -> None:
    """Write a checkpoint with this content and the checksum that belongs to it."""
    with path.open("wb") as file:
        archive.write(file, arrays, content if isinstance(content, str) else json.dumps(content))


def forge(run: Path, change: Change) -> None:
    """Change the newest checkpoint, and its checksum with it."""
    path = newest_checkpoint(run)
    content, arrays = content_of(path)
    change(content, arrays)
    write_signed(path, content, arrays)


def refusal_of(run: Path, resume: Callable[[Path], Any] = capax.resume) -> str:
    """The sentence with which `resume` refuses a run whose newest checkpoint is the only one."""
    newest = newest_checkpoint(run)
    for path in (run / "checkpoints").glob("episode-*.safetensors"):
        if path != newest:
            path.unlink()
    with pytest.raises(InputError) as caught:
        resume(run)
    check_message(caught.value)
    return str(caught.value)


def check_message(error: Exception) -> None:
    """A message is one line of a length that can be read."""
    assert "\n" not in str(error) and len(str(error)) < 800


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every part of a JSON value, as keys from the outside to the inside."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in parts for place in places(part, (*at, key)))]


def replaced(value: Any, at: tuple[Any, ...], part: Any) -> Any:
    """A JSON value with another part at a place."""
    if not at:
        return part
    value = copy.copy(value)
    value[at[0]] = replaced(value[at[0]], at[1:], part)
    return value
