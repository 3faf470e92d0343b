"""`capax gridworld`: the tabular experiment as a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capax.errors import InputError
from capax.paper import gridworld as experiment
from capax.paper.partial import WORLDS, finished, kept
from capax.runs import folder
from capax.runs.lock import locked

T = TypeVar("T")
FILES = ("episodes.jsonl", "table.json", "world.json", "figure.png", "world.png")


@dataclass(frozen=True)
class Gridworld(experiment.Settings):
    """Run CAP's tabular experiment: the table beside the paper's numbers, rows and pictures."""

    out: Path | None = None
    """Folder for episodes.jsonl, table.json, world.json, figure.png and world.png; nothing is kept without it."""
    force: bool = False
    """Overwrite these files if they are there."""
    resume: bool = False
    """Go on with an experiment that was stopped; begin one if there is none."""
    json: bool = False
    """Print the table as JSON, and nothing else, on standard output."""

    def __post_init__(self) -> None:
        """Nothing: `run_gridworld` checks, so that what is wrong is said in our one sentence and not in a box."""

    def run(self) -> None:
        settings, out = self.settings, self.out
        if out is None:
            run_gridworld(self, settings, None)
            return
        if not out.name:
            raise InputError("--out is empty: name a folder for the results, or leave --out away.")
        if self.force and self.resume:
            raise InputError("--force and --resume contradict each other: give one of them.")
        going = self.resume and (out / WORLDS).exists()
        if self.resume and not going and all((out / name).exists() for name in FILES):
            print(f"{out} is complete: {', '.join(FILES)}")
            return
        folder.prepare(out, (*FILES, WORLDS), self.force or going)
        with locked(out):
            run_gridworld(self, settings, finished(out / WORLDS, settings) if going else None)

    @property
    def settings(self) -> experiment.Settings:
        return experiment.Settings(**{f: getattr(self, f) for f in experiment.Settings.__dataclass_fields__})


def run_gridworld(
    command: Gridworld, settings: experiment.Settings, done: dict[int, experiment.WorldResult] | None
) -> None:
    """`capax gridworld`; `done` are the worlds that need not be run again, None for an experiment that begins."""
    from capax.report import gridworld as report  # Matplotlib takes a while to import, and errors should not

    found = experiment.run_worlds(settings, done)
    if command.out is not None:
        found = kept(command.out / WORLDS, settings, found, done)
    results = list(progress(found, settings.worlds, "worlds"))
    rows = [row for result in results for row in result.rows]
    table = experiment.table(rows)
    if command.out is not None:
        world = experiment.describe(settings, results[0])
        made: dict[str, Callable[[], str | bytes]] = {
            "episodes.jsonl": lambda: folder.to_jsonl(rows),
            "table.json": lambda: folder.to_json(table),
            "world.json": lambda: folder.to_json(world),
            "figure.png": lambda: report.curves(
                rows, f"{settings.worlds} worlds of seed {settings.seed}, slip {settings.slip}"
            ),
            "world.png": lambda: report.world_picture(world),
        }
        for name in FILES:  # one after the other: should a picture fail, the rows are there
            folder.write(command.out / name, made[name]())
        (command.out / WORLDS).unlink()
    if command.json:
        sys.stdout.write(folder.to_json(table))
        return
    console = Console(width=None if sys.stdout.isatty() else 132)
    for part in report.text_tables(table, asdict(settings), console.width):
        console.print(part)
    if command.out is not None:
        print(f"Written to {command.out}: {', '.join(FILES)}")


def progress(items: Iterable[T], total: int, what: str) -> Iterable[T]:
    """Pass items on while showing how many have come: a live bar, or plain lines if that is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        for done, item in enumerate(items, start=1):
            if done == total or done * 10 // total > (done - 1) * 10 // total:
                print(f"{done}/{total} {what}", file=sys.stderr, flush=True)
            yield item
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        yield from bar.track(items, total=total)
