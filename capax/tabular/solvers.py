"""Optimal policies of CMDPs under a cost limit: the public solver, and the linear program solved by HiGHS."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import highspy
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray as Array

from capax.core.checks import number, short_repr, word
from capax.core.errors import InputError
from capax.runtime.blas_threads import one_blas_thread
from capax.tabular.cmdp import CMDP, MAX_DENSE_STATES, checked_cmdp, evaluate_unchecked, replace_unchecked
from capax.tabular.lagrangian import optimum

SOLVERS = ("auto", "lagrangian", "highs")
HIGHS_OPTIONS: dict[str, Any] = {
    "output_flag": False,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
    "small_matrix_value": 1e-12,  # HiGHS drops smaller entries of the matrix; its default is 1e-9
    # with its defaults for these two, HiGHS fails on probabilities of 1e-11 and is slower at 64 states
    "presolve": "off",
    "simplex_scale_strategy": 0,
}


class Solution(NamedTuple):
    """The result of `solve`. Reward, cost and occupancy are the exact ones of `policy`."""

    policy: Float[Array, "S A"]
    occupancy: Float[Array, "S A"]
    reward: float
    cost: float
    multiplier: float
    """Extra reward for one more unit of the cost limit (infinite if no policy is feasible)."""
    status: Literal["optimal", "infeasible"]
    """`infeasible`: no policy keeps the limit, and `policy` has the least cost."""


def solve(cmdp: CMDP, limit: float, method: str = "auto", *, warm: Solution | None = None) -> Solution:
    """Maximise Σρr subject to Σρc ≤ limit over all policies (Eq. 2; Eq. 5 with a penalised CMDP).

    `lagrangian` searches the multiplier and mixes two deterministic policies. `highs` solves the linear program over
    occupancies. Both are exact. `auto` is `lagrangian`, which was faster at every measured size. `warm` is the solution of
    a similar problem; it makes `lagrangian` faster.
    """
    cmdp = checked_cmdp(cmdp)
    limit = number(
        "limit", limit, "a number, the normalised cost that must not be exceeded", lambda x: not math.isnan(x)
    )
    method = word("method", method, SOLVERS)
    if warm is not None and not isinstance(warm, Solution):
        raise InputError(f"warm is {short_repr(warm)}: give the solution of a similar problem, or None.")
    if warm is not None and warm.policy.shape != cmdp.r.shape:
        raise InputError(f"warm has a policy of shape {warm.policy.shape}: give a solution of shape {cmdp.r.shape}.")
    # r and c are scaled to ±1, so that tolerances mean the same for every CMDP; powers of two scale exactly
    reward_scale, cost_scale = _power_of_two(cmdp.r), _power_of_two(cmdp.c)
    scaled = replace_unchecked(cmdp, r=cmdp.r / reward_scale, c=cmdp.c / cost_scale)
    scaled_limit = min(2.0, max(-2.0, limit / cost_scale))  # scaled costs are within ±1
    with one_blas_thread() if cmdp.S <= MAX_DENSE_STATES else nullcontext():
        if method == "highs":
            policy, multiplier, feasible = _highs(scaled, scaled_limit)
        else:
            start = None if warm is None else (warm.multiplier * cost_scale / reward_scale, warm.policy.argmax(1))
            policy, multiplier, feasible = _lagrangian(scaled, scaled_limit, start)
        reward, cost, occupancy = evaluate_unchecked(cmdp, policy)
    status: Literal["optimal", "infeasible"] = "optimal" if feasible else "infeasible"
    return Solution(policy, occupancy, reward, cost, float(multiplier) * reward_scale / cost_scale, status)


def _power_of_two(x: Array) -> float:
    """The smallest power of two above all |x|."""
    return float(np.ldexp(1.0, np.frexp(np.abs(x).max())[1]))


def _lagrangian(cmdp: CMDP, limit: float, warm: tuple[float, Array] | None) -> tuple[Array, float, bool]:
    """Solve with the Lagrangian solver: (policy, multiplier, feasible)."""
    best = optimum(cmdp, limit, warm)
    if best.weight == 1.0 or best.low is best.high:
        return np.eye(cmdp.A)[best.low.actions], best.multiplier, best.feasible
    if best.weight == 0.0:
        return np.eye(cmdp.A)[best.high.actions], best.multiplier, best.feasible
    mixed = np.zeros(cmdp.r.shape)
    for vertex, weight in ((best.low, best.weight), (best.high, 1.0 - best.weight)):
        mixed[np.arange(cmdp.S), vertex.actions] += weight * np.maximum(vertex.visits(), 0.0)
    return policy_from_occupancy(mixed, np.eye(cmdp.A)[best.low.actions]), best.multiplier, best.feasible


def policy_from_occupancy(occupancy: Float[Array, "S A"], unvisited: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """The policy of an occupancy: π(a|s) = ρ(s,a) / Σ_a ρ(s,a), and `unvisited[s]` in states that are never visited."""
    visits = occupancy.sum(1, keepdims=True)
    policy = np.where(visits > 0.0, occupancy / np.where(visits > 0.0, visits, 1.0), unvisited)
    return policy / policy.sum(1, keepdims=True)


def _highs(cmdp: CMDP, limit: float) -> tuple[Array, float, bool]:
    """Solve Eq. 2 with HiGHS: (policy, multiplier, feasible). If it is infeasible, the policy has the least cost."""
    occupancy, multiplier = _highs_occupancy(cmdp, cmdp.r, limit)
    feasible = occupancy is not None
    if occupancy is None:
        occupancy, _ = _highs_occupancy(cmdp, -cmdp.c, math.inf)
        if occupancy is None or (occupancy * cmdp.c).sum() <= limit:
            raise InputError(f"HiGHS could not solve a CMDP of {cmdp.S} states: use method='lagrangian'.")
    return policy_from_occupancy(occupancy, np.full(cmdp.r.shape, 1.0 / cmdp.A)), multiplier, feasible


def _highs_occupancy(cmdp: CMDP, gain: Float[Array, "S A"], limit: float) -> tuple[Array | None, float]:
    """The occupancy that maximises Σρ·gain under the limit, and the multiplier. (None, inf) if HiGHS finds none."""
    S, A = cmdp.S, cmdp.A
    inflow = sp.csc_array(cmdp.rows.T)  # [S, S*A]
    outflow = sp.csc_array((np.ones(S * A), np.repeat(np.arange(S), A), np.arange(S * A + 1)), shape=(S, S * A))
    matrix = sp.csc_array(sp.vstack([outflow - cmdp.gamma * inflow, cmdp.c.reshape(1, -1)]))
    start = (1.0 - cmdp.gamma) * cmdp.mu0
    lp: Any = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = S * A, S + 1
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = gain.ravel()
    lp.col_lower_, lp.col_upper_ = np.zeros(S * A), np.full(S * A, highspy.kHighsInf)
    lp.row_lower_ = np.append(start, -highspy.kHighsInf)
    lp.row_upper_ = np.append(start, limit)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    solver = highspy.Highs()
    for name, value in HIGHS_OPTIONS.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    solver.run()
    if (
        solver.getModelStatus() != highspy.HighsModelStatus.kOptimal
    ):  # HiGHS sometimes reports an infeasible program as unknown
        return None, math.inf
    solution = solver.getSolution()
    return np.maximum(np.array(solution.col_value), 0.0).reshape(S, A), abs(float(solution.row_dual[S]))
