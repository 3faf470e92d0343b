"""Intervals: a bootstrap over seeds or worlds, and the exact binomial one of a share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.stats import beta, trim_mean

LEVEL = 0.95
RESAMPLES = 10_000
MAX_LISTED = 5
"""Up to this many values every resample is listed, so nothing is drawn."""
MIN_TRIMMED = 4
"""From this many values on the centre is the inter-quartile mean; of fewer it is the mean."""


class Interval(NamedTuple):
    """A centre and its limits."""

    centre: float
    low: float
    high: float


def of_seeds(values: Sequence[float]) -> Interval:
    """The inter-quartile mean (the mean of fewer than MIN_TRIMMED values) with its bootstrap interval over the values."""
    return _bootstrap(tuple(map(float, values)), trimmed=len(values) >= MIN_TRIMMED)


def of_mean(values: Sequence[float]) -> Interval:
    """The mean with its bootstrap interval over the values."""
    return _bootstrap(tuple(map(float, values)), trimmed=False)


@cache
def _bootstrap(values: tuple[float, ...], trimmed: bool) -> Interval:
    array = np.array(values)
    if len(values) <= MAX_LISTED:
        picks = np.array(list(product(range(len(values)), repeat=len(values))))
    else:
        picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))

    def centre(samples: np.ndarray) -> np.ndarray:
        return trim_mean(samples, 0.25, axis=-1) if trimmed else samples.mean(-1)

    edges = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    low, high = np.quantile(centre(array[picks]), edges, method="inverted_cdf")
    return Interval(float(centre(array)), float(low), float(high))


def of_share(hits: int, count: int) -> Interval:
    """The share with its exact (Clopper–Pearson) interval, as if the episodes were independent."""
    edge = (1.0 - LEVEL) / 2.0
    low = float(beta.ppf(edge, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1.0 - edge, hits + 1, count - hits)) if hits < count else 1.0
    return Interval(hits / count, low, high)


def of_rate(hits: Sequence[int], counts: Sequence[int]) -> Interval:
    """The share of all episodes. The interval covers the bootstrap one over seeds and the exact one of all episodes."""
    pooled = of_share(sum(hits), sum(counts))
    if len(hits) == 1:
        return pooled
    seeds = of_mean([hit / count for hit, count in zip(hits, counts, strict=True)])
    return Interval(pooled.centre, min(pooled.low, seeds.low), max(pooled.high, seeds.high))
