"""Processes that user code forks, and processes of capax that must end with their parent.

A forked child has a copy of everything: open files, signal handlers, and the stack of the training. It must not hold the
parent's lock or act on the parent's signals, and it must not continue the training when it comes out of the user's code.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from capax.runtime.terminal import say_lines

T = TypeVar("T")
_private: set[int] = set()
"""File descriptors that a forked child must not share."""


@contextmanager
def closed_in_children(*descriptors: int) -> Iterator[None]:
    """A context in which a forked child gets the null device in place of these file descriptors.

    They are not closed there: the objects that own them may close them again, when the numbers belong to other files.
    """
    _private.update(descriptors)
    try:
        yield
    finally:
        _private.difference_update(descriptors)


def _forget_private() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _private:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _private.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_private)


def contained(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a user's function. A process that it has forked ends when it comes out of the function."""
    process = os.getpid()
    try:
        result = function(*arguments)
    except BaseException as error:
        end_in_child(process, error)
        raise
    end_in_child(process)
    return result


def end_in_child(process: int, error: BaseException | None = None) -> None:
    """End this process, as Python would after `error`, if it is a child of the process with this number."""
    if os.getpid() != process:
        _end(error)


def _end(error: BaseException | None) -> NoReturn:
    code: Any = 0
    with suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code
            if code is not None and not isinstance(code, int):
                say_lines(str(code), error=True)
                code = 1
        elif error is not None:
            code = 1
            say_lines("".join(traceback.format_exception(error)), error=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def end_with_parent() -> None:
    """End this process of `multiprocessing` as soon as its parent has ended, however that ended."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent,), daemon=True).start()


def _wait_for(parent: Any) -> None:
    parent.join()
    os._exit(1)
