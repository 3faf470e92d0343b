"""Files of a result folder: written whole, appended safely, and nothing of somebody else's lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from capax.core.errors import InputError


def prepare(folder: Path, names: Sequence[str], force: bool) -> None:
    """Create the folder and check that the files `names` can be written; refuse if one exists, unless `force`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".capax.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written ({error.strerror}): choose a folder that can.") from None
    folders = [name for name in names if (folder / name).is_dir()]
    if folders:
        raise InputError(f"--out {folder} holds a folder named {folders[0]}: choose another folder.")
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        raise InputError(
            f"--out {folder} already holds {', '.join(there)}: add --resume (resume=True) to continue it, choose another "
            "folder, or add --force (force=True) to overwrite it."
        )


def refuse_links(folder: Path) -> None:
    """Refuse a folder that holds a link: what is written through it would be written elsewhere."""
    for path in [*folder.glob("*"), *folder.glob("*/*")]:
        if path.is_symlink():
            raise InputError(f"{path} is a link: a run folder holds plain files only, so put the file itself there.")


def write(path: Path, data: bytes | str) -> None:
    """Write a file that appears whole or not at all."""
    with atomic(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when all of it is on the disk, or never."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path, *names: str) -> None:
    """Delete what stopped processes have left of files with these names."""
    for name in names:
        for path in folder.glob(f".{name}.*"):
            path.unlink()


def append(path: Path, lines: str) -> None:
    """Add lines to a file; they are on the disk when this returns. A last line without an end is cut off first."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_jsonl(rows: Iterable[dict[str, Any]]) -> str:
    """One JSON object per line; numbers keep all their digits, and what is not finite is an error."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def to_json(value: Any) -> str:
    """Indented JSON, ended by a newline."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
