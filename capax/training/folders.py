"""The run folder of a training: locked, created, emptied, and removed again if nothing came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capax.core.errors import DiskFailed, EnvironmentFailed, InputError
from capax.runs import folder, journal
from capax.runs.checkpoint import FOLDER, Checkpoints
from capax.runs.lock import LOCK, locked
from capax.runs.run import CONFIG, EPISODES, INTERRUPTED, Run

OWN_FILES = (CONFIG, EPISODES, INTERRUPTED, journal.RUNNING, LOCK)


@contextmanager
def created_folder(run: Run) -> Iterator[None]:
    """Hold the folder's lock. If it did not exist and the run is refused before its first step, it is removed again."""
    missing = [path for path in (run.folder, *run.folder.parents) if not path.exists()]
    try:
        with locked(run.folder):
            yield
    except (InputError, EnvironmentFailed) as error:
        if run.folder in missing and _nothing_happened(run):
            _remove(run, missing)
            cause = error.__cause__  # what went wrong, without the advice to resume
            raise cause if isinstance(cause, type(error)) else error from None
        raise


def _nothing_happened(run: Run) -> bool:
    """Whether no step of the run was taken."""
    with suppress(InputError, OSError):
        played = run.episodes or run.interrupted or Checkpoints(run.folder).number
        return not played and not any(episode.steps for episode in journal.left_over(run.folder))
    return False


def _remove(run: Run, missing: list[Path]) -> None:
    """Remove what the run has written, and the folders that it created, if they are empty then."""
    with suppress(OSError):
        Checkpoints(run.folder).clear()
        for name in OWN_FILES:
            (run.folder / name).unlink(missing_ok=True)
        for events in run.folder.glob("events.out.tfevents.*"):
            events.unlink()
        for path in (run.folder / FOLDER, *missing):
            if path.is_dir():
                path.rmdir()


def prepare(run: Run, force: bool) -> None:
    """Empty the run folder. One that holds an episode, or a part of one, is refused unless `force`."""
    folder.refuse_links(run.folder)
    empty = (run.folder / EPISODES).is_file() and _nothing_happened(run)
    folder.prepare(run.folder, (CONFIG, EPISODES), force or empty)
    with on_disk(run):
        folder.remove_temporaries(run.folder, "capax", CONFIG, EPISODES)
        Checkpoints(run.folder).clear()
        for name in (EPISODES, INTERRUPTED, journal.RUNNING):
            (run.folder / name).unlink(missing_ok=True)
        for events in run.folder.glob("events.out.tfevents.*"):
            events.unlink()
        (run.folder / EPISODES).touch()


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
