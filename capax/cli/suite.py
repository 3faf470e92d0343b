"""`capax suite`: trains methods in the suite's tasks and compares them with the reference controllers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from capax.cli.options import HELD, Count, Device, use_device
from capax.cli.output import only_json
from capax.core.checks import whole
from capax.core.errors import InputError
from capax.runtime.signals import leaving
from capax.runtime.terminal import CleanConsole

PLAIN_WIDTH = 132
"""Columns that the table needs."""


@dataclass(frozen=True)
class Suite:
    """Train methods in small environments with a cost limit, and compare them with controllers that keep it."""

    tasks: tuple[str, ...] = ()
    """Names of tasks (DoubleIntegrator Docking); without any, the eight that capax was developed on."""
    held_out: tyro.conf.FlagCreatePairsOff[bool] = False
    """The tasks that took no part in the development, instead."""
    methods: tuple[str, ...] = ("cap",)
    """Methods to compare; those without a model get ten times the steps."""
    seeds: int = 5
    """Runs of each task and method, with seeds from 0 on."""
    steps: Count = 5000
    """Environment steps of a run."""
    preset: str | None = None
    """As in `capax train`."""
    out: Path = Path("runs/suite")
    """Folder of the run folders. Runs that are finished there are not trained again, and one that was stopped continues."""
    json: bool = False
    """Print the table as JSON, and nothing else, on standard output."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        use_device(self.device)
        # these take a while to import, and a misspelt option is refused before
        from capax.reporting.runs import check_rows
        from capax.reporting.suite import rows_of, score, table
        from capax.training.suite import find_tasks, plan_runs, train_runs

        if self.tasks and self.held_out:
            raise InputError("--tasks and --held-out contradict each other: give one of them.")
        tasks = find_tasks(self.tasks, self.held_out)
        runs = plan_runs(tasks, self.methods, whole("seeds", self.seeds), whole("steps", self.steps))
        console, scores = CleanConsole(stderr=True), []
        safe = f"finished episodes are safe in {self.out}; continue with the same command"
        with only_json(self.json) as emit, leaving(lambda: safe, killed=f"{HELD}; {safe}"):
            for number, (item, run) in enumerate(train_runs(runs, self.out, self.preset), 1):
                check_rows(run)
                scores.append(score(item.task, run))
                last = scores[-1]
                console.print(
                    f"{number} of {len(runs)}: {item.task.name}, {item.method}, seed {item.seed}: {last.share:.2f} of the "
                    f"reference, {last.violations} of {last.planned} planned episodes violate",
                    soft_wrap=True,
                )
            rows = rows_of(scores, [task.name for task in tasks if not task.feasible])
            emit(rows)
        if not self.json:
            printed = CleanConsole()
            printed.width = max(printed.width, PLAIN_WIDTH)
            printed.print(table(rows))
