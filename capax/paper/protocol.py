"""The protocol of the paper's rows: tags, seeds and folders, and the state of each row. `results/PROTOCOL.md` has it in words."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from capax.core.checks import nearest
from capax.core.errors import InputError
from capax.paper.rows import GRIDWORLD, ROWS, PaperRow

SEEDS = (5001, 5002, 5003, 5004, 5005)
"""Seeds that nothing was tuned on."""
TAGS = {"gridworld": 1, "planning-states": 1, "planning-images": 1, "policy-gradient": 1, "random": 1}
"""Number of the present tag of each agent. A change of an agent's short runs in any bit means a new one."""
OUT = Path("runs/paper")
STATE_FILE = "state.json"
"""The states of the rows, made from the committed results by `make figures`."""


def tag(row: PaperRow) -> str:
    """The tag that the rows of this agent belong to."""
    return f"{row.agent}-{TAGS[row.agent]}"


def run_name(row: PaperRow) -> str:
    """The name of the run that a row is read off. Two rows can have the same one."""
    if row.agent != "policy-gradient":
        return row.name
    return row.name.rpartition("-")[0]


def folder(row: PaperRow, seed: int, out: Path = OUT) -> Path:
    """The folder of a row's run."""
    return out / tag(row) / f"{run_name(row)}-{seed}"


def find_row(name: str) -> PaperRow:
    """The row of this name."""
    if name not in ROWS:
        near = nearest(name, [*ROWS])
        hint = f"did you mean {' or '.join(near)}?" if near else "`capax paper` lists them."
        raise InputError(f"the paper's tables have no row {name}: {hint}")
    return ROWS[name]


def check_seed(row: PaperRow, seed: int | None) -> int:
    """A seed of the protocol."""
    listed = ", ".join(map(str, SEEDS))
    if seed is None:
        raise InputError(f"--seed is missing: a run of {row.name} needs one of {listed}.")
    if seed not in SEEDS:
        trial = "capax gridworld" if row.task == GRIDWORLD else "capax train"
        raise InputError(
            f"--seed is {seed}: rows are made with {listed}. For a trial, use {trial} with any seed below 5000."
        )
    return seed


@cache
def states() -> dict[str, dict[str, Any]]:
    """State, seeds, preset, tag and figures of every row, as they are committed."""
    table = json.loads(files("capax.paper").joinpath(STATE_FILE).read_text())
    return {row["name"]: row for row in table}
