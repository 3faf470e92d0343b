"""Files of a result folder: written whole, appended safely, and nothing of somebody else's lost.

A `Folder` is open. Its files are opened by their names in it, so a folder that was moved or replaced is never mistaken for
it. No link is followed, and nothing but a plain file is opened.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from capax.core.errors import FolderInUse, InputError

if sys.platform == "win32":  # it has no folders that are open, and few links
    BY_HANDLE, FOLDER_FLAGS, FILE_FLAGS = False, 0, os.O_BINARY
else:
    BY_HANDLE = True
    FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY
    FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe without a writer would wait
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def no_guard() -> None:
    """Of a folder that is not locked."""


class Folder:
    """An open folder, to be closed. `guard` raises before a change if the folder is not to be written any more."""

    def __init__(self, path: Path, within: Folder | None = None) -> None:
        """Open the folder at `path`, or the one of this name `within` another: then it must not be a link."""
        self.path = path
        self.guard: Callable[[], None] = no_guard if within is None else within.guard
        self._handle: int | None = None
        if not BY_HANDLE:
            return
        if within is None:
            self._handle = os.open(path, FOLDER_FLAGS)
        else:
            self._handle = os.open(path.name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=within._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def handle(self) -> int | None:
        """The open folder's file descriptor; None where there are none."""
        return self._handle

    def subfolder(self, name: str, create: bool = False) -> Folder | None:
        """A folder in this one; None if it is missing."""
        if create and self.stat(name) is None:
            self.guard()
            with self._named(name):
                os.mkdir(*self._at(name), **self._dir())
            self.sync()
        status = self.stat(name)
        if status is None:
            return None
        if stat.S_ISREG(status.st_mode):
            raise InputError(f"{self.path / name} is a plain file where a run has a folder: move it away.")
        if not stat.S_ISDIR(status.st_mode):
            _check_plain(self.path / name, status.st_mode)
        return Folder(self.path / name, self)

    def names(self) -> list[str]:
        """Everything in the folder, in alphabetical order."""
        return sorted(os.listdir(self.path if self._handle is None else self._handle))

    def stat(self, name: str) -> os.stat_result | None:
        """What a name stands for, links not followed; None if it is missing."""
        try:
            return os.stat(*self._at(name), **self._dir(), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def check_plain(self, names: Iterable[str]) -> None:
        """Refuse links, pipes and other things that are no plain files under these names."""
        for name in names:
            status = self.stat(name)
            if status is not None:
                _check_plain(self.path / name, status.st_mode)

    def open(self, name: str, flags: int) -> int:
        """A file descriptor of a plain file."""
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            self.guard()
        return _open_plain(self.path / name, self._at(name)[0], flags, self._dir())

    def reader(self, name: str) -> BinaryIO:
        """A file to be read."""
        return open(self.open(name, os.O_RDONLY), "rb")

    def read(self, name: str) -> bytes:
        """A file's content."""
        with self.reader(name) as file:
            return file.read()

    def create(self, name: str) -> BinaryIO:
        """A new file without a buffer, in the place of any that is there."""
        self.remove(name)
        return open(self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b", buffering=0)

    def update(self, name: str) -> BinaryIO:
        """A file to be read and changed in its place, created if it is missing."""
        handle = self.open(name, os.O_RDWR | os.O_CREAT)
        try:
            self.check_own(handle, name)
            return open(handle, "r+b")
        except BaseException:
            os.close(handle)
            raise

    def check_own(self, handle: int, name: str) -> None:
        """Refuse to change an open file that has a second name, as `cp -al` makes: another folder would change too."""
        if os.fstat(handle).st_nlink > 1:
            raise FolderInUse(
                f"{self.path / name} has a second name (a hard link, as cp -al makes), so another folder would change with "
                "this one: the run stops; resume it, and each folder gets files of its own."
            )

    def unshare(self, names: Iterable[str]) -> None:
        """Give the folder files of its own in the place of those that have a second name elsewhere."""
        for name in names:
            status = self.stat(name)
            if status is not None and status.st_nlink > 1:
                with self.reader(name) as shared, self.atomic(name) as own:
                    while part := shared.read(1 << 20):
                        own.write(part)

    def write(self, name: str, data: bytes | str) -> None:
        """Write a file that appears whole or not at all."""
        with self.atomic(name) as file:
            file.write(data.encode() if isinstance(data, str) else data)

    @contextmanager
    def atomic(self, name: str) -> Iterator[BinaryIO]:
        """A file that gets its name when all of it is on the disk, or never."""
        self.check_plain([name])
        temporary = f".{name}.{os.getpid()}"
        self.remove(temporary)  # of an earlier process with this number
        handle = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            self.rename(temporary, name)
            self.sync()
        except BaseException:
            with suppress(OSError):  # what stopped it matters more
                os.unlink(*self._at(temporary), **self._dir())
            raise

    def append(self, name: str, lines: str) -> None:
        """Add lines to a file; they are on the disk when this returns. A last line without an end is cut off first."""
        with self.update(name) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                    file.seek(0, os.SEEK_END)
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())

    def rename(self, name: str, new: str) -> None:
        """Give a file another name, which is taken from a plain file that has it."""
        self.check_plain([name, new])
        self.guard()
        ends: dict[str, Any] = {} if self._handle is None else {"src_dir_fd": self._handle, "dst_dir_fd": self._handle}
        with self._named(new):
            os.replace(*self._at(name), *self._at(new), **ends)

    def remove(self, name: str) -> None:
        """Delete a plain file, if it is there."""
        if self.stat(name) is not None:
            self.check_plain([name])
            self.guard()
            with self._named(name):
                os.unlink(*self._at(name), **self._dir())

    def remove_temporaries(self, *names: str) -> None:
        """Delete what stopped processes have left of files with these names."""
        pattern = re.compile(rf"\.(?:{'|'.join(map(re.escape, names))})\.[0-9]+")
        for name in self.names():
            if pattern.fullmatch(name):
                self.remove(name)

    def sync(self) -> None:
        """Write the names in the folder to the disk."""
        if self._handle is not None:
            os.fsync(self._handle)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Gives an error of the disk the whole name of its file."""
        try:
            yield
        except OSError as error:
            error.filename, error.filename2 = str(self.path / name), None
            raise

    def _at(self, name: str) -> tuple[str]:
        """Where a file of this name is."""
        return (name if BY_HANDLE else str(self.path / name),)

    def _dir(self) -> dict[str, Any]:
        return {} if self._handle is None else {"dir_fd": self._handle}


def _open_plain(shown: Path, path: str, flags: int, within: dict[str, Any]) -> int:
    """A file descriptor of a plain file. No link is followed, and no pipe or device is opened."""
    with suppress(FileNotFoundError):
        _check_openable(shown, os.stat(path, **within, follow_symlinks=False).st_mode)
    try:
        handle = os.open(path, flags | FILE_FLAGS, 0o666, **within)
    except OSError as error:
        error.filename = str(shown)
        raise
    try:
        _check_openable(shown, os.fstat(handle).st_mode)  # it may have been replaced between the two
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_openable(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    _check_plain(path, mode)


def _check_plain(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no plain file")
        raise InputError(f"{path} is {kind}: a run folder holds plain files only, so put the file itself there.")


def read_plain(path: Path) -> bytes:
    """The content of a plain file."""
    with open(_open_plain(path, str(path), os.O_RDONLY, {}), "rb") as file:
        return file.read()


def write(path: Path, data: bytes | str) -> None:
    """Write a file, anywhere, that appears whole or not at all."""
    with Folder(path.parent) as folder:
        folder.write(path.name, data)


def to_jsonl(rows: Iterable[dict[str, Any]]) -> str:
    """One JSON object per line; numbers keep all their digits, and what is not finite is an error."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def to_json(value: Any) -> str:
    """Indented JSON, ended by a newline."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
