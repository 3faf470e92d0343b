"""Processes that tests start, talk to and send signals to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0
"""Seconds that a test waits for what must happen. It only ends tests that would hang: a busy machine may be slow."""
BUSY_TICKS = 5
"""Ticks of the processor's clock, of 10 ms each, that no script takes between its last line of output and its next call."""


@contextmanager
def script(code: str, *arguments: str, patience: float = PATIENCE_S, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this code. It finds capax, its input and outputs are pipes, and it is killed at the end, or after
    `patience` seconds, so that a test that reads from it does not hang.

    So are the processes that it has forked, also if it has ended before them.
    """
    command = [sys.executable, "-c", code, *arguments]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")} | {"env": environment()}
    with subprocess.Popen(command, text=True, start_new_session=True, **{**pipes, **options}) as child:

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        late = threading.Timer(patience, kill)
        late.start()
        try:
            yield child
        finally:
            late.cancel()
            kill()


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


def wait_until(happened: Callable[[], Any]) -> None:
    """Wait until this is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_busy(child: subprocess.Popen[str]) -> None:
    """Wait until the main thread of a process, which has just said something, computes what it does next."""
    before = _processor_ticks(child.pid)
    wait_until(lambda: _processor_ticks(child.pid) >= before + BUSY_TICKS)


def runs(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        return _status(process)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before its file was opened, or before it was read
        return False


def _status(process: int) -> list[str]:
    """What the system says of the main thread of a process, from its state on."""
    return Path(f"/proc/{process}/task/{process}/stat").read_text().rpartition(")")[2].split()


def _processor_ticks(process: int) -> int:
    return sum(map(int, _status(process)[11:13]))
