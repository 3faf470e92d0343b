"""Whatever an .npz file of logged data claims, it is read or refused in a sentence, and takes no memory that it does not fill."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz_strategies import Refused, cases, refusal

from capax.core.errors import InputError
from capax.core.types import Episode
from capax.data.logged_data import NEEDED, initial_episode
from capax.envs.task import GymTask

MAX_BYTES = 2**23
"""Memory that reading a small file may take."""


class Box:
    """An environment of which only the spaces are looked at."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def reset(self, *, seed: int) -> Any: ...

    def step(self, action: Any) -> Any: ...


TASK = GymTask(Box(), name="toy")
LOGGED = {name: np.ones((4, 2) if "obs" in name else 4) for name in NEEDED}


def npy(header: str | bytes, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An array file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else header.encode("latin-1", "replace")
    length = struct.pack("<H" if version == (1, 0) else "<I", min(len(text), 2**16 - 1))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def array_bytes(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    """An array file as numpy writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def header(descr: str, shape: str, order: str = "False") -> str:
    """The dictionary in an array file."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def npz(path: Path, members: list[tuple[str, bytes]], compressed: bool) -> Path:
    """An archive of these members; a name can come twice."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


WHOLE = [(f"{name}.npy", array_bytes(array)) for name, array in LOGGED.items()]
shapes = st.sampled_from([
    "(4,)", "(4, 2)", "(2305843009213693952, 0)", "(0, 2305843009213693952)", "(1099511627776,)", "(-1,)", "(4.0,)", "4",
    "(4, 1073741824)", "(True,)", "(" + "1, " * 70 + ")", "()", "[4]", "None", "(10" + "0" * 400 + ",)", "(4,",
    "__import__('os')",
])  # fmt: skip
descriptions = st.sampled_from([
    "'<f8'", "'|O'", "'<U9999999'", "'V0'", "'<M8[s]'", "[('a', '<f8')]", "'<c16'", "5", "None", "'>f4'", "'|b1'", "'f999'",
    "'<f8' * 9999999", "[" * 300 + "]" * 300,
])  # fmt: skip
headers = st.builds(header, descriptions, shapes, st.sampled_from(["False", "True", "1", "None"])) | st.sampled_from(
    ["", "{", "{}", "[" * 5000, "(" * 60_000, "{'descr': '<f8'}", "5", "\0" * 100, "é" * 200]
)
contents = st.one_of(
    st.builds(npy, headers, st.sampled_from([b"", b"\0" * 32, b"\0" * 64]), st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)])),
    st.binary(max_size=40),
    st.sampled_from([array_bytes(np.array([{}, 1], object), True), array_bytes(np.full(4, np.nan)), array_bytes(np.ones(3))]),
)  # fmt: skip


@cases(300)
@given(
    st.lists(st.tuples(st.sampled_from([*NEEDED, "terminated", "frames", "../x", "obs.npy"]), contents), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_any_member_of_an_archive(archive_path, members, compressed, first):
    odd = [(f"{name}.npy", content) for name, content in members]
    rest = [(name, content) for name, content in WHOLE if first or name not in dict(odd)]
    path = npz(archive_path, [*odd, *rest] if first else [*rest, *odd], compressed)
    tracemalloc.start()
    try:
        episode = refusal(lambda: initial_episode(path, TASK))
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert isinstance(episode, Refused | Episode)


@pytest.fixture(scope="module")
def archive_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives") / "data.npz"


@pytest.mark.parametrize("content", [
    npy(header("'<f8'", "(1099511627776,)")), npy(header("'|O'", "(4,)"), b"\x80\x04."), b"", b"nonsense", npy("(" * 60_000),
    array_bytes(np.array([{}], object), True),
], ids=["huge", "objects", "empty", "nonsense", "nested", "pickle"])  # fmt: skip
def test_arrays_that_are_not_wanted_are_not_read(archive_path, content):
    path = npz(archive_path, [*WHOLE, ("frames.npy", content), ("notes.txt", b"x")], compressed=False)
    assert isinstance(initial_episode(path, TASK), Episode)


@cases(200)
@given(
    st.integers(0, 2**16), st.sampled_from([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x01", b"PK\x01\x02"]), st.booleans()
)
def test_an_archive_whose_directory_lies(archive_path, place, patch, compressed):
    raw = bytearray(npz(archive_path, WHOLE, compressed).read_bytes())
    directory = raw.index(b"PK\x01\x02")
    at = directory + place % (len(raw) - directory)
    raw[at : at + len(patch)] = patch[: len(raw) - at]
    archive_path.write_bytes(raw)
    assert isinstance(refusal(lambda: initial_episode(archive_path, TASK)), Refused | Episode)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"),
                                  lambda path: path.symlink_to(path)])  # fmt: skip
def test_what_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / "data.npz")
    assert isinstance(refusal(lambda: initial_episode(tmp_path / "data.npz", TASK)), Refused)


@pytest.mark.parametrize("name", ["\0", "a" * 5000, "\udcff", ""])
def test_names_that_no_file_can_have_are_refused(name):
    with pytest.raises(InputError):
        initial_episode(name, TASK)
