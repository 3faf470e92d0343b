"""Which κ, where costs are flags? The conformal rule's part for binary costs.

A step is flagged once logit + κu > 0, so one that was safe has a margin, −logit/u: the κ that would flag it. κ is the margin
that a share p of the safe steps seen so far stay below. Logits and uncertainties change by orders of magnitude as a model
learns, and a share means the same throughout. Feedback moves p: with x the number of steps that paid beyond the limit,

    p ← p · exp(PACE · (min(x, MOST) − ε)).

What this promises is in docs/guarantees.md.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

PACE = 0.7
"""Of log p. With ε = .4, p falls by a quarter in a safe episode and rises by half when one step paid."""
MOST = 3.0
"""Steps that count in one episode."""
LEAST_SHARE, FIRST_SHARE, MOST_SHARE = 0.0005, 0.1, 0.5
"""Of safe steps that κ would flag. With more than half of them, hardly any plan is feasible."""
LEVELS = np.geomspace(LEAST_SHARE, MOST_SHARE, 61)
"""Shares whose margins are remembered between fits."""


def moved(share: float, excess: float, rate: float) -> float:
    """p after an episode that paid `excess` beyond its limit, where ε is `rate`."""
    steps = min(MOST, max(1.0, excess)) if excess > 0.0 else 0.0
    return min(MOST_SHARE, max(LEAST_SHARE, share * math.exp(PACE * (steps - rate))))


def margins(logit: Float[Array, " n"], uncertainty: Float[Array, " n"], cost: Float[Array, " n"]) -> tuple[float, ...]:
    """Margins of the steps that were safe, at each of LEVELS; none if no step was, or nothing is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = -logit / np.maximum(uncertainty, np.finfo(np.float32).tiny)
    found = found[(cost <= 0.0) & np.isfinite(found)]
    return tuple(np.quantile(found, LEVELS).tolist()) if found.size else ()


def kappa_at(known: tuple[float, ...], share: float) -> float:
    """The margin that a share of the safe steps stay below; 0 before any are known."""
    return max(0.0, float(np.interp(math.log(share), np.log(LEVELS), known))) if known else 0.0
