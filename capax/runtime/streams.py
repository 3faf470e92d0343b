"""Standard streams that cannot end a run: closed ones, full ones, and ones whose reader has gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class ForgivingStream:
    """A text stream whose writes never fail. What cannot be written is dropped."""

    def __init__(self, target: Callable[[], Any], *, replace_broken: bool = False) -> None:
        """`target` returns the stream to write to, or None if there is none. With `replace_broken`, its file becomes the null
        device when its reader has gone, so that programs that the environment has started can write to it too."""
        self._target, self._replace_broken = target, replace_broken

    def write(self, text: str) -> int:
        self._call("write", text)
        return len(text)

    def flush(self) -> None:
        self._call("flush")

    def _call(self, method: str, *arguments: str) -> None:
        try:
            if (target := self._target()) is not None:
                getattr(target, method)(*arguments)
        except BrokenPipeError:
            if self._replace_broken:
                _replace(self._target())
        except (OSError, ValueError):  # ValueError: it was closed
            pass

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return (target := self._target()) is not None and bool(target.isatty())
        return False

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target(), name)


def standard_error() -> ForgivingStream:
    """The `sys.stderr` at the time of each write; below a live line of rich, the stream that the line is written to."""
    return ForgivingStream(lambda: getattr(sys.stderr, "rich_proxied_file", sys.stderr))


@contextmanager
def forgiving_standard_error() -> Iterator[None]:
    """A context in which writing to `sys.stderr` never fails."""
    open_missing()
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    original = sys.stderr
    sys.stderr = ForgivingStream(lambda: original, replace_broken=True)
    try:
        yield
    finally:
        sys.stderr = original


@contextmanager
def forgiving_standard_output() -> Iterator[None]:
    """A context in which what an environment prints never fails. A later write still reports that the reader has gone."""
    original = sys.stdout
    sys.stdout = ForgivingStream(lambda: original)
    try:
        yield
    finally:
        sys.stdout = original


def open_missing() -> None:
    """Open the null device in place of standard streams that are closed: the next file would get their number.

    Libraries write errors to number 2, whatever file that is.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                null = os.open(os.devnull, os.O_RDWR)
                if null == descriptor:
                    os.set_inheritable(null, True)
                else:
                    os.dup2(null, descriptor)
                    os.close(null)


def _replace(stream: Any) -> None:
    """Let the null device take the place of a stream's file."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
