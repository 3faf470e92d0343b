"""Processes that tests start, talk to and send signals to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def script(code: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this code. It finds capax, its output and errors are pipes, and it is killed at the end."""
    command = [sys.executable, "-c", code, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    with subprocess.Popen(command, text=True, start_new_session=True, **{**pipes, **options}) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """The environment variables of a process that finds capax and the modules of its folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def wait_for(child: subprocess.Popen[str], line: str) -> None:
    """Wait until the process prints this line."""
    assert child.stdout is not None
    for text in child.stdout:
        if text == line + "\n":
            return
    raise AssertionError(f"the process ended without printing {line!r}: {child.communicate()[1]}")


def runs(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
