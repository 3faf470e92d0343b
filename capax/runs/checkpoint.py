"""How does a run's progress come to be on disk whole, and how is the newest whole one found again?

`checkpoints/` holds the two newest states, a file each, and `buffer.log`, which only grows: a state says how much of it is
its own. The log is on the disk before the state that needs it, and a state has its name only when all of it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from capax import __version__
from capax.errors import Damaged, InputError
from capax.loop import Progress
from capax.runs import folder, tensors, tree
from capax.types import Episode, Record

FOLDER, LOG = "checkpoints", "buffer.log"
FORMAT = 1
KEPT = 2
"""Newest states that are kept."""
FREE = ("steps", "version", "commit", "device")
"""What may change in the settings of a run that goes on."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    progress: Progress
    row: dict[str, Any] | None
    """Of the last episode; None before the first one."""
    version: str
    """Of the capax that wrote it."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER
        self._rows = 0
        """Transitions that the log has seen."""
        self._bytes = 0
        """Of the log, that belong to the newest checkpoint."""

    def clear(self) -> None:
        """Forget an earlier run."""
        for path in self.folder.glob("*"):
            path.unlink()

    def save(self, progress: Progress, row: Mapping[str, Any] | None, config: Mapping[str, Any]) -> None:
        """Add a checkpoint; the third newest goes."""
        if not self.folder.exists():
            self.folder.mkdir()
            folder.sync(self.folder.parent)
        buffer = tree.buffer_of(progress.state)
        if buffer is not None:
            self._log(buffer)
        arrays: dict[str, Any] = {}
        said = {
            "format": FORMAT,
            "version": __version__,
            "settings": dict(config),
            "number": progress.number,
            "steps": progress.steps,
            "log": self._bytes,
            "row": row,
            "state": tree.flatten(progress.state, arrays),
            "fresh": tree.flatten(list(progress.fresh), arrays),
        }
        with folder.whole(self.folder / f"episode-{progress.number:06d}.safetensors") as file:
            tensors.write(file, arrays, json.dumps(said, allow_nan=False))
        for old in self.names()[KEPT:]:
            old.unlink()

    def names(self) -> list[Path]:
        """The checkpoints, newest first."""
        found = [path for path in self.folder.glob("episode-*.safetensors") if path.stem[8:].isdecimal()]
        return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)

    @property
    def number(self) -> int:
        """Episodes that the newest checkpoint has seen, whole or not; 0 without one."""
        return max((int(path.stem[8:]) for path in self.names()), default=0)

    def newest(self, config: Mapping[str, Any], like: Any) -> tuple[Saved | None, list[str]]:
        """The newest whole checkpoint, to go on from, and warnings; damaged ones are set aside. None if there is none.

        `like` is a state with the shapes that this run's has.
        """
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
                f"no checkpoint in {self.folder} is whole ({warnings[0].rstrip('.')}): restore one, or train anew "
                "with --force."
            )
        return None, warnings

    def _log(self, buffer: Any) -> None:
        """Append what the log has not seen; whatever an interrupted writing left behind its end is overwritten."""
        log = self.folder / LOG
        if self._bytes and buffer.added == self._rows:
            return
        with log.open("r+b" if log.exists() else "w+b") as file:
            file.seek(self._bytes)
            file.truncate()
            wrote = sum(
                tensors.write(file, arrays, json.dumps({"added": added})) for arrays, added in buffer.since(self._rows)
            )
            file.flush()
            os.fsync(file.fileno())
        self._rows, self._bytes = buffer.added, self._bytes + wrote


def read(path: Path, config: Mapping[str, Any], like: Any, *, log: bool = True) -> tuple[Saved, int, int]:
    """A checkpoint, the transitions in its part of the log, and the bytes of that; without `log` the buffer stays empty."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            arrays, text, taken = tensors.read(file, size)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    if taken != size:
        raise Damaged("it goes on behind its end")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("its text is no JSON") from None
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        version = said.get("version") if isinstance(said, dict) else None
        raise InputError(f"{path} was written by capax {version}, which this one ({__version__}) cannot read.")
    try:
        changed = [n for n in {*said["settings"], *config} - {*FREE} if said["settings"].get(n) != config.get(n)]
        if changed:
            raise InputError(
                f"{path} belongs to other settings ({', '.join(sorted(changed))}) than config.json: restore that file."
            )
        number, steps, length, row = said["number"], said["steps"], said["log"], said["row"]
        if not all(type(n) is int and n >= 0 for n in (number, steps, length)) or not isinstance(row, dict | None):
            raise Damaged("its numbers are none")
        seen = 0

        def logged(count: int, added: int) -> Any:
            nonlocal seen
            seen, empty = added, tree.buffer_of(like)
            if empty is None:
                raise Damaged("it has a buffer, which this run's agent has not")
            return read_log(path.parent / LOG, length, count, added, type(empty)) if log else empty

        state = tree.unflatten(said["state"], arrays, logged)
        fresh = tree.unflatten(said["fresh"], arrays, logged)
        tree.check(state, like)
        if not all(isinstance(episode, Episode) for episode in fresh):
            raise Damaged("what it has not learned from are no episodes")
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"it holds no progress of a run ({error!r})") from None
    return Saved(Progress(number, steps, state, tuple(fresh)), row, str(said["version"])), seen, length


def read_log(path: Path, length: int, size: int, added: int, kind: Any) -> Any:
    """The buffer that held the last `size` of `added` transitions when the log was `length` bytes long."""
    at = 0

    def records(file: BinaryIO) -> Iterator[Record]:
        nonlocal at
        while at < length:
            arrays, text, taken = tensors.read(file, length - at)
            at += taken
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
        raise Damaged(f"{path.name} holds no transitions ({error!r})") from None


def policy_state(run: Path, config: Mapping[str, Any], like: Any, warn: Callable[[str], None]) -> Any:
    """The agent's state in the newest whole checkpoint, without its buffer: enough to act. Nothing is moved."""
    for path in Checkpoints(run).names():
        try:
            return read(path, config, like, log=False)[0].progress.state
        except Damaged as error:
            warn(f"{path} is damaged ({error}): the one before it is used.")
    raise InputError(f"{run} holds no whole checkpoint: it has learned nothing that could act, so train first.")
