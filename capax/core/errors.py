"""Errors that end a run. The message is one sentence that says what to do; `exit_code` is that of the command line."""

from __future__ import annotations

from capax.runtime.terminal import printable


class _OneLine(Exception):
    """An error whose message may hold names and words of others: it is one line that a terminal can show."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class InputError(_OneLine, ValueError):
    """Bad input from a user."""

    exit_code = 2


class EnvironmentFailed(_OneLine, RuntimeError):
    """A user's environment raised an error, or returned something that an agent cannot learn from."""

    exit_code = 3


class TrainingFailed(_OneLine, RuntimeError):
    """Fits or plans were not finite several times in a row."""

    exit_code = 3


class DiskFailed(_OneLine, RuntimeError):
    """A file of the run could not be written: the disk is full, or the folder read-only."""

    exit_code = 3


class FolderInUse(_OneLine, RuntimeError):
    """Another process uses the run folder."""

    exit_code = 4


class Damaged(_OneLine, ValueError):
    """A file does not hold what was written to it. The message says where; the caller decides what to do."""


STOPS = (InputError, EnvironmentFailed, TrainingFailed, DiskFailed, FolderInUse)
"""All errors of capax that end a command."""
