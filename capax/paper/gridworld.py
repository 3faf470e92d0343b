"""The paper's gridworld experiment: many random worlds, several ways to choose κ, all violations counted."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from capax.agents.finite_worlds import LIMIT, RESTARTS, calibrated_agent, cap_agent
from capax.core.contracts import Agent
from capax.core.costs import violates
from capax.core.errors import InputError, TrainingFailed
from capax.core.loop import run
from capax.core.types import Spec
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI
from capax.runtime.blas_threads import one_blas_thread
from capax.runtime.modules import safe_children
from capax.runtime.processes import end_with_parent
from capax.tabular.cmdp import evaluate
from capax.tabular.gridworld import SLIPS, World, gridworld
from capax.tabular.sampler import WorldCollector
from capax.tabular.solvers import solve

DEFAULT_METHODS = ("oracle", "0", "0.01", "0.05", "0.1", "adaptive", "calibrated")
"""Methods that the command runs by default, as a user types them."""
MAX_KAPPA = 1e6
"""Largest fixed κ. With a much larger one, costs of 1 are lost in rounding."""

PAPER_RESULTS: dict[tuple[str, float | str], tuple[float, float, float, float, float, float]] = {
    ("cap", "adaptive"): (0.494, 0.061, 0.098, 0.006, 0.0, 0.0),
    ("cap", 0.1): (0.454, 0.074, 0.089, 0.0055, 0.7, 2.48),
    ("cap", 0.05): (0.468, 0.071, 0.091, 0.0093, 2.22, 5.05),
    ("cap", 0.01): (0.468, 0.069, 0.0938, 0.0104, 6.0, 8.01),
    ("cap", 0.0): (0.50, 0.064, 0.0965, 0.0079, 10.23, 10.08),
}
"""The paper's table after 30 iterations, by method and κ: mean and sd of return, mean and sd of cost, then of violations."""


@dataclass(frozen=True)
class Settings:
    """Settings of the gridworld experiment."""

    worlds: int = 100
    """Random worlds (paper: 100)."""
    iterations: int = 30
    """Collections of samples after the first policy. Policies 0 to ITERATIONS are executed and counted (paper: 30)."""
    samples: int = 500
    """Steps per collection (paper: 500)."""
    slip: str = "any"
    """Direction of a slip: `any` of the 4 directions, one of the 3 `other` ones, or any of the 4 on a `torus`."""
    methods: tuple[str, ...] = field(default=DEFAULT_METHODS)
    """Methods to run: oracle, adaptive, calibrated, or a number, which is a fixed κ."""
    seed: int = 0
    """Seed of the worlds and of everything random in them."""
    jobs: int = 2
    """Number of processes."""

    def __post_init__(self) -> None:
        for name in ("worlds", "iterations", "samples", "jobs"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}: give a whole number of at least 1.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed is {self.seed}: give a whole number from 0 to {2**32 - 1}.")
        if self.slip not in SLIPS:
            raise InputError(f"--slip is {self.slip!r}: choose one of {', '.join(SLIPS)}.")
        if not self.methods:
            raise InputError("--methods is empty: give at least one of oracle, adaptive, calibrated, or a fixed κ.")
        labels = [label(method) for method in self.methods]
        if len(set(labels)) < len(labels):
            raise InputError(f"--methods has a method twice ({' '.join(self.methods)}): give each one once.")


class Label(NamedTuple):
    """Method and κ of a row."""

    method: str
    kappa: float | str | None


def label(method: str) -> Label:
    """Translate a method as a user types it to the `method` and `kappa` of a row. A number is a fixed κ."""
    if method in ("oracle", "calibrated"):
        return Label(method, None)
    if method == "adaptive":
        return Label("cap", "adaptive")
    try:
        kappa = float(method)
    except ValueError:
        kappa = math.nan
    if not 0.0 <= kappa <= MAX_KAPPA:
        raise InputError(
            f"--methods has {method!r}: choose oracle, adaptive, calibrated, or a fixed κ from 0 to {MAX_KAPPA:g}."
        )
    return Label("cap", kappa)


class WorldResult(NamedTuple):
    """Results of one world."""

    rows: list[dict[str, Any]]
    """One row per method and executed policy, for `episodes.jsonl`."""
    policies: list[tuple[Label, list[list[float]]]]
    """The last policy of each method."""


def run_worlds(settings: Settings, finished: Mapping[int, WorldResult] | None = None) -> Iterator[WorldResult]:
    """Yield the results of worlds 0, 1, … in this order. `finished` worlds are not run again."""
    finished = finished or {}
    missing = [number for number in range(settings.worlds) if number not in finished]
    new_results = _run_in_processes(settings, missing) if missing else iter(())
    try:
        for number in range(settings.worlds):
            yield finished[number] if number in finished else next(new_results)
    finally:
        if isinstance(new_results, Generator):
            new_results.close()


