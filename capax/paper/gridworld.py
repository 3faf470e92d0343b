"""The paper's gridworld experiment: many random worlds, several ways to choose κ, every executed policy counted."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from capax.agents.calibrated import Calibrated
from capax.agents.tabular import Known, TabularCAP
from capax.errors import InputError
from capax.kappa import PI, Fixed
from capax.loop import run
from capax.tabular.cmdp import evaluate
from capax.tabular.counts import neighbour_prior
from capax.tabular.gridworld import SLIPS, World, gridworld
from capax.tabular.lp import solve
from capax.tabular.sampler import WorldCollector
from capax.threads import one_blas_thread
from capax.types import Agent, Spec

LIMIT = 0.1
"""Cost limit of every world, normalised (paper, appendix)."""
ROUNDING = 1e-6
"""A cost above the limit by no more than this is a constraint that is active, not a violation."""
DEFAULT_METHODS = ("oracle", "0", "0.01", "0.05", "0.1", "adaptive", "calibrated")
JEFFREYS = 0.5
"""Pseudo-counts per neighbour of the calibrated agent: Jeffreys' prior for a multinomial."""
RESTARTS = 10
"""Episodes into which the calibrated agent divides its samples of an iteration, or the next smaller divisor."""
LARGEST_KAPPA = 1e6
"""Far beyond this, costs of 1 are lost in rounding."""

PAPER = {
    ("cap", "adaptive"): (0.494, 0.061, 0.098, 0.006, 0.0, 0.0),
    ("cap", 0.1): (0.454, 0.074, 0.089, 0.0055, 0.7, 2.48),
    ("cap", 0.05): (0.468, 0.071, 0.091, 0.0093, 2.22, 5.05),
    ("cap", 0.01): (0.468, 0.069, 0.0938, 0.0104, 6.0, 8.01),
    ("cap", 0.0): (0.50, 0.064, 0.0965, 0.0079, 10.23, 10.08),
}
"""The paper's table: mean and sd of return, cost and violations after 30 iterations, by method and κ."""


@dataclass(frozen=True)
class Settings:
    """Run CAP's tabular experiment and print its table beside the paper's."""

    worlds: int = 100
    """Random worlds (paper: 100)."""
    iterations: int = 30
    """Collections of samples after the first policy; policies 0 to ITERATIONS are executed and counted (paper: 30)."""
    samples: int = 500
    """Steps per collection (paper: 500)."""
    slip: str = "any"
    """Where a slip goes: any of the 4 directions, one of the 3 other ones, or any on a torus."""
    methods: tuple[str, ...] = field(default=DEFAULT_METHODS)
    """oracle, adaptive, calibrated, or a number: a fixed κ."""
    seed: int = 0
    """Seed of the worlds and of all that happens in them; nothing else is random."""
    jobs: int = 2
    """Processes to use."""

    def __post_init__(self) -> None:
        for name in ("worlds", "iterations", "samples", "jobs"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}: give a whole number of at least 1.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed is {self.seed}: give a whole number from 0 to {2**32 - 1}.")
        if self.slip not in SLIPS:
            raise InputError(f"--slip is {self.slip!r}: choose one of {', '.join(SLIPS)}.")
        if not self.methods:
            raise InputError("--methods is empty: name at least one of oracle, adaptive, calibrated, or a fixed κ.")
        labels = [label(method) for method in self.methods]
        if len(set(labels)) < len(labels):
            raise InputError(f"--methods names a method twice ({' '.join(self.methods)}): name each once.")


class Label(NamedTuple):
    """How a row names what made it."""

    method: str
    kappa: float | str | None


def label(method: str) -> Label:
    """The `method` and `kappa` of a row, from what a user types; a number is a fixed κ."""
    if method in ("oracle", "calibrated"):
        return Label(method, None)
    if method == "adaptive":
        return Label("cap", "adaptive")
    try:
        kappa = float(method)
    except ValueError:
        kappa = math.nan
    if not 0.0 <= kappa <= LARGEST_KAPPA:
        raise InputError(
            f"--methods has {method!r}: choose oracle, adaptive, calibrated, or a fixed κ from 0 to {LARGEST_KAPPA:g}."
        )
    return Label("cap", kappa)


class WorldResult(NamedTuple):
    """All that one world gives."""

    rows: list[dict[str, Any]]
    """A row per method and executed policy, for `episodes.jsonl`."""
    policies: list[tuple[Label, list[list[float]]]]
    """The last policy of each method."""


def run_worlds(settings: Settings, done: Mapping[int, WorldResult] | None = None) -> Iterator[WorldResult]:
    """The results of worlds 0, 1, …, in that order; those that are `done` are not run again."""
    done = done or {}
    left = [number for number in range(settings.worlds) if number not in done]
    fresh = _results(settings, left) if left else iter(())
    try:
        for number in range(settings.worlds):
            yield done[number] if number in done else next(fresh)
    finally:
        if isinstance(fresh, Generator):
            fresh.close()


