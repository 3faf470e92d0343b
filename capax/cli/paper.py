"""`capax paper`: lists the rows of the paper's tables with their state, and makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from capax.cli.gridworld import Gridworld
from capax.cli.options import Device
from capax.cli.output import only_json
from capax.cli.train import Train
from capax.core.errors import InputError
from capax.paper.protocol import OUT, check_seed, find_row, folder, states, tag
from capax.paper.rows import GRIDWORLD, PRESET, PaperRow
from capax.runtime.terminal import CleanConsole, say

WIDTH = 235
"""Columns that the table needs."""
HEADINGS = ("row", "paper: return", "cost", "violations", "ours: return", "cost", "violations", "of them random",
            "other return", "other cost", "state", "seeds", "preset", "tag")  # fmt: skip
NUMBERS = ("return", "cost", "violations", "random_violations", "other_return", "other_cost")


@dataclass(frozen=True)
class Paper:
    """List the rows of the paper's tables: the paper's numbers, ours, and whether they agree. With a name, make that row."""

    name: tyro.conf.Positional[Annotated[str | None, tyro.conf.arg(metavar="[NAME]")]] = None
    """The row to make; None: list all."""
    list: tyro.conf.FlagCreatePairsOff[bool] = False
    """List the rows, which is also what happens without a name."""
    seed: int | None = None
    """Seed of the run: 5001 to 5005."""
    json: bool = False
    """Print the list as JSON, and nothing else, on standard output."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""
    out: Path = OUT
    """Folder of the run folders."""

    def run(self) -> None:
        if self.name is None or self.list:
            if self.name is not None:
                raise InputError("--list and a name contradict each other: give one of them.")
            if self.seed is not None:
                raise InputError("--seed is for a row that is made: name the row too.")
            show_rows(self.json)
            return
        if self.json:
            raise InputError("--json prints the list of rows: omit the name, or omit --json.")
        row = find_row(self.name)
        make_row(row, check_seed(row, self.seed), self.out, self.device)


def show_rows(as_json: bool) -> None:
    """Print every row with its state."""
    rows = list(states().values())
    with only_json(as_json) as write:
        write(rows)
    if as_json:
        return
    table = Table(box=None, header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("row", "state", "tag") else "right")
    for row in rows:
        table.add_row(*cells(row))
    console = CleanConsole()
    console.width = max(console.width, WIDTH)
    console.print(table)
    counts = {word: sum(row["state"] == word for row in rows) for word in ("reproduced", "differs", "missing")}
    say(f"{len(rows)} rows: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    say(
        "Returns are undiscounted and costs discounted on HalfCheetah, as in the paper, and the reverse on Car-Racing; other "
        "return and other cost are in the other convention."
    )
    say(
        "capax paper NAME --seed 5001 makes a row, and continues it after a stop. Its numbers are listed once they are committed."
    )


def cells(row: Mapping[str, Any]) -> list[str]:
    """A line of the table."""
    ours = row["ours"] or {}
    numbers = [short(row["paper"][key]) for key in ("return", "cost", "violations")]
    numbers += [short(ours[key][0]) if ours.get(key) else "–" for key in NUMBERS]
    state = row["state"] if not row["differing"] else f"differs in {', '.join(row['differing'])}"
    seeds = ", ".join(map(str, row["seeds"])) or "–"
    return [row["name"], *numbers, state, seeds, row["preset"] or "–", row["tag"]]


def short(value: float | None) -> str:
    """A number with four significant digits."""
    return "–" if value is None else f"{value:.4g}"


def make_row(row: PaperRow, seed: int, out: Path, device: Device | None) -> None:
    """Begin a row's run, or continue it."""
    place = folder(row, seed, out)
    say(f"{row.name}: tag {tag(row)}, preset {PRESET}, seed {seed}, in {place}", error=True)
    if row.task == GRIDWORLD:
        place.parent.mkdir(parents=True, exist_ok=True)
        method = row.kappa if isinstance(row.kappa, str) else f"{row.kappa:g}"
        Gridworld(methods=("oracle", method), seed=seed, out=place, resume=True).run()
        return
    kappa = None if row.kappa is None else str(row.kappa)
    Train(
        task=row.task,
        method=row.method,
        kappa=kappa,
        steps=row.run_steps,
        seed=seed,
        preset=PRESET,
        device=device,
        out=place,
        resume=True,
    ).run()
