"""Table of the suite: what the committed runs of small environments came to, beside controllers that keep the limit."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.figures import stored, words
from benchmarks.figures.registry import figure
from capax.envs.suite.catalogue import SUITE
from capax.reporting import intervals
from capax.reporting.intervals import Interval
from capax.reporting.suite import FREE_EPISODES, Score, rows_of, score
from capax.runs.run import Run

FOLDER = "suite"
ALL = "all tasks"


@cache
def scores(folder: str) -> tuple[Score, ...]:
    """The scores of all committed runs below `results/FOLDER`, task by task."""
    with tempfile.TemporaryDirectory() as scratch:
        stored.unpack(stored.RESULTS / folder, Path(scratch))
        runs = [(task, Run(path)) for task in SUITE for path in sorted(Path(scratch).glob(f"{task.name}-*"))]
        return tuple(score(task, run) for task, run in runs)


@cache
def rows(folder: str) -> tuple[dict[str, Any], ...]:
    """A row for each task and method, and one for all tasks together, as `capax suite` prints them."""
    return tuple(rows_of(scores(folder), [task.name for task in SUITE if not task.feasible]))


def rate(violations: list[int], planned: list[int]) -> str:
    """A violating share with its interval."""
    return words.percent(intervals.of_rate(violations, planned))


@figure
def suite_table(folder: str = FOLDER) -> str:
    """A line for each task and method."""
    lines = []
    for row in rows(folder):
        of_row = [s for s in scores(folder) if s.method == row["method"] and row["task"] in (s.task, ALL)]
        share = Interval(*row["share"]) if row["share"] else None
        lines.append(
            [
                f"**{ALL}**" if row["task"] == ALL else row["task"],
                f"`{row['method']}`",
                words.seeds(sorted({s.seed for s in of_row})),
                words.interval(share, 2) if share else "impossible",
                rate([s.violations for s in of_row], [s.planned for s in of_row]),
                rate([s.later_violations for s in of_row], [s.later for s in of_row]),
                words.number(row["used"], 2) if row["used"] is not None else "–",
                words.number(row["seconds"]),
                f"{round(100.0 * row['warned'])} %",
            ]
        )
    after = f"after the first {FREE_EPISODES}"
    headings = ["task", "method", "seeds", "share of the reference", "violating planned episodes", after, "cost/limit"]
    return words.table([*headings, "seconds", "warned"], lines)


@figure
def suite_least(method: str = "cap", folder: str = FOLDER) -> str:
    """A method's task with the least share of the reference, and that share."""
    least = min((row for row in tasks_of(method, folder) if row["share"]), key=lambda row: row["share"][0])
    return f"{least['task']}: {words.number(least['share'][0], 2)}"


@figure
def suite_most_violating(method: str = "cap", folder: str = FOLDER) -> str:
    """A method's task that violates most often after the first episodes, and its share of violations."""
    most = max(tasks_of(method, folder), key=lambda row: row["violating_later"][0])
    return f"{most['task']}: {words.number(100.0 * most['violating_later'][0], 1)} %"


def tasks_of(method: str, folder: str) -> list[dict[str, Any]]:
    """The rows of a method's single tasks."""
    return [row for row in rows(folder) if row["method"] == method and row["task"] != ALL]


@figure
def suite_share(method: str = "cap", folder: str = FOLDER) -> str:
    """A method's mean share of the reference over all tasks."""
    (row,) = [row for row in rows(folder) if row["method"] == method and row["task"] == ALL]
    return words.number(row["share"][0], 2)


@figure
def suite_violating(method: str = "cap", folder: str = FOLDER) -> str:
    """A method's mean share of violations after the first episodes, over all tasks."""
    (row,) = [row for row in rows(folder) if row["method"] == method and row["task"] == ALL]
    return f"{words.number(100.0 * row['violating_later'][0], 1)} %"
