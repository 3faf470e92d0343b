"""Is a run that dies at any change of its folder, or that loses its power there, resumed to the rows of one that never did?

A run is made once while every change of its folder is watched. Before each change, and in the midst of each write, what a
process would leave that dies just then is kept; each of these leavings is resumed.
"""

from __future__ import annotations

import builtins
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import capax
from capax import training
from capax.errors import DiskFailed, InputError
from capax.runs.run import Run

PARTS = training.parts
SMALL = dict(
    hidden=2, layers=1, members=2, particles=2, population=4, elites=2, iterations=1, horizon=2, batch=4,
    least_updates=1, most_updates=2, start_steps=3, fit_every=3,
)  # fmt: skip


class Counted(gym.Env[Any, Any]):
    """A noisy walk, three steps an episode; every step that is really taken is counted."""

    taken = 0

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        Counted.taken += 1
        self.t += 1
        self.x = 0.9 * self.x + 0.1 * float(action[0]) + 0.05 * self.np_random.normal(size=2)
        return self.x.copy(), float(self.x[0]), False, self.t >= 3, {"cost": float(np.abs(self.x).sum())}


BOX = dict(env=Counted, steps=9, episode_steps=3, cost_limit=4.0)
RUNS: dict[str, dict[str, Any]] = {
    "random": BOX | dict(method="random"),
    "ensemble": BOX | dict(steps=12, preset="fast", settings=SMALL | dict(buffer=5)),  # so that transitions leave again
    "tabular": dict(env="capax/Gridworld-v0", steps=12, episode_steps=4),
}


class Left(NamedTuple):
    """What is on the disk when a process has died."""

    at: str
    """The change that it did not come to make."""
    files: Mapping[str, bytes]
    taken: int
    """Steps that were really taken."""


class File:
    """A file, whatever its name."""

    synced = b""
    """What of it survives a loss of power."""


class Raw(io.FileIO):
    """An open file whose changes are watched."""

    def __init__(self, disk: Disk, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self.disk, self.path = disk, path

    def write(self, data: Any) -> int:
        data = bytes(data)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]) if self.disk.halves else (data,):
            self.disk.change("write", self.path)
            super().write(part)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self.disk.change("truncate", self.path)
        return super().truncate(size)