def _run_in_processes(settings: Settings, numbers: Sequence[int]) -> Iterator[WorldResult]:
    """Yield the results of these worlds, computed in `settings.jobs` processes."""
    run_number = partial(run_world, settings)
    if settings.jobs == 1:
        yield from map(run_number, numbers)
        return
    with safe_children():  # no module of the current folder
        # spawned, because JAX does not survive a fork
        pool = ProcessPoolExecutor(
            min(settings.jobs, len(numbers)),
            mp_context=get_context("spawn"),
            initializer=_leave_signals_to_parent,
        )
    try:
        with safe_children():
            results = pool.map(run_number, numbers)
        yield from results
    except BrokenProcessPool:
        raise TrainingFailed(
            "a process of --jobs was killed, maybe for lack of memory: give fewer --jobs, and --resume if there is an --out."
        ) from None
    except KeyboardInterrupt:
        # a second interrupt must not break the shutdown: the workers would stay
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGINT, handler)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_signals_to_parent() -> None:
    """Let a worker ignore Ctrl-C, which reaches the parent process too, and end with that process even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def draw_world(settings: Settings, number: int) -> World:
    """World `number` of the seed. It does not depend on the other worlds."""
    return gridworld(np.random.default_rng([settings.seed, number]), slip=settings.slip)


def run_world(settings: Settings, number: int) -> WorldResult:
    """Run every method in one world, with the same random numbers for each."""
    with one_blas_thread():
        return _run_world(settings, number)


def _run_world(settings: Settings, number: int) -> WorldResult:
    world = draw_world(settings, number)
    best = solve(world.cmdp, LIMIT)
    result = WorldResult([], [])
    for method in settings.methods:
        started, row_label = time.perf_counter(), label(method)
        if method == "oracle":
            rows, policy = [{"return": best.reward, "cost": best.cost}], best.policy
        else:
            rows, policy = _learn(settings, number, world, method)
        seconds = (time.perf_counter() - started) / len(rows)
        violations = 0
        for iteration, row in enumerate(rows):
            violation = violates(row["cost"], LIMIT, exact=True)
            violations += violation
            head = {"world": number, "method": row_label.method, "rule": row_label.kappa, "iteration": iteration}
            steps = 0 if method == "oracle" else settings.samples * (iteration + 1)
            reference = {"oracle_return": best.reward, "limit": LIMIT, "violation": violation, "violations": violations}
            result.rows.append({**head, "steps": steps, **row, **reference, "time": {"seconds": round(seconds, 6)}})
        result.policies.append((row_label, policy.tolist()))
    return result


def _learn(settings: Settings, number: int, world: World, method: str) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Run Algorithm 1 in one world: a row per executed policy, and the last policy."""
    rows: list[dict[str, Any]] = []
    agent, restarts = make_agent(world, method, settings.iterations)
    collector = WorldCollector.divided(world.cmdp, settings.samples, restarts)
    key = jr.fold_in(jr.key(settings.seed), number)
    policies = settings.iterations + 1
    for outcome in run(agent, collector, start=settings.samples, steps=settings.samples * (1 + policies), key=key):
        episode, metrics = outcome.episode, outcome.metrics
        if not episode.random:  # the random start is data, not a policy of the agent
            other_metrics = {name: value for name, value in metrics.items() if name != "kappa"}
            rows.append({"return": episode.earned, "cost": episode.paid, "kappa": metrics["kappa"], **other_metrics})
    return rows, outcome.state.policy


def make_agent(world: World, method: str, iterations: int, limit: float = LIMIT) -> tuple[Agent[Any], int]:
    """The agent that a method names, and the number of episodes that its samples are divided into."""
    spec = Spec(limit, world.cmdp.gamma)
    if method == "calibrated":
        return calibrated_agent(world, spec, iterations), RESTARTS
    kappa = label(method).kappa
    return cap_agent(world, spec, PI() if kappa == "adaptive" else Fixed(float(kappa or 0.0))), 1


def describe_first_world(settings: Settings, result: WorldResult) -> dict[str, Any]:
    """World 0 with the last policy of each method, for `world.json`."""
    world = draw_world(settings, 0)
    policies = []
    for row_label, policy in result.policies:
        reward, cost, occupancy = evaluate(world.cmdp, np.array(policy))
        entry = {"method": row_label.method, "kappa": row_label.kappa, "return": reward, "cost": cost}
        policies.append({**entry, "policy": policy, "occupancy": occupancy.tolist()})
    return {"size": world.size, "r": world.cmdp.r.tolist(), "c": world.cmdp.c.tolist(), "policies": policies}


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table of results: mean and sd over worlds of the last return, the last cost and all violations, by method."""
    last: dict[Label, dict[int, dict[str, Any]]] = {}
    for row in rows:
        last.setdefault(Label(row["method"], row["rule"]), {})[row["world"]] = row  # later iterations overwrite
    result = []
    for row_label, by_world in last.items():
        entry: dict[str, Any] = {"method": row_label.method, "kappa": row_label.kappa}
        for name in ("return", "cost", "violations"):
            values = np.array([row[name] for row in by_world.values()], dtype=float)
            entry[f"{name}_mean"], entry[f"{name}_sd"] = float(values.mean()), float(values.std())
        entry["oracle_share"] = entry["return_mean"] / float(
            np.mean([row["oracle_return"] for row in by_world.values()])
        )
        result.append(entry)
    return result
