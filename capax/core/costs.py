"""The cost of an episode, and whether it violates its limit: for rows, reports, rules for κ and the journal alike."""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

ROUNDING = 1e-9
"""A cost above its limit by at most this share of the limit equals it: the float64 sum of a million steps rounds by up to
1e-10. The limit 0 has no tolerance, because a sum of zeros is exact."""
EXACT_ROUNDING = 1e-6
"""The same for the exact, normalised cost of a policy in a finite world, as a difference: there the limit is an active
constraint of a linear program, whose solution meets it up to rounding."""


def total_cost(cost: Array, weights: Array | None = None) -> float:
    """The sum of an episode's costs `[T]`, each times its weight. Every sum of costs is this one, so that equal costs have
    equal sums."""
    return float((np.ones(len(cost)) if weights is None else weights) @ cost)


def violates(paid: float, limit: float, *, exact: bool = False) -> bool:
    """Whether a cost is above its limit. One that equals the limit up to rounding is not.

    `exact` is for policies in finite worlds.
    """
    return bool(paid > limit + (EXACT_ROUNDING if exact else ROUNDING * abs(limit)))
