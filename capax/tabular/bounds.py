"""Bounds on the error of a counted transition model, and on the resulting error of a policy's cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from capax.core.errors import InputError
from capax.tabular.cmdp import CMDP, evaluate, values

MAX_SAMPLES = 2**60
"""Largest count that `samples_needed` tries."""
WHOLE_NUMBER_INPUTS = ("S", "A", "K", "k", "pairs")
INPUT_RANGES = {name: (1.0, np.finfo(float).max, "a whole number >= 1") for name in WHOLE_NUMBER_INPUTS} | {
    "delta": (np.finfo(float).tiny, 1.0, "a probability of failure with 0 < delta <= 1"),
    "gamma": (0.0, np.nextafter(1.0, 0.0), "a number with 0 <= gamma < 1"),
}
"""Allowed inputs by name: lowest value, highest value, description. Other inputs must be finite and ≥ 0."""
MAX_SWEEPS = 100
"""Largest number of steps in the search for the worst transitions. A handful is usual; rounding could make it endless."""
Policy = Float[Array, "S A"] | Int[Array, " S"]


def paper_valid(S: int, A: int, delta: float, *, K: int = 1) -> bool:
    """Whether Weissman's inequality implies the paper's u:  (|S|−4) ln x ≥ 4 ln(2^|S|−2) − 2|S| ln 2,  x = K|S||A|/δ.

    This is (2^|S|−2) e^{−2nt²} ≤ 1/x with t = u; n cancels. It never holds for |S| = 2, 3, 4. From |S| = 5 on it holds for
    small enough δ, and from |S| = 11 on for every A, K and δ.
    """
    log_x = np.log(_checked("K", K) * _checked("S", S) * _checked("A", A) / _checked("delta", delta))
    return S == 1 or bool((S - 4) * log_x >= 4 * _log_subsets(np.array(S)) - 2 * S * np.log(2))


def paper_u(n: Any, *, S: int, A: int, delta: float, K: int = 1, strict: bool = True) -> Float[Array, "*n"]:
    """The paper's bound on TV(T, T̂):  u = √(|S|/(8n) · ln(4K|S||A|/δ))  (Theorem 4.3; K > 1: its corollary), at most 1.

    Valid if `paper_valid` holds, for the empirical T̂ and for counts fixed before the data. Otherwise it raises an error.
    With `strict=False` it is computed anyway; for |S| = 2 and 3 this bound fails too often.
    """
    if not paper_valid(S, A, delta, K=K) and strict:
        raise InputError(
            f"the paper's u is not proved for S={S}, A={A}, K={K}, delta={delta}: use weissman(n, k, delta) instead."
        )
    return _deviation_radius(S / 4 * np.log(4 * K * S * A / delta), _checked("n", n))


def weissman(n: Any, k: Any, delta: Any) -> Float[Array, "*n"]:
    """A bound on TV(T, T̂) that fails with probability at most δ:  t = √(ln((2^k−2)/δ) / (2n)), at most 1.

    Pr(TV ≥ t) ≤ (2^k−2) e^{−2nt²} (Weissman et al. 2003) for the empirical T̂ of n draws. n is fixed before the data, and
    the k possible successors are known in advance. The bound is 0 for k = 1 and 1 for n = 0.
    """
    n, k, delta = _broadcast(n=n, k=k, delta=delta)
    return np.where(
        n == 0, 1.0, np.where(k == 1, 0.0, _deviation_radius(_log_subsets(np.maximum(k, 2)) - np.log(delta), n))
    )


def smoothing(n: Any, prior: Any) -> Float[Array, "*n"]:
    """Largest TV between T̂ = (count + prior counts)/(n + m) and count/n, for prior counts that sum to m:  m/(n+m)."""
    n, m = _broadcast(n=n, prior=prior)
    return np.where(n == 0, 1.0, m / np.where(n == 0, 1.0, n + m))


def count_share(delta: Any, n: Any, *, pairs: int) -> Float[Array, "*n"]:
    """The share of δ for one pair at one count n:  δ/(pairs·n(n+1)).

    n(s,a) depends on the data, so a bound must hold at every count at once. Σ_{n≥1} 1/(n(n+1)) = 1, so these shares add
    up to δ. A bound that holds at every count also holds in every iteration, so the paper's factor K is not needed.
    """
    delta, n = _broadcast(delta=delta, n=n)
    return delta / _checked("pairs", pairs) / np.maximum(n * (n + 1), 1.0)


def certificate(
    n: Float[Array, "S A"], k: Any, *, delta: float, gamma: float, c_max: float = 1.0, prior: Any = 0.0
) -> Float[Array, "S A"]:
    """The penalty of the corrected theorem:  γβ·min(1, weissman(n, k, δ/(|S||A|n(n+1))) + m/(n+m)),  β = c_max/(1−γ).

    It is the u of `penalised` in Eq. 5. With probability 1 − δ, every policy in every iteration costs at most its
    penalised cost in the model. Valid for known costs 0 ≤ c ≤ c_max and at most k possible successors known in advance.
    """
    n = _checked("n", n)
    if n.ndim != 2:
        raise InputError(f"n has shape {n.shape}: give one count per state and action, shape [S, A].")
    distance = weissman(n, k, count_share(delta, n, pairs=n.size)) + smoothing(n, prior)
    beta = _checked("c_max", c_max) / (1.0 - _checked("gamma", gamma))
    return gamma * beta * np.minimum(distance, 1.0)


def bernstein(variance: Any, n: Any, *, span: Any, delta: Any) -> Float[Array, "*n"]:
    """A bound on |E X − mean| of n draws of X:  √(2 Var ln(4/δ)/n) + 7 span ln(4/δ)/(3(n−1)), at most span.

    Empirical Bernstein bound (Maurer and Pontil 2009, Theorem 4, both sides); `variance` is the sample variance over n − 1.
    With X = V(s') it bounds |(T − T̂)V| for one V fixed before the data, in an interval of length span, at a fixed n. For M
    such functions use δ/M; for a random n use `count_share`. V_T̂ depends on the data: use `successor_bernstein` for it.
    """
    variance, n, span, delta = _broadcast(variance=variance, n=n, span=span, delta=delta)
    log_term = np.log(4.0 / delta)
    radius = np.sqrt(2 * variance * log_term / np.maximum(n, 1)) + 7 * span * log_term / (3 * np.maximum(n - 1, 1))
    return np.where(n < 2, span, np.minimum(radius, span))


def successor_bernstein(
    counts: Float[Array, "*pairs S"], *, delta: Any, possible: Bool[Array, "*pairs S"] | None = None, centre: Any = None
) -> Float[Array, "*pairs S"]:
    """Radii e with |T(s'|s,a) − centre(s')| ≤ e(s') for all successors of a pair, with probability 1 − δ per pair.

    e is the `bernstein` bound of each indicator 1[s'] with δ/k, plus |count/n − centre|. `centre` is the model, smoothed
    or not (default: the frequencies). The radii are about T alone, so they are valid for every V, also one that depends on
    the data. They are valid at a fixed n; use δ = count_share(…) for a random one. `possible` marks the k successors known
    in advance.
    """
    counts = _checked("counts", counts)
    mask = np.ones(counts.shape, bool) if possible is None else np.asarray(possible, bool)
    if mask.shape != counts.shape or not mask.any(-1).all() or counts[~mask].any():
        raise InputError(
            "possible does not fit counts: give an array of the same shape that marks every counted successor."
        )
    n, k = counts.sum(-1, keepdims=True), mask.sum(-1, keepdims=True)
    frequency = counts / np.maximum(n, 1)
    variance = frequency * (1 - frequency) * n / np.maximum(n - 1, 1)
    _broadcast(delta=delta, n=n[..., 0])
    radii = np.where(mask & (k > 1), bernstein(variance, n, span=1.0, delta=np.asarray(delta)[..., None] / k), 0.0)
    if centre is not None:
        radii += np.abs(_broadcast(centre=centre, counts=counts)[0] - frequency)
    return np.where(mask & (n == 0), 1.0, np.minimum(radii, 1.0))


class CertifiedCost(NamedTuple):
    """The largest cost of a policy within the radii of a model."""

    cost: float
    """Normalised cost."""
    values: Float[Array, " S"]
    """State values V = c + γPV of the worst case, not normalised."""


def certified_cost(model: CMDP, policy: Policy, radii: Float[Array, "S A S"]) -> CertifiedCost:
    """The largest cost of `policy` under any T with |T − T̂| ≤ radii:  W = Σ_a π (c + γ max_T T·W),  (1−γ) μ₀·W.

    If the radii hold, this is valid for all policies at once, however they were chosen from the data. Policy iteration
    finds the worst T. Its remaining error, max(c + γ max_T T·W − W), is added, so the bound is valid before convergence.
    """
    V = values(model, policy, model.c)
    for _ in range(MAX_SWEEPS):
        previous, V = V, values(replace(model, P=_worst_rows(model, radii, V)), policy, model.c)
        if (V - previous).max() <= 1e-12 * max(1.0, np.abs(V).max()):
            break
    # With γ = 0, `values` averages a signal over the policy; here the signal is one more worst-case step.
    residual = values(replace(model, gamma=0.0), policy, model.c + model.gamma * (_worst_rows(model, radii, V) @ V)) - V
    return CertifiedCost(float((1.0 - model.gamma) * (model.mu0 @ V) + max(0.0, residual.max())), V)


def value_penalty(model: CMDP, radii: Float[Array, "S A S"], V: Float[Array, " S"]) -> Float[Array, "S A"]:
    """Penalty for one V:  γ max { (T − T̂)·V : |T − T̂| ≤ radii, T a distribution }, to be used with `penalised`.

    With V = certified_cost(model, π, radii).values, the penalised cost of π in the model is its certified cost, so an LP
    with this penalty searches near π. The penalty holds for that π and V only: certify the policy that the LP returns.
    """
    V = np.asarray(V, np.float64)
    if V.shape != (model.S,) or not np.isfinite(V).all():
        raise InputError(f"V has shape {V.shape} or is not finite: give one number per state, shape ({model.S},).")
    return model.gamma * np.maximum((_worst_rows(model, radii, V) - model.P) @ V, 0.0)


def total_variation(true: CMDP, model: CMDP) -> Float[Array, "S A"]:
    """Total variation  TV(T, T̂)(s,a) = ½ Σ_{s'} |T(s'|s,a) − T̂(s'|s,a)|."""
    _check_same_except_P(true, model)
    return np.asarray(abs(true.rows - model.rows).sum(axis=1)).reshape(true.S, true.A) / 2


def simulation_gap(true: CMDP, model: CMDP, policy: Policy) -> float:
    """True minus predicted cost of `policy`:  Σ(ρ_T − ρ_T̂)c = γ Σ ρ_T̂ (E_T − E_T̂) V_T  (simulation lemma).

    The right side is computed; ρ is normalised, V is not. The paper's proof has an extra 1/(1−γ) on the left, and V_T̂.
    """
    _check_same_except_P(true, model)
    V = values(true, policy, true.c)
    difference = np.asarray(true.rows @ V - model.rows @ V).reshape(true.S, true.A)
    return float(true.gamma * (evaluate(model, policy).occupancy * difference).sum())


def gap_bound(true: CMDP, model: CMDP, policy: Policy) -> float:
    """Upper bound on |simulation_gap|:  γβ Σ ρ_T̂ TV(T, T̂)  with β = c_max/(1−γ)  (Eq. 4).

    Valid for c ≥ 0: then 0 ≤ V ≤ β, and |(T−T̂)V| ≤ span(V)·TV. For the L1 distance, the paper's d_F, use β/2.
    """
    if true.c.min() < 0:
        raise InputError(f"c has the negative entry {true.c.min():g}: shift the costs so that all are >= 0.")
    weighted = (evaluate(model, policy).occupancy * total_variation(true, model)).sum()
    return float(true.gamma * true.c.max() / (1.0 - true.gamma) * weighted)


def samples_needed(penalty: Callable[[int], Any], slack: float) -> int:
    """The smallest count n with penalty(n) ≤ slack, for a penalty that falls with n (e.g. γβu)."""
    counts = range(1, MAX_SAMPLES)
    index = bisect_left(counts, True, key=lambda n: bool(penalty(n) <= slack))
    if index == len(counts):
        raise InputError(f"the penalty exceeds the slack {slack:g} at {counts[-1]} samples: give a larger slack.")
    return counts[index]


def _log_subsets(k: Array) -> Array:
    """ln(2^k − 2), without overflow, for k ≥ 2."""
    return k * np.log(2) + np.log1p(-(2.0 ** (1.0 - k)))


def _deviation_radius(log_term: Any, n: Array) -> Array:
    """min(1, √(log_term/(2n))), and 1 where n = 0."""
    return np.where(n == 0, 1.0, np.minimum(np.sqrt(log_term / np.where(n == 0, 1.0, 2 * n)), 1.0))


def _worst_rows(model: CMDP, radii: Float[Array, "S A S"], V: Float[Array, " S"]) -> Float[Array, "S A S"]:
    """The distributions within `radii` of T̂ with the largest mean of V. Successors are filled in order of falling V."""
    if sp.issparse(model.P) or np.shape(radii) != model.P.shape:
        raise InputError(f"radii do not fit P: give both as dense arrays of shape {(model.S, model.A, model.S)}.")
    low, high = np.maximum(model.P - _checked("radii", radii), 0.0), np.minimum(model.P + radii, 1.0)
    worst_first = np.argsort(-V)
    room = (high - low)[..., worst_first]
    remaining = (model.P - low).sum(-1, keepdims=True) - (np.cumsum(room, -1) - room)
    low[..., worst_first] += np.clip(remaining, 0.0, room)
    return low


def _check_same_except_P(true: CMDP, model: CMDP) -> None:
    """Check that the two CMDPs differ in their transitions alone."""
    if not (np.array_equal(true.c, model.c) and np.array_equal(true.mu0, model.mu0) and true.gamma == model.gamma):
        raise InputError("the two CMDPs differ in size, c, mu0 or gamma: give two that differ in P alone.")


def _broadcast(**inputs: Any) -> list[Array]:
    """Check the inputs and broadcast them against each other."""
    arrays = {name: _checked(name, value) for name, value in inputs.items()}
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise InputError(
            f"the shapes {shapes} do not fit each other: give arrays of the same shape, or single numbers."
        ) from None


def _checked(name: str, value: Any) -> Array:
    """`value` in float64. Every entry must be within the range that `INPUT_RANGES` has for `name`, or ≥ 0."""
    low, high, requirement = INPUT_RANGES.get(name, (0.0, np.finfo(float).max, "finite numbers >= 0"))
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not a number or an array of numbers: give {requirement}.") from None
    invalid = ~(
        (array >= low) & (array <= high) & ((name not in WHOLE_NUMBER_INPUTS) | (array == np.round(array)))
    )  # NaN is invalid
    if invalid.any():
        raise InputError(f"{name} is or contains {array[invalid].flat[0]:g}: give {requirement}.")
    return array