class Disk:
    """Calls `before` with every change of a folder before it is made; nothing is really synced, which takes its time."""

    def __init__(self, folder: Path, before: Callable[[Disk, str], None], halves: bool = True) -> None:
        self.folder, self.before, self.halves = folder, before, halves
        self.opened: list[Raw] = []
        self.handles: dict[int, Path] = {}
        self.files: dict[Path, File] = {}
        self.names: dict[Path, dict[Path, File]] = {folder: {}}
        """Of each folder, the names in it that would be there after a loss of power."""
        self.folders = {folder}
        """Those that would be there."""

    def change(self, what: str, path: Path) -> None:
        stem = path.name.split(f".{os.getpid()}")[0].split(".tfevents")[0]
        self.before(self, f"{what} {stem}")

    def within(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and self.folder in (Path(path), *Path(path).parents)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put itself between capax and the disk."""
        real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink", "truncate", "mkdir")}

        def open_raw(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if not self.within(path):
                return real["open"](path, flags, *more, **options)
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self.change("open", Path(path))
                self.files.setdefault(Path(path), File())
            handle = real["open"](path, flags, *more, **options)
            self.handles[handle] = Path(path)
            return handle

        def fsync(handle: int) -> None:
            path = next((raw.path for raw in self.opened if not raw.closed and raw.fileno() == handle), None)
            if path is not None:
                self.change("sync", path)
                self.files[path].synced = path.read_bytes()
            elif handle in self.handles:  # of a folder
                folder = self.handles[handle]
                self.change("sync", folder)
                self.names[folder] = {path: file for path, file in self.files.items() if path.parent == folder}
                self.folders |= {path for path in folder.iterdir() if path.is_dir()}
            else:
                real["fsync"](handle)

        def changing(name: str) -> Callable[..., Any]:
            def changed(path: Any, *more: Any, **options: Any) -> Any:
                if not self.within(path):
                    return real[name](path, *more, **options)
                if name in ("replace", "truncate") or Path(path).exists() != (name == "mkdir"):
                    self.change(name, Path(path))
                result = real[name](path, *more, **options)
                if name == "replace":
                    self.files[Path(more[0])] = self.files.pop(Path(path))
                elif name == "unlink":
                    self.files.pop(Path(path))
                return result

            return changed

        for name in ("replace", "unlink", "truncate", "mkdir"):
            patch.setattr(os, name, changing(name))
        patch.setattr(os, "open", open_raw)
        patch.setattr(os, "fsync", fsync)
        patch.setattr(io, "open", self.open_file)
        patch.setattr(builtins, "open", self.open_file)

    def open_file(self, path: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        """As `open`, with a `Raw` beneath if the file is to be changed."""
        if not self.within(path) or not {*mode} & {*"wax+"}:
            return OPEN(path, mode, buffering, *more, **options)
        if "w" in mode or not Path(path).exists():
            self.change("open", Path(path))
        raw = Raw(self, Path(path), mode.replace("b", ""))
        self.opened.append(raw)
        self.files.setdefault(Path(path), File())
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, "utf-8", line_buffering=buffering == 1)

    def killed(self) -> dict[str, bytes]:
        """What is there when the process dies now."""
        return self._named({path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()})

    def lost_data(self) -> dict[str, bytes]:
        """What is there when the power goes now, and the disk knew all names but not all that was in the files."""
        return self._named({path: file.synced for path, file in self.files.items()})

    def lost_names(self) -> dict[str, bytes]:
        """What is there when the power goes now, and only that survives of which a sync has come back."""
        return self._named(
            {path: file.synced for folder in self.folders for path, file in self.names.get(folder, {}).items()}
        )

    def _named(self, files: Mapping[Path, bytes]) -> dict[str, bytes]:
        """By names as another process would have given them; the lock, and curves that nothing reads, are left out."""
        named = {str(path.relative_to(self.folder)): data for path, data in files.items()}
        return {
            name.replace(f".{os.getpid()}", ".1"): data
            for name, data in sorted(named.items())
            if name != ".lock" and ".tfevents" not in name
        }


OPEN = io.open


@contextmanager
def watched(folder: Path, before: Callable[[Disk, str], None], halves: bool = True) -> Iterator[Disk]:
    """A process: when it is over, so are the files that it had open."""
    folder.mkdir(parents=True, exist_ok=True)
    disk = Disk(folder, before, halves)
    for path in folder.rglob("*"):  # what an earlier process left has long been on the disk
        disk.folders.add(path.parent)
        if path.is_file():
            disk.files[path] = disk.names.setdefault(path.parent, {})[path] = File()
            disk.files[path].synced = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        disk.install(patch)
        try:
            yield disk
        finally:
            for raw in disk.opened:
                raw.close()


def go(folder: Path, options: Mapping[str, Any]) -> Run:
    """Begin a run, or go on with it."""
    if any(folder.glob("checkpoints/episode-*")):
        return capax.resume(folder, env=None if isinstance(options["env"], str) else options["env"])
    return capax.train(out=folder, resume=True, **options)


def leavings(
    folder: Path, options: Mapping[str, Any], how: Callable[[Disk], dict[str, bytes]], until: str = "leave"
) -> list[Left]:
    """Everything that the process could leave by dying at a change of the folder, once each."""
    seen: dict[frozenset[tuple[str, bytes]], Left] = {}
    began, over = Counted.taken, False

    def keep(disk: Disk, at: str) -> None:
        nonlocal over
        if not over:
            files = how(disk)
            seen.setdefault(frozenset(files.items()), Left(at, files, Counted.taken - began))
        over = over or at == until

    with watched(folder, keep) as disk:
        go(folder, options)
        keep(disk, "leave")
        assert {*disk.files} == {path for path in folder.rglob("*") if path.is_file()}  # so no change was missed
    return [*seen.values()]


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but the lock."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def restore(folder: Path, left: Left) -> None:
    for name, data in left.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def timeless(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def resumed(left: Left, folder: Path, kind: Kind, stops: int, lossy: bool = False) -> list[str]:
    """What is not as it would be without the `stops`; at most one step may be lost in each, unless the power went."""
    before = Counted.taken
    restore(folder, left)
    try:
        run = go(folder, kind.options)
    except InputError as error:
        return [f"{left.at}, {sorted(left.files)}: {error}"]
    taken = left.taken + Counted.taken - before
    files = contents(folder)
    names = {str(path.relative_to(folder)) for path in files}
    wanted = {f"checkpoints/episode-{number:06d}.safetensors" for number in (len(kind.rows) - 1, len(kind.rows))}
    wanted |= {"config.json", "episodes.jsonl"}
    known = r"interrupted\.jsonl|events\.out\.tfevents\..*|checkpoints/(buffer\.log|episode-\d+\.safetensors)"
    more = sorted(name for name in names - wanted if not re.fullmatch(known, name))
    counted = run.episodes[-1]["steps"] + sum(row["length"] for row in run.interrupted)
    missing = taken - counted if kind.options["env"] is Counted else 0
    cut = [(row["episode"], row["length"]) for row in run.interrupted]
    problems = {
        "the rows differ": timeless(run.episodes) != kind.rows,
        f"missing: {sorted(wanted - names)}, more: {more}": more or not wanted <= names,
        f"{taken} steps were taken, {counted} are counted": not 0 <= missing <= (taken if lossy else stops),
        f"episodes and lengths of {cut}": any(not 1 <= length <= kind.rows[n]["length"] for n, length in cut),
        "a checkpoint was lost": any("checkpoint" in row["reason"] for row in run.interrupted),
        "it does not stay as it is": go(folder, kind.options).episodes != run.episodes or contents(folder) != files,
    }
    return [f"{left.at}, {sorted(left.files)}: {problem}" for problem, found in problems.items() if found]


class Kind(NamedTuple):
    options: dict[str, Any]
    rows: list[dict[str, Any]]
    """Without any stop, and without the time."""


@pytest.fixture(scope="module", params=RUNS)
def kind(request, tmp_path_factory) -> Iterator[Kind]:
    """A run's settings and its rows without any stop; its agent is compiled once."""
    made: list[Any] = []

    def parts(*arguments: Any) -> Any:
        return made[0] if made else made.append(PARTS(*arguments)) or made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "parts", parts)
        options = RUNS[request.param]
        yield Kind(options, timeless(capax.train(out=tmp_path_factory.mktemp("whole"), **options).episodes))


