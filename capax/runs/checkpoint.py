"""Checkpoints: a run's progress, written whole, and the newest whole one found again.

`checkpoints/` holds the two newest states, a file each, and the log of transitions (`buffer_log.py`): a state says how much of
it is its own. The log is on the disk before the state that needs it, and a state has its name only when all of it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from capax.core.checks import error_text, one_line
from capax.core.errors import Damaged, InputError
from capax.core.loop import Progress
from capax.runs import archive, state
from capax.runs.buffer_log import LOG, PARITY, BufferLog, Extent
from capax.runs.config import FORMAT, FREE, RunConfig
from capax.runs.folder import Folder
from capax.runs.state import StateLike, StateReader
from capax.runtime.switches import PRECISION

FOLDER = "checkpoints"
KEPT = 2
"""Newest states that are kept."""
NAME = re.compile(r"episode-([0-9]{6,15})\.safetensors")
OWN = re.compile(rf"{NAME.pattern}(\.damaged)?|{LOG}|{PARITY}|\.({NAME.pattern}|{LOG}|{PARITY})\.[0-9]+")
"""All names that capax writes in `checkpoints/`; other files there are left alone."""
TEMPORARY = re.compile(rf"\.({NAME.pattern}|{LOG}|{PARITY})\.[0-9]+")
"""What a process that was stopped while it wrote leaves behind."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    progress: Progress
    row: dict[str, Any] | None
    """The last episode's row; None before the first one."""
    version: str
    """Of the capax that wrote it."""


class Misfit(Damaged):
    """A checkpoint that is whole to the byte, but holds no state of this run's agent."""


