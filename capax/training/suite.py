"""The runs of the suite: each task with each method and seed, in a run folder of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from capax.core.checks import nearest, one_line
from capax.core.errors import InputError
from capax.envs.suite.catalogue import SUITE, SuiteTask
from capax.runs.run import CONFIG, Run
from capax.training.methods import METHODS
from capax.training.presets import setting_names
from capax.training.train import resume, train

STEPS = 5000
STEP_FACTORS = {"ppo": 10, "ppo-lag": 10, "focops": 10}
"""Methods without a model get this many times the steps."""


class SuiteRun(NamedTuple):
    """A run of the suite."""

    task: SuiteTask
    method: str
    seed: int
    steps: int

    def folder(self, out: Path) -> Path:
        """Its run folder."""
        return out / f"{self.task.name}-{self.method}-{self.seed}"


def find_tasks(names: Sequence[str], held_out: bool = False) -> list[SuiteTask]:
    """The tasks of these names; without names those of development, or with `held_out` the others."""
    if not names:
        return [task for task in SUITE if task.held_out == held_out]
    known_names = {task.name.lower(): task for task in SUITE}
    for name in names:
        if name.lower() not in known_names:
            near = nearest(name, [task.name for task in SUITE])
            hint = f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(t.name for t in SUITE)}."
            raise InputError(f"the suite has no task {name}: {hint}")
    return [known_names[name.lower()] for name in names]


def plan_runs(tasks: Sequence[SuiteTask], methods: Sequence[str], seeds: int, steps: int) -> list[SuiteRun]:
    """Every task with every method and seed, one seed of all before the next."""
    for method in methods:
        if method not in METHODS or "vector" not in METHODS[method].settings:
            raise InputError(f"the method is {method}: choose {', '.join(m for m in METHODS if m != 'calibrated')}.")
    if seeds < 1:
        raise InputError(f"seeds is {seeds}: give at least 1.")
    return [
        SuiteRun(task, method, seed, steps * STEP_FACTORS.get(method, 1))
        for seed in range(seeds)
        for task in tasks
        for method in methods
    ]


def is_finished(run: Run, steps: int) -> bool:
    """Whether a run has done its steps."""
    rows = run.episodes if (run.folder / CONFIG).exists() else []
    done = rows[-1].get("steps") if rows else None
    return isinstance(done, int) and done >= steps


def check_run(item: SuiteRun, run: Run) -> None:
    """Refuse a run folder that holds another run than the one that its name says."""
    config = run.config
    found, wanted = (config.task, config.method, config.seed), (item.task.id, item.method, item.seed)
    if found != wanted:
        raise InputError(
            f"{run.folder} holds a run of {one_line(config.task, 80)} with the method {one_line(config.method, 40)} and the "
            f"seed {config.seed}, not of {item.task.id}, {item.method} and {item.seed}: move it away, or choose another --out."
        )


def train_runs(runs: Sequence[SuiteRun], out: Path, preset: str | None = None) -> Iterator[tuple[SuiteRun, Run]]:
    """Train what is not finished yet; a run that was stopped continues."""
    for item in runs:
        run = Run(item.folder(out))
        there = (run.folder / CONFIG).exists()
        if there:
            check_run(item, run)
        if not is_finished(run, item.steps):
            if there:
                run = resume(run.folder, steps=item.steps)
            else:
                imagines_ends = "termination_cost" in setting_names(METHODS[item.method].settings["vector"])
                run = train(
                    item.task.id,
                    steps=item.steps,
                    out=run.folder,
                    method=item.method,
                    seed=item.seed,
                    preset=preset,
                    loggers=(),
                    termination_cost=item.task.termination_cost if imagines_ends else None,
                )
        yield item, run
