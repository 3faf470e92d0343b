"""Feedback of episodes under an undiscounted limit: what the model makes of the actions that were taken.

An episode is replayed in stretches of a plan's length. What was paid less what is predicted is the error of the model,
whatever later plans made of the episode. So it can be computed again when the model is fitted anew: an error that the
new model no longer makes need not be feared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from capax.core.types import Episode, Feedback, Metrics, Spec
from capax.kappa.conformal import residual_kappa
from capax.models.replay import Replay
from capax.planning.scoring import PARTS

START_QUANTILE = 2.0
"""Standard deviations of an episode's cost that are added to the error on the start data, since these are few."""


PRIOR_EVENTS, PRIOR_SHARE = 0.5, 0.25
"""Weight of the belief that predictions are right: this many costs of the usual size, or this share of the limit."""
MAX_RATIO = 2.0
"""Ratio of predicted and paid costs above which a part of a plan is not trusted."""


class Played(NamedTuple):
    """A planned episode in the buffer, on which later models are tried."""

    first: int
    """Place of its first step among all steps that were ever added."""
    steps: int


class Error(NamedTuple):
    """The error of a model in an episode, as if the episode had lasted to its end."""

    error: float
    """Paid less predicted cost."""
    uncertainty: float
    """U."""
    noise: float
    """Standard deviation of the errors of single steps."""
    predicted: float
    """Predicted cost of the steps that were lived."""


def episode_error(cost: Array, predicted: Array, uncertainty: Array, whole: float) -> Error:
    """The error in an episode whose steps cost `cost` `[T]`. Sums are multiplied by `whole`, 1 for a whole episode."""
    off = cost - predicted
    noise = float(np.sqrt(np.square(off).mean()))
    return Error(float(off.sum()) * whole, float(uncertainty.sum()) * whole, noise, float(predicted.sum()))


def start_error(cost: Array, predicted: Array, uncertainty: Array, horizon: int, steps: int) -> Error:
    """An upper bound of the error in an episode of `steps` steps, from all steps of the start data.

    The mean error of stretches of `horizon` steps is known with little certainty, and stretches of an episode differ.
    """
    off = cost - predicted
    places = np.arange(0, len(off), horizon)
    stretches, whole = np.add.reduceat(off, places), steps / len(off)
    spread = float(stretches.std()) * np.sqrt(steps / horizon)
    noise = float(np.sqrt(np.square(off).mean()))
    total = float(off.sum()) * whole + START_QUANTILE * spread
    return Error(total, float(uncertainty.sum()) * whole, noise, float(predicted.sum()))


def sight_of(costs: Sequence[Array], replays: Sequence[Replay], limit: float) -> int:
    """How many parts of a plan count: those before the first in which more than twice the paid cost was predicted.

    A plan does not react to what happens, and a controller does. So the further a plan looks ahead in an unstable system, the
    more often it falls over in imagination alone.
    """
    cost = np.concatenate(costs)
    usual = float(cost[cost > 0.0].mean()) if (cost > 0.0).any() else 1.0
    prior = max(PRIOR_EVENTS * usual, PRIOR_SHARE * limit)
    for part in range(PARTS):
        predicted = np.concatenate([replay.cost[part] for replay in replays])
        there = np.isfinite(predicted)
        if predicted[there].sum() > MAX_RATIO * (cost[there].sum() + prior):
            return max(1, part)
    return PARTS


def budget_feedback(spec: Spec, error: Error, allowance: float, episode: Episode) -> tuple[Feedback, Metrics]:
    """Feedback for the rule, and metrics. `allowance` is what the first plan of the episode could spend."""
    U = error.uncertainty
    residual = residual_kappa(error.error, 0.0, U)
    unit = allowance / U if U > 0.0 and np.isfinite(allowance) else 0.0
    feedback = Feedback(episode.paid, spec.limit, False, residual, unit, U, noise=error.noise, allowance=allowance)
    return feedback, {
        "planned_cost": error.predicted,
        "planned_uncertainty": U,
        "paid_cost": episode.paid,
        "residual": residual,
        "unit": unit,
    }


def stretches(buffer: Any, played: Sequence[Played]) -> list[slice | None]:
    """Where in the buffer episodes are; None for one that was dropped from it."""
    dropped = buffer.added - buffer.size
    return [slice(p.first - dropped, p.first - dropped + p.steps) if p.first >= dropped else None for p in played]


def unbroken(buffer: Any, within: slice) -> list[slice]:
    """The parts of a buffer in which each step follows the one before it."""
    first, last, _ = within.indices(buffer.size)
    breaks = np.flatnonzero((buffer.next_obs[first : last - 1] != buffer.obs[first + 1 : last]).any(1)) + first + 1
    edges = [first, *breaks.tolist(), last]
    return [slice(begin, end) for begin, end in pairwise(edges) if begin < end]


def costly_runs(buffer: Any) -> Array:
    """Lengths of all runs of steps with a cost, each within an episode."""
    broken = (buffer.next_obs[:-1] != buffer.obs[1:]).any(1)
    costly = buffer.cost > 0.0
    begins = costly & np.concatenate([[True], broken | ~costly[:-1]])
    ends = costly & np.concatenate([broken | ~costly[1:], [True]])
    return np.flatnonzero(ends) - np.flatnonzero(begins) + 1
