"""Can anything in a run folder execute, exhaust the memory or be believed although it was changed?"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

import capax
from capax.errors import InputError
from capax.parts import parts
from capax.runs import tensors
from capax.runs.checkpoint import read
from capax.runs.run import Run
from capax.runs.tensors import Damaged

SMALL = dict(
    hidden=4, layers=1, members=2, particles=2, population=4, elites=2, iterations=1, horizon=2, batch=4, least_updates=1,
    most_updates=1, start_steps=50, fit_every=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three episodes that was to have five."""
    out = tmp_path_factory.mktemp("run") / "run"
    capax.train("capax/Integrator-v0", steps=150, out=out, preset="fast", settings=SMALL)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"steps": 250}))
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def newest(run: Path) -> Path:
    return run / "checkpoints" / "episode-000003.safetensors"


def said_by(run: Path) -> str:
    """What `resume` says about the newest checkpoint when that is the only one; it must not be believed."""
    (run / "checkpoints" / "episode-000002.safetensors").unlink()
    with pytest.raises(InputError) as caught:
        capax.resume(run)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 800
    return said


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
    assert "no checkpoint in" in said_by(run)
    assert not (tmp_path / "touched").exists() and not (tmp_path / "outside").exists()


def test_pickles_elsewhere_in_the_folder_are_not_looked_at(run, tmp_path):
    for name in ("policy.npz", "state.pkl", "checkpoints/x.npy", "sitecustomize.py", "conftest.py"):
        (run / name).write_bytes(pickle.dumps(Payload(tmp_path / "touched")))
    capax.resume(run)
    assert not (tmp_path / "touched").exists()


