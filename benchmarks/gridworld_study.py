"""Measures what the parts of the gridworld experiment contribute.

    python benchmarks/gridworld_study.py alpha|counts|episodes|prior|uneven [WORLDS] [SEED] [JOBS]

- `alpha`: violations of the paper's PI rule for several gains.
- `counts`: CAP without a penalty, by the prior of its counts.
- `episodes`: the paper's agents with ten episodes of 50 steps, as the calibrated agent has.
- `prior`: the calibrated agent with a flat prior instead of a pooled one.
- `uneven`: the calibrated agent in worlds where each cell has its own slip probability and directions.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import jax.random as jr
import numpy as np

from capax.core.contracts import Agent
from capax.core.costs import violates
from capax.core.loop import run
from capax.kappa.pi import PI
from capax.paper.gridworld import LIMIT, RESTARTS, Settings, make_agent
from capax.runtime.blas_threads import one_blas_thread
from capax.tabular import CMDP, World, gridworld, neighbour_prior, self_loop_prior, solve, uniform_prior
from capax.tabular.gridworld import SLIPS
from capax.tabular.sampler import WorldCollector

ITERATIONS = 30


def alpha_study(gain: float, world: World) -> tuple[Agent[Any], int]:
    """The paper's agent with another gain of the PI rule."""
    agent, restarts = make_agent(world, "adaptive", ITERATIONS)
    return replace(agent, rule=PI(alpha=gain)), restarts


def count_prior(name: str, world: World) -> tuple[Agent[Any], int]:
    """CAP with κ = 0 and another prior for transitions with few visits."""
    agent, restarts = make_agent(world, "0", ITERATIONS)
    cmdp = world.cmdp
    priors = {"neighbours": neighbour_prior(world.successors, cmdp.A)}
    priors |= {"uniform": uniform_prior(cmdp.S, cmdp.A), "self-loop": self_loop_prior(cmdp.S, cmdp.A)}
    return replace(agent, world=agent.world._replace(prior=priors[name])), restarts


def ten_episodes(method: str, world: World) -> tuple[Agent[Any], int]:
    """One of the paper's agents, with its samples divided as the calibrated agent divides them."""
    return make_agent(world, method, ITERATIONS)[0], RESTARTS


def flat_prior(world: World) -> tuple[Agent[Any], int]:
    """The calibrated agent without the pooled shape of its prior."""
    agent, _ = make_agent(world, "calibrated", ITERATIONS)
    return replace(agent, successors=None), RESTARTS


def calibrated(world: World) -> tuple[Agent[Any], int]:
    """The calibrated agent as it is."""
    return make_agent(world, "calibrated", ITERATIONS)


def uneven(rng: np.random.Generator, world: World) -> World:
    """The world with a slip probability ~ U(0, .6) for each cell, and Dirichlet(½) directions for each pair."""
    S, A = world.cmdp.r.shape
    P = np.zeros((S, A, S))
    for s in range(S):
        slip = rng.uniform(0, 0.6)
        for a in range(A):
            directions = (1 - slip) * np.eye(A)[a] + slip * rng.dirichlet(np.full(A, 0.5))
            np.add.at(P[s, a], world.successors[s], directions)
    cmdp = world.cmdp
    return world._replace(cmdp=CMDP(P, cmdp.r, cmdp.c, cmdp.mu0, cmdp.gamma))


def run_world(make: Any, slip: str, seed: int, number: int) -> tuple[float, float, list[float]]:
    """The oracle's return, the last policy's return and the costs of all policies, in one world."""
    rng = np.random.default_rng([seed, number])
    world = gridworld(rng, slip="any" if slip == "uneven" else slip)
    if slip == "uneven":
        world = uneven(rng, world)
    with one_blas_thread():
        best = solve(world.cmdp, LIMIT).reward
        agent, restarts = make(world)
        collector = WorldCollector(world.cmdp, Settings.samples, restarts)
        key = jr.fold_in(jr.key(seed), number)
        _, *outcomes = run(agent, collector, start=Settings.samples, steps=Settings.samples * (ITERATIONS + 2), key=key)
        earned, paid = ([getattr(o.episode, name) for o in outcomes] for name in ("earned", "paid"))
    return best, earned[-1], paid


def main(study: str, worlds: int = 100, seed: int = 0, jobs: int = 2) -> None:
    """Run a study, print a line of JSON per variant, and save them with the violations of each world."""
    from record import save

    rows = []
    variants: list[tuple[dict[str, Any], Any, str]] = {
        "alpha": [({"alpha": a}, partial(alpha_study, a), "any") for a in (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)],
        "counts": [({"prior": p}, partial(count_prior, p), "any") for p in ("neighbours", "uniform", "self-loop")],
        "episodes": [
            ({"method": m}, partial(ten_episodes, m), "any") for m in ("0", "0.01", "0.05", "0.1", "adaptive")
        ],
        "prior": [({"prior": "flat"}, flat_prior, slip) for slip in SLIPS],
        "uneven": [({"prior": "pooled"}, calibrated, "uneven")],
    }[study]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for labels, make, slip in variants:
            results = list(pool.map(partial(run_world, make, slip, seed), range(worlds)))
            violations = np.array([[violates(cost, LIMIT, exact=True) for cost in costs] for _, _, costs in results])
            share = sum(last for _, last, _ in results) / sum(best for best, _, _ in results)
            row = {**labels, "slip": slip, "seed": seed, "worlds": worlds, "oracle_share": round(share, 4)}
            row |= {"first_violations": int(violations[:, 0].sum()), "later_violations": int(violations[:, 1:].sum())}
            row |= {"violations_mean": float(violations.sum(1).mean()), "violations_sd": float(violations.sum(1).std())}
            largest = max(cost for _, _, costs in results for cost in costs)
            row["largest_cost"] = round(largest, 4)
            print(json.dumps(row), flush=True)
            rows.append({**row, "violations": violations.sum(1).tolist()})
    save(f"gridworld-{study}", rows)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
