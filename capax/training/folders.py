"""The run folder of a training: locked, created, emptied, and removed again if nothing came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capax.core.errors import DiskFailed, EnvironmentFailed, FolderInUse, InputError
from capax.runs import journal, tensorboard
from capax.runs.checkpoint import FOLDER, OWN, Checkpoints
from capax.runs.folder import Folder
from capax.runs.lock import LOCK, locked
from capax.runs.run import CONFIG, EPISODES, INTERRUPTED, Run

ROWS = (EPISODES, INTERRUPTED, journal.RUNNING)
CONFIG_NAMES = {"task", "method", "seed", "steps", "cost_limit", "version", "commit"}
"""Names that `config.json` has in every format. Other programs write some of them too."""


@contextmanager
def created_folder(run: Run, check: Callable[[Folder], None] = lambda folder: None) -> Iterator[Folder]:
    """Hold the folder's lock. If it did not exist and the run is refused before its first step, it is removed again.

    `check` may refuse a folder that no run has locked before.
    """
    missing = [path for path in (run.folder, *run.folder.parents) if not os.path.exists(path)]
    with locked(run.folder, check) as folder:
        try:
            yield folder
        except (InputError, EnvironmentFailed) as error:
            if run.folder in missing and _nothing_happened(run, folder):
                _remove(folder, missing)
                cause = error.__cause__  # what went wrong, without the advice to resume
                raise cause if isinstance(cause, type(error)) else error from None
            raise


def _nothing_happened(run: Run, folder: Folder) -> bool:
    """Whether no step of the run was taken."""
    with suppress(InputError, OSError, FolderInUse):
        folder.guard()
        played = run.episodes or run.interrupted or Checkpoints(folder).number
        return not played and not any(episode.steps for episode in journal.left_over(run.folder))
    return False


def _remove(folder: Folder, missing: list[Path]) -> None:
    """Remove what the run has written, and the folders that it created, if they are empty then."""
    with suppress(OSError, InputError, FolderInUse):
        _clear(folder)
        for name in (CONFIG, LOCK):
            folder.remove(name)
        for path in (folder.path / FOLDER, *missing):
            if path.is_dir():
                path.rmdir()


def _clear(folder: Folder) -> None:
    """Delete the rows, curves and checkpoints of a run, and nothing else."""
    Checkpoints(folder).clear()
    for name in (*ROWS, *filter(tensorboard.is_own, folder.names())):
        folder.remove(name)


def check_files(folder: Folder) -> None:
    """Refuse a folder where something else than a plain file has the name of one of ours."""
    folder.check_plain((CONFIG, *ROWS, LOCK, *filter(tensorboard.is_own, folder.names())))
    if (checkpoints := folder.subfolder(FOLDER)) is not None:
        with checkpoints:
            checkpoints.check_plain(filter(OWN.fullmatch, checkpoints.names()))


def check_own(folder: Folder) -> None:
    """Refuse a folder where files of somebody else have the names of ours: these are never overwritten."""
    check_files(folder)
    status = folder.stat(CONFIG)
    if status is not None and _is_config(folder):
        return
    names = [name for name in (CONFIG, *ROWS) if (status := folder.stat(name)) is not None and status.st_size]
    if (checkpoints := folder.subfolder(FOLDER)) is not None:
        with checkpoints:
            names += [f"{FOLDER}/{name}" for name in checkpoints.names() if OWN.fullmatch(name)]
    if names:
        raise InputError(
            f"--out {folder.path} holds {names[0]}, but no {CONFIG} of capax train: choose another folder. What capax train "
            "did not write is not overwritten, nor with --force."
        )


def _is_config(folder: Folder) -> bool:
    """Whether the configuration is one of capax train. One that is not JSON may be damaged: the lock shows whose it is."""
    try:
        table = json.loads(folder.read(CONFIG))
    except (ValueError, RecursionError):
        return folder.stat(LOCK) is not None
    return isinstance(table, dict) and {*table} >= CONFIG_NAMES


def prepare(run: Run, folder: Folder, force: bool) -> None:
    """Empty the run folder. One that holds an episode, or a part of one, is refused unless `force`."""
    check_own(folder)
    there = [name for name in (CONFIG, EPISODES) if folder.stat(name) is not None]
    empty = EPISODES in there and _nothing_happened(run, folder)
    if there and not (force or empty):
        raise InputError(
            f"--out {folder.path} already holds {', '.join(there)}: add --resume (resume=True) to continue it, choose "
            "another folder, or add --force (force=True) to overwrite it."
        )
    with on_disk(run):
        folder.remove_temporaries("capax", CONFIG, EPISODES, INTERRUPTED)
        _clear(folder)
        folder.create(EPISODES).close()


class on_disk:
    """Turns an error of the disk into one sentence."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise DiskFailed(f"{disk_error(self.run, error)}: fix that, then try again.") from error


def disk_error(run: Run, error: OSError) -> str:
    """The disk's error in words."""
    return f"{error.filename or run.folder} could not be written: {error.strerror or error}"
