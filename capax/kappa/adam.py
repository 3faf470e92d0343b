"""The rule of the paper's hyper-parameter table: Adam on κ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from capax.core.contracts import Kind, PlanningRule
from capax.core.settings import Above, Between, Share, settle
from capax.core.types import Feedback, Metrics
from capax.kappa.base import MAX_KAPPA, KappaValue, bounded, checked


class AdamState(NamedTuple):
    """κ, the two moments of Adam, and the count of updates."""

    kappa: float
    m: float = 0.0
    v: float = 0.0
    updates: int = 0


@dataclass(frozen=True)
class Adam(PlanningRule):
    """Adam on κ with the gradient −(J_c − C); κ stays at `least` or above. Random episodes move κ too where
    observations are vectors, as published."""

    rate: KappaValue = 0.1
    """Learning rate: about what κ moves by in an episode, whatever the size of the cost error."""
    start: KappaValue = 1.0
    """κ before the first episode."""
    beta1: Annotated[float, Share()] = 0.9
    """Share of the mean error that is kept from episode to episode."""
    beta2: Annotated[float, Share()] = 0.999
    """Share of the mean squared error that is kept from episode to episode."""
    epsilon: Annotated[float, Above(0.0, MAX_KAPPA)] = 1e-8
    """Added to the root of the mean squared error."""
    least: Annotated[float, Between(-MAX_KAPPA, 0.0)] = 0.0
    """κ is never below this. The published code has no bound: κ may become negative."""

    def __post_init__(self) -> None:
        settle(self)

    def init(self) -> AdamState:
        return AdamState(self.start)

    def update(self, state: AdamState, feedback: Feedback) -> AdamState:
        error, updates = checked(feedback).error, state.updates + 1
        m = self.beta1 * state.m + (1.0 - self.beta1) * error
        v = self.beta2 * state.v + (1.0 - self.beta2) * error**2
        scaled = math.sqrt(v / (1.0 - self.beta2**updates)) + self.epsilon
        step = self.rate * m / (1.0 - self.beta1**updates) / scaled
        return AdamState(bounded(state.kappa + step, self.least), m, v, updates)

    def report(self, state: AdamState) -> Metrics:
        return {"adam_m": state.m, "adam_v": state.v}


def default(kind: Kind, violation_rate: float) -> Adam:
    """The rule with the numbers of the paper for a kind of task."""
    return Adam(rate=0.01, start=0.1) if kind == "image" else Adam()
