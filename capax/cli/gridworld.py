"""`capax gridworld`: runs the paper's tabular experiment and writes its results."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capax.cli.options import HELD
from capax.cli.output import only_json
from capax.core.errors import InputError
from capax.paper import gridworld as experiment
from capax.paper.partial_results import (
    PARTIAL_FILE,
    begins_with_settings,
    load_finished_worlds,
    save_finished_worlds,
)
from capax.runs.folder import Folder, read_plain, to_json, to_jsonl
from capax.runs.lock import LOCK, locked
from capax.runs.run import CONFIG
from capax.runtime.signals import leaving
from capax.runtime.terminal import CleanConsole, say, say_lines

T = TypeVar("T")
FILES = ("episodes.jsonl", "table.json", "world.json", "figure.png", "world.png")


@dataclass(frozen=True)
class Gridworld(experiment.Settings):
    """Run CAP's tabular experiment: a table with the paper's numbers next to ours, rows and pictures."""

    out: Path | None = None
    """Folder for episodes.jsonl, table.json, world.json, figure.png and world.png; nothing is kept without it."""
    force: bool = False
    """Overwrite these files if they are there."""
    resume: bool = False
    """Continue an experiment that was stopped; begin one if there is none."""
    json: bool = False
    """Print the table as JSON, and nothing else, on standard output."""

    def __post_init__(self) -> None:
        """Nothing is checked here but in `run`, so that an error is one sentence of ours and not a box of tyro's."""

    def run(self) -> None:
        settings, out = self.settings, self.out
        if out is None:
            run_gridworld(self, settings, None, None)
            return
        if not out.name:
            raise InputError("--out is empty: name a folder for the results, or omit --out.")
        if self.force and self.resume:
            raise InputError("--force and --resume contradict each other: give one of them.")
        continues = self.resume and (out / PARTIAL_FILE).exists()
        if self.resume and not continues and all((out / name).exists() for name in FILES):
            if self.json:
                say_lines(read_plain(out / "table.json").decode(errors="replace").removesuffix("\n"))
            else:
                say(f"{out} is complete: {', '.join(FILES)}")
            return
        try:
            out.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=out).close()
        except OSError as error:
            raise InputError(f"--out {out} cannot be written ({error.strerror}): choose a folder that can.") from None
        check = partial(refuse_others, overwrite=self.force or continues)
        with locked(out, check) as folder:
            check(folder)
            run_gridworld(self, settings, folder, load_finished_worlds(folder, settings) if continues else None)

    @property
    def settings(self) -> experiment.Settings:
        """The settings of the experiment, checked."""
        return experiment.Settings(**{f: getattr(self, f) for f in experiment.Settings.__dataclass_fields__})


def refuse_others(folder: Folder, overwrite: bool) -> None:
    """Refuse a folder that holds a run of another command, or results that are not to be overwritten."""
    folder.check_plain((*FILES, PARTIAL_FILE))
    if folder.stat(CONFIG) is not None:
        raise InputError(f"--out {folder.path} holds a {CONFIG}, as runs of capax train do: choose another folder.")
    there = [name for name in (*FILES, PARTIAL_FILE) if folder.stat(name) is not None]
    if there and folder.stat(LOCK) is None and not begins_with_settings(folder):
        raise InputError(
            f"--out {folder.path} holds {there[0]}, but no {LOCK} of capax gridworld: choose another folder. What capax "
            "gridworld did not write is not overwritten, nor with --force."
        )
    if there and not overwrite:
        raise InputError(
            f"--out {folder.path} already holds {', '.join(there)}: add --resume to continue it, choose another folder, or add "
            "--force to overwrite it."
        )


def run_gridworld(
    command: Gridworld,
    settings: experiment.Settings,
    folder: Folder | None,
    done: dict[int, experiment.WorldResult] | None,
) -> None:
    """Run the experiment, print the table and write the files into the folder, which is held.

    `done` holds the worlds that were run before; None for an experiment that begins.
    """
    safe = "nothing was to be kept."
    if command.out is not None:
        safe = f"finished worlds are safe in {command.out}; continue with the same command and --resume"
    with only_json(command.json) as write, leaving(lambda: safe, killed=f"{HELD}; {safe}"):
        table = write_results(settings, folder, done)
        write(table)
    if command.json:
        return
    from capax.reporting.gridworld import text_tables

    console = CleanConsole(width=None if sys.stdout.isatty() else 132)
    for part in text_tables(table, settings, console.width):
        console.print(part)
    if command.out is not None:
        say(f"Written to {command.out}: {', '.join(FILES)}")


def write_results(
    settings: experiment.Settings, folder: Folder | None, done: dict[int, experiment.WorldResult] | None
) -> list[dict[str, Any]]:
    """Run the experiment, write the files, and return the table."""
    from capax.reporting import gridworld as report  # Matplotlib takes a while to import, and errors should not

    worlds = experiment.run_worlds(settings, done)
    if folder is not None:
        worlds = save_finished_worlds(folder, settings, worlds, done)
    results = list(progress(worlds, settings.worlds, "worlds"))
    rows = [row for result in results for row in result.rows]
    table = experiment.summarise(rows)
    if folder is not None:
        world = experiment.describe_first_world(settings, results[0])
        contents: dict[str, Callable[[], str | bytes]] = {
            "episodes.jsonl": lambda: to_jsonl(rows),
            "table.json": lambda: to_json(table),
            "world.json": lambda: to_json(world),
            "figure.png": lambda: report.draw_curves(
                rows, f"{settings.worlds} worlds of seed {settings.seed}, slip {settings.slip}"
            ),
            "world.png": lambda: report.draw_world(world),
        }
        for name in FILES:  # in this order: if a picture fails, the rows are written
            folder.write(name, contents[name]())
        folder.remove(PARTIAL_FILE)
    return table


def progress(items: Iterable[T], total: int, what: str) -> Iterable[T]:
    """Yield the items and show their number on stderr: a bar on a terminal, plain lines elsewhere."""
    console = CleanConsole(stderr=True)
    if not console.is_terminal:
        for done, item in enumerate(items, start=1):
            if done == total or done * 10 // total > (done - 1) * 10 // total:
                say(f"{done}/{total} {what}", error=True)
            yield item
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        yield from bar.track(items, total=total)
