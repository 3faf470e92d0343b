"""A folder whose every change is watched, and what of it survives a killed process or a loss of power."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPEN = io.open


class File:
    """A file, whatever its name."""

    synced = b""
    """What of it survives a loss of power."""


class WatchedFile(io.FileIO):
    """An open file whose changes are watched."""

    def __init__(self, disk: Disk, file: Any, path: Path, mode: str) -> None:
        super().__init__(file, mode)
        self.disk, self.path = disk, path
        disk.handles[self.fileno()] = path

    def write(self, data: Any) -> int:
        data = bytes(data)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]) if self.disk.halves else (data,):
            self.disk.change("write", self.path)
            super().write(part)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.disk.handles.pop(self.fileno(), None)
        super().close()

    def truncate(self, size: int | None = None) -> int:
        self.disk.change("truncate", self.path)
        return super().truncate(size)


class Disk:
    """Calls `before` ahead of every change of a folder. With `halves`, a write is two changes.

    Nothing is really synced, because that takes long.
    """

    def __init__(self, folder: Path, before: Callable[[Disk, str], None], halves: bool = True) -> None:
        self.folder, self.before, self.halves = folder, before, halves
        self.opened: list[WatchedFile] = []
        self.handles: dict[int, Path] = {}
        self.files: dict[Path, File] = {}
        self.names: dict[Path, dict[Path, File]] = {folder: {}}
        """For each folder, the names in it that survive a loss of power."""
        self.folders = {folder}
        """The folders that survive it."""

    def change(self, action: str, path: Path) -> None:
        stem = path.name.split(f".{os.getpid()}")[0].split(".tfevents")[0]
        self.before(self, f"{action} {stem}")

    def place(self, path: Any, dir_fd: int | None = None) -> Path | None:
        """The path of a name in an open folder, or of a file descriptor, if it lies in the watched folder."""
        if isinstance(path, int):
            return self.handles.get(path)
        if dir_fd is not None and dir_fd not in self.handles:
            return None
        whole = Path(path) if dir_fd is None else self.handles[dir_fd] / path
        return whole if self.folder in (whole, *whole.parents) else None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand between capax and the disk."""
        real = {name: getattr(os, name) for name in ("open", "close", "fsync", "replace", "unlink", "mkdir")}

        def open_raw(path: Any, flags: int, *more: Any, dir_fd: int | None = None) -> int:
            place = self.place(path, dir_fd)
            if place is not None and flags & os.O_CREAT and not place.exists():
                self.change("open", place)
                self.files.setdefault(place, File())
            handle = real["open"](path, flags, *more, dir_fd=dir_fd)
            if place is not None:
                self.handles[handle] = place
            return handle

        def close(handle: int) -> None:
            self.handles.pop(handle, None)
            real["close"](handle)

        def fsync(handle: int) -> None:
            place = self.handles.get(handle)
            if place is None:
                real["fsync"](handle)
                return
            self.change("sync", place)
            if place.is_dir():
                self.names[place] = {path: file for path, file in self.files.items() if path.parent == place}
                self.folders |= {path for path in place.iterdir() if path.is_dir()}
            else:
                self.files[place].synced = place.read_bytes()

        def replace(path: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            place, after = self.place(path, src_dir_fd), self.place(new, dst_dir_fd)
            if place is not None and after is not None:
                self.change("replace", place)
            real["replace"](path, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if place is not None and after is not None:
                self.files[after] = self.files.pop(place)

        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            place = self.place(path, dir_fd)
            if place is not None:
                self.change("unlink", place)
            real["unlink"](path, dir_fd=dir_fd)
            self.files.pop(place, None)

        def mkdir(path: Any, *more: Any, dir_fd: int | None = None) -> None:
            place = self.place(path, dir_fd)
            if place is not None and not place.exists():
                self.change("mkdir", place)
            real["mkdir"](path, *more, dir_fd=dir_fd)

        for function in (close, fsync, replace, unlink, mkdir):
            patch.setattr(os, function.__name__, function)
        patch.setattr(os, "open", open_raw)
        patch.setattr(io, "open", self.open_file)
        patch.setattr(builtins, "open", self.open_file)

    def open_file(self, path: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        """Like `open`, with a `WatchedFile` if the file can be changed."""
        place = self.place(path)
        if place is None or not {*mode} & {*"wax+"}:
            return OPEN(path, mode, buffering, *more, **options)
        if not isinstance(path, int) and ("w" in mode or not place.exists()):
            self.change("open", place)
        file = WatchedFile(self, path, place, mode.replace("b", ""))
        self.opened.append(file)
        self.files.setdefault(place, File())
        if buffering == 0:
            return file
        buffered: Any = io.BufferedRandom(file) if "+" in mode else io.BufferedWriter(file)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, "utf-8", line_buffering=buffering == 1)

    def after_kill(self) -> dict[str, bytes]:
        """The files that are left if the process dies now."""
        return self._by_name({path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()})

    def after_loss_of_data(self) -> dict[str, bytes]:
        """The files that are left if the power goes now, and the disk knows all names but only synced contents."""
        return self._by_name({path: file.synced for path, file in self.files.items()})

    def after_loss_of_names(self) -> dict[str, bytes]:
        """The files that are left if the power goes now, and only synced names with synced contents survive."""
        return self._by_name(
            {path: file.synced for folder in self.folders for path, file in self.names.get(folder, {}).items()}
        )

    def _by_name(self, files: Mapping[Path, bytes]) -> dict[str, bytes]:
        """By names that another process would have chosen; without the lock, and without curves, which nothing reads."""
        named = {str(path.relative_to(self.folder)): data for path, data in files.items()}
        return {
            name.replace(f".{os.getpid()}", ".1"): data
            for name, data in sorted(named.items())
            if name != ".lock" and ".tfevents" not in name
        }


@contextmanager
def watched_folder(folder: Path, before: Callable[[Disk, str], None], halves: bool = True) -> Iterator[Disk]:
    """A process that works in a folder: when it is over, the files that it had open are closed."""
    folder.mkdir(parents=True, exist_ok=True)
    disk = Disk(folder, before, halves)
    for path in folder.rglob("*"):  # files of an earlier process have long been on the disk
        disk.folders.add(path.parent)
        if path.is_file():
            disk.files[path] = disk.names.setdefault(path.parent, {})[path] = File()
            disk.files[path].synced = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        disk.install(patch)
        try:
            yield disk
        finally:
            for file in disk.opened:
                file.close()
