"""How far may the true cost of a policy lie above its predicted one, and which policy is best under that margin?

The predicted cost Ĵ_c(π) errs by  J_c − Ĵ_c ≈ γ Σ ρ̂(s,a) (T − T̂)(s,a)·V̂_c  (the simulation lemma to first order).
The error of a pair has variance Var_T̂(V̂_c)/(n+1); errors of different pairs are independent and add in quadrature:

    σ²(π) = γ² Σ ρ̂(s,a)² Var_T̂(s,a)(V̂_c) / (n(s,a) + 1),

and a policy is accepted only if  Ĵ_c(π) + z σ(π) ≤ C. σ is the norm of a vector φ(π), and inner products φ(π)·φ(π')
are covariances between policies: the exact costs of executed policies correct the prediction for new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.tabular.cmdp import CMDP, occupancy_and_values, support, trusted, values
from capax.tabular.lp import Solution, conditional, solve

NUGGET = 1e-3
"""Share of a policy's own variance that first order does not explain; it keeps near-twins from being told apart."""
STEPS = 8
"""Moves of a search, each with one exact linear problem."""
WORTHWHILE = 1e-4
"""Gain of the objective under which a search stops."""


class Belief(NamedTuple):
    """A learned model with what is known of its errors."""

    cmdp: CMDP
    """With the estimated transitions T̂."""
    successors: Int[Array, "S A K"]
    probability: Float[Array, "S A K"]
    n: Float[Array, "S A"]
    """Visits of each pair."""
    correction: Float[Array, "S A K"]
    """The error that executed policies revealed, in the coordinates of φ: Ĵ_c(π) is corrected by φ(π)·correction."""


class Judgement(NamedTuple):
    """What a belief says of a policy's cost."""

    policy: Float[Array, "S A"]
    occupancy: Float[Array, "S A"]
    cost: float
    """Predicted, and corrected by what executed policies paid."""
    sd: float
    """σ(π)."""
    upper: float
    """cost + zσ."""
    slope: Float[Array, "S A"]
    """The derivative of `upper` by the occupancy at fixed values: the cost to use in a linear problem."""


def believe(cmdp: CMDP, n: Float[Array, "S A"], executed: Sequence[tuple[Array, float]] = ()) -> Belief:
    """A belief from a model, its visits, and the executed policies with their exact costs."""
    successors, probability = support(cmdp)
    belief = Belief(cmdp, successors, probability, n, np.zeros(probability.shape))
    if not executed:
        return belief
    phi, surprise = [], []
    for policy, paid in executed:
        occupancy, psi = _directions(belief, policy)
        phi.append((occupancy[..., None] * psi).ravel())
        surprise.append(paid - float((occupancy * cmdp.c).sum()))
    features = np.stack(phi)  # [policies, S*A*K]
    covariance = features @ features.T
    covariance.flat[:: len(phi) + 1] += NUGGET * covariance.diagonal() + 1e-12
    weights = np.linalg.solve(covariance, np.array(surprise))
    return belief._replace(correction=(weights @ features).reshape(probability.shape))


def judge(belief: Belief, policy: Float[Array, "S A"], z: float) -> Judgement:
    """The corrected cost, its standard error, and the upper value Ĵ_c + zσ of a policy."""
    occupancy, psi = _directions(belief, policy)
    phi = occupancy[..., None] * psi
    sd = float(np.sqrt((phi * phi).sum()))
    unit = phi / sd if sd > 0.0 else phi
    slope = belief.cmdp.c + ((belief.correction + z * unit) * psi).sum(-1)
    cost = float((occupancy * belief.cmdp.c).sum() + (belief.correction * phi).sum())
    return Judgement(policy, occupancy, cost, sd, cost + z * sd, slope)


def safest(belief: Belief, z: float) -> Judgement:
    """The policy of least upper value that a few averaged linear problems find (Frank–Wolfe from the least cost)."""
    cmdp = belief.cmdp
    here = best = judge(belief, solve(cmdp, -np.inf).policy, z)
    for step in range(STEPS):
        cheapest = solve(trusted(cmdp, c=here.slope), -np.inf)
        here = judge(belief, _mix(here.occupancy, cheapest.occupancy, 2.0 / (step + 3.0)), z)
        best = min(best, here, key=lambda j: j.upper)
    return best