def test_a_module_of_the_run_folder_is_not_imported(run, tmp_path):
    # not even when somebody stands in it
    (run / "evil.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"task": "evil:Env-v0"}))
    for command in ("resume", "evaluate"):
        done = subprocess.run(
            [sys.executable, "-m", "capax.cli", command, "."], cwd=run, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        assert done.returncode == 2 and "names a module of its own as its task" in done.stderr
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


def test_a_checkpoint_cut_anywhere_is_not_believed(run, tmp_path):
    data = newest(run).read_bytes()
    for length in [*range(0, 200), *range(200, len(data), 997), len(data) - 1]:
        with pytest.raises(Damaged):
            tensors.read(io.BytesIO(data[:length]), length)


def test_a_checkpoint_with_any_bit_flipped_is_not_believed(run):
    # every byte of the first kilobyte and of the last, and a sample of the others
    data, rng = newest(run).read_bytes(), np.random.default_rng(0)
    places = [*range(1024), *range(len(data) - 1024, len(data)), *rng.integers(0, len(data), 500).tolist()]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(Damaged):
            tensors.read(io.BytesIO(bytes(flipped)), len(flipped))


def test_a_log_with_any_bit_flipped_is_not_believed(run):
    log = run / "checkpoints" / "buffer.log"
    data, rng = log.read_bytes(), np.random.default_rng(0)
    keep = newest(run).read_bytes()
    for place in rng.integers(0, len(data), 12).tolist():
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(rng.integers(8))
        log.write_bytes(flipped)
        for old in (run / "checkpoints").glob("*safetensors*"):
            old.unlink()
        newest(run).write_bytes(keep)
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
def test_a_header_that_lies_is_not_believed(run, lie):
    header, rest = header_of(newest(run).read_bytes())
    LIES[lie](header)
    newest(run).write_bytes(with_header(header, rest))
    assert "is damaged" in said_by(run)


@pytest.mark.parametrize("header", [b"", b"[]", b"5", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000])
def test_a_header_that_is_none_is_not_believed(run, header):
    newest(run).write_bytes(with_header(header, b""))
    assert "is damaged" in said_by(run)


def test_a_header_longer_than_memory_is_not_read(run):
    newest(run).write_bytes((2**63).to_bytes(8, "little") + b"{}")
    assert f"its header claims {2**63} bytes" in said_by(run)


def test_npy_headers_are_not_asked(run):
    # numpy's own format would be parsed as Python
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    newest(run).write_bytes(file.getvalue())
    assert "is damaged" in said_by(run)


# Checkpoints that are signed correctly and say what no capax says.


def signed(run: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Change what the newest checkpoint says, and its checksum with it."""
    data = newest(run).read_bytes()
    arrays, text, _ = tensors.read(io.BytesIO(data), len(data))
    said = json.loads(text)
    change(said, arrays)
    with newest(run).open("wb") as file:
        tensors.write(file, arrays, json.dumps(said))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"tuple": [value]}
    return value


def swap(arrays: dict[str, Any], name: str, value: Any) -> None:
    arrays[name] = value


FORGED: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "a class of elsewhere": lambda s, a: s.update(state={"class": "os.system", "fields": {"command": "true"}}),
    "a class by its path": lambda s, a: s["state"].update({"class": "../../PetsState"}),
    "another agent's state": lambda s, a: s.update(state={"class": "Kappa", "fields": {"kappa": 1.0}}),
    "no state": lambda s, a: s.pop("state"),
    "a state that is a number": lambda s, a: s.update(state=5),
    "a field too many": lambda s, a: s["state"]["fields"].update(more=1),
    "a field too few": lambda s, a: s["state"]["fields"].pop("rule"),
    "a text for a number": lambda s, a: s["state"]["fields"].update(waiting="x"),
    "a text in the rule": lambda s, a: s["state"]["fields"]["rule"]["fields"].update(errors={"tuple": ["x"]}),
    "a rule of another kind": lambda s, a: s["state"]["fields"].update(
        rule={"class": "Kappa", "fields": {"kappa": 1.0}}
    ),
    "nesting": lambda s, a: s["state"]["fields"].update(trouble=nested(200)),
    "an array that is not there": lambda s, a: s["state"]["fields"].update(origin={"array": "999", "order": "C"}),
    "an array by a path": lambda s, a: s["state"]["fields"].update(origin={"array": "../0", "order": "C"}),
    "arrays of other shapes": lambda s, a: [swap(a, n, np.zeros((3, 3, 3), np.float32)) for n in list(a)],
    "arrays of other types": lambda s, a: [swap(a, n, x.astype(np.float64)) for n, x in list(a.items())],
    "a sparse array that is none": lambda s, a: s["state"]["fields"].update(origin={"csr": [0, 0, 0], "shape": [2, 2]}),
    "an empty thing": lambda s, a: s["state"]["fields"].update(origin={}),
    "episodes that are none": lambda s, a: s.update(fresh={"list": [1, 2]}),
    "fresh is no list": lambda s, a: s.update(fresh=7),
    "a log longer than it is": lambda s, a: s.update(log=10**15),
    "a negative log": lambda s, a: s.update(log=-1),
    "more transitions than the log has": lambda s, a: s["state"]["fields"]["buffer"]["buffer"].update(size=10**9),
    "a number that is none": lambda s, a: s.update(number="3"),
    "a row that is none": lambda s, a: s.update(row=[1]),
    "settings that are none": lambda s, a: s.update(settings=3),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(run, name):
    signed(run, FORGED[name])
    assert "is damaged" in said_by(run)


def test_a_checkpoint_of_another_format_says_so(run):
    signed(run, lambda said, arrays: said.update(format=99, version="9.9"))
    assert "was written by capax 9.9, which this one" in said_by(run)


def test_a_log_with_rows_of_absurd_width_takes_no_memory(run):
    wide = {name: np.zeros((0, 2**40) if name == "obs" else (0,), np.float32) for name in
            ("obs", "action", "reward", "cost", "next_obs", "terminated")}  # fmt: skip
    with (run / "checkpoints" / "buffer.log").open("wb") as file:
        length = tensors.write(file, wide, '{"added": 0}')
    signed(run, lambda said, arrays: said.update(log=length))
    assert "do not fit into it" in said_by(run)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    value = copy.copy(value)
    value[at[0]] = put(value[at[0]], at[1:], new)
    return value


@pytest.fixture(scope="module")
def parsed(trained: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    data = newest(trained).read_bytes()
    arrays, text, _ = tensors.read(io.BytesIO(data), len(data))
    return json.loads(text), arrays


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_signed_checkpoint_says_it_is_a_state_or_refused(trained, parsed, tmp_path_factory, data):
    said, arrays = parsed
    at = data.draw(st.sampled_from(places(said)))
    forged = put(said, at, data.draw(JSON))
    folder = tmp_path_factory.mktemp("forged")
    shutil.copy(trained / "checkpoints" / "buffer.log", folder)
    with (folder / "episode-000003.safetensors").open("wb") as file:
        tensors.write(file, arrays, json.dumps(forged))
    config = Run(trained).config
    like = parts(config).agent.like(jr.key(0))  # type: ignore[attr-defined]
    try:
        saved, *_ = read(folder / "episode-000003.safetensors", config, like)
    except (InputError, Damaged) as error:
        one_line(error)
        return
    assert type(saved.progress.state).__name__ == "PetsState"


def one_line(error: Exception) -> None:
    assert "\n" not in str(error) and len(str(error)) < 2000


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
        one_line(error)
    try:
        capax.resume(folder, steps=150)
    except InputError as error:
        one_line(error)


JOURNAL = '{"episode":3,"steps":0,"phase":"p","first":0}\n[1,1e999,0,0]\n[1,2,3,4]\n"x"\n[[]]\n'
NO_JOURNALS = ["", "[]\n", "5\n[1]\n", '{"episode": 3}\n', "[" * 100_000, '{"episode": 1e999, "steps": 0}', JOURNAL]


@pytest.mark.parametrize("text", NO_JOURNALS)
def test_a_journal_that_is_none_stops_nothing(run, text):
    (run / "running.jsonl").write_text(text)
    assert len(capax.resume(run).episodes) == 5
