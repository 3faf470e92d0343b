"""`capax.report`: several runs compared, as a table and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capax.core.checks import error_text
from capax.core.errors import InputError
from capax.runs import folder
from capax.runs.run import EPISODES, RECENT, Run

PLAIN_WIDTH = 132
"""Columns where the output is not a terminal."""


def report(runs: Sequence[Run | str | Path] | Run | str | Path, out: str | Path) -> Path:
    """Draw return, cost and κ of runs over their steps into a PNG, `out`."""
    many = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    opened = [run if isinstance(run, Run) else Run(Path(run)) for run in many]
    if not opened:
        raise InputError("no run is named: give one or more runs.")
    if not all(run.episodes for run in opened):
        raise InputError("a run has no episode yet, so there is nothing to draw: wait for its first one.")
    path = Path(out)
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise InputError(f"the picture is {path}: name a .png in a folder that exists.")
    from capax.reporting.training import draw_curves  # Matplotlib takes a while to import

    folder.write(path, draw_curves(opened))
    return path


def summaries(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row per run: its last episodes on average, and its violations, random and planned apart."""
    rows = []
    for run in runs:
        try:
            rows.append(_summary(run))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{run.folder / EPISODES} has a row that capax did not write ({error_text(error)}): restore the file, or omit "
                "the run."
            ) from None
    return rows


def _summary(run: Run) -> dict[str, Any]:
    config, rows = run.config, run.episodes
    last = rows[-RECENT:]
    planned = [row for row in rows if row["phase"] != "random"]

    def mean(name: str) -> float | None:
        return float(np.mean([row[name] for row in last])) if last else None

    return {
        "run": str(run.folder),
        "task": config.task,
        "method": config.method if config.kappa is None else f"{config.method}, κ {config.kappa}",
        "seed": config.seed,
        "steps": rows[-1]["steps"] if rows else 0,
        "episodes": len(rows),
        "return": mean("return"),
        "cost": mean(config.cost_name),
        "limit": config.cost_limit,
        "planned_violations": sum(bool(row["violation"]) for row in planned),
        "planned_episodes": len(planned),
        "random_violations": sum(bool(row["violation"]) for row in rows)
        - sum(bool(row["violation"]) for row in planned),
        "random_episodes": len(rows) - len(planned),
    }


def print_table(runs: Sequence[Run]) -> None:
    """Print the summaries."""
    headings = (
        "run",
        "method",
        "seed",
        "steps",
        f"return, last {RECENT}",
        "cost / limit",
        "violations planned",
        "random",
    )
    table = Table(*headings, box=None)
    for row in summaries(runs):
        limit = "none" if row["limit"] is None else f"{row['limit']:g}"
        cells = (
            row["run"],
            row["method"],
            f"{row['seed']}",
            f"{row['steps']}",
            "" if row["return"] is None else f"{row['return']:.4g}",
            "" if row["cost"] is None else f"{row['cost']:.4g} / {limit}",
            f"{row['planned_violations']} of {row['planned_episodes']}",
            f"{row['random_violations']} of {row['random_episodes']}",
        )
        table.add_row(*map(Text, cells))
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False).print(table)
