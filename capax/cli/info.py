"""`capax tasks`, `capax settings`, `capax doctor` and `capax bench`: what there is, and what this machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capax.cli.options import Device, use_device
from capax.cli.output import only_json
from capax.runtime.terminal import printable, say, say_lines


@dataclass(frozen=True)
class Tasks:
    """List the registered tasks with their limits and conventions."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        with only_json(self.json) as write:
            from capax.envs.catalogue import tasks

            rows = tasks()
            write([row._asdict() for row in rows])
        if self.json:
            return
        width = max(len(printable(row.id)) for row in rows)
        say(f"{'task':{width}}  {'limit':>8}  {'convention':12}  steps per episode")
        for row in rows:
            convention = "discounted" if row.discounted else "undiscounted"
            say(f"{printable(row.id):{width}}  {row.limit:8g}  {convention:12}  {row.episode_steps or 'no end'}")


@dataclass(frozen=True)
class Settings:
    """Print every setting of a method and of the rules for κ: its meaning, default and range."""

    method: tyro.conf.Positional[Annotated[str | None, tyro.conf.arg(metavar="[METHOD]")]] = None
    """A method, as in `capax train --method`; None: all of them."""
    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        with only_json(self.json) as write:
            from capax.cli.settings import as_json, groups_of, print_groups, summaries

            groups = groups_of(self.method)
            write(as_json(groups))
        if not self.json:
            print_groups(groups, summaries(self.method))


@dataclass(frozen=True)
class Doctor:
    """Say what this machine can do, and what to do about what is missing."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        with only_json(self.json) as write:
            from capax.cli import doctor

            findings = doctor.examine(Path.cwd())
            write(doctor.as_json(findings))
        if not self.json:
            say_lines(doctor.page(findings, 100))


@dataclass(frozen=True)
class Bench:
    """Measure how fast this machine plans, fits and steps, in under two minutes."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        def show(text: str) -> None:
            if not self.json:
                say(text, error=True)

        with only_json(self.json) as write:
            use_device(self.device)
            import jax

            from capax import runtime
            from capax.cli import bench

            runtime.configure()  # before JAX counts its devices
            results = bench.measure(bench.sizes_for(jax.default_backend()), show)
            write(bench.as_json(*results))
        if not self.json:
            say_lines(bench.page(*results))
