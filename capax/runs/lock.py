"""The lock that keeps two processes from writing one run folder.

It belongs to an open file, not to the file's name: it ends with the process, however that ends.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capax.core.errors import DiskFailed, FolderInUse
from capax.runtime.processes import closed_in_children

try:
    import fcntl
except ImportError:  # Windows has no such locks: two processes are not kept apart there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is created if it is missing, or say who holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise DiskFailed(
            f"{folder} cannot be written ({error.strerror}): make it writable, or choose another folder."
        ) from None
    with file, closed_in_children(file.fileno()):
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"{folder} is in use by {holder(folder)}: wait until it is done, or choose another folder."
            ) from None
        except OSError:
            pass  # a file system without locks
        try:
            file.truncate(0)
            file.write(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
            file.flush()
        except OSError:
            pass  # a full disk is reported by what matters more
        yield


def holder(folder: Path) -> str:
    """Who holds the lock, as far as the file says."""
    try:
        holder = json.loads((folder / LOCK).read_text())
        return f"process {int(holder['process'])} on {str(holder['host'])[:64]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
