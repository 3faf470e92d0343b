"""How far can a counted transition model be from the truth, and what can that do to the cost of a policy?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from capax.errors import InputError
from capax.tabular.cmdp import CMDP, evaluate, values

MOST_SAMPLES = 2**60
"""Where `samples_needed` gives up."""
WHOLE = ("S", "A", "K", "k", "pairs")
RANGES = {name: (1.0, np.finfo(float).max, "a whole number >= 1") for name in WHOLE} | {
    "delta": (np.finfo(float).tiny, 1.0, "a probability of failure with 0 < delta <= 1"),
    "gamma": (0.0, np.nextafter(1.0, 0.0), "a number with 0 <= gamma < 1"),
}
"""What the inputs may be, by their names; others are finite and ≥ 0."""
MOST_SWEEPS = 100
"""Steps of the search for the worst transitions; a handful is usual, and rounding could make it endless."""
Policy = Float[Array, "S A"] | Int[Array, " S"]


def paper_valid(S: int, A: int, delta: float, *, K: int = 1) -> bool:
    """Whether Weissman's inequality implies the paper's u:  (|S|−4) ln x ≥ 4 ln(2^|S|−2) − 2|S| ln 2,  x = K|S||A|/δ.

    Putting t = u into (2^|S|−2) e^{−2nt²} ≤ 1/x leaves this, whatever n is. It never holds for |S| = 2, 3, 4, holds for
    small enough δ from |S| = 5 on, and for every A, K and δ from |S| = 11 on.
    """
    log_x = np.log(_checked("K", K) * _checked("S", S) * _checked("A", A) / _checked("delta", delta))
    return S == 1 or bool((S - 4) * log_x >= 4 * _log_subsets(np.array(S)) - 2 * S * np.log(2))


def paper_u(n: Any, *, S: int, A: int, delta: float, K: int = 1, strict: bool = True) -> Float[Array, "*n"]:
    """The paper's bound on TV(T, T̂):  u = √(|S|/(8n) · ln(4K|S||A|/δ))  (Theorem 4.3; K > 1: its corollary), at most 1.

    Valid where `paper_valid`, for the empirical T̂, and for counts fixed before the data: refused elsewhere, or with
    `strict=False` computed all the same, which for |S| = 2 and 3 is a bound that fails too often.
    """
    if not paper_valid(S, A, delta, K=K) and strict:
        raise InputError(
            f"The paper's u is not proved for S={S}, A={A}, K={K}, delta={delta}: use weissman(n, k, delta)."
        )
    return _root(S / 4 * np.log(4 * K * S * A / delta), _checked("n", n))


def weissman(n: Any, k: Any, delta: Any) -> Float[Array, "*n"]:
    """A bound on TV(T, T̂) that fails with probability at most δ:  t = √(ln((2^k−2)/δ) / (2n)), at most 1.

    Pr(TV ≥ t) ≤ (2^k−2) e^{−2nt²} (Weissman et al. 2003) for the empirical T̂ of n draws, n fixed before the data, over
    k possible successors known in advance. k = 1 leaves no error and n = 0 says nothing (1).
    """
    n, k, delta = _aligned(n=n, k=k, delta=delta)
    return np.where(n == 0, 1.0, np.where(k == 1, 0.0, _root(_log_subsets(np.maximum(k, 2)) - np.log(delta), n)))


def smoothing(n: Any, prior: Any) -> Float[Array, "*n"]:
    """How far T̂ = (count + prior counts)/(n + m), the prior counts summing to m, can be from count/n in TV:  m/(n+m)."""
    n, m = _aligned(n=n, prior=prior)
    return np.where(n == 0, 1.0, m / np.where(n == 0, 1.0, n + m))


def count_share(delta: Any, n: Any, *, pairs: int) -> Float[Array, "*n"]:
    """The share of δ for one pair at one count n:  δ/(pairs·n(n+1)).

    n(s,a) depends on the data, so a bound must hold at every count at once; Σ_{n≥1} 1/(n(n+1)) = 1, so these shares add
    up to δ. What holds at every count also holds in every iteration: the paper's factor K is not needed on top.
    """
    delta, n = _aligned(delta=delta, n=n)
    return delta / _checked("pairs", pairs) / np.maximum(n * (n + 1), 1.0)


def certificate(
    n: Float[Array, "S A"], k: Any, *, delta: float, gamma: float, c_max: float = 1.0, prior: Any = 0.0
) -> Float[Array, "S A"]:
    """The penalty of the corrected theorem:  γβ·min(1, weissman(n, k, δ/(|S||A|n(n+1))) + m/(n+m)),  β = c_max/(1−γ).

    Eq. 5 with it as the u of `penalised`: with probability 1 − δ, every policy in every iteration costs at most its
    penalised cost in the model. Valid for 0 ≤ c ≤ c_max known and at most k possible successors, known in advance.
    """
    n = _checked("n", n)
    if n.ndim != 2:
        raise InputError(f"n has shape {n.shape}: give one count per state and action, shape [S, A].")
    distance = weissman(n, k, count_share(delta, n, pairs=n.size)) + smoothing(n, prior)
    beta = _checked("c_max", c_max) / (1.0 - _checked("gamma", gamma))
    return gamma * beta * np.minimum(distance, 1.0)


def bernstein(variance: Any, n: Any, *, span: Any, delta: Any) -> Float[Array, "*n"]:
    """A bound on |E X − mean| of n draws of X:  √(2 Var ln(4/δ)/n) + 7 span ln(4/δ)/(3(n−1)), at most span.

    Empirical Bernstein (Maurer and Pontil 2009, Theorem 4, both sides), `variance` being the sample variance over n − 1.
    With X = V(s') it bounds |(T − T̂)V| for one V fixed before the data, within an interval of length span, at a fixed n;
    for M such functions give δ/M, for a random n `count_share`. V_T̂ is made of the data: use `successor_bernstein`.
    """
    variance, n, span, delta = _aligned(variance=variance, n=n, span=span, delta=delta)
    log_term = np.log(4.0 / delta)
    radius = np.sqrt(2 * variance * log_term / np.maximum(n, 1)) + 7 * span * log_term / (3 * np.maximum(n - 1, 1))
    return np.where(n < 2, span, np.minimum(radius, span))


def successor_bernstein(
    counts: Float[Array, "*pairs S"], *, delta: Any, possible: Bool[Array, "*pairs S"] | None = None, centre: Any = None
) -> Float[Array, "*pairs S"]:
    """Radii e with |T(s'|s,a) − centre(s')| ≤ e(s') for all successors of a pair at once, but for probability δ per pair.

    `bernstein` for each indicator 1[s'] with δ/k, plus the known |count/n − centre|; `centre` is the model, smoothed or
    not (default: the frequencies). Since the box of radii is about T and no V, it serves every V, those made of the data
    too. Valid at a fixed n: give δ = count_share(…) for a random one. `possible` marks the k successors known in advance.
    """
    counts = _checked("counts", counts)
    mask = np.ones(counts.shape, bool) if possible is None else np.asarray(possible, bool)
    if mask.shape != counts.shape or not mask.any(-1).all() or counts[~mask].any():
        raise InputError("possible does not fit counts: mark in the same shape every successor that was counted.")
    n, k = counts.sum(-1, keepdims=True), mask.sum(-1, keepdims=True)
    frequency = counts / np.maximum(n, 1)
    variance = frequency * (1 - frequency) * n / np.maximum(n - 1, 1)
    _aligned(delta=delta, n=n[..., 0])
    radii = np.where(mask & (k > 1), bernstein(variance, n, span=1.0, delta=np.asarray(delta)[..., None] / k), 0.0)
    if centre is not None:
        radii += np.abs(_aligned(centre=centre, counts=counts)[0] - frequency)
    return np.where(mask & (n == 0), 1.0, np.minimum(radii, 1.0))


class CertifiedCost(NamedTuple):
    """The worst a policy can pay within the radii of a model: normalised, and as values V = c + γPV, not normalised."""

    cost: float
    values: Float[Array, " S"]


def certified_cost(model: CMDP, policy: Policy, radii: Float[Array, "S A S"]) -> CertifiedCost:
    """The largest cost of `policy` under any T with |T − T̂| ≤ radii:  W = Σ_a π (c + γ max_T T·W),  (1−γ) μ₀·W.

    Valid wherever the radii hold, for every policy at once, however it was chosen from the data. The worst T is found by
    policy iteration; the error it leaves, max(c + γ max_T T·W − W), is added, so the bound does not rely on convergence.
    """
    V = values(model, policy, model.c)
    for _ in range(MOST_SWEEPS):
        last, V = V, values(replace(model, P=_worst_rows(model, radii, V)), policy, model.c)
        if (V - last).max() <= 1e-12 * max(1.0, np.abs(V).max()):
            break
    # With γ = 0 a value is the policy's mean of a signal, here of one more worst-case step.
    left = values(replace(model, gamma=0.0), policy, model.c + model.gamma * (_worst_rows(model, radii, V) @ V)) - V
    return CertifiedCost(float((1.0 - model.gamma) * (model.mu0 @ V) + max(0.0, left.max())), V)


def value_penalty(model: CMDP, radii: Float[Array, "S A S"], V: Float[Array, " S"]) -> Float[Array, "S A"]:
    """What the radii can do to one V:  γ max { (T − T̂)·V : |T − T̂| ≤ radii, T a distribution }, for `penalised`.

    With V = certified_cost(model, π, radii).values the penalised cost of π in the model *is* its certified cost, so an
    LP with it searches near π. It holds for that π and V only: certify the policy that the LP returns before using it.
    """
    V = np.asarray(V, np.float64)
    if V.shape != (model.S,) or not np.isfinite(V).all():
        raise InputError(f"V has shape {V.shape} or is not finite: give one number per state, shape ({model.S},).")
    return model.gamma * np.maximum((_worst_rows(model, radii, V) - model.P) @ V, 0.0)


def total_variation(true: CMDP, model: CMDP) -> Float[Array, "S A"]:
    """TV(T, T̂)(s,a) = ½ Σ_{s'} |T(s'|s,a) − T̂(s'|s,a)|."""
    _check_twins(true, model)
    return np.asarray(abs(true.rows - model.rows).sum(axis=1)).reshape(true.S, true.A) / 2


def simulation_gap(true: CMDP, model: CMDP, policy: Policy) -> float:
    """How much more `policy` costs than the model says:  Σ(ρ_T − ρ_T̂)c = γ Σ ρ_T̂ (E_T − E_T̂) V_T  (simulation lemma).

    This is the right side: ρ is normalised, V not. The paper's proof has 1/(1−γ) too many on the left, and a V_T̂.
    """
    _check_twins(true, model)
    V = values(true, policy, true.c)
    moved = np.asarray(true.rows @ V - model.rows @ V).reshape(true.S, true.A)
    return float(true.gamma * (evaluate(model, policy).occupancy * moved).sum())


def gap_bound(true: CMDP, model: CMDP, policy: Policy) -> float:
    """The lemma's upper bound on |simulation_gap|:  γβ Σ ρ_T̂ TV(T, T̂)  with β = c_max/(1−γ)  (Eq. 4).

    Valid for c ≥ 0: then 0 ≤ V ≤ β, and |(T−T̂)V| ≤ span(V)·TV. For the L1 distance, which is the paper's d_F, β halves.
    """
    if true.c.min() < 0:
        raise InputError(f"c has the negative entry {true.c.min():g}: shift the costs so that none is below 0.")
    weighted = (evaluate(model, policy).occupancy * total_variation(true, model)).sum()
    return float(true.gamma * true.c.max() / (1.0 - true.gamma) * weighted)


def samples_needed(penalty: Callable[[int], Any], slack: float) -> int:
    """The smallest count n with penalty(n) ≤ slack, for a penalty that falls with n (γβu, or γ times a Bernstein bound)."""
    counts = range(1, MOST_SAMPLES)
    fewer = bisect_left(counts, True, key=lambda n: bool(penalty(n) <= slack))
    if fewer == len(counts):
        raise InputError(f"The penalty exceeds the slack {slack:g} at {counts[-1]} samples: give a larger slack.")
    return counts[fewer]


def _log_subsets(k: Array) -> Array:
    """ln(2^k − 2), without overflow, for k ≥ 2."""
    return k * np.log(2) + np.log1p(-(2.0 ** (1.0 - k)))


def _root(log_term: Any, n: Array) -> Array:
    """√(log_term/(2n)), and 1 where that is larger or n = 0."""
    return np.where(n == 0, 1.0, np.minimum(np.sqrt(log_term / np.where(n == 0, 1.0, 2 * n)), 1.0))


def _worst_rows(model: CMDP, radii: Float[Array, "S A S"], V: Float[Array, " S"]) -> Float[Array, "S A S"]:
    """The distributions within `radii` of T̂ with the largest mean of V: fill up the successors from the worst down."""
    if sp.issparse(model.P) or np.shape(radii) != model.P.shape:
        raise InputError(f"radii do not fit P: give both dense, with the shape {(model.S, model.A, model.S)}.")
    low, high = np.maximum(model.P - _checked("radii", radii), 0.0), np.minimum(model.P + radii, 1.0)
    worst_first = np.argsort(-V)
    room = (high - low)[..., worst_first]
    free = (model.P - low).sum(-1, keepdims=True) - (np.cumsum(room, -1) - room)
    low[..., worst_first] += np.clip(free, 0.0, room)
    return low


def _check_twins(true: CMDP, model: CMDP) -> None:
    if not (np.array_equal(true.c, model.c) and np.array_equal(true.mu0, model.mu0) and true.gamma == model.gamma):
        raise InputError("The two CMDPs differ in size, c, mu0 or gamma: they may differ in P alone.")


def _aligned(**inputs: Any) -> list[Array]:
    arrays = {name: _checked(name, value) for name, value in inputs.items()}
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise InputError(f"The shapes {shapes} do not fit each other: give one shape, or single numbers.") from None


def _checked(name: str, value: Any) -> Array:
    """`value` in float64, every entry within what `RANGES` says of the name, or ≥ 0 if it says nothing."""
    low, high, wanted = RANGES.get(name, (0.0, np.finfo(float).max, "finite numbers >= 0"))
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not a number or an array of numbers: give {wanted}.") from None
    wrong = ~((array >= low) & (array <= high) & ((name not in WHOLE) | (array == np.round(array))))  # NaN is wrong
    if wrong.any():
        raise InputError(f"{name} is or has {array[wrong].flat[0]:g}: give {wanted}.")
    return array
