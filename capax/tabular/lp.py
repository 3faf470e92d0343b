"""What is the best policy of a CMDP under a cost limit?"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import highspy
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray as Array

from capax.checks import number, shown, word
from capax.errors import InputError
from capax.tabular.cmdp import CMDP, DENSE_STATES, checked, evaluate_trusted, trusted
from capax.tabular.lagrangian import optimum
from capax.threads import one_blas_thread

METHODS = ("auto", "lagrangian", "highs")
HIGHS_OPTIONS: dict[str, Any] = {
    "output_flag": False,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
    "small_matrix_value": 1e-12,  # HiGHS drops smaller probabilities, by default those under 1e-9
    # without these two it stumbles over probabilities of 1e-11, and is slower at 64 states
    "presolve": "off",
    "simplex_scale_strategy": 0,
}


class Solution(NamedTuple):
    """The answer of `solve`; reward, cost and occupancy are those of `policy`, evaluated exactly."""

    policy: Float[Array, "S A"]
    occupancy: Float[Array, "S A"]
    reward: float
    cost: float
    multiplier: float
    """What one unit more of the limit would earn (infinite where no policy is feasible)."""
    status: Literal["optimal", "infeasible"]
    """`infeasible`: no policy keeps the limit, and `policy` is the one that costs least."""


def solve(cmdp: CMDP, limit: float, method: str = "auto", *, warm: Solution | None = None) -> Solution:
    """Maximise Σρr subject to Σρc ≤ limit over all policies (Eq. 2; Eq. 5 with a penalised CMDP).

    `lagrangian` searches the multiplier and mixes two deterministic policies; `highs` solves the linear program over
    occupancies. Both are exact. `auto` is `lagrangian`, the faster one at every size that was measured; `warm`, the
    solution of a similar problem, makes it faster still.
    """
    cmdp = checked(cmdp)
    limit = number(
        "limit", limit, "a number, the normalised cost that must not be exceeded", lambda x: not math.isnan(x)
    )
    method = word("method", method, METHODS)
    if warm is not None and not isinstance(warm, Solution):
        raise InputError(f"warm is {shown(warm)}: give a solution of a similar problem, or None.")
    if warm is not None and warm.policy.shape != cmdp.r.shape:
        raise InputError(f"warm has a policy of shape {warm.policy.shape}: give a solution of shape {cmdp.r.shape}.")
    # powers of two, so that the scaling is exact: tolerances then mean the same for every CMDP
    earns, costs = _power_of_two(cmdp.r), _power_of_two(cmdp.c)
    unit = trusted(cmdp, r=cmdp.r / earns, c=cmdp.c / costs)
    within = min(2.0, max(-2.0, limit / costs))  # costs are within ±1 there
    with one_blas_thread() if cmdp.S <= DENSE_STATES else nullcontext():
        if method == "highs":
            policy, multiplier, feasible = _highs(unit, within)
        else:
            start = None if warm is None else (warm.multiplier * costs / earns, warm.policy.argmax(1))
            policy, multiplier, feasible = _lagrangian(unit, within, start)
        reward, cost, visited = evaluate_trusted(cmdp, policy)
    status: Literal["optimal", "infeasible"] = "optimal" if feasible else "infeasible"
    return Solution(policy, visited, reward, cost, float(multiplier) * earns / costs, status)


def _power_of_two(x: Array) -> float:
    """The least power of two above all |x|."""
    return float(np.ldexp(1.0, np.frexp(np.abs(x).max())[1]))


def _lagrangian(cmdp: CMDP, limit: float, warm: tuple[float, Array] | None) -> tuple[Array, float, bool]:
    best = optimum(cmdp, limit, warm)
    if best.weight == 1.0 or best.low is best.high:
        return np.eye(cmdp.A)[best.low.actions], best.multiplier, best.feasible
    if best.weight == 0.0:
        return np.eye(cmdp.A)[best.high.actions], best.multiplier, best.feasible
    mixed = np.zeros(cmdp.r.shape)
    for vertex, weight in ((best.low, best.weight), (best.high, 1.0 - best.weight)):
        mixed[np.arange(cmdp.S), vertex.actions] += weight * np.maximum(vertex.visits(), 0.0)
    return conditional(mixed, np.eye(cmdp.A)[best.low.actions]), best.multiplier, best.feasible


def conditional(occupancy: Float[Array, "S A"], elsewhere: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """π(a|s) = ρ(s,a) / Σ_a ρ(s,a), and `elsewhere` in states that are never visited."""
    visits = occupancy.sum(1, keepdims=True)
    policy = np.where(visits > 0.0, occupancy / np.where(visits > 0.0, visits, 1.0), elsewhere)
    return policy / policy.sum(1, keepdims=True)


def _highs(cmdp: CMDP, limit: float) -> tuple[Array, float, bool]:
    """The linear program of Eq. 2 over occupancies; if it is infeasible, the least-cost one."""
    found, multiplier = _highs_occupancy(cmdp, cmdp.r, limit)
    feasible = found is not None
    if found is None:
        found, _ = _highs_occupancy(cmdp, -cmdp.c, math.inf)
        if found is None or (found * cmdp.c).sum() <= limit:
            raise InputError(f"HiGHS could not solve a CMDP of {cmdp.S} states: use method='lagrangian'.")
    return conditional(found, np.full(cmdp.r.shape, 1.0 / cmdp.A)), multiplier, feasible


def _highs_occupancy(cmdp: CMDP, gain: Float[Array, "S A"], limit: float) -> tuple[Array | None, float]:
    """The occupancy that maximises Σρ·gain under the limit, with the multiplier; (None, inf) if HiGHS finds none."""
    S, A = cmdp.S, cmdp.A
    transitions = sp.csc_array(cmdp.rows.T)  # [S, S*A]
    stay = sp.csc_array((np.ones(S * A), np.repeat(np.arange(S), A), np.arange(S * A + 1)), shape=(S, S * A))
    matrix = sp.csc_array(sp.vstack([stay - cmdp.gamma * transitions, cmdp.c.reshape(1, -1)]))
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
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:  # infeasible, which it sometimes calls unknown
        return None, math.inf
    answer = solver.getSolution()
    return np.maximum(np.array(answer.col_value), 0.0).reshape(S, A), abs(float(answer.row_dual[S]))
