"""Scores of the suite: share of the reference's return, violations and cost used, with bootstrap intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from capax.core.errors import InputError
from capax.envs.suite.baseline import baseline
from capax.envs.suite.catalogue import SuiteTask
from capax.runs.run import Run
from capax.training.monitor import Monitor

FREE_EPISODES = 5
"""Planned episodes at the beginning whose violations are counted apart."""
BOOTSTRAPS = 2000
LEVEL = 0.95


class Score(NamedTuple):
    """What a run of the suite came to."""

    task: str
    method: str
    seed: int
    share: float
    """(R − R₀)/(R_ref − R₀), R the mean return of the last quarter of the planned episodes."""
    planned: int
    violations: int
    later: int
    """Planned episodes after the first FREE_EPISODES."""
    later_violations: int
    used: float | None
    """Cost over limit in the last quarter, on average; None for a limit of 0."""
    seconds: float
    warned: bool
    """A warning was due within the first FREE_EPISODES planned episodes."""


def score(task: SuiteTask, run: Run) -> Score:
    """The score of a finished run."""
    config, rows = run.config, run.episodes
    planned = [row for row in rows if row["phase"] != "random" or config.method == "random"]
    if not planned:
        raise InputError(f"{task.name} has no planned episode after {rows[-1]['steps']} steps: give more --steps.")
    last = planned[-max(1, len(planned) // 4) :]
    later = planned[FREE_EPISODES:]
    return Score(
        task.name,
        config.method,
        config.seed,
        baseline(task).share(float(np.mean([row["return"] for row in last]))),
        len(planned),
        sum(bool(row["violation"]) for row in planned),
        len(later),
        sum(bool(row["violation"]) for row in later),
        float(np.mean([row["cost"] for row in last])) / task.limit if task.limit > 0.0 else None,
        _seconds(run),
        warned_early(run),
    )


def _seconds(run: Run) -> float:
    """The time that a run took."""
    try:
        seconds = float(run.episodes[-1]["time"]["seconds"])
    except (KeyError, TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InputError(f"{run.folder} has a last row without its time: restore its rows, or move it away.")
    return seconds


def warned_early(run: Run) -> bool:
    """Whether a warning was due within the first planned episodes."""
    monitor, count = Monitor(run.config), 0
    for row in run.episodes:
        warnings = [*monitor.warnings(row)]
        count += row["phase"] != "random"
        if count > FREE_EPISODES:
            return False
        if warnings:
            return True
    return False


class Interval(NamedTuple):
    """An estimate, and its bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interval(groups: Mapping[str, Sequence[Score]], statistic: Callable[[Sequence[Score]], float]) -> Interval:
    """The mean over tasks of a statistic of each task's seeds, which are resampled within the task."""
    rng = np.random.default_rng(0)
    means = [
        np.mean([statistic([group[i] for i in rng.integers(0, len(group), len(group))]) for group in groups.values()])
        for _ in range(BOOTSTRAPS)
    ]
    edge = (1.0 - LEVEL) / 2.0
    value = float(np.mean([statistic(group) for group in groups.values()]))
    return Interval(value, *np.quantile(means, [edge, 1.0 - edge]).tolist())


def mean_share(scores: Sequence[Score]) -> float:
    """The mean share of the reference."""
    return float(np.mean([item.share for item in scores]))


def violating(scores: Sequence[Score]) -> float:
    """The violating share of the planned episodes."""
    return sum(item.violations for item in scores) / max(1, sum(item.planned for item in scores))


def violating_later(scores: Sequence[Score]) -> float:
    """The same after the first FREE_EPISODES of each run."""
    return sum(item.later_violations for item in scores) / max(1, sum(item.later for item in scores))


def rows_of(scores: Iterable[Score], infeasible: Iterable[str] = ()) -> list[dict[str, Any]]:
    """A row for each task and method, and one for each method over all tasks that can be kept."""
    grouped: dict[str, dict[str, list[Score]]] = {}
    for item in scores:
        grouped.setdefault(item.method, {}).setdefault(item.task, []).append(item)
    rows, impossible = [], set(infeasible)
    for method, tasks in grouped.items():
        possible = {name: group for name, group in tasks.items() if name not in impossible}
        groups = {**{name: {name: group} for name, group in tasks.items()}, "all tasks": possible}
        for name, group in groups.items():
            if group:
                rows.append(_row(name, method, group, name in impossible))
    return rows


def _row(name: str, method: str, groups: Mapping[str, Sequence[Score]], impossible: bool) -> dict[str, Any]:
    scores = [item for group in groups.values() for item in group]
    used = [item.used for item in scores if item.used is not None]
    return {
        "task": name,
        "method": method,
        "seeds": len({item.seed for item in scores}),
        "share": None if impossible else interval(groups, mean_share),
        "violating": interval(groups, violating),
        "violating_later": interval(groups, violating_later),
        "used": float(np.mean(used)) if used else None,
        "seconds": float(np.mean([item.seconds for item in scores])),
        "warned": float(np.mean([item.warned for item in scores])),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table for the terminal."""
    result = Table(box=None, header_style="bold")
    titles = (
        "task",
        "method",
        "seeds",
        "share of the reference",
        "violate",
        f"after {FREE_EPISODES}",
        "cost/limit",
        "s",
        "warned",
    )
    for title in titles:
        result.add_column(title, justify="left" if title in ("task", "method") else "right")
    for row in rows:
        used = "" if row["used"] is None else f"{row['used']:.2f}"
        cells = (str(row["share"] or "impossible"), str(row["violating"]), str(row["violating_later"]), used)
        result.add_row(
            row["task"], row["method"], str(row["seeds"]), *cells, f"{row['seconds']:.0f}", f"{row['warned']:.0%}"
        )
    return result