@pytest.mark.parametrize("how", [Disk.killed, Disk.lost_data, Disk.lost_names], ids=lambda how: how.__name__)
def test_a_run_that_died_at_any_change_of_its_folder(kind, how, tmp_path):
    problems = [
        problem
        for number, left in enumerate(leavings(tmp_path / "watched", kind.options, how))
        for problem in resumed(left, tmp_path / f"{number}", kind, stops=1, lossy=how is not Disk.killed)
    ]
    assert not problems, "\n".join(problems)


def test_a_run_that_died_again_at_any_change_before_its_next_step(kind, tmp_path):
    # one of each kind of change, the last, when there is most on the disk
    first = {left.at: left for left in leavings(tmp_path / "watched", kind.options, Disk.killed)}
    problems, number = [], 0
    for left in first.values():
        if not any(name.startswith("checkpoints/episode-") for name in left.files):
            continue
        restore(tmp_path / left.at, left)
        for again in leavings(tmp_path / left.at, kind.options, Disk.killed, until="write running.jsonl"):
            number += 1
            both = Left(f"{left.at}, {again.at}", again.files, left.taken + again.taken)
            problems += resumed(both, tmp_path / f"{number}", kind, stops=2)
    assert not problems, "\n".join(problems)


class Stop(BaseException):
    """As abrupt as a signal, but what is to be done on the way out is done."""


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("kind", "error"),
    [("random", Stop()), ("random", FULL), ("ensemble", Stop())],
    indirect=["kind"],
    ids=["random, stopped", "random, no space", "ensemble, stopped"],
)
def test_a_run_that_was_stopped_at_any_change_of_its_folder(kind, error, tmp_path):
    problems: list[str] = []
    for number in count():
        folder, began, changes = tmp_path / f"{number}", Counted.taken, []
        stop = stop_at(number, error, changes)
        with suppress(Stop, DiskFailed, InputError), watched(folder, stop, halves=False) as disk:
            go(folder, kind.options)
        if len(changes) <= number:
            break
        left = Left(changes[number], disk.killed(), Counted.taken - began)
        problems += resumed(left, tmp_path / f"{number} again", kind, stops=1)
    assert not problems, "\n".join(problems)


def stop_at(number: int, error: BaseException, changes: list[str]) -> Callable[[Disk, str], None]:
    """Raise an error at one change of a folder, and note all of them."""

    def before(disk: Disk, at: str) -> None:
        changes.append(at)
        if len(changes) == number + 1:
            raise error

    return before


TEARS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "the last row is torn": ("episodes.jsonl", lambda data: data[:-30]),
    "the last row is gone": ("episodes.jsonl", lambda data: data[: data[:-1].rfind(b"\n") + 1]),
    "something follows the last row": ("episodes.jsonl", lambda data: data + bytes(range(11, 256))),
    "something follows the log": ("checkpoints/buffer.log", lambda data: data + bytes(range(256))),
    "the last step is torn": ("running.jsonl", lambda data: data[:-5]),
    "something follows the last step": ("running.jsonl", lambda data: data + bytes(range(11, 256))),
    "the first line of the episode is torn": ("running.jsonl", lambda data: data[:9]),
    "the interruption is torn": ("interrupted.jsonl", lambda data: data + b'{"episode": 1, "len'),
}


@pytest.mark.parametrize("kind", ["ensemble"], indirect=True)
@pytest.mark.parametrize("tear", TEARS)
def test_a_file_with_a_torn_end(kind, tear, tmp_path):
    # left in the last episode, when two of its three steps were written down
    every = leavings(tmp_path / "watched", kind.options, Disk.killed)
    left = next(left for left in every if left.taken == kind.options["steps"])
    name, torn = TEARS[tear]
    files = {**left.files, name: torn(left.files.get(name, b""))}
    assert not resumed(left._replace(files=files), tmp_path / "torn", kind, stops=1, lossy=name == "running.jsonl")
    counted = [row["length"] for row in Run(tmp_path / "torn").interrupted]
    assert counted == {"the last step is torn": [1], "the first line of the episode is torn": []}.get(tear, [2])
