"""The lock that keeps two processes from writing one run folder, and what tells a writer that the folder is no longer its own.

A lock belongs to an open file, not to the file's name: it ends with the process, however that ends. The open folder is locked
besides `.lock`, because somebody may remove that file.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from capax.core.errors import DiskFailed, FolderInUse, InputError
from capax.runs.folder import Folder
from capax.runtime.processes import closed_in_children

try:
    import fcntl
except ImportError:  # Windows has no such locks: two processes are not kept apart there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
LONGEST = 4096
"""Bytes of `.lock` that are read."""
WAIT_S = 10.0
"""How long a process that lost its `.lock` has to notice it and stop."""
CHILD_WAIT_S = 10.0
"""How long a forked child may take to let go of the lock of a process that has ended."""
STOPS = "this run stops, so that no two runs write one folder"


@contextmanager
def locked(path: Path, check: Callable[[Folder], None] = lambda folder: None) -> Iterator[Folder]:
    """Hold the folder, which is created if it is missing, or say who holds it.

    `check` is called before anything is written into a folder that no run has locked before. Every change of the yielded
    folder first makes sure that it is still there, under its name and with its lock.
    """
    with ExitStack() as resources:
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = resources.enter_context(Folder(path))
            if folder.handle is not None:
                resources.enter_context(closed_in_children(folder.handle))
            if folder.stat(LOCK) is None:
                check(folder)
            lock = _acquired(folder, resources)
        except OSError as error:
            raise DiskFailed(
                f"{path} cannot be written ({error.strerror}): make it writable, or choose another folder."
            ) from None
        folder.guard = _guard(folder, lock)
        yield folder


def _acquired(folder: Folder, resources: ExitStack) -> int:
    """The open and locked `.lock` of a folder."""
    deadline = time.monotonic() + CHILD_WAIT_S
    while True:
        lock = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
        with ExitStack() as opened:
            opened.callback(os.close, lock)
            opened.enter_context(closed_in_children(lock))  # before it is locked: no child must get the lock for good
            content = os.pread(lock, LONGEST, 0) if fcntl is not None else b""
            if content.strip() and not content.startswith(b'{"process"'):
                raise InputError(f"{folder.path / LOCK} is not of capax: choose another folder, or move it away.")
            if not _flocked(lock):
                ended = _holder_has_ended(content)
                if ended and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                user, advice = holder(content), "wait until it is done"
                if ended:
                    user, advice = f"a process that {user}, which has ended, has forked", "end that one"
                raise FolderInUse(f"{folder.path} is in use by {user}: {advice}, or choose another folder.")
            status, named = os.fstat(lock), folder.stat(LOCK)
            if named is None or not os.path.samestat(status, named):
                continue  # it was replaced meanwhile
            if status.st_nlink > 1:  # the folder was copied by hard links: the lock is to be its own
                folder.remove(LOCK)
                continue
            resources.push(opened.pop_all())
            break
    if folder.handle is not None:
        _wait_for_folder(folder, folder.handle)
    text = json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode()
    with suppress(OSError):  # a full disk is reported by what matters more
        os.lseek(lock, 0, os.SEEK_SET)
        os.write(lock, text)
        os.ftruncate(lock, len(text))
    return lock


def _flocked(handle: int) -> bool:
    """Whether nobody else holds the lock of this open file or folder."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks, or without those of folders
    return True


def _holder_has_ended(content: bytes) -> bool:
    """Whether the process that holds the lock, by its file, is one of this machine that has ended.

    Then the lock is in the hands of a child that it has forked a moment ago.
    """
    try:
        holder = json.loads(content)
        if holder["host"] != socket.gethostname():
            return False
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    return False


def _wait_for_folder(folder: Folder, handle: int) -> None:
    """Lock the folder itself. Who still holds it has lost its `.lock`, and stops before its next change."""
    deadline = time.monotonic() + WAIT_S
    while not _flocked(handle):
        if time.monotonic() > deadline:
            raise FolderInUse(
                f"{folder.path} is in use by a process whose {LOCK} was removed: wait until it has stopped, or choose another "
                "folder."
            )
        time.sleep(0.05)


def _guard(folder: Folder, lock: int) -> Callable[[], None]:
    """A function that raises if the folder is not the one of this name any more, or its lock is gone."""
    own, absolute, shown = os.fstat(lock), os.path.abspath(folder.path), folder.path
    identity = os.stat(absolute) if folder.handle is None else os.fstat(folder.handle)

    def guard() -> None:
        try:
            named = os.stat(absolute)
        except (FileNotFoundError, NotADirectoryError):
            raise FolderInUse(f"{shown} was deleted or moved while a run wrote it: {STOPS}.") from None
        if not os.path.samestat(named, identity):
            raise FolderInUse(f"{shown} was deleted or moved while a run wrote it, and replaced: {STOPS}.")
        status = folder.stat(LOCK)
        if status is None or not os.path.samestat(status, own):
            raise FolderInUse(f"{shown / LOCK} was removed or replaced while a run wrote the folder: {STOPS}.")
        if status.st_nlink > 1:
            raise FolderInUse(
                f"{shown} was copied by hard links (as cp -al does) while a run wrote it, so both folders would change: "
                f"{STOPS}. Resume it, and each folder gets files of its own."
            )

    return guard


def holder(content: bytes) -> str:
    """Who holds the lock, as far as its file says."""
    try:
        holder = json.loads(content)
        return f"process {int(holder['process'])} on {str(holder['host'])[:64]}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"
