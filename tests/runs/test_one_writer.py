"""A process notices that its run folder was deleted, moved, copied by hard links or unlocked, and stops before its next write."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scripts import PATIENCE_S, script, wait_until
from support.tiny_runs import counting, train_random, without_times

import capax
from capax.core.errors import FolderInUse
from capax.runs import lock
from capax.runs.run import Run

WRITER = """
import sys
from pathlib import Path
from support.tiny_runs import counting, train_random

def wait(toy):
    print("step", flush=True)
    sys.stdin.readline()

for line in sys.stdin:
    try:
        train_random(Path(line.strip()), env=counting(on_step=wait), resume=True)
        print("done", flush=True)
    except Exception as error:
        print(f"{getattr(error, 'exit_code', 1)} {type(error).__name__} {error}", flush=True)
"""
"""Trains in each folder that it is given a line for, and takes a step for each further line."""


class Writer:
    """A process that trains step by step."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def say(self, line: str) -> str:
        """Let the process do one thing, and return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def begin(self, folder: Path, steps: int) -> None:
        """Train up to the beginning of a step."""
        assert self.say(str(folder)) == "step"
        for _ in range(steps):
            assert self.say("") == "step"

    def stop(self) -> str:
        """The error with which the process stops, in its next step."""
        answer = self.say("")
        assert answer.startswith("4 FolderInUse "), answer
        return answer


@pytest.fixture(scope="module")
def process() -> Iterator[Writer]:
    with script(WRITER, patience=3600.0, stderr=subprocess.DEVNULL) as started:  # for all tests
        yield Writer(started)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict[str, Any]]:
    """The rows of a run that nothing disturbs."""
    return without_times(train_random(tmp_path_factory.mktemp("whole")).episodes)


@pytest.fixture
def folder(process: Writer, tmp_path: Path) -> Path:
    """A folder in which the writer is in the second episode."""
    process.begin(tmp_path / "run", 5)
    return tmp_path / "run"


def resumed(folder: Path) -> Run:
    """The run, continued by this process."""
    return capax.resume(folder, env=counting())


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_is_deleted(process, folder):
    shutil.rmtree(folder)
    assert "was deleted or moved while a run wrote it" in process.stop()
    assert not folder.exists()


def test_a_folder_that_is_deleted_and_trained_again(process, folder, rows):
    shutil.rmtree(folder)
    train_random(folder)
    before = contents(folder)
    assert "was deleted or moved while a run wrote it, and replaced" in process.stop()
    assert contents(folder) == before and without_times(Run(folder).episodes) == rows


def test_a_folder_that_is_renamed(process, folder, rows):
    other = folder.rename(folder.with_name("other"))
    with pytest.raises(FolderInUse, match=f"is in use by process {process.process.pid} "):
        resumed(other)
    train_random(folder)
    before = contents(folder), contents(other)
    assert "was deleted or moved" in process.stop()
    assert (contents(folder), contents(other)) == before
    assert without_times(resumed(other).episodes) == without_times(Run(folder).episodes) == rows


def test_a_folder_that_is_copied_by_hard_links(process, folder, rows):
    copy = folder.with_name("copy")
    subprocess.run(["cp", "-al", folder, copy], check=True)
    for action in (resumed, lambda copy: train_random(copy, force=True)):
        with pytest.raises(FolderInUse, match=f"is in use by process {process.process.pid} "):
            action(copy)
    before = contents(folder)
    assert "was copied by hard links" in process.stop()
    assert contents(folder) == before == contents(copy)
    assert without_times(resumed(copy).episodes) == rows
    assert contents(folder) == before | {".lock": contents(folder)[".lock"]}  # each has files of its own
    train_random(copy, force=True, steps=4)
    assert without_times(resumed(folder).episodes) == rows and len(Run(copy).episodes) == 1


def test_a_copy_by_hard_links_without_the_lock(process, folder, rows):
    copy = folder.with_name("copy")
    subprocess.run(["cp", "-al", folder, copy], check=True)
    (copy / ".lock").unlink()
    before = contents(folder)
    assert without_times(resumed(copy).episodes) == rows
    assert contents(folder) == before
    while (answer := process.say("")) == "step":  # it never shared a file that it writes again, or it stops
        pass
    assert answer == "done" or answer.startswith("4 FolderInUse")
    assert without_times(Run(copy).episodes) == rows
    assert without_times(resumed(folder).episodes) == rows


@pytest.mark.parametrize("name", ["running.jsonl", "episodes.jsonl"])
def test_a_file_that_gets_a_second_name(process, folder, name):
    if name == "episodes.jsonl":
        assert process.say("") == process.say("") == "step"  # the last step of the episode, whose row is then written
    os.link(folder / name, folder / "second")
    before = (folder / "second").read_bytes()
    assert f"{name} has a second name" in process.stop()
    assert (folder / "second").read_bytes() == before


@pytest.mark.parametrize("action", ["resume", "train"])
def test_a_lock_that_is_removed(process, folder, rows, action, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_S", PATIENCE_S)
    (folder / ".lock").unlink()
    answers: list[str] = []
    later = threading.Timer(0.5, lambda: answers.append(process.say("")))
    later.start()
    run = resumed(folder) if action == "resume" else train_random(folder, force=True)
    later.join()
    assert answers[0].startswith("4 FolderInUse") and ".lock was removed or replaced" in answers[0]
    assert without_times(run.episodes) == rows
    assert [row["length"] for row in run.interrupted] == ([1] if action == "resume" else [])


def test_a_lock_that_is_removed_while_the_writer_is_busy(process, folder, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_S", 0.1)
    (folder / ".lock").unlink()
    with pytest.raises(FolderInUse, match=r"in use by a process whose \.lock was removed"):
        resumed(folder)
    assert ".lock was removed or replaced" in process.stop()


def test_the_command_stops_with_one_sentence_and_exit_code_4(tmp_path):
    out = tmp_path / "run"
    command = "train capax/Integrator-v0 --method random --steps 1e6 --out run"
    code = f"import sys; from capax.cli.main import main; sys.argv[1:] = {command.split()}; main()"
    with script(code, cwd=tmp_path) as child:
        wait_until((out / "episodes.jsonl").exists)
        out.rename(tmp_path / "other")
        _, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 4 and not out.exists()
    assert "Traceback" not in err and err.strip().splitlines()[-1].startswith("capax: run was deleted or moved")
