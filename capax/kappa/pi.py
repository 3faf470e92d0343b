"""The paper's PI rule, started by exponential search (CAP, Eq. 6)."""

from __future__ import annotations

from dataclasses import dataclass

from capax.core.contracts import Kind, PlanningRule
from capax.core.settings import settle
from capax.core.types import Feedback
from capax.kappa.base import MAX_KAPPA, Kappa, KappaValue, bounded, checked


@dataclass(frozen=True)
class PI(PlanningRule):
    """The paper's rule  κ ← max(0, κ + α (J_c − C))  (Eq. 6), started by exponential search (its appendix)."""

    alpha: KappaValue = 0.1
    """Gain α of the controller: what κ rises by for a cost of 1 above the limit."""
    start: KappaValue = 10.0
    """First κ of the exponential search."""
    smallest: KappaValue = 1e-6
    """Halving a κ below this gives 0."""
    most: KappaValue = MAX_KAPPA
    """κ is never above this."""

    def __post_init__(self) -> None:
        settle(self)

    def init(self) -> Kappa:
        return Kappa(self.start)

    def update(self, state: Kappa, feedback: Feedback) -> Kappa:
        feedback = checked(feedback)
        return Kappa(min(self.most, bounded(state.kappa + self.alpha * feedback.error)))

    def relax(self, state: Kappa) -> Kappa | None:
        """Half of κ: the exponential search, used whenever no plan is feasible."""
        if state.kappa <= 0.0:
            return None
        half = state.kappa / 2.0
        return Kappa(half if half >= self.smallest else 0.0)


def default(kind: Kind, violation_rate: float) -> PI:
    """The rule with the numbers for a kind of task. Only in finite worlds the search begins at 10."""
    return PI() if kind == "finite" else PI(start=1.0)
