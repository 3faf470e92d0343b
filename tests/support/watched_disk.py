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

    def __init__(self, disk: Disk, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self.disk, self.path = disk, path

    def write(self, data: Any) -> int:
        data = bytes(data)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]) if self.disk.halves else (data,):
            self.disk.change("write", self.path)
            super().write(part)
        return len(data)

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

    def within(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and self.folder in (Path(path), *Path(path).parents)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand between capax and the disk."""
        real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink", "truncate", "mkdir")}

        def open_raw(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if not self.within(path):
                return real["open"](path, flags, *more, **options)
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self.change("open", Path(path))
                self.files.setdefault(Path(path), File())
            handle = real["open"](path, flags, *more, **options)
            self.handles[handle] = Path(path)
            return handle

        def fsync(handle: int) -> None:
            path = next((file.path for file in self.opened if not file.closed and file.fileno() == handle), None)
            if path is not None:
                self.change("sync", path)
                self.files[path].synced = path.read_bytes()
            elif handle in self.handles:  # of a folder
                folder = self.handles[handle]
                self.change("sync", folder)
                self.names[folder] = {path: file for path, file in self.files.items() if path.parent == folder}
                self.folders |= {path for path in folder.iterdir() if path.is_dir()}
            else:
                real["fsync"](handle)

        def watched(name: str) -> Callable[..., Any]:
            def call(path: Any, *more: Any, **options: Any) -> Any:
                if not self.within(path):
                    return real[name](path, *more, **options)
                if name in ("replace", "truncate") or Path(path).exists() != (name == "mkdir"):
                    self.change(name, Path(path))
                result = real[name](path, *more, **options)
                if name == "replace":
                    self.files[Path(more[0])] = self.files.pop(Path(path))
                elif name == "unlink":
                    self.files.pop(Path(path))
                return result

            return call

        for name in ("replace", "unlink", "truncate", "mkdir"):
            patch.setattr(os, name, watched(name))
        patch.setattr(os, "open", open_raw)
        patch.setattr(os, "fsync", fsync)
        patch.setattr(io, "open", self.open_file)
        patch.setattr(builtins, "open", self.open_file)

    def open_file(self, path: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        """Like `open`, with a `WatchedFile` if the file can be changed."""
        if not self.within(path) or not {*mode} & {*"wax+"}:
            return OPEN(path, mode, buffering, *more, **options)
        if "w" in mode or not Path(path).exists():
            self.change("open", Path(path))
        file = WatchedFile(self, Path(path), mode.replace("b", ""))
        self.opened.append(file)
        self.files.setdefault(Path(path), File())
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
