"""The cost that may be expected of the rest of an episode, so that its budget is kept with a chosen probability."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from scipy.special import gammaincinv

REPLANNED_STEPS = 4
"""Steps whose noise a margin covers: what happens earlier, later plans make up for."""


def allowed_count(left: float, rate: float, run_length: float = 1.0) -> float:
    """The expected count of costs of 1 at which more than `left` come with a probability of `rate`, if they come at random in
    runs of `run_length`.

    m = L·x with P(Poisson(x) ≥ n) = rate for the n = (⌊left⌋ + 1)/L runs that are too many, at least one; n may be a fraction.
    With nothing left, m = −log(1 − rate), about `rate`.
    """
    too_many = max(0, math.floor(left + 1e-9)) + 1
    length = min(max(1.0, run_length), float(too_many))
    return length * float(gammaincinv(too_many / length, rate))


def typical_run(lengths: Iterable[float], most: float) -> float:
    """The mean length of runs; 1 without any. Those longer than `most`, which are too long however much longer, count as that."""
    clipped = np.minimum(np.fromiter(lengths, float), most)
    return float(clipped.mean()) if clipped.size else 1.0


def noise_margin(noise: float, steps: int, rate: float) -> float:
    """What is kept in reserve for noise: z σ √n over the last n steps, z the normal quantile of 1 − rate."""
    return max(0.0, NormalDist().inv_cdf(1.0 - rate)) * noise * math.sqrt(min(steps, REPLANNED_STEPS))
