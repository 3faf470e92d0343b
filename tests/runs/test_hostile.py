"""Nothing in a run folder executes, exhausts the memory, or is used although it was changed.

`tests/cli/test_foreign_folders.py` has what a folder names.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy
from support.forged_checkpoints import JSON, check_message, newest_checkpoint, refusal_of

import capax
from capax.core.errors import Damaged, InputError
from capax.runs import archive

# Other files under our names.


class Payload:
    """Executes when it is unpickled."""

    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.touched}",)


def npz_with_pickle(payload: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, state=np.array([payload], dtype=object))
    return file.getvalue()


def traversing_zip(payload: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../../../outside", pickle.dumps(payload))
        archive.writestr("/tmp/outside.npy", b"")
    return file.getvalue()


@pytest.mark.parametrize("make", [pickle.dumps, npz_with_pickle, traversing_zip, lambda _: b"", lambda _: b"\0" * 4096])
@pytest.mark.parametrize("name", ["episode-000003.safetensors", "buffer.log"])
def test_other_files_do_not_execute(run, tmp_path, make, name):
    (run / "checkpoints" / name).write_bytes(make(Payload(tmp_path / "touched")))
    (run / "checkpoints" / "buffer.parity").unlink()  # it would repair the log
    assert "no checkpoint in" in refusal_of(run)
    assert not (tmp_path / "touched").exists() and not (tmp_path / "outside").exists()


def test_pickles_elsewhere_in_the_folder_are_not_opened(run, tmp_path):
    for name in ("policy.npz", "state.pkl", "checkpoints/x.npy", "sitecustomize.py", "conftest.py"):
        (run / name).write_bytes(pickle.dumps(Payload(tmp_path / "touched")))
    capax.resume(run)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("name", ["checkpoints/buffer.log", "running.jsonl", "episodes.jsonl", "interrupted.jsonl"])
def test_links_are_not_written_through(run, tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_bytes((run / name).read_bytes() if (run / name).exists() else b"precious\n")
    before = precious.read_bytes()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    with pytest.raises(InputError, match="is a link"):
        capax.resume(run)
    with pytest.raises(InputError, match="is a link"):
        capax.train("capax/Integrator-v0", steps=150, out=run, force=True)
    assert precious.read_bytes() == before


# Bytes that were changed.


def test_a_checkpoint_cut_anywhere_is_refused(run):
    data = newest_checkpoint(run).read_bytes()
    for length in [*range(0, 200), *range(200, len(data), 997), len(data) - 1]:
        with pytest.raises(Damaged):
            archive.read(io.BytesIO(data[:length]), length)


def test_a_checkpoint_with_any_bit_flipped_is_refused(run):
    # every byte of the first and of the last kilobyte, and a sample of the others
    data, rng = newest_checkpoint(run).read_bytes(), np.random.default_rng(0)
    places = [*range(1024), *range(len(data) - 1024, len(data)), *rng.integers(0, len(data), 500).tolist()]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(Damaged):
            archive.read(io.BytesIO(bytes(flipped)), len(flipped))


def test_a_log_with_any_bit_flipped_is_refused_where_there_is_no_parity(run):
    log = run / "checkpoints" / "buffer.log"
    (run / "checkpoints" / "buffer.parity").unlink()
    data, rng = log.read_bytes(), np.random.default_rng(0)
    newest = newest_checkpoint(run)
    checkpoint = newest.read_bytes()
    for place in rng.integers(0, len(data), 12).tolist():
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(rng.integers(8))
        log.write_bytes(flipped)
        for old in (run / "checkpoints").glob("*safetensors*"):
            old.unlink()
        newest.write_bytes(checkpoint)
        with pytest.raises(InputError, match=r"buffer\.log, byte \d+: "):
            capax.resume(run)


# Headers that lie.


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def with_header(header: Any, rest: bytes) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + rest


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "shape of 2^60": lambda h: h["0"].update(shape=[2**60, 8]),
    "shape beyond 64 bits": lambda h: h["0"].update(shape=[10**30]),
    "negative shape": lambda h: h["0"].update(shape=[-1]),
    "shape of floats": lambda h: h["0"].update(shape=[4.0]),
    "shape of booleans": lambda h: h["0"].update(shape=[True] * 4),
    "shape no list": lambda h: h["0"].update(shape="4"),
    "a hundred dimensions": lambda h: h["0"].update(shape=[1] * 100),
    "offsets beyond the file": lambda h: h["0"].update(data_offsets=[0, 2**50]),
    "negative offsets": lambda h: h["0"].update(data_offsets=[-8, 0]),
    "offsets that overlap": lambda h: h["1"].update(data_offsets=h["0"]["data_offsets"]),
    "a long name": lambda h: h.update({"x\n" * 9999: {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}, **h}),
    "three offsets": lambda h: h["0"].update(data_offsets=[0, 1, 2]),
    "an unknown type": lambda h: h["0"].update(dtype="O"),
    "a type that is no text": lambda h: h["0"].update(dtype=["F32"]),
    "no type": lambda h: h["0"].pop("dtype"),
    "no checksum": lambda h: h.pop("sha256"),
    "a checksum of other length": lambda h: h["sha256"].update(shape=[31]),
    "no text": lambda h: h.pop("__metadata__"),
    "a text that is none": lambda h: h["__metadata__"].update(capax=5),
    "an entry that is none": lambda h: h.update({"0": 5}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(run, lie):
    header, rest = header_of(newest_checkpoint(run).read_bytes())
    LIES[lie](header)
    newest_checkpoint(run).write_bytes(with_header(header, rest))
    assert "is damaged" in refusal_of(run)


@pytest.mark.parametrize("header", [b"", b"[]", b"5", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000])
def test_a_header_that_is_none_is_refused(run, header):
    newest_checkpoint(run).write_bytes(with_header(header, b""))
    assert "is damaged" in refusal_of(run)


def test_a_header_longer_than_memory_is_not_read(run):
    newest_checkpoint(run).write_bytes((2**63).to_bytes(8, "little") + b"{}")
    assert f"its header claims {2**63} bytes" in refusal_of(run)


def test_npy_headers_are_not_read(run):
    # numpy's own format would be parsed as Python
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    newest_checkpoint(run).write_bytes(file.getvalue())
    assert "is damaged" in refusal_of(run)


# JSON files.


@pytest.mark.parametrize("text", ["", "[]", "null", "5", '{"task": 1}', "{", "[" * 100_000, "\udcff"])
@pytest.mark.parametrize("call", [capax.resume, capax.load, capax.evaluate])
def test_a_config_that_is_none_is_refused(run, text, call):
    (run / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError):
        call(run)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_config_says_it_is_used_or_refused(trained, tmp_path_factory, data):
    config = json.loads((trained / "config.json").read_text())
    name = data.draw(st.sampled_from(sorted(config)))
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("config") / "run")
    (folder / "config.json").write_text(json.dumps(config | {name: data.draw(JSON)}))
    try:
        capax.load(folder)([0.5])
    except InputError as error:
        check_message(error)
    try:
        capax.resume(folder, steps=150)
    except InputError as error:
        check_message(error)


def test_sizes_that_no_memory_holds_are_refused(run, tabular_run):
    for folder, sizes in ((run, {"capacity": 2**45}), (tabular_run, {"states": 2**30, "actions": 2**30})):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | sizes))
        with pytest.raises(InputError, match=r"is an array of .* GiB: give smaller ones"):
            capax.load(folder)


ODD_ROWS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no time": lambda row: row.pop("time"),
    "a null time": lambda row: row.update(time=None),
    "a text for the time": lambda row: row.update(time={"seconds": "x"}),
    "no count of violations": lambda row: row.pop("violations"),
    "a null count": lambda row: row.update(planned_violations=None),
    "a text for a count": lambda row: row.update(violations="x"),
    "a cost that is no number": lambda row: row.update(cost=float("nan")),
    "an infinite return": lambda row: row.update({"return": float("inf")}),
    "no number": lambda row: row.pop("episode"),
    "another number": lambda row: row.update(episode=7),
    "a text for the number": lambda row: row.update(episode="2"),
}


@pytest.mark.parametrize("name", ODD_ROWS)
def test_a_row_that_capax_did_not_write_is_refused(run, name):
    path = run / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ODD_ROWS[name](rows[-1])
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    with pytest.raises(InputError, match="restore the file, or retrain with --force") as caught:
        capax.resume(run)
    check_message(caught.value)
    assert path.read_text() == text


@pytest.mark.parametrize("line", ["5", "[]", "null", "{", '{"episode":', "[" * 100_000, "\udcff"])
def test_a_line_that_is_no_row_is_refused(run, line):
    path = run / "episodes.jsonl"
    path.write_bytes(path.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(InputError, match="it was damaged"):
        capax.resume(run)


JOURNAL = '{"episode":3,"steps":0,"phase":"p","first":0}\n[1,1e999,0,0]\n[1,2,3,4]\n"x"\n[[]]\n'
NO_JOURNALS = ["", "[]\n", "5\n[1]\n", '{"episode": 3}\n', "[" * 100_000, '{"episode": 1e999, "steps": 0}', JOURNAL]


@pytest.mark.parametrize("text", NO_JOURNALS)
def test_a_journal_that_is_none_stops_nothing(run, text):
    (run / "running.jsonl").write_text(text)
    assert len(capax.resume(run).episodes) == 5
