"""`capax resume`, `capax evaluate` and `capax report`: commands for runs that exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from capax.cli.options import (
    HELD,
    Count,
    Device,
    RunFolder,
    env_arguments,
    is_complete,
    leaving_run,
    seconds_of,
    use_device,
)
from capax.cli.output import only_json
from capax.core.errors import InputError
from capax.paper.partial_results import PARTIAL_FILE
from capax.runs.folder import write as write_file
from capax.runs.run import CONFIG, Run
from capax.runtime.signals import CLOSE_TIMEOUT_S, leaving
from capax.runtime.streams import forgiving_standard_output
from capax.runtime.terminal import say


@dataclass(frozen=True)
class Resume:
    """Continue a run that was stopped, from the end of its last episode."""

    folder: RunFolder
    """A folder that capax train has written."""
    steps: Count | None = None
    """Environment steps in all, those that are done included; None: as many as the run was to have."""
    env: str | None = None
    """The environment, as module:Id; None: the run's own, if you have named its module before."""
    env_kwargs: tuple[str, ...] | None = None
    """Arguments of the environment's constructor, as NAME=VALUE; None: the run's own, if you have given them before."""
    cost: str | None = None
    """The cost function, as MODULE:FUNCTION; None: the run's own, if you have named it before."""
    logger: tuple[str, ...] | None = None
    """Loggers in addition to episodes.jsonl, as for capax train."""
    close_timeout: float = CLOSE_TIMEOUT_S
    """Seconds that the environment has to close after Ctrl-C, SIGTERM or SIGHUP, such as a robot that parks."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        seconds_of(self.close_timeout)
        use_device(self.device)
        if (self.folder / PARTIAL_FILE).exists() and not (self.folder / CONFIG).exists():
            raise InputError(
                f"{self.folder} holds an experiment of capax gridworld: give that command again, with --resume."
            )
        from capax.training.train import resume

        with leaving_run(self.folder, self.close_timeout), forgiving_standard_output():
            done = is_complete(self.folder, self.steps)
            run = resume(
                self.folder,
                steps=self.steps,
                env=self.env,
                env_kwargs=None if self.env_kwargs is None else env_arguments(self.env_kwargs),
                cost=self.cost,
                loggers=self.logger,
            )
        say(f"already complete: {run}" if done else run)


@dataclass(frozen=True)
class Evaluate:
    """Play fresh episodes with the policy of a run."""

    folder: RunFolder
    """A folder that capax train has written."""
    episodes: int = 10
    """Episodes to play."""
    seed: int = 0
    """Decides which ones; they differ from those of a training with the same seed."""
    env: str | None = None
    """The environment, as module:Id; None: the run's own, if you have named its module before."""
    env_kwargs: tuple[str, ...] | None = None
    """Arguments of the environment's constructor, as NAME=VALUE; None: the run's own, if you have given them before."""
    cost: str | None = None
    """The cost function, as MODULE:FUNCTION; None: the run's own, if you have named it before."""
    video: bool = False
    """Write a film of the first episode, RUN/video.mp4."""
    json: bool = False
    """Print JSON, and nothing else, on standard output."""
    close_timeout: float = CLOSE_TIMEOUT_S
    """Seconds that the environment has to close after Ctrl-C, SIGTERM or SIGHUP, such as a robot that parks."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        nothing_lost = "the run is as it was."
        leave = leaving(
            lambda: nothing_lost, close_timeout=seconds_of(self.close_timeout), killed=f"{HELD}; {nothing_lost}"
        )
        film = self.folder / "video.mp4" if self.video else None
        with only_json(self.json) as write, leave:
            use_device(self.device)
            from capax.training.evaluate import evaluate

            config = Run(self.folder).config
            cost_name, returns = config.cost_name, config.return_names
            words = cost_name.replace("_", " ")

            def show(row: dict[str, Any]) -> None:
                if not self.json:
                    earned = "  ".join(f"{name.replace('_', ' ')} {row[name]:.2f}" for name in returns)
                    numbers = f"{earned}  {words} {row[cost_name]:.2f}"
                    say(f"episode {row['episode']}  {numbers}{'  violation' if row['violation'] else ''}")

            result = evaluate(
                self.folder,
                episodes=self.episodes,
                seed=self.seed,
                env=self.env,
                env_kwargs=None if self.env_kwargs is None else env_arguments(self.env_kwargs),
                cost=self.cost,
                film=film,
                on_episode=show,
            )
            write(result.as_dict())
        if self.json:
            return
        limit = "no limit" if result.limit is None else f"limit {result.limit:g}"
        paid = result.mean_discounted_cost if result.discounted else result.mean_cost
        means = {"return": result.mean_return, "discounted_return": result.mean_discounted_return}
        earned = ", ".join(f"{name.replace('_', ' ')} {means[name]:.2f}" for name in returns)
        say(
            f"mean of {self.episodes}: {earned}, {words} {paid:.2f} ({limit}), "
            f"{result.violations} violation{'s' * (result.violations != 1)}"
        )
        if film is not None:
            say(f"Written to {film}")


@dataclass(frozen=True)
class Report:
    """Compare runs: a table of their last episodes, and with --out a picture of return, cost and κ."""

    folders: tyro.conf.Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="RUN")], ...]]
    """Folders that capax train has written."""
    out: Path | None = None
    """A PNG to write."""
    json: bool = False
    """Print the table as JSON, and nothing else, on standard output."""

    def run(self) -> None:
        if not self.folders:
            raise InputError("no run is named: give the folders of one or more runs, as in capax report runs/*.")
        with only_json(self.json) as write:
            from capax.reporting.runs import print_table, report, summaries

            runs = [Run(path) for path in self.folders]
            rows = summaries(runs)
            if self.out is not None:
                report(runs, self.out)  # before anything is printed: it may be refused
            write(rows)
        if self.json:
            return
        print_table(runs)
        if self.out is not None:
            say(f"Written to {self.out}")


@dataclass(frozen=True)
class Compare:
    """Compare methods: runs that differ by their seed alone become one line, with intervals over seeds."""

    folders: tyro.conf.Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="RUN")], ...]]
    """Folders that capax train has written."""
    table: Path | None = None
    """A file to write the table to: .md (Markdown), .csv (each number in its cell) or .tex (LaTeX, with booktabs)."""
    json: bool = False
    """Print the table as JSON, and nothing else, on standard output."""

    def run(self) -> None:
        if not self.folders:
            raise InputError("no run is named: give the folders of one or more runs, as in capax compare runs/*.")
        with only_json(self.json) as write:
            from capax.reporting.comparison import FORMATS, as_json, compare, print_comparison

            if self.table is not None and (self.table.suffix not in FORMATS or not self.table.parent.is_dir()):
                endings = ", ".join(FORMATS)
                raise InputError(
                    f"the table is {self.table}: name a file in a folder that exists, with one of {endings}."
                )
            runs = [Run(path) for path in self.folders]
            lines = compare(runs)
            if self.table is not None:
                write_file(self.table, FORMATS[self.table.suffix](lines))
            write(as_json(lines))
        if self.json:
            return
        print_comparison(lines, runs)
        if self.table is not None:
            say(f"Written to {self.table}")
