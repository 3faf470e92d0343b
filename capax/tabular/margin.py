"""Standard error of a policy's predicted cost, and the best policy that keeps the limit with a margin of z errors.

The error of the predicted cost Ĵ_c(π) is  J_c − Ĵ_c ≈ γ Σ ρ̂(s,a) (T − T̂)(s,a)·V̂_c  (the simulation lemma to first order).
The error of a pair has variance Var_T̂(V̂_c)/(n+1). Errors of different pairs are independent, so their variances add:

    σ²(π) = γ² Σ ρ̂(s,a)² Var_T̂(s,a)(V̂_c) / (n(s,a) + 1).

A policy is accepted only if  Ĵ_c(π) + z σ(π) ≤ C. σ is the norm of a vector φ(π). The inner product φ(π)·φ(π') is the
covariance between the errors of two policies, so the exact costs of executed policies correct the prediction for new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.tabular.cmdp import CMDP, occupancy_and_values, replace_unchecked, support, values
from capax.tabular.solvers import Solution, policy_from_occupancy, solve

NUGGET = 1e-3
"""Share of a policy's own variance that first order does not explain. It regularises nearly equal policies."""
MAX_SEARCH_STEPS = 8
"""Largest number of steps of a search. Each step solves at most one linear problem."""
MIN_GAIN = 1e-4
"""Smaller gains of the objective stop a search."""


class Posterior(NamedTuple):
    """A learned model and the distribution of its errors."""

    cmdp: CMDP
    """The CMDP with the estimated transitions T̂."""
    successors: Int[Array, "S A K"]
    """The possible successors of each pair."""
    probability: Float[Array, "S A K"]
    """Their probabilities T̂."""
    n: Float[Array, "S A"]
    """Visits of each pair."""
    correction: Float[Array, "S A K"]
    """Error of T̂ learned from executed policies, in the coordinates of φ: Ĵ_c(π) is corrected by φ(π)·correction."""


class CostEstimate(NamedTuple):
    """Estimated cost of a policy under a posterior."""

    policy: Float[Array, "S A"]
    occupancy: Float[Array, "S A"]
    cost: float
    """Predicted cost, corrected by the exact costs of executed policies."""
    sd: float
    """Its standard error σ(π)."""
    upper: float
    """cost + zσ."""
    slope: Float[Array, "S A"]
    """Derivative of `upper` with respect to the occupancy at fixed values: the cost of a linear problem."""


def fit_posterior(cmdp: CMDP, n: Float[Array, "S A"], executed: Sequence[tuple[Array, float]] = ()) -> Posterior:
    """The posterior of a model, given its visit counts n and the executed policies with their exact costs."""
    successors, probability = support(cmdp)
    posterior = Posterior(cmdp, successors, probability, n, np.zeros(probability.shape))
    if not executed:
        return posterior
    features, errors = [], []
    for policy, exact_cost in executed:
        occupancy, psi = _occupancy_and_psi(posterior, policy)
        features.append((occupancy[..., None] * psi).ravel())
        errors.append(exact_cost - float((occupancy * cmdp.c).sum()))
    phi = np.stack(features)  # [policies, S*A*K]
    covariance = phi @ phi.T
    covariance.flat[:: len(features) + 1] += NUGGET * covariance.diagonal() + 1e-12
    weights = np.linalg.solve(covariance, np.array(errors))
    return posterior._replace(correction=(weights @ phi).reshape(probability.shape))


def estimate_cost(posterior: Posterior, policy: Float[Array, "S A"], z: float) -> CostEstimate:
    """Corrected cost Ĵ_c, standard error σ and upper value Ĵ_c + zσ of a policy."""
    occupancy, psi = _occupancy_and_psi(posterior, policy)
    phi = occupancy[..., None] * psi
    sd = float(np.sqrt((phi * phi).sum()))
    unit = phi / sd if sd > 0.0 else phi
    slope = posterior.cmdp.c + ((posterior.correction + z * unit) * psi).sum(-1)
    cost = float((occupancy * posterior.cmdp.c).sum() + (posterior.correction * phi).sum())
    return CostEstimate(policy, occupancy, cost, sd, cost + z * sd, slope)


def safest_policy(posterior: Posterior, z: float) -> CostEstimate:
    """The policy of least upper value, found by a few Frank–Wolfe steps from the least-cost policy."""
    cmdp = posterior.cmdp
    current = best = estimate_cost(posterior, solve(cmdp, -np.inf).policy, z)
    for step in range(MAX_SEARCH_STEPS):
        cheapest = solve(replace_unchecked(cmdp, c=current.slope), -np.inf)
        current = estimate_cost(posterior, _mix(current.occupancy, cheapest.occupancy, 2.0 / (step + 3.0)), z)
        best = min(best, current, key=lambda estimate: estimate.upper)
    return best


