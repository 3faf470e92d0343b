"""The rule of a constant κ."""

from __future__ import annotations

from dataclasses import dataclass

from capax.core.contracts import PlanningRule
from capax.core.settings import settle
from capax.core.types import Feedback
from capax.kappa.base import Kappa, KappaValue


@dataclass(frozen=True)
class Fixed(PlanningRule):
    """A constant κ. If no plan is feasible, the planner chooses the one with the least cost."""

    kappa: KappaValue
    """Weight of the penalty."""

    def __post_init__(self) -> None:
        settle(self)

    def init(self) -> Kappa:
        return Kappa(self.kappa)

    def update(self, state: Kappa, feedback: Feedback) -> Kappa:
        return state
