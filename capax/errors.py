"""What can end a run: one sentence each that says what to do, and the exit code of the command line."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from a user."""

    exit_code = 2


class EnvironmentFailed(RuntimeError):
    """A user's environment raised something, or returned what nobody can learn from."""

    exit_code = 3


class TrainingFailed(RuntimeError):
    """Fits or plans were not finite, again and again."""

    exit_code = 3


class DiskFailed(RuntimeError):
    """A file of the run could not be written: the disk is full, or the folder read-only."""

    exit_code = 3


class FolderInUse(RuntimeError):
    """Another process works in the run folder."""

    exit_code = 4


class Damaged(ValueError):
    """A file does not hold what was written; says where. Whoever reads it chooses what to do."""


STOPS = (InputError, EnvironmentFailed, TrainingFailed, DiskFailed, FolderInUse)
"""Everything of ours that ends a command."""
