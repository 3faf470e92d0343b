"""Forked children hold nothing of a run and never continue it; workers end with their parent."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.scripts import PATIENCE_S, runs, script, wait_for, wait_until

from capax.core.errors import FolderInUse
from capax.runs import lock
from capax.runs.lock import locked
from capax.runtime import processes

HOLD = """
import os, sys, time
from pathlib import Path
from capax.runs.lock import locked
with locked(Path(sys.argv[1])):
    if not os.fork():
        os.write(1, f"child {os.getpid()}\\n".encode())
    time.sleep(600)
"""


def test_a_forked_child_that_outlives_its_parent_does_not_hold_the_folder(tmp_path):
    with script(HOLD, str(tmp_path)) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline().split()[1])  # the child itself says so: it has let go of the handles
        holder.kill()
        holder.wait()
        assert runs(child)
        with locked(tmp_path):
            assert json.loads((tmp_path / ".lock").read_text())["process"] == os.getpid()


FORK_SLOWLY = """
import os, sys, time
os.register_at_fork(after_in_child=lambda: time.sleep(1.0))
from pathlib import Path
from capax.runs.lock import locked
with locked(Path(sys.argv[1])):
    if os.fork():
        os.write(1, b"forked\\n")
    time.sleep(600)
"""


def test_a_folder_is_free_as_soon_as_a_child_of_a_killed_process_lets_go(tmp_path, monkeypatch):
    """A child has the lock from the fork on, until its first steps."""
    monkeypatch.setattr(lock, "CHILD_WAIT_S", PATIENCE_S)
    with script(FORK_SLOWLY, str(tmp_path)) as holder:
        wait_for(holder, "forked")
        holder.kill()
        holder.wait()
        with locked(tmp_path):
            assert json.loads((tmp_path / ".lock").read_text())["process"] == os.getpid()


FORK_WITHOUT_PYTHON = """
import ctypes, os, sys, time
from pathlib import Path
from capax.runs.lock import locked
with locked(Path(sys.argv[1])):
    if ctypes.PyDLL(None).fork():  # Python does not hear of it
        os.write(1, b"forked\\n")
    time.sleep(600)
"""


def test_a_child_that_a_library_has_forked_is_named_as_the_holder(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "CHILD_WAIT_S", 0.1)
    with script(FORK_WITHOUT_PYTHON, str(tmp_path)) as holder:
        wait_for(holder, "forked")
        holder.kill()
        holder.wait()
        words = rf"in use by a process that process {holder.pid} on .*, which has ended, has forked: end that one"
        with pytest.raises(FolderInUse, match=words), locked(tmp_path):
            pass


def test_a_child_has_no_lock_from_the_moment_on_that_it_is_taken(tmp_path, monkeypatch):
    """Another thread may fork right then."""
    handles, real = [], lock._flocked

    def flocked(handle: int) -> bool:
        handles.append(handle)
        assert handle in processes._private
        return real(handle)

    monkeypatch.setattr(lock, "_flocked", flocked)
    with locked(tmp_path):
        assert len(handles) == 2 and processes._private >= {*handles}
    assert not processes._private & {*handles}


COME_OUT = """
import os, sys
from capax.runtime.processes import contained
parent = os.getpid()

def forking():
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    {last}

code = contained(forking)
assert os.getpid() == parent
print(code)
"""


@pytest.mark.parametrize(("last", "code", "words"), [
    ("return 5", 0, ""), ("sys.exit(7)", 7, ""), ("sys.exit('bye')", 1, "bye\n"), ("1 / 0", 1, "ZeroDivisionError"),
])  # fmt: skip
def test_a_child_that_comes_out_of_user_code_ends_as_python_would(last, code, words):
    with script(COME_OUT.format(last=last)) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert out == f"{code}\n" and words in err and process.returncode == 0


ISOLATED = """
import sys
sys.path.insert(0, sys.argv[1])
import probing
from capax.runtime import isolated
isolated.call(probing.probe, sys.argv[1])
"""
PROBING = """
import itertools, os, pathlib, subprocess, time

def probe(folder):
    children = [os.getpid(), {others}]
    pathlib.Path(folder, "part").write_text(" ".join(map(str, children)))
    os.rename(os.path.join(folder, "part"), os.path.join(folder, "pids"))
    {hang}
"""


@pytest.mark.parametrize(("others", "hang"), [
    ('subprocess.Popen(["sleep", "600"]).pid', "time.sleep(600)"), ("", "sum(itertools.repeat(1, 10**12))"),
], ids=["with a child", "while it holds the interpreter"])  # fmt: skip
def test_an_isolated_call_ends_with_a_caller_that_is_killed(others, hang, tmp_path):
    (tmp_path / "probing.py").write_text(PROBING.format(others=others, hang=hang))
    with script(ISOLATED, str(tmp_path)) as caller:
        wait_until((tmp_path / "pids").exists)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(runs, pids))
        caller.kill()
        wait_until(lambda: not any(map(runs, pids)))


GRIDWORLD = """
import sys
from capax.cli.main import main
if __name__ == "__main__":
    main(["gridworld", "--worlds", "400", "--jobs", "2", "--methods", "0", "--out", sys.argv[1]])
"""


def test_workers_of_gridworld_end_with_a_parent_that_is_killed(tmp_path):
    with script(GRIDWORLD, str(tmp_path / "out"), stderr=subprocess.DEVNULL) as parent:
        rows = tmp_path / "out" / "worlds.jsonl"
        wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 2)  # the workers are at work
        workers = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        assert len(workers) >= 2
        parent.kill()
        wait_until(lambda: not any(map(runs, workers)))
