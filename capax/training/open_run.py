"""`capax.open_run`: the `Run` of a folder that exists."""

from __future__ import annotations

from pathlib import Path

from capax.core.errors import InputError
from capax.runs.run import CONFIG, Run
from capax.training.request import path_of


def open_run(folder: str | Path | Run) -> Run:
    """The run in a folder: its `config`, its `episodes` and its `interrupted` ones. Nothing in the folder is changed."""
    run = folder if isinstance(folder, Run) else Run(path_of(folder))
    if not run.exists:
        raise InputError(f"{run.folder} holds no {CONFIG}: name a folder that capax train has written.")
    return run
