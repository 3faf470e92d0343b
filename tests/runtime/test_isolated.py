"""A call in a new process returns the answer, or says why there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scripts import runs, wait_until

from capax.runtime import isolated


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes a function `probe(*arguments)` in a module that is found through `sys.path` only."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(body: str) -> Any:
        code = "import os, sys, time\n\ndef probe(*arguments):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / "probing.py").write_text(code)

        def probe() -> None:
            """Stands for the function of that name in the module."""

        probe.__module__ = "probing"
        return probe

    return make


def test_the_answer_comes_back(function):
    answer = isolated.call(function("return {'arguments': arguments, 'process': os.getpid()}"), "a", "b c")
    assert answer["arguments"] == ["a", "b c"]


def test_the_function_runs_in_another_process(function):
    assert isolated.call(function("return os.getpid()")) != os.getpid()


def test_output_of_a_library_is_not_the_answer(function, capfd):
    assert isolated.call(function("print('hello', end=''); print('{}', file=sys.stderr); return 3")) == 3
    assert capfd.readouterr() == ("", "")


def test_an_exit_after_the_answer_does_not_matter(function):
    assert isolated.call(function("import atexit; atexit.register(lambda: print('bye') or os._exit(9)); return 3")) == 3


def test_a_variable_can_be_omitted(function, monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("DROPPED", "2")
    probe = function("return [os.environ.get(name) for name in arguments]")
    assert isolated.call(probe, "KEPT", "DROPPED", without=["DROPPED"]) == ["1", None]


def test_nothing_of_the_current_folder_is_found(function, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "only_here.py").write_text("")
    monkeypatch.chdir(tmp_path / "mine")
    for here in ("", str(tmp_path / "mine")):
        monkeypatch.setattr(sys, "path", [here, *sys.path])
        with pytest.raises(isolated.CallFailed, match="No module named 'only_here'"):
            isolated.call(function("import only_here"))


@pytest.mark.parametrize(("body", "why"), [
    ("raise KeyError('lost')", "KeyError: 'lost'"),
    ("assert not 'this'", "AssertionError"),
    ("from capax.core.errors import InputError; raise InputError('The pen is dry: fill it.')", "The pen is dry: fill it."),
    ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ("os.kill(os.getpid(), 9)", "the process was stopped (Killed)"),
    ("print('gone', file=sys.stderr); os._exit(3)", "gone"),
    ("os._exit(3)", "the process ended with code 3"),
    ("os._exit(0)", "the process ended without an answer"),
    ("print('{', flush=True); os._exit(0)", "the process ended without an answer"),
])  # fmt: skip
def test_the_error_says_why_there_is_no_answer(function, body, why):
    with pytest.raises(isolated.CallFailed) as failed:
        isolated.call(function(body))
    assert str(failed.value) == why


def test_a_process_that_hangs_is_ended_with_its_children(function, monkeypatch, tmp_path):
    child, communicate = tmp_path / "child", subprocess.Popen.communicate

    def communicate_once_it_hangs(*arguments: Any, **options: Any) -> Any:
        wait_until(child.exists)
        return communicate(*arguments, **options)

    monkeypatch.setattr(isolated, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(subprocess.Popen, "communicate", communicate_once_it_hangs)
    probe = function("""
        import pathlib, subprocess
        child, path = subprocess.Popen(["sleep", "600"]), pathlib.Path(arguments[0])
        path.with_suffix(".part").write_text(str(child.pid))
        path.with_suffix(".part").rename(path)
        child.wait()
    """)
    with pytest.raises(isolated.CallFailed, match=r"^no answer within 0\.3 s$"):
        isolated.call(probe, str(child))
    wait_until(lambda: not runs(int(child.read_text())))
