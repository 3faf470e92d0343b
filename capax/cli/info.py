"""`capax tasks`, `capax settings`, `capax doctor` and `capax bench`: what there is, and what this machine can do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from capax.cli.options import Device, use_device
from capax.runs import folder


@dataclass(frozen=True)
class Tasks:
    """List the registered tasks with their limits and conventions."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        from capax.envs.catalogue import tasks

        rows = tasks()
        if self.json:
            sys.stdout.write(folder.to_json([row._asdict() for row in rows]))
            return
        width = max(len(row.id) for row in rows)
        print(f"{'task':{width}}  {'limit':>8}  {'convention':12}  steps per episode")
        for row in rows:
            convention = "discounted" if row.discounted else "undiscounted"
            print(f"{row.id:{width}}  {row.limit:8g}  {convention:12}  {row.episode_steps or 'no end'}")


@dataclass(frozen=True)
class Settings:
    """Print every setting of a method and of the rules for κ: its meaning, default and range."""

    method: tyro.conf.Positional[str | None] = None
    """A method, as in `capax train --method`; None: all of them."""
    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        from capax.cli.settings import as_json, groups_of, print_groups, summaries

        groups = groups_of(self.method)
        if self.json:
            sys.stdout.write(folder.to_json(as_json(groups)))
        else:
            print_groups(groups, summaries(self.method))


@dataclass(frozen=True)
class Doctor:
    """Say what this machine can do, and what to do about what is missing."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        from capax.cli import doctor

        findings = doctor.examine(Path.cwd())
        sys.stdout.write(folder.to_json(doctor.as_json(findings)) if self.json else doctor.page(findings, 100) + "\n")


@dataclass(frozen=True)
class Bench:
    """Measure how fast this machine plans, fits and steps, in under two minutes."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        use_device(self.device)
        import jax

        from capax import runtime
        from capax.cli import bench

        runtime.configure()  # before JAX counts its devices

        def show(text: str) -> None:
            if not self.json:
                print(text, file=sys.stderr, flush=True)

        results = bench.measure(bench.sizes_for(jax.default_backend()), show)
        sys.stdout.write(folder.to_json(bench.as_json(*results)) if self.json else bench.page(*results) + "\n")