def _results(settings: Settings, numbers: Sequence[int]) -> Iterator[WorldResult]:
    one = partial(run_world, settings)
    if settings.jobs == 1:
        yield from map(one, numbers)
        return
    # spawned, not forked: JAX does not survive a fork
    pool = ProcessPoolExecutor(
        min(settings.jobs, len(numbers)),
        mp_context=get_context("spawn"),
        initializer=_leave_interrupts_to_the_parent,
    )
    try:
        yield from pool.map(one, numbers)
    except KeyboardInterrupt:
        # a second interrupt must not break the shutdown, or the workers stay
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGINT, handler)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def draw_world(settings: Settings, number: int) -> World:
    """World `number` of a seed, whatever else is run."""
    return gridworld(np.random.default_rng([settings.seed, number]), slip=settings.slip)


def run_world(settings: Settings, number: int) -> WorldResult:
    """Every method in one world; all of them meet the same random numbers."""
    with one_blas_thread():
        return _run_world(settings, number)


def _run_world(settings: Settings, number: int) -> WorldResult:
    world = draw_world(settings, number)
    best = solve(world.cmdp, LIMIT)
    result = WorldResult([], [])
    for method in settings.methods:
        began, named = time.perf_counter(), label(method)
        if method == "oracle":
            rows, policy = [{"return": best.reward, "cost": best.cost}], best.policy
        else:
            rows, policy = _learn(settings, number, world, method)
        took = (time.perf_counter() - began) / len(rows)
        violations = 0
        for iteration, row in enumerate(rows):
            violation = row["cost"] > LIMIT + ROUNDING
            violations += violation
            head = {"world": number, "method": named.method, "rule": named.kappa, "iteration": iteration}
            steps = 0 if method == "oracle" else settings.samples * (iteration + 1)
            counted = {"oracle_return": best.reward, "limit": LIMIT, "violation": violation, "violations": violations}
            result.rows.append({**head, "steps": steps, **row, **counted, "time": {"seconds": round(took, 6)}})
        result.policies.append((named, policy.tolist()))
    return result


def _learn(settings: Settings, number: int, world: World, method: str) -> tuple[list[dict[str, Any]], np.ndarray]:
    rows: list[dict[str, Any]] = []
    agent, restarts = make_agent(world, method, settings.iterations)
    collector = collector_of(world, settings.samples, restarts)
    key = jr.fold_in(jr.key(settings.seed), number)
    policies = settings.iterations + 1
    for outcome in run(agent, collector, start=settings.samples, steps=settings.samples * (1 + policies), key=key):
        episode, metrics = outcome.episode, outcome.metrics
        if not episode.random:  # the start is data, not a policy of the agent
            rest = {name: value for name, value in metrics.items() if name != "kappa"}
            rows.append({"return": episode.earned, "cost": episode.paid, "kappa": metrics["kappa"], **rest})
    return rows, outcome.state.policy


def collector_of(world: World, samples: int, restarts: int) -> WorldCollector:
    """Draws `samples` steps in at most as many restarts as divide them evenly."""
    restarts = max(divisor for divisor in range(1, restarts + 1) if samples % divisor == 0)
    return WorldCollector(world.cmdp, samples, restarts)


def make_agent(world: World, method: str, iterations: int, limit: float = LIMIT) -> tuple[Agent[Any], int]:
    """The agent that a method names, and into how many episodes its samples are divided."""
    cmdp, spec = world.cmdp, Spec(limit, world.cmdp.gamma)
    each = JEFFREYS if method == "calibrated" else 1.0
    known = Known(cmdp.r, cmdp.c, cmdp.mu0, neighbour_prior(world.successors, cmdp.A, each))
    if method == "calibrated":
        return Calibrated(known, spec, world.successors, explore_fall=iterations), RESTARTS
    kappa = label(method).kappa
    return TabularCAP(known, spec, PI() if kappa == "adaptive" else Fixed(float(kappa or 0.0))), 1


def describe(settings: Settings, result: WorldResult) -> dict[str, Any]:
    """World 0 with the last policy of each method, for `world.json`."""
    world = draw_world(settings, 0)
    policies = []
    for named, policy in result.policies:
        reward, cost, occupancy = evaluate(world.cmdp, np.array(policy))
        entry = {"method": named.method, "kappa": named.kappa, "return": reward, "cost": cost}
        policies.append({**entry, "policy": policy, "occupancy": occupancy.tolist()})
    return {"size": world.size, "r": world.cmdp.r.tolist(), "c": world.cmdp.c.tolist(), "policies": policies}


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and sd over worlds of the last policy's return and cost, and of all violations, for each method."""
    last: dict[Label, dict[int, dict[str, Any]]] = {}
    for row in rows:
        last.setdefault(Label(row["method"], row["rule"]), {})[row["world"]] = row  # later iterations overwrite
    result = []
    for named, by_world in last.items():
        entry: dict[str, Any] = {"method": named.method, "kappa": named.kappa}
        for name in ("return", "cost", "violations"):
            values = np.array([row[name] for row in by_world.values()], dtype=float)
            entry[f"{name}_mean"], entry[f"{name}_sd"] = float(values.mean()), float(values.std())
        entry["oracle_share"] = entry["return_mean"] / float(
            np.mean([row["oracle_return"] for row in by_world.values()])
        )
        result.append(entry)
    return result
