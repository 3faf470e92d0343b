"""The part of the conformal rule that chooses κ for binary costs.

A step is flagged once logit + κu > 0. So a safe step has a margin −logit/u: the κ that would flag it. κ is the margin
that a share p of the good steps stay below. Good steps are the safe steps with the highest rewards. With images, margins
are those of whole stretches of steps, because a plan is only as safe as its least safe step. Logits and uncertainties
change by orders of magnitude as a model learns; a share keeps its meaning. If all safe steps counted, an agent that does
nothing would be surest of doing nothing: κ would grow, and the agent would do even less. Feedback moves p:

    p ← p · exp(η (1[J_c > C] − ε/2)),   η = pace(ε/2).

Within an episode, p grows for two reasons. Where rewards are discounted and costs are not, the odds of p are
p/(1 − p)/γᵗ: later steps earn less for the same risk. And a cost beyond the limit raises p until the episode ends, by a
factor of e² for each unit of cost. The guarantee is in docs/guarantees.md.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

PACE, MAX_PACE = 0.28, 2.0
"""η is PACE/aim, and at most MAX_PACE; within an episode it is MAX_PACE. With ε = .4, an episode within the limit lowers p
by a quarter and a violation triples p. With ε = .05, these are a twentieth and a factor of seven. If η were the same for
all ε, p would hardly fall with ε = .05: a run would end before the effect of an early violation, by an untrained model,
is gone."""
RATE_SHARE = 0.5
"""The rule aims at this share of ε, so that ε itself is kept within a few tens of episodes too."""
MIN_SHARE, FIRST_SHARE, MAX_SHARE = 0.0005, 0.1, 0.9
"""Bounds and first value of p. At the upper bound, a tenth of the good steps is still not flagged."""
GOOD_SHARE = 0.2
"""Share of the safe steps that count as good."""
LEVELS = np.geomspace(MIN_SHARE, MAX_SHARE, 61)
"""The shares at which margins are kept between fits."""


def pace(aim: float) -> float:
    """η, the step of log p."""
    return min(MAX_PACE, PACE / aim)


def share_after_episode(share: float, violated: bool, rate: float) -> float:
    """p after an episode, where ε is `rate`."""
    aim = RATE_SHARE * rate
    return min(MAX_SHARE, max(MIN_SHARE, share * math.exp(pace(aim) * (violated - aim))))


def share_within_episode(share: float, excess: float, reward_weight: float) -> float:
    """p within an episode whose cost is `excess` beyond its limit. A reward weighs `reward_weight`, relative to a cost."""
    later = share / (share + (1.0 - share) * reward_weight)  # the odds of p, divided by the weight
    max_exponent = math.log(MAX_SHARE / MIN_SHARE)
    return min(MAX_SHARE, later * math.exp(min(max_exponent, MAX_PACE * max(0.0, excess))))


def safety_margins(
    logit: Float[Array, " n"], uncertainty: Float[Array, " n"], cost: Float[Array, " n"], earned: Float[Array, " n"]
) -> tuple[float, ...]:
    """Margins of the good steps at each of LEVELS; empty if no step was safe, or no margin is finite.

    `earned` ranks the steps: their rewards, or where rewards are rare, means of the rewards around each step.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        margin = -logit / np.maximum(uncertainty, np.finfo(np.float32).tiny)
    safe = np.flatnonzero((cost <= 0.0) & np.isfinite(margin) & np.isfinite(earned))
    good = safe[np.argsort(-earned[safe], kind="stable")[: math.ceil(GOOD_SHARE * safe.size)]]
    return tuple(np.quantile(margin[good], LEVELS).tolist()) if good.size else ()


def kappa_at(margins: tuple[float, ...], share: float) -> float:
    """The margin that this share of the good steps stay below; 0 without margins."""
    return max(0.0, float(np.interp(math.log(share), np.log(LEVELS), margins))) if margins else 0.0
