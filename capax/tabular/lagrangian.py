"""Exact Lagrangian solver for a CMDP with one cost constraint, without a linear program.

The dual function is g(λ) = max_π J_r(π) − λ (J_c(π) − C). It is convex and piecewise linear, and each piece belongs to a
deterministic policy. The solver keeps one policy on each side of the limit: `low` (J_c ≤ C) and `high` (J_c > C). Both
have the same Lagrangian value at one slope λ. Policy iteration at this λ finds a better policy, which replaces one of the
two, or proves that both are optimal. The mixture of their occupancies that costs exactly C is then the optimum of Eq. 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.tabular.cmdp import CMDP, lu_solver

RELATIVE_ROUNDING = 1e-13
"""Smaller relative improvements count as rounding errors."""
BRACKET_FACTOR = 1.1
"""First factor that moves a warm multiplier to the other side of the limit. It is squared after each step."""


class Vertex(NamedTuple):
    """A deterministic policy with its return, cost and action values (all normalised)."""

    actions: Int[Array, " S"]
    reward: float
    cost: float
    total_reward: float
    """Sum of the reward values of all states."""
    total_cost: float
    """Sum of the cost values of all states."""
    max_abs_reward: float
    """Largest |r| of the CMDP, which bounds |q_reward|."""
    max_abs_cost: float
    """Largest |c| of the CMDP, which bounds |q_cost|."""
    q_reward: Float[Array, "S A"]
    q_cost: Float[Array, "S A"]
    visits: Callable[[], Float[Array, " S"]]
    """Computes its state occupancy, from the same factorisation."""


class Optimum(NamedTuple):
    """The two vertices whose mixture is optimal: `weight` on `low`, 1 − `weight` on `high`."""

    low: Vertex
    high: Vertex
    weight: float
    multiplier: float
    feasible: bool


def optimum(cmdp: CMDP, limit: float, warm: tuple[float, Int[Array, " S"]] | None = None) -> Optimum:
    """Solve  max Σρr  s.t.  Σρc ≤ limit  (Eq. 2), for r and c within ±1.

    `warm` holds the multiplier and the actions that solve a similar problem.
    """
    vertex = _vertices(cmdp)
    slack = limit + RELATIVE_ROUNDING
    low, high, start = None, None, cmdp.r.argmax(1)
    if warm is not None:
        multiplier, start = warm
        low, high = _bracket(vertex, slack, multiplier, start)
    if high is None:
        best = _improve(vertex, vertex(start) if low is None else low, 0.0)
        if best.cost <= slack:
            return Optimum(best, best, 1.0, 0.0, True)
        high = best
    if low is None:
        low = _improve(vertex, high, np.inf)
        if low.cost > slack:
            return Optimum(low, low, 1.0, np.inf, False)
    while True:
        slope = max(0.0, (high.reward - low.reward) / (high.cost - low.cost))
        nearer = min((low, high), key=lambda v: abs(v.cost - limit))
        new = _improve(vertex, nearer, slope)
        gain = (new.reward - slope * new.cost) - max(v.reward - slope * v.cost for v in (low, high))
        if new.cost <= slack and slope == 0.0:
            return Optimum(new, new, 1.0, 0.0, True)
        if gain <= RELATIVE_ROUNDING * (new.max_abs_reward + slope * new.max_abs_cost):
            weight = min(1.0, max(0.0, (high.cost - limit) / (high.cost - low.cost)))
            return Optimum(low, high, weight, slope, True)
        low, high = (new, high) if new.cost <= slack else (low, new)


def _bracket(
    vertex: Callable[[Array], Vertex], slack: float, multiplier: float, actions: Int[Array, " S"]
) -> tuple[Vertex | None, Vertex | None]:
    """Search a vertex on each side of the limit near a warm multiplier. None for a side not found in a few steps."""
    low: Vertex | None = None
    high: Vertex | None = None
    if not 0.0 < multiplier < np.inf:
        return low, high
    current, factor = vertex(actions), BRACKET_FACTOR
    for _ in range(5):
        current = _improve(vertex, current, multiplier)
        if current.cost <= slack:
            low, multiplier = current, multiplier / factor
        else:
            high, multiplier = current, multiplier * factor
        if low is not None and high is not None:
            break
        factor *= factor
    return low, high


def _improve(vertex: Callable[[Array], Vertex], start: Vertex, multiplier: float) -> Vertex:
    """Policy iteration for  r − λc  (for −c if λ is infinite), from `start`."""
    reward_weight, cost_weight = (0.0, 1.0) if multiplier == np.inf else (1.0, multiplier)
    current, total = start, reward_weight * start.total_reward - cost_weight * start.total_cost
    states = np.arange(len(start.actions))
    min_gain = RELATIVE_ROUNDING * (reward_weight * start.max_abs_reward + cost_weight * start.max_abs_cost)
    while True:
        q = current.q_reward * reward_weight - cost_weight * current.q_cost
        best = q.argmax(1)
        gain = q[states, best] - q[states, current.actions]
        if gain.max() <= min_gain:
            return current
        new = vertex(np.where(gain > min_gain, best, current.actions))
        # an improvement raises the value of every state: if the sum does not rise, the gain was a rounding error
        new_total = reward_weight * new.total_reward - cost_weight * new.total_cost
        if new_total <= total:
            return current
        current, total = new, new_total


def _vertices(cmdp: CMDP) -> Callable[[Array], Vertex]:
    """Return the function that evaluates a deterministic policy with one LU factorisation (dense or sparse, like P)."""
    S, A, gamma = cmdp.S, cmdp.A, cmdp.gamma
    rows, first, start = cmdp.rows, np.arange(S) * A, (1.0 - gamma) * cmdp.mu0
    signals = (1.0 - gamma) * np.stack([cmdp.r.ravel(), cmdp.c.ravel()], axis=1)  # [S*A, 2]
    max_abs = float(np.abs(cmdp.r).max()), float(np.abs(cmdp.c).max())
    identity = sp.eye_array(S, format="csr") if sp.issparse(rows) else None

    def vertex(actions: Int[Array, " S"]) -> Vertex:
        chosen = first + actions
        if identity is not None:
            solver = lu_solver(sp.csc_array(identity - gamma * rows[chosen]))
        else:
            matrix = rows.take(chosen, axis=0)
            matrix *= -gamma
            matrix.ravel()[:: S + 1] += 1.0
            solver = lu_solver(matrix)
        v = solver(signals.take(chosen, axis=0), False)
        q = (rows @ v) * gamma + signals
        reward, cost = (cmdp.mu0 @ v).tolist()
        total_reward, total_cost = v.sum(0).tolist()
        q_reward, q_cost = q[:, 0].reshape(S, A), q[:, 1].reshape(S, A)
        visits = partial(solver, start, True)
        return Vertex(actions, reward, cost, total_reward, total_cost, *max_abs, q_reward, q_cost, visits)

    return vertex