class LogDamaged(Damaged):
    """A checkpoint that is whole, but whose part of the log is not."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Folder) -> None:
        self._run, self._log = run, BufferLog()
        self._unusable: set[str] = set()
        """Checkpoints whose log is damaged: the run continues from an older one, until it has written them anew."""

    def clear(self) -> None:
        """Delete the checkpoints of an earlier run, and nothing else."""
        if (folder := self._run.subfolder(FOLDER)) is not None:
            with folder:
                for name in folder.names():
                    if OWN.fullmatch(name):
                        folder.remove(name)

    def save(self, progress: Progress, row: Mapping[str, Any] | None, config: RunConfig) -> None:
        """Add a checkpoint; the third newest is deleted."""
        folder = self._run.subfolder(FOLDER, create=True)
        assert folder is not None
        with folder:
            buffer = state.buffer_of(progress.state)
            if buffer is not None:
                self._log.append(folder, buffer)
            arrays: dict[str, Any] = {}
            content = {
                "format": FORMAT,
                "version": config.version,
                "settings": config.as_dict(),
                "number": progress.number,
                "steps": progress.steps,
                "log": self._log.end.bytes,
                "row": row,
                "state": state.flatten(progress.state, arrays),
                "fresh": [state.flatten(episode, arrays) for episode in progress.fresh],
            }
            with folder.atomic(f"episode-{progress.number:06d}.safetensors") as file:
                archive.write(file, arrays, json.dumps(content, allow_nan=False))
            self._unusable.discard(f"episode-{progress.number:06d}.safetensors")
            for old in newest_first(folder)[KEPT:]:
                folder.remove(old)

    @property
    def number(self) -> int:
        """Episodes before the newest checkpoint that has not turned out to be unusable; 0 without one."""
        folder = self._run.subfolder(FOLDER)
        if folder is None:
            return 0
        with folder:
            return max((number_of(name) for name in newest_first(folder) if name not in self._unusable), default=0)

    def newest(self, config: RunConfig, like: StateLike) -> tuple[Saved | None, list[str]]:
        """The newest checkpoint that can be used, and warnings; damaged ones are set aside. None if there is none."""
        folder = self._run.subfolder(FOLDER)
        if folder is None:
            return None, []
        with folder:
            for name in folder.names():
                if TEMPORARY.fullmatch(name):
                    folder.remove(name)
            folder.unshare((LOG, PARITY))
            return self._newest(folder, config, like)

    def _newest(self, folder: Folder, config: RunConfig, like: StateLike) -> tuple[Saved | None, list[str]]:
        warnings: list[str] = []
        misfits: list[str] = []
        for name in newest_first(folder):
            path = folder.path / name
            try:
                saved = _read(folder, name, config, like, self._log)
            except LogDamaged as error:
                self._unusable.add(name)
                warnings.append(f"{path} is whole, but its part of the log is damaged ({error}).")
                continue
            except Misfit as error:
                misfits.append(name)
                warnings.append(f"{path} is damaged, or of another agent ({error}).")
                continue
            except Damaged as error:
                folder.rename(name, f"{name}.damaged")
                warnings.append(f"{path} is damaged ({error}): it was set aside as {name}.damaged.")
                continue
            for other in misfits:  # the agent is the right one, so they are at fault
                folder.rename(other, f"{other}.damaged")
            self._log.cut(folder)
            return saved, [*warnings, *self._log.warnings]
        if warnings:
            raise InputError(
                f"no checkpoint in {folder.path} is whole ({warnings[0].rstrip('.')}): restore one, or retrain with --force."
            )
        return None, warnings


def newest_first(folder: Folder) -> list[str]:
    """The names of the checkpoints in their folder."""
    return sorted(filter(NAME.fullmatch, folder.names()), key=number_of, reverse=True)


def number_of(name: str) -> int:
    """Episodes before the checkpoint of this name."""
    match = NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def read(
    path: Path, config: RunConfig, like: StateLike, *, log: bool = True, part: str | None = None
) -> tuple[Saved, Extent]:
    """A checkpoint and its part of the log. No file is changed.

    Without `log` the buffer stays empty. With `part`, only this field of the state is restored; `like` is an example of it.
    """
    with Folder(path.parent) as folder:
        own = BufferLog()
        return _read(folder, path.name, config, like, own if log else None, part, repair=False), own.end


def _read(
    folder: Folder,
    name: str,
    config: RunConfig,
    like: StateLike,
    log: BufferLog | None,
    part: str | None = None,
    *,
    repair: bool = True,
) -> Saved:
    path = folder.path / name
    try:
        with folder.reader(name) as file:
            size = os.fstat(file.fileno()).st_size
            arrays, text, length = archive.read(file, size)
        if length != size:
            raise Damaged("it continues behind its end")
        return _restored(folder, name, arrays, text, config, like, log, part, repair)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    except MemoryError:
        raise InputError(f"{path} does not fit into memory: use a machine with more.") from None


def _restored(
    folder: Folder,
    name: str,
    arrays: Mapping[str, Any],
    text: str,
    config: RunConfig,
    like: StateLike,
    log: BufferLog | None,
    part: str | None,
    repair: bool,
) -> Saved:
    """What the arrays and the text of a checkpoint stand for."""
    path, content = folder.path / name, _content(folder.path / name, text)
    try:
        changed = _changed(content["settings"], config.as_dict())
        if changed:
            names = one_line(", ".join(sorted(changed)), 160)
            raise InputError(f"{path} belongs to other settings ({names}) than config.json: restore that file.")
        _check_precision(path, content["settings"]["switches"].get(PRECISION))
        number, steps, log_bytes, row = (content[name] for name in ("number", "steps", "log", "row"))
        version = one_line(content["version"], 40)
        if not all(type(n) is int and 0 <= n < 2**53 for n in (number, steps, log_bytes)) or not isinstance(
            row, dict | None
        ):
            raise Damaged("it has an invalid count or row")
        if number != number_of(name):
            raise InputError(f"{path} holds the state after {number} episodes: give it back its name, or remove it.")
        json.dumps(row, allow_nan=False)  # it may be written to episodes.jsonl

        def buffer(count: int, added: int) -> Any:
            empty = state.buffer_of(like.example)
            if log is None:
                return empty
            try:
                return log.restore(folder, log_bytes, count, added, type(empty), repair=repair)
            except Damaged as error:
                raise LogDamaged(str(error)) from None

        reader = StateReader(arrays, buffer)
        payload = content["state"] if part is None else content["state"]["fields"][part]
        restored = state.restore(payload, like, reader)
        episodes = content["fresh"] if part is None else ()
        fresh = tuple(state.restore_episode(episode, reader, config) for episode in episodes)
    except (LogDamaged, InputError):
        raise
    except Damaged as error:
        raise Misfit(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Misfit(f"it holds no progress of a run, {error_text(error)}") from None
    return Saved(Progress(number, steps, restored, fresh), row, version)


def _check_precision(path: Path, before: Any) -> None:
    """Refuse arrays of another precision than this process computes with: they are whole."""
    now = bool(jax.config.values[PRECISION])
    if isinstance(before, bool) and before != now:
        raise InputError(
            f"{path} was written with {PRECISION}={before}, now it is {now}: set JAX_ENABLE_X64={int(before)}, so that its "
            "arrays have the same types."
        )


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


def policy_state(
    run: Path, config: RunConfig, like: StateLike, warn: Callable[[str], None], part: str | None = None
) -> Any:
    """The agent's state in the newest whole checkpoint, or one part of it, without its buffer: enough to act.

    No file is moved.
    """
    with Folder(run) as whole:
        folder = whole.subfolder(FOLDER)
        if folder is not None:
            with folder:
                for name in newest_first(folder):
                    try:
                        return _read(folder, name, config, like, None, part).progress.state
                    except Damaged as error:
                        warn(f"{folder.path / name} is damaged ({error}): the one before it is used.")
    raise InputError(f"{run} holds no whole checkpoint: it has learned nothing that could act, so train first.")
