"""Which κ, where costs are flags? The conformal rule's part for binary costs.

A step is flagged once logit + κu > 0, so one that was safe has a margin, −logit/u: the κ that would flag it. κ is the margin
that a share p of good steps stay below: those that were safe and earned most. From images, where a plan is only as sure as the
least sure of its steps, whole stretches of steps are asked. Logits and uncertainties change by orders of magnitude as a
model learns, and a share means the same throughout. Were all safe steps asked, an agent that does nothing would be told
that nothing is what it is sure of: κ would grow, and it would do less. Feedback moves p,

    p ← p · exp(η (1[J_c > C] − ε/2)),   η = pace(ε/2).

Within an episode, p grows for two reasons. Where rewards are discounted and costs are not, its odds are p/(1 − p)/γᵗ: later
on there is less to be earned for the same danger. And what an episode pays beyond its limit raises p until it ends, e²-fold
with every step. What this promises is in docs/guarantees.md.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

PACE, FASTEST = 0.28, 2.0
"""η is PACE/aim, and FASTEST at most; within an episode it is FASTEST. An episode within the limit lowers p by a quarter, or
by a twentieth with ε = .05; one that violates raises it threefold with ε = .4, and sevenfold with ε = .05. Were η the same for
both, p would hardly fall with the latter, and a run would be over before an early violation, by a model that knew nothing, is
forgotten."""
RESERVE = 0.5
"""Of ε is aimed at, so that ε itself is kept in a few tens of episodes too."""
LEAST_SHARE, FIRST_SHARE, MOST_SHARE = 0.0005, 0.1, 0.9
"""Of good steps that κ would flag. At nine tenths, a tenth of the best that was done is still allowed."""
GOOD = 0.2
"""Share of the safe steps that are good ones."""
LEVELS = np.geomspace(LEAST_SHARE, MOST_SHARE, 61)
"""Shares whose margins are remembered between fits."""


def pace(aim: float) -> float:
    """η, of log p."""
    return min(FASTEST, PACE / aim)


def moved(share: float, violated: bool, rate: float) -> float:
    """p after an episode, where ε is `rate`."""
    aim = RESERVE * rate
    return min(MOST_SHARE, max(LEAST_SHARE, share * math.exp(pace(aim) * (violated - aim))))


def within(share: float, beyond: float, worth: float) -> float:
    """p within an episode that has paid so much beyond its limit, where a reward counts for `worth` of what it did at first."""
    later = share / (share + (1.0 - share) * worth)  # odds, divided by the worth
    most = math.log(MOST_SHARE / LEAST_SHARE)
    return min(MOST_SHARE, later * math.exp(min(most, FASTEST * max(0.0, beyond))))


def margins(
    logit: Float[Array, " n"], uncertainty: Float[Array, " n"], cost: Float[Array, " n"], earned: Float[Array, " n"]
) -> tuple[float, ...]:
    """Margins of the good steps at each of LEVELS; none if no step was safe, or nothing is finite.

    `earned` ranks the steps: rewards, or where these come seldom, their mean over some steps around.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = -logit / np.maximum(uncertainty, np.finfo(np.float32).tiny)
    safe = np.flatnonzero((cost <= 0.0) & np.isfinite(found) & np.isfinite(earned))
    good = safe[np.argsort(-earned[safe], kind="stable")[: math.ceil(GOOD * safe.size)]]
    return tuple(np.quantile(found[good], LEVELS).tolist()) if good.size else ()


def kappa_at(known: tuple[float, ...], share: float) -> float:
    """The margin that a share of the good steps stay below; 0 before any are known."""
    return max(0.0, float(np.interp(math.log(share), np.log(LEVELS), known))) if known else 0.0
