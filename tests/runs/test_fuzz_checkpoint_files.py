"""Whatever happens to the files of checkpoints, a run is used or refused in a sentence, at once, and no whole file is moved."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.forged_checkpoints import JSON, check_message, newest_checkpoint, places, replaced

import capax
from capax.core.errors import Damaged, InputError
from capax.runs import archive

few = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail if what is done here takes longer, as the opening of a pipe would."""

    def fail(*_: Any) -> None:
        raise AssertionError(f"this waits for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def flip(path: Path, places: list[float]) -> None:
    """Change bytes at these shares of the file's length."""
    data = bytearray(path.read_bytes())
    for place in places:
        data[int(place * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def put(path: Path, make: Callable[[Path], Any]) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    make(path)


shares = st.floats(0.0, 1.0)
DAMAGES: st.SearchStrategy[Callable[[Path], Any]] = st.one_of(
    st.just(Path.unlink),
    shares.map(lambda share: lambda path: os.truncate(path, int(share * (path.stat().st_size - 1)))),
    st.lists(shares, min_size=1, max_size=3, unique=True).map(lambda places: lambda path: flip(path, places)),
    st.sampled_from([os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.parent / "elsewhere")]).map(
        lambda make: lambda path: put(path, make)
    ),
)
SETS = [["buffer.log", "buffer.parity"], ["buffer.log"], ["newest"], ["buffer.log", "newest"], ["older", "newest"]]


@few
@given(
    damages=st.sampled_from(SETS).flatmap(lambda files: st.fixed_dictionaries(dict.fromkeys(files, DAMAGES))),
    action=st.sampled_from(["load", "resume"]),
)
def test_any_damage_to_files_of_checkpoints(trained, tmp_path_factory, damages, action):
    run = shutil.copytree(trained, tmp_path_factory.mktemp("damaged") / "run")
    checkpoints = sorted((run / "checkpoints").glob("episode-*.safetensors"))
    names = {"older": checkpoints[0].name, "newest": checkpoints[-1].name}
    for file, damage in damages.items():
        damage(run / "checkpoints" / names.get(file, file))
    with within(30), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `load` says which checkpoint it leaves out
        try:
            capax.load(run) if action == "load" else capax.resume(run, steps=150)
        except InputError as error:
            check_message(error)
            # what a checkpoint needs of the log alone is repaired from its parity, and a policy needs nothing of it
            log = run / "checkpoints" / "buffer.log"
            assert [*damages] != ["buffer.log"] or (action == "resume" and (log.is_symlink() or not log.is_file()))
    touched = {f"{names[file]}.damaged" for file in damages if file in names}
    assert {path.name for path in (run / "checkpoints").glob("*.damaged")} <= touched


ODD = st.sampled_from(
    [[2**61, 0], [0, 2**61], [2**40, 0, 2**40], 2**63, -1, 10**400, 2.0, "F64", "U8", [0, 0], [], {}, None]
)


@dataclass(repr=False)
class Record:
    """The header of a checkpoint, and what follows it."""

    header: dict[str, Any]
    body: bytes


@pytest.fixture(scope="module")
def record(trained: Path) -> Record:
    """The header and the arrays of a checkpoint."""
    data = newest_checkpoint(trained).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return Record(json.loads(data[8:end]), data[end:-32])


def signed(header: Any, body: bytes) -> bytes:
    """A record with this header and the checksum that belongs to it."""
    head = json.dumps(header).encode()
    data = len(head).to_bytes(8, "little") + head + body
    return data + hashlib.sha256(data).digest()


def test_a_header_that_was_not_changed_is_read(record):
    data = signed(record.header, record.body)
    assert archive.read(io.BytesIO(data), len(data))[2] == len(data)


@settings(few, max_examples=300)
@given(data=st.data())
def test_any_part_of_a_header(record, data):
    header, body = record.header, record.body
    for _ in range(data.draw(st.integers(1, 2))):
        header = replaced(header, data.draw(st.sampled_from(places(header))), data.draw(ODD | JSON))
    check_record(signed(header, body))


@settings(few, max_examples=300)
@given(
    shape=st.lists(st.integers(0, 4) | st.sampled_from([2**31, 2**61, 2**63]), max_size=4),
    empty=st.booleans(),
    data=st.data(),
)
def test_any_shape_in_a_header(record, shape, empty, data):
    header, body = record.header, record.body
    if empty:  # so that shapes of no element fit the bytes
        header = {"__metadata__": header["__metadata__"], "0": {"dtype": "F32", "data_offsets": [0, 0]}, archive.DIGEST: {
            "dtype": "U8", "shape": [32], "data_offsets": [0, 32]}}  # fmt: skip
        body = b""
    name = (
        "0"
        if empty
        else data.draw(st.sampled_from([name for name in header if name not in (archive.TEXT, archive.DIGEST)]))
    )
    check_record(signed(header | {name: header[name] | {"shape": shape}}, body))


def check_record(data: bytes) -> None:
    """Check that a record is read, or refused as damaged."""
    try:
        arrays, text, _ = archive.read(io.BytesIO(data), len(data))
    except Damaged as error:
        check_message(error)
        return
    assert isinstance(text, str) and sum(array.nbytes for array in arrays.values()) <= len(data)
