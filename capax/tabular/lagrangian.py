"""How is a CMDP with one cost constraint solved exactly, without a linear program?

The dual function g(λ) = max_π J_r(π) − λ (J_c(π) − C) is convex and piecewise linear, and each of its pieces belongs to
a deterministic policy. Two policies that straddle the limit, `low` (J_c ≤ C) and `high` (J_c > C), define the slope λ at
which both are worth the same; policy iteration at that λ either finds a better policy, which replaces one of the two, or
proves both optimal there. Then the mixture of their occupancies that pays exactly C is the optimum of Eq. 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.tabular.cmdp import CMDP, factor

NOISE = 1e-13
"""Relative size of an improvement that is taken for rounding."""
WIDEN = 1.1
"""Factor by which a warm multiplier is moved while only one side of the limit is known; squared each time."""


class Vertex(NamedTuple):
    """A deterministic policy with what it earns and pays, and its action values (all normalised)."""

    actions: Int[Array, " S"]
    reward: float
    cost: float
    total_reward: float
    """Sum of the reward values of all states."""
    total_cost: float
    """Sum of the cost values of all states."""
    most_reward: float
    """Largest |r| of the CMDP, which bounds |q_reward|."""
    most_cost: float
    """Largest |c| of the CMDP, which bounds |q_cost|."""
    q_reward: Float[Array, "S A"]
    q_cost: Float[Array, "S A"]
    visits: Callable[[], Float[Array, " S"]]
    """Its state occupancy, from the same factorisation."""


class Optimum(NamedTuple):
    """The pair of vertices whose mixture is optimal: weight `weight` on `low`, the rest on `high`."""

    low: Vertex
    high: Vertex
    weight: float
    multiplier: float
    feasible: bool


def optimum(cmdp: CMDP, limit: float, warm: tuple[float, Int[Array, " S"]] | None = None) -> Optimum:
    """Solve  max Σρr  s.t.  Σρc ≤ limit  (Eq. 2), for r and c within ±1.

    `warm` is the multiplier and the actions of a similar problem.
    """
    vertex = _vertices(cmdp)
    slack = limit + NOISE
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
        if gain <= NOISE * (new.most_reward + slope * new.most_cost):
            weight = min(1.0, max(0.0, (high.cost - limit) / (high.cost - low.cost)))
            return Optimum(low, high, weight, slope, True)
        low, high = (new, high) if new.cost <= slack else (low, new)


def _bracket(
    vertex: Callable[[Array], Vertex], slack: float, multiplier: float, actions: Int[Array, " S"]
) -> tuple[Vertex | None, Vertex | None]:
    """A vertex on each side of the limit near a warm multiplier, or None for a side not found in a few moves."""
    low: Vertex | None = None
    high: Vertex | None = None
    if not 0.0 < multiplier < np.inf:
        return low, high
    here, factor = vertex(actions), WIDEN
    for _ in range(5):
        here = _improve(vertex, here, multiplier)
        if here.cost <= slack:
            low, multiplier = here, multiplier / factor
        else:
            high, multiplier = here, multiplier * factor
        if low is not None and high is not None:
            break
        factor *= factor
    return low, high


def _improve(vertex: Callable[[Array], Vertex], start: Vertex, multiplier: float) -> Vertex:
    """Policy iteration for  r − λc  (for −c when λ is infinite), from `start`."""
    on_reward, on_cost = (0.0, 1.0) if multiplier == np.inf else (1.0, multiplier)
    here, worth = start, on_reward * start.total_reward - on_cost * start.total_cost
    states, noise = np.arange(len(start.actions)), NOISE * (on_reward * start.most_reward + on_cost * start.most_cost)
    while True:
        q = here.q_reward * on_reward - on_cost * here.q_cost
        best = q.argmax(1)
        gain = q[states, best] - q[states, here.actions]
        if gain.max() <= noise:
            return here
        new = vertex(np.where(gain > noise, best, here.actions))
        # every state's value rises with an improvement: if their sum does not, what was seen was rounding
        new_worth = on_reward * new.total_reward - on_cost * new.total_cost
        if new_worth <= worth:
            return here
        here, worth = new, new_worth


def _vertices(cmdp: CMDP) -> Callable[[Array], Vertex]:
    """The function that evaluates a deterministic policy: one LU factorisation, dense or sparse as P is."""
    S, A, gamma = cmdp.S, cmdp.A, cmdp.gamma
    rows, first, start = cmdp.rows, np.arange(S) * A, (1.0 - gamma) * cmdp.mu0
    signals = (1.0 - gamma) * np.stack([cmdp.r.ravel(), cmdp.c.ravel()], axis=1)  # [S*A, 2]
    most = float(np.abs(cmdp.r).max()), float(np.abs(cmdp.c).max())
    identity = sp.eye_array(S, format="csr") if sp.issparse(rows) else None

    def vertex(actions: Int[Array, " S"]) -> Vertex:
        chosen = first + actions
        if identity is not None:
            solver = factor(sp.csc_array(identity - gamma * rows[chosen]))
        else:
            matrix = rows.take(chosen, axis=0)
            matrix *= -gamma
            matrix.ravel()[:: S + 1] += 1.0
            solver = factor(matrix)
        v = solver(signals.take(chosen, axis=0), False)
        q = (rows @ v) * gamma + signals
        reward, cost = (cmdp.mu0 @ v).tolist()
        total_reward, total_cost = v.sum(0).tolist()
        q_reward, q_cost = q[:, 0].reshape(S, A), q[:, 1].reshape(S, A)
        visits = partial(solver, start, True)
        return Vertex(actions, reward, cost, total_reward, total_cost, *most, q_reward, q_cost, visits)

    return vertex