def best_policy_within(
    posterior: Posterior,
    gain: Float[Array, "S A"],
    limit: float,
    z: float,
    starts: Sequence[CostEstimate],
    warm: Solution | None = None,
) -> tuple[CostEstimate | None, Solution | None]:
    """The policy with the largest Σρ·gain and upper value ≤ limit, from feasible `starts`. None if no start is feasible.

    Each step solves the problem linearised at the best policy so far and moves a part of the way to its solution. If the
    new point violates the margin, it is pulled back along the line to the start of least upper value. The second result
    is the last linear solution, which warms the next search.
    """
    feasible = [start for start in starts if start.upper <= limit]
    if not feasible:
        return None, warm

    def objective(estimate: CostEstimate) -> float:
        return float((estimate.occupancy * gain).sum())

    anchor = min(feasible, key=lambda estimate: estimate.upper)
    best, step_size, target = max(feasible, key=objective), 1.0, None
    for _ in range(MAX_SEARCH_STEPS):
        if target is None:
            target = warm = solve(replace_unchecked(posterior.cmdp, r=gain, c=best.slope), limit, warm=warm)
            if target.status == "infeasible" or target.reward < objective(best) + MIN_GAIN:
                break
        policy = _mix(best.occupancy, target.occupancy, step_size)
        new = _pull_within_limit(lambda policy: estimate_cost(posterior, policy, z), anchor, policy, limit)
        if new is not None and objective(new) > objective(best) + MIN_GAIN:
            best, step_size, target = new, min(1.0, 1.5 * step_size), None
        else:
            step_size /= 3.0
    return best, warm


def _pull_within_limit(
    estimate: Callable[[Array], CostEstimate], anchor: CostEstimate, policy: Float[Array, "S A"], limit: float
) -> CostEstimate | None:
    """The last point found by three secant steps, from `anchor` towards `policy`, that keeps the limit. None if none does."""
    end = estimate(policy)
    if end.upper <= limit:
        return end
    best, low, high, low_value, high_value = None, 0.0, 1.0, anchor.upper, end.upper
    for _ in range(3):
        share = 0.97 * (limit - low_value) / (high_value - low_value)
        middle = low + (high - low) * min(0.98, max(0.02, share))
        point = estimate(_mix(anchor.occupancy, end.occupancy, middle))
        if point.upper <= limit:
            best, low, low_value = point, middle, point.upper
        else:
            high, high_value = middle, point.upper
    return best


def exploration_bonus(posterior: Posterior, policy: Float[Array, "S A"], multiplier: float) -> Float[Array, "S A"]:
    """Exploration bonus: the standard error of each pair's effect on the Lagrangian value r − λc of a policy."""
    cmdp = posterior.cmdp
    v = values(cmdp, policy, cmdp.r - multiplier * cmdp.c)
    return np.sqrt((_deviations(posterior, v) ** 2).sum(-1))


def _occupancy_and_psi(
    posterior: Posterior, policy: Float[Array, "S A"]
) -> tuple[Float[Array, "S A"], Float[Array, "S A K"]]:
    """The occupancy ρ̂ of a policy, and ψ with φ(π) = ρ̂ψ."""
    occupancy, v = occupancy_and_values(posterior.cmdp, policy, posterior.cmdp.c)
    return occupancy, _deviations(posterior, v)


def _deviations(posterior: Posterior, v: Float[Array, " S"]) -> Float[Array, "S A K"]:
    """ψ(s, a, s') = γ √(T̂(s')/(n+1)) (V(s') − E V). Its squares sum over s' to γ² Var_T̂(V)/(n+1)."""
    successor_values = v[posterior.successors]
    mean = (posterior.probability * successor_values).sum(-1, keepdims=True)
    return (
        posterior.cmdp.gamma
        * np.sqrt(posterior.probability / (posterior.n[..., None] + 1.0))
        * (successor_values - mean)
    )


def _mix(a: Float[Array, "S A"], b: Float[Array, "S A"], weight: float) -> Float[Array, "S A"]:
    """The policy of the mixed occupancy (1−weight)·a + weight·b."""
    return policy_from_occupancy((1.0 - weight) * a + weight * b, np.full(a.shape, 1.0 / a.shape[1]))
