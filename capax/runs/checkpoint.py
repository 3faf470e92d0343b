"""Checkpoints: a run's progress, written whole, and the newest whole one found again.

`checkpoints/` holds the two newest states, a file each, and `buffer.log`, which only grows: a state says how much of it is
its own. The log is on the disk before the state that needs it, and a state has its name only when all of it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from capax.core.checks import error_text, one_line
from capax.core.errors import Damaged, InputError
from capax.core.loop import Progress
from capax.core.types import Record
from capax.runs import archive, folder, state
from capax.runs.config import FORMAT, FREE, RunConfig
from capax.runs.state import StateLike, StateReader

FOLDER, LOG = "checkpoints", "buffer.log"
KEPT = 2
"""Newest states that are kept."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    progress: Progress
    row: dict[str, Any] | None
    """The last episode's row; None before the first one."""
    version: str
    """Of the capax that wrote it."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER
        self._rows = 0
        """Transitions that the log holds."""
        self._bytes = 0
        """Bytes of the log that belong to the newest checkpoint."""

    def clear(self) -> None:
        """Delete the checkpoints of an earlier run."""
        for path in self.folder.glob("*"):
            path.unlink()

    def save(self, progress: Progress, row: Mapping[str, Any] | None, config: RunConfig) -> None:
        """Add a checkpoint; the third newest is deleted."""
        if not self.folder.exists():
            self.folder.mkdir()
            folder.sync(self.folder.parent)
        buffer = state.buffer_of(progress.state)
        if buffer is not None:
            self._append(buffer)
        arrays: dict[str, Any] = {}
        content = {
            "format": FORMAT,
            "version": config.version,
            "settings": config.as_dict(),
            "number": progress.number,
            "steps": progress.steps,
            "log": self._bytes,
            "row": row,
            "state": state.flatten(progress.state, arrays),
            "fresh": [state.flatten(episode, arrays) for episode in progress.fresh],
        }
        with folder.atomic(self.folder / f"episode-{progress.number:06d}.safetensors") as file:
            archive.write(file, arrays, json.dumps(content, allow_nan=False))
        for old in self.names()[KEPT:]:
            old.unlink()

    def names(self) -> list[Path]:
        """The checkpoints, newest first."""
        paths = [path for path in self.folder.glob("episode-*.safetensors") if path.stem[8:].isdecimal()]
        return sorted(paths, key=lambda path: (len(path.name), path.name), reverse=True)

    @property
    def number(self) -> int:
        """Episodes before the newest checkpoint, whole or not; 0 without one."""
        return max((int(path.stem[8:]) for path in self.names()), default=0)

    def newest(self, config: RunConfig, like: StateLike) -> tuple[Saved | None, list[str]]:
        """The newest whole checkpoint and warnings; damaged ones are set aside. None if there is none."""
        warnings: list[str] = []
        for path in self.folder.glob(".episode-*"):
            path.unlink()  # of a process that was stopped while it wrote
        for path in (names := self.names()):
            try:
                saved, self._rows, self._bytes = read(path, config, like)
            except Damaged as error:
                aside = path.with_name(path.name + ".damaged")
                os.replace(path, aside)
                warnings.append(f"{path} is damaged ({error}): it was set aside as {aside.name}.")
                continue
            log = self.folder / LOG
            if log.exists():
                os.truncate(log, self._bytes)
            return saved, warnings
        if names:
            raise InputError(
                f"no checkpoint in {self.folder} is whole ({warnings[0].rstrip('.')}): restore one, or retrain with --force."
            )
        return None, warnings

    def _append(self, buffer: Any) -> None:
        """Append to the log what it does not hold; what an interrupted write left behind its end is overwritten."""
        log = self.folder / LOG
        if self._bytes and buffer.added == self._rows:
            return
        with log.open("r+b" if log.exists() else "w+b") as file:
            file.seek(self._bytes)
            file.truncate()
            size = sum(
                archive.write(file, arrays, json.dumps({"added": added})) for arrays, added in buffer.since(self._rows)
            )
            file.flush()
            os.fsync(file.fileno())
        self._rows, self._bytes = buffer.added, self._bytes + size


def read(
    path: Path, config: RunConfig, like: StateLike, *, log: bool = True, part: str | None = None
) -> tuple[Saved, int, int]:
    """A checkpoint, the transitions in its part of the log, and the bytes of that part.

    Without `log` the buffer stays empty. With `part`, only this field of the state is restored; `like` is an example of it.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            arrays, text, length = archive.read(file, size)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    if length != size:
        raise Damaged("it continues behind its end")
    content = _content(path, text)
    try:
        changed = _changed(content["settings"], config.as_dict())
        if changed:
            names = one_line(", ".join(sorted(changed)), 160)
            raise InputError(f"{path} belongs to other settings ({names}) than config.json: restore that file.")
        number, steps, log_bytes, row = (content[name] for name in ("number", "steps", "log", "row"))
        version = one_line(content["version"], 40)
        if not all(type(n) is int and 0 <= n < 2**53 for n in (number, steps, log_bytes)) or not isinstance(
            row, dict | None
        ):
            raise Damaged("it has an invalid count or row")
        json.dumps(row, allow_nan=False)  # it may be written to episodes.jsonl
        rows = 0

        def buffer(count: int, added: int) -> Any:
            nonlocal rows
            rows, empty = added, state.buffer_of(like.example)
            return read_log(path.parent / LOG, log_bytes, count, added, type(empty)) if log else empty

        reader = StateReader(arrays, buffer)
        payload = content["state"] if part is None else content["state"]["fields"][part]
        restored = state.restore(payload, like, reader)
        episodes = content["fresh"] if part is None else ()
        fresh = tuple(state.restore_episode(episode, reader, config) for episode in episodes)
    except (Damaged, InputError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"it holds no progress of a run, {error_text(error)}") from None
    return Saved(Progress(number, steps, restored, fresh), row, version), rows, log_bytes


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of settings that differ and must not. The length of an episode may have become known since."""
    free = {*FREE, "episode_steps", "capacity"} if before["episode_steps"] is None else {*FREE}
    return [name for name in {*before, *now} - free if before.get(name) != now.get(name)]


def _content(path: Path, text: str) -> dict[str, Any]:
    """The JSON of a checkpoint of this format."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("its text is no JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        version = one_line(str(content.get("version")), 20) if isinstance(content, dict) else None
        raise InputError(f"{path} was written by capax {version} in another format, which this one cannot read.")
    return content


def read_log(path: Path, length: int, size: int, added: int, kind: Any) -> Any:
    """The buffer that held the last `size` of `added` transitions when the log was `length` bytes long."""
    at = 0

    def records(file: BinaryIO) -> Iterator[Record]:
        nonlocal at
        while at < length:
            arrays, text, record_length = archive.read(file, length - at)
            at += record_length
            yield arrays, int(json.loads(text)["added"])

    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < length:
                raise Damaged("it ends too early")
            return kind.restored(records(file), size, added, length)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from None
    except Damaged as error:
        raise Damaged(f"{path.name}, byte {at}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, MemoryError) as error:
        raise Damaged(f"{path.name} holds no transitions, {error_text(error)}") from None


def policy_state(
    run: Path, config: RunConfig, like: StateLike, warn: Callable[[str], None], part: str | None = None
) -> Any:
    """The agent's state in the newest whole checkpoint, or one part of it, without its buffer: enough to act.

    No file is moved.
    """
    for path in Checkpoints(run).names():
        try:
            return read(path, config, like, log=False, part=part)[0].progress.state
        except Damaged as error:
            warn(f"{path} is damaged ({error}): the one before it is used.")
    raise InputError(f"{run} holds no whole checkpoint: it has learned nothing that could act, so train first.")
