"""The cost that may be expected of the rest of an episode, so that its budget is kept with a chosen probability."""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy.special import gammaincinv

REPLANNED_STEPS = 4
"""Steps whose noise a margin covers: what happens earlier, later plans make up for."""


def allowed_count(left: float, rate: float) -> float:
    """The expected count of costs of 1 at which more than `left` come with a probability of `rate`, if they come at random.

    P(Poisson(m) > ⌊left⌋) = rate. With nothing left, m = −log(1 − rate), about `rate`.
    """
    count = max(0, math.floor(left + 1e-9))
    return float(gammaincinv(count + 1, rate))


def noise_margin(noise: float, steps: int, rate: float) -> float:
    """What is kept in reserve for noise: z σ √n over the last n steps, z the normal quantile of 1 − rate."""
    return max(0.0, NormalDist().inv_cdf(1.0 - rate)) * noise * math.sqrt(min(steps, REPLANNED_STEPS))
