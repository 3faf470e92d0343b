"""The commands that a user types; what they do is elsewhere."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capax import __version__
from capax.errors import InputError
from capax.paper import gridworld as experiment
from capax.runs import folder

T = TypeVar("T")
FILES = ("episodes.jsonl", "table.json", "world.json", "figure.png", "world.png")


@dataclass(frozen=True)
class Gridworld(experiment.Settings):
    """Run CAP's tabular experiment: the table beside the paper's numbers, rows and pictures."""

    out: Path | None = None
    """Folder for episodes.jsonl, table.json, world.json, figure.png and world.png; nothing is kept without it."""
    force: bool = False
    """Overwrite these files if they are there."""
    json: bool = False
    """Print the table as JSON, and nothing else, on standard output."""

    def __post_init__(self) -> None:
        """Nothing: `run_gridworld` checks, so that what is wrong is said in our one sentence and not in a box."""


def run_gridworld(command: Gridworld) -> None:
    """`capax gridworld`."""
    from capax.report import gridworld as report  # Matplotlib takes a while to import, and errors should not

    if command.out is not None and not command.out.name:
        raise InputError("--out is empty: name a folder for the results, or leave --out away.")
    settings = experiment.Settings(**{f: getattr(command, f) for f in experiment.Settings.__dataclass_fields__})
    if command.out is not None:
        folder.prepare(command.out, FILES, command.force)
    results = list(progress(experiment.run_worlds(settings), settings.worlds, "worlds"))
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


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `capax`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shows ? for κ
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        print(f"capax {__version__}")
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict({"gridworld": Gridworld}, prog="capax", args=arguments)
        run_gridworld(command)
        sys.stdout.flush()
    except InputError as error:
        print(f"capax: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        print(f"capax: {error.filename or 'the output'} could not be written ({error.strerror}).", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("capax: interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