def best_within(
    belief: Belief,
    gain: Float[Array, "S A"],
    limit: float,
    z: float,
    starts: Sequence[Judgement],
    warm: Solution | None = None,
) -> tuple[Judgement | None, Solution | None]:
    """The policy of most Σρ·gain with upper value ≤ limit, from feasible `starts`; None if no start is feasible.

    Each move solves the problem that is linear at the best policy so far, goes a part of the way there, and comes back
    into the margin along the line to the least upper value known. Also returns the last linear solution, to warm the
    next search.
    """
    feasible = [start for start in starts if start.upper <= limit]
    if not feasible:
        return None, warm

    def worth(j: Judgement) -> float:
        return float((j.occupancy * gain).sum())

    anchor = min(feasible, key=lambda j: j.upper)
    best, part, target = max(feasible, key=worth), 1.0, None
    for _ in range(STEPS):
        if target is None:
            target = warm = solve(trusted(belief.cmdp, r=gain, c=best.slope), limit, warm=warm)
            if target.status == "infeasible" or target.reward < worth(best) + WORTHWHILE:
                break
        there = _mix(best.occupancy, target.occupancy, part)
        reached = _retract(lambda policy: judge(belief, policy, z), anchor, there, limit)
        if reached is not None and worth(reached) > worth(best) + WORTHWHILE:
            best, part, target = reached, min(1.0, 1.5 * part), None
        else:
            part /= 3.0
    return best, warm


def _retract(
    judged: Callable[[Array], Judgement], anchor: Judgement, policy: Float[Array, "S A"], limit: float
) -> Judgement | None:
    """The point nearest to `policy` on the line from `anchor` that keeps the limit: at most three secant steps."""
    end = judged(policy)
    if end.upper <= limit:
        return end
    found, low, high, low_value, high_value = None, 0.0, 1.0, anchor.upper, end.upper
    for _ in range(3):
        share = 0.97 * (limit - low_value) / (high_value - low_value)
        middle = low + (high - low) * min(0.98, max(0.02, share))
        here = judged(_mix(anchor.occupancy, end.occupancy, middle))
        if here.upper <= limit:
            found, low, low_value = here, middle, here.upper
        else:
            high, high_value = middle, here.upper
    return found


def bonus(belief: Belief, policy: Float[Array, "S A"], multiplier: float) -> Float[Array, "S A"]:
    """Standard error of each pair's effect on the Lagrangian value r − λc of a policy: what is worth finding out."""
    cmdp = belief.cmdp
    v = values(cmdp, policy, cmdp.r - multiplier * cmdp.c)
    return np.sqrt((_deviations(belief, v) ** 2).sum(-1))


def _directions(belief: Belief, policy: Float[Array, "S A"]) -> tuple[Float[Array, "S A"], Float[Array, "S A K"]]:
    """The occupancy ρ̂ of a policy, and ψ with φ(π) = ρ̂ψ."""
    occupancy, v = occupancy_and_values(belief.cmdp, policy, belief.cmdp.c)
    return occupancy, _deviations(belief, v)


def _deviations(belief: Belief, v: Float[Array, " S"]) -> Float[Array, "S A K"]:
    """γ √(T̂(s')/(n+1)) (V(s') − E V): its squares over s' sum to γ² Var_T̂(V)/(n+1)."""
    after = v[belief.successors]
    mean = (belief.probability * after).sum(-1, keepdims=True)
    return belief.cmdp.gamma * np.sqrt(belief.probability / (belief.n[..., None] + 1.0)) * (after - mean)


def _mix(a: Float[Array, "S A"], b: Float[Array, "S A"], part: float) -> Float[Array, "S A"]:
    """The policy of the occupancy (1−part)·a + part·b."""
    return conditional((1.0 - part) * a + part * b, np.full(a.shape, 1.0 / a.shape[1]))
