"""Sharpness of predicted probabilities: a fit is stopped long before its logits have grown as far as the data allow.

Where a cost is decided by the state, logits grow without end while a network is trained, but slowly. Far from any danger
a probability of .003 remains, and over an episode such remainders add up to more than a small limit. So all logits are
multiplied by the factor under which the observed costs are most likely.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

MAX_SHARPNESS = 4.0
"""Largest factor."""
GRID = np.linspace(1.0, MAX_SHARPNESS, 31)


def sharpness(logit: Array, cost: Array) -> float:
    """The factor from 1 to MAX_SHARPNESS with the greatest likelihood Σ log σ(±a·logit)."""
    if not np.isfinite(logit).all():
        return 1.0
    signed = np.where(cost > 0.0, -logit, logit)
    return float(min(GRID, key=lambda factor: np.logaddexp(0.0, factor * signed).sum()))
