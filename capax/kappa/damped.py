"""A damped multiplier for methods without a model (Stooke et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from capax.core.contracts import PlanningRule
from capax.core.settings import Share, settle
from capax.core.types import MAX_ERROR, Feedback, Metrics
from capax.kappa.base import MAX_KAPPA, KappaValue, bounded, checked


class DampedState(NamedTuple):
    """The multiplier λ (as `kappa`), its integral part, and the smoothed error."""

    kappa: float = 0.0
    integral: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Damped(PlanningRule):
    """λ = max(0, I + β e),  I ← max(0, I + α e), where e is the smoothed error in units of the limit.

    A policy that follows its gradient keeps changing as long as λ is wrong. With I alone, the cost would swing about the
    limit; β damps that.
    """

    alpha: KappaValue = 0.02
    """What an error of one whole limit adds to I in an episode."""
    beta: KappaValue = 1.0
    """What an error of one whole limit adds to λ at once."""
    smoothing: Annotated[float, Share()] = 0.8
    """Share of the error that is kept from episode to episode."""
    most: KappaValue = MAX_KAPPA
    """λ is never above this."""

    def __post_init__(self) -> None:
        settle(self)

    def init(self) -> DampedState:
        return DampedState()

    def update(self, state: DampedState, feedback: Feedback) -> DampedState:
        feedback = checked(feedback)
        relative = feedback.error / feedback.limit if 0.0 < feedback.limit < math.inf else feedback.error
        error = self.smoothing * state.error + (1.0 - self.smoothing) * max(-MAX_ERROR, min(MAX_ERROR, relative))
        integral = min(self.most, bounded(state.integral + self.alpha * error))
        return DampedState(min(self.most, bounded(integral + self.beta * error)), integral, error)

    def report(self, state: DampedState) -> Metrics:
        return {"integral": state.integral}
