"""Measures the speed of the tabular part, as ratios of times in one run.

python benchmarks/tabular.py [table] [sequence] [sizes]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax.random as jr
import numpy as np
import scipy.sparse as sp

from capax.agents.tabular import add_counts
from capax.paper.gridworld import LIMIT, Settings, draw_world, run_worlds
from capax.runtime.blas_threads import one_blas_thread
from capax.tabular import CMDP, CountModel, gridworld, neighbour_prior, penalised, solve
from capax.tabular.sampler import WorldCollector

KAPPA = 0.01
"""Penalty of the sequence of solves: small enough for nearly all of them to be feasible."""


def main(names: list[str]) -> None:
    """Run the named parts, all by default."""
    from record import save

    parts = {"table": table, "sequence": sequence, "sizes": sizes}
    save("tabular", [row for name, part in parts.items() if not names or name in names for row in part()])


def table() -> list[dict[str, Any]]:
    """The paper's table: 100 worlds × 5 rows × 31 policies, with sampling and evaluation, in two processes."""
    methods = ("0", "0.01", "0.05", "0.1", "adaptive")
    start_seconds, _ = _run(Settings(worlds=2, iterations=1, methods=methods))
    seconds, policies = _run(Settings(methods=methods))
    print(
        f"table: {policies} policies on two processes in {seconds:.1f} s: {start_seconds:.1f} s until they have started, "
        f"imported and compiled, then {seconds - start_seconds:.1f} s (target: 12 s)"
    )
    row = {"what": f"the paper's table: {policies} policies with sampling and evaluation, two processes"}
    return [{**row, "ms": 1e3 * (seconds - start_seconds), "ratio": None}]


def _run(settings: Settings) -> tuple[float, int]:
    """Seconds and policies of an experiment."""
    start = time.perf_counter()
    policies = sum(len(result.rows) for result in run_worlds(settings))
    return time.perf_counter() - start, policies


def sequence() -> list[dict[str, Any]]:
    """The 8×8 problems of the experiment, in its order: built and solved by capax, by SciPy, and by a cold HiGHS."""
    worlds = [_problems(world) for world in range(5)]
    solvers: dict[str, Callable[[list[tuple[Any, ...]]], list[float]]] = {
        "capax, warm": lambda problems: _chain(problems, warm=True),
        "capax, cold": lambda problems: _chain(problems, warm=False),
        "HiGHS, cold": lambda problems: [solve(_build(*p), LIMIT, "highs").reward for p in problems],
        "scipy.optimize.linprog": lambda problems: [_linprog(_build(*p)) for p in problems],
    }
    durations = dict.fromkeys(solvers, 0.0)
    with one_blas_thread():
        for problems in worlds:  # interleaved, so that a slow moment of the machine hits all
            answers = {}
            for name, solver in solvers.items():
                start = time.perf_counter()
                answers[name] = np.array(solver(problems))
                durations[name] += time.perf_counter() - start
            for name, answer in answers.items():
                assert np.abs(answer - answers["capax, warm"]).max() < 1e-7, f"{name} found another optimum"
    count, warm_seconds = sum(map(len, worlds)), durations["capax, warm"]
    for name, seconds in durations.items():
        print(
            f"sequence: {name:24s} {1e3 * seconds / count:7.2f} ms a solve, build included; {seconds / warm_seconds:5.1f}×"
        )
    return [
        {
            "what": f"an 8×8 problem of the experiment: {name}",
            "ms": 1e3 * seconds / count,
            "ratio": seconds / warm_seconds,
        }
        for name, seconds in durations.items()
    ]


def sizes() -> list[dict[str, Any]]:
    """One cold solve of a true world of growing size, and how the time grows."""
    previous, rows = None, []
    for size in (8, 16, 32, 64):
        cmdp = gridworld(np.random.default_rng(0), size=size).cmdp
        times = []
        for _ in range(3 if size >= 32 else 20):
            start = time.perf_counter()
            solution = solve(cmdp, LIMIT)
            times.append(time.perf_counter() - start)
        best = min(times)
        growth = "" if previous is None else f", {best / previous:4.1f}× the size before"
        kind = "sparse" if sp.issparse(cmdp.P) else "dense"
        print(f"sizes: {size:2d}×{size:<2d} {kind:6s} {1e3 * best:8.1f} ms, return {solution.reward:.4f}{growth}")
        ratio = None if previous is None else best / previous
        rows.append(
            {"what": f"one cold solve at {size}×{size}; ratio to the size before", "ms": 1e3 * best, "ratio": ratio}
        )
        previous = best
    print("sizes: target at 64×64: 2,000 ms")
    return rows


def _problems(number: int) -> list[tuple[Any, ...]]:
    """What the experiment solves in one world at a fixed κ: 31 models of growing counts."""
    world = draw_world(Settings(), number)
    collector = WorldCollector(world.cmdp, 500)
    model = CountModel.init(neighbour_prior(world.successors, world.cmdp.A))
    policy, problems, plan = np.full(world.cmdp.r.shape, 1.0 / world.cmdp.A), [], None
    for iteration in range(31):
        model = add_counts(model, [collector.collect(_TablePolicyAgent(policy), None, jr.key(iteration))])
        plan = solve(_build(model, world.cmdp), LIMIT, warm=plan)
        policy = plan.policy
        if plan.status == "optimal":
            problems.append((model, world.cmdp))
    return problems


class _TablePolicyAgent:
    """An agent that only has a policy."""

    def __init__(self, policy: np.ndarray) -> None:
        self.policy = policy

    def begin(self, state: Any) -> np.ndarray:
        return self.policy


def _build(model: CountModel, true: CMDP) -> CMDP:
    estimate = CMDP(model.P, true.r, true.c, true.mu0, true.gamma)
    return penalised(estimate, KAPPA / np.sqrt(np.maximum(model.n, 1.0)))


def _chain(problems: list[tuple[Any, ...]], warm: bool) -> list[float]:
    plan, rewards = None, []
    for problem in problems:
        plan = solve(_build(*problem), LIMIT, warm=plan if warm else None)
        rewards.append(plan.reward)
    return rewards


def _linprog(cmdp: CMDP) -> float:
    """The same program through SciPy."""
    from scipy.optimize import linprog  # here, because the processes of `table` import this file

    S, A = cmdp.S, cmdp.A
    stay = np.repeat(np.eye(S), A, axis=1)
    flow = sp.csc_array(stay - cmdp.gamma * cmdp.rows.T)
    start = (1.0 - cmdp.gamma) * cmdp.mu0
    answer = linprog(-cmdp.r.ravel(), A_ub=cmdp.c.reshape(1, -1), b_ub=[LIMIT], A_eq=flow, b_eq=start, method="highs")
    return -float(answer.fun)


if __name__ == "__main__":
    main(sys.argv[1:])
