"""`capax.report`: several runs compared, as a table and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from capax.core.checks import is_number, short_repr
from capax.core.errors import InputError
from capax.runs import folder
from capax.runs.config import RunConfig
from capax.runs.run import EPISODES, INTERRUPTED, RECENT, Run
from capax.runtime.terminal import CleanConsole, line

PLAIN_WIDTH = 132
"""Columns where the output is not a terminal."""
MAX_SHOWN = 1e300
"""Largest number that a table or a picture shows: sums of some of them are finite too."""


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
    for run in opened:
        shown = run.config.cost_name, *run.config.return_names  # an unreadable configuration is refused first
        _check(run.folder / EPISODES, run.episodes, shown)
        _check(run.folder / INTERRUPTED, run.interrupted, (), may_lack=("cost", "discounted_cost"))
    from capax.reporting.training import draw_curves  # Matplotlib takes a while to import

    folder.write(path, draw_curves(opened))
    return path


def summaries(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row per run: its last episodes on average, and its violations, random and planned apart."""
    for run in runs:
        check_rows(run)
    return [_summary(run) for run in runs]


def check_rows(run: Run) -> None:
    """Refuse a run whose rows lack what tables show."""
    _check(run.folder / EPISODES, run.episodes, (*run.config.return_names, "cost", run.config.cost_name))


def _check(
    path: Path, rows: Sequence[dict[str, Any]], needed: Sequence[str], may_lack: Sequence[str] = ("kappa",)
) -> None:
    """Refuse rows in which a number that is shown is missing or not finite. Numbers that a row may lack can be null."""
    for row in rows:
        wrong = [name for name in ("steps", *needed) if not _is_finite(row.get(name))]
        wrong += [name for name in may_lack if row.get(name) is not None and not _is_finite(row[name])]
        wrong += [name for name in (*may_lack, "violation", "phase") if name not in row]
        if wrong:
            raise InputError(
                f"{path} has a row that capax did not write ({wrong[0]} is {short_repr(row.get(wrong[0]))}): restore the "
                "file, or omit the run."
            )


def _is_finite(value: Any) -> bool:
    return is_number(value) and abs(value) <= MAX_SHOWN


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
        "discounted_return": mean("discounted_return") if "discounted_return" in config.return_names else None,
        "cost": mean(config.cost_name),
        "limit": config.cost_limit,
        "limits_within_episode": config.limits_within_episode,
        "planned_violations": sum(bool(row["violation"]) for row in planned),
        "planned_episodes": len(planned),
        "random_violations": sum(bool(row["violation"]) for row in rows)
        - sum(bool(row["violation"]) for row in planned),
        "random_episodes": len(rows) - len(planned),
    }


def print_table(runs: Sequence[Run]) -> None:
    """Print the summaries."""
    rows = summaries(runs)
    both = any(row["discounted_return"] is not None for row in rows)
    headings = (
        "run",
        "method",
        "seed",
        "steps",
        f"return, last {RECENT}",
        *["discounted"] * both,
        "cost / limit",
        "violations planned",
        "random",
    )
    table = Table(*headings, box=None)
    for row in rows:
        limit = "none" if row["limit"] is None else f"{row['limit']:g}"
        cells = (
            row["run"],
            row["method"],
            f"{row['seed']}",
            f"{row['steps']}",
            _mean_text(row["return"]),
            *[_mean_text(row["discounted_return"])] * both,
            "" if row["cost"] is None else f"{row['cost']:.4g} / {limit}",
            f"{row['planned_violations']} of {row['planned_episodes']}",
            f"{row['random_violations']} of {row['random_episodes']}",
        )
        table.add_row(*map(line, cells))
    console = CleanConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(table)
    if note := mixed_note([run.config for run in runs]):
        console.print(line(note), soft_wrap=True)


def _mean_text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def mixed_note(configs: Sequence[RunConfig]) -> str:
    """A sentence for runs of which some limit plans within an episode and others, whose rule could not, do not."""
    adaptive = [config for config in configs if config.kappa is not None]
    limiting = {config.limits_within_episode for config in adaptive}
    if len(limiting) < 2:
        return ""
    return (
        "not like for like: conformal also limits plans, or changes κ, within an episode, and the others do not "
        "(--set within_episode=false switches that off)."
    )
