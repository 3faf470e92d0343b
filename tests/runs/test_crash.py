"""A run that dies at any change of its folder, or loses its power there, is resumed to the rows of a run that never stopped.

Every change of the folder of one run is watched. Before each change, and in the middle of each write, the files are kept that a
process would leave if it died just then. From each of these sets of files the run is resumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import toy_envs
from support.small_settings import TINY_VECTOR
from support.tiny_runs import without_times
from support.watched_disk import Disk, watched_folder

import capax
from capax.core.errors import DiskFailed, InputError
from capax.runs.run import Run
from capax.training import train

REAL_BUILD = train.build


class Steps:
    """Counts every step that is really taken."""

    total = 0


def count_step(toy: toy_envs.Toy) -> None:
    Steps.total += 1


def counted_walk() -> toy_envs.Toy:
    """A noisy walk with three steps in an episode."""
    return toy_envs.walk(steps=3, on_step=count_step)


WALK: dict[str, Any] = dict(env=counted_walk, steps=9, episode_steps=3, cost_limit=4.0)
RUNS: dict[str, dict[str, Any]] = {
    "random": WALK | dict(method="random"),
    # a small buffer, so that transitions leave it again
    "ensemble": WALK | dict(steps=12, preset="fast", settings=TINY_VECTOR | dict(start_steps=3, buffer=5)),
    "tabular": dict(env="capax/Gridworld-v0", steps=12, episode_steps=4),
}


class Remains(NamedTuple):
    """The files that are on the disk when a process has died."""

    change: str
    """The change that the process did not make any more."""
    files: Mapping[str, bytes]
    steps: int
    """Steps that were really taken."""


def begin_or_resume(folder: Path, options: Mapping[str, Any]) -> Run:
    """Begin a run, or continue it."""
    if any(folder.glob("checkpoints/episode-*")):
        return capax.resume(folder, env=None if isinstance(options["env"], str) else options["env"])
    return capax.train(out=folder, resume=True, **options)


def all_remains(
    folder: Path, options: Mapping[str, Any], how: Callable[[Disk], dict[str, bytes]], until: str = "end"
) -> list[Remains]:
    """Everything that the process could leave by dying at a change of the folder, once each."""
    unique: dict[frozenset[tuple[str, bytes]], Remains] = {}
    steps_before, over = Steps.total, False

    def keep(disk: Disk, change: str) -> None:
        nonlocal over
        if not over:
            files = how(disk)
            unique.setdefault(frozenset(files.items()), Remains(change, files, Steps.total - steps_before))
        over = over or change == until

    with watched_folder(folder, keep) as disk:
        begin_or_resume(folder, options)
        keep(disk, "end")
        assert {*disk.files} == {path for path in folder.rglob("*") if path.is_file()}  # so no change was missed
    return [*unique.values()]


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but the lock."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def write_files(folder: Path, remains: Remains) -> None:
    """Put the files of a dead process into a folder."""
    for name, data in remains.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def resume_problems(remains: Remains, folder: Path, kind: Kind, stops: int, lossy: bool = False) -> list[str]:
    """Differences between a resumed run and one without the `stops`.

    At most one step may be lost in each stop, and any number if the power went (`lossy`).
    """
    steps_before = Steps.total
    write_files(folder, remains)
    try:
        run = begin_or_resume(folder, kind.options)
    except InputError as error:
        return [f"{remains.change}, {sorted(remains.files)}: {error}"]
    steps = remains.steps + Steps.total - steps_before
    files = contents(folder)
    names = {str(path.relative_to(folder)) for path in files}
    required = {f"checkpoints/episode-{number:06d}.safetensors" for number in (len(kind.rows) - 1, len(kind.rows))}
    required |= {"config.json", "episodes.jsonl"}
    allowed = (
        r"interrupted\.jsonl|events\.out\.tfevents\..*|checkpoints/(buffer\.(log|parity)|episode-\d+\.safetensors)"
    )
    superfluous = sorted(name for name in names - required if not re.fullmatch(allowed, name))
    counted = run.episodes[-1]["steps"] + sum(row["length"] for row in run.interrupted)
    missing = steps - counted if kind.options["env"] is counted_walk else 0
    cut = [(row["episode"], row["length"]) for row in run.interrupted]
    problems = {
        "the rows differ": without_times(run.episodes) != kind.rows,
        f"missing: {sorted(required - names)}, superfluous: {superfluous}": superfluous or not required <= names,
        f"{steps} steps were taken, {counted} are counted": not 0 <= missing <= (steps if lossy else stops),
        f"episodes and lengths of {cut}": any(not 1 <= length <= kind.rows[n]["length"] for n, length in cut),
        "a checkpoint was lost": any("checkpoint" in row["reason"] for row in run.interrupted),
        "another resume changes it": begin_or_resume(folder, kind.options).episodes != run.episodes
        or contents(folder) != files,
    }
    return [f"{remains.change}, {sorted(remains.files)}: {text}" for text, applies in problems.items() if applies]


class Kind(NamedTuple):
    """A kind of run: its options, and its rows if nothing stops it."""

    options: dict[str, Any]
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module", params=RUNS)
def kind(request, tmp_path_factory) -> Iterator[Kind]:
    """The options of a run, and its rows without any stop; its agent is compiled once."""
    cache: list[Any] = []

    def build_once(*arguments: Any) -> Any:
        if not cache:
            cache.append(REAL_BUILD(*arguments))
        return cache[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build", build_once)
        options = RUNS[request.param]
        yield Kind(options, without_times(capax.train(out=tmp_path_factory.mktemp("whole"), **options).episodes))


@pytest.mark.parametrize(
    "how", [Disk.after_kill, Disk.after_loss_of_data, Disk.after_loss_of_names], ids=lambda how: how.__name__
)
def test_a_run_that_died_at_any_change_of_its_folder(kind, how, tmp_path):
    problems = [
        problem
        for number, remains in enumerate(all_remains(tmp_path / "watched", kind.options, how))
        for problem in resume_problems(remains, tmp_path / f"{number}", kind, 1, how is not Disk.after_kill)
    ]
    assert not problems, "\n".join(problems)


def test_a_run_that_died_again_at_any_change_before_its_next_step(kind, tmp_path):
    # one of each kind of change, the last one, when there is most on the disk
    firsts = {first.change: first for first in all_remains(tmp_path / "watched", kind.options, Disk.after_kill)}
    problems, number = [], 0
    for first in firsts.values():
        if not any(name.startswith("checkpoints/episode-") for name in first.files):
            continue
        folder = tmp_path / first.change
        write_files(folder, first)
        for second in all_remains(folder, kind.options, Disk.after_kill, until="write running.jsonl"):
            number += 1
            both = Remains(f"{first.change}, {second.change}", second.files, first.steps + second.steps)
            problems += resume_problems(both, tmp_path / f"{number}", kind, stops=2)
    assert not problems, "\n".join(problems)


class Stop(BaseException):
    """As abrupt as a signal, but `finally` is executed."""


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
        folder, steps_before, changes = tmp_path / f"{number}", Steps.total, []
        stop = stop_at(number, error, changes)
        with suppress(Stop, DiskFailed, InputError), watched_folder(folder, stop, halves=False) as disk:
            begin_or_resume(folder, kind.options)
        if len(changes) <= number:
            break
        remains = Remains(changes[number], disk.after_kill(), Steps.total - steps_before)
        problems += resume_problems(remains, tmp_path / f"{number} again", kind, stops=1)
    assert not problems, "\n".join(problems)


def stop_at(number: int, error: BaseException, changes: list[str]) -> Callable[[Disk, str], None]:
    """A function that raises an error at one change of a folder, and records all changes."""

    def before(disk: Disk, change: str) -> None:
        changes.append(change)
        if len(changes) == number + 1:
            raise error

    return before


TEARS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "the last row is torn": ("episodes.jsonl", lambda data: data[:-30]),
    "the last row is gone": ("episodes.jsonl", lambda data: data[: data[:-1].rfind(b"\n") + 1]),
    "something follows the last row": ("episodes.jsonl", lambda data: data + bytes(range(11, 256))),
    "something follows the log": ("checkpoints/buffer.log", lambda data: data + bytes(range(256))),
    "the last step is torn": ("running.jsonl", lambda data: data[:-5]),
    "the cost of the last step is torn": ("running.jsonl", lambda data: data[: data[:-1].rfind(b"\n") - 5]),
    "something follows the last step": ("running.jsonl", lambda data: data + bytes(range(11, 256))),
    "the first line of the episode is torn": ("running.jsonl", lambda data: data[:9]),
    "the interruption is torn": ("interrupted.jsonl", lambda data: data + b'{"episode": 1, "len'),
}


@pytest.mark.parametrize("kind", ["ensemble"], indirect=True)
@pytest.mark.parametrize("tear", TEARS)
def test_a_file_with_a_torn_end(kind, tear, tmp_path):
    # the process dies in the last episode, when two of its three steps are written
    every = all_remains(tmp_path / "watched", kind.options, Disk.after_kill)
    remains = next(remains for remains in every if remains.steps == kind.options["steps"])
    name, torn = TEARS[tear]
    files = {**remains.files, name: torn(remains.files.get(name, b""))}
    remains = remains._replace(files=files)
    assert not resume_problems(remains, tmp_path / "torn", kind, stops=1, lossy=name == "running.jsonl")
    counted = [row["length"] for row in Run(tmp_path / "torn").interrupted]
    # the cost of a step is written before the rest of it
    assert counted == {"the cost of the last step is torn": [1], "the first line of the episode is torn": []}.get(
        tear, [2]
    )
