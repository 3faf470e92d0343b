"""How does the true cost of an episode move κ, the weight of the uncertainty penalty?

A rule is a frozen dataclass with three pure methods, `init`, `update` and `relax`, over a state of its own that has a
field `kappa`. κ is never below 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from capax.errors import InputError


class Feedback(NamedTuple):
    """What an executed policy teaches a rule."""

    paid: float
    """Its true cost J_c, in the task's convention."""
    limit: float
    """The limit C, in the same convention."""


class Kappa(NamedTuple):
    """The state of a rule that remembers nothing but κ."""

    kappa: float


class Rule(Protocol):
    """A way to choose κ. Its state is any tuple with a field `kappa`."""

    def init(self) -> Any:
        """The state before the first plan."""

    def update(self, state: Any, feedback: Feedback) -> Any:
        """The state after an executed policy."""

    def relax(self, state: Any) -> Any | None:
        """The state to plan with when no plan is feasible at `state.kappa`; None if the rule will not give way."""


@dataclass(frozen=True)
class Fixed:
    """κ stays what it is; where no plan is feasible, the least-cost one is taken."""

    kappa: float
    """Weight of the penalty."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.kappa < float("inf"):
            raise InputError(f"kappa is {self.kappa}: give a finite number >= 0.")

    def init(self) -> Kappa:
        return Kappa(self.kappa)

    def update(self, state: Kappa, feedback: Feedback) -> Kappa:
        return state

    def relax(self, state: Kappa) -> Kappa | None:
        return None


@dataclass(frozen=True)
class PI:
    """The paper's rule  κ ← max(0, κ + α (J_c − C))  (Eq. 6), started by exponential search (its appendix)."""

    alpha: float = 0.1
    """Gain α of the controller."""
    start: float = 10.0
    """First κ of the exponential search."""
    smallest: float = 1e-6
    """Below this, halving goes to 0."""

    def __post_init__(self) -> None:
        for name in ("alpha", "start", "smallest"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}: give a finite number >= 0.")

    def init(self) -> Kappa:
        return Kappa(self.start)

    def update(self, state: Kappa, feedback: Feedback) -> Kappa:
        if math.isnan(feedback.paid):  # max(0, NaN) would be 0, the least careful κ of all
            raise InputError("the paid cost is not a number (NaN): see what the environment puts into info['cost'].")
        return Kappa(max(0.0, state.kappa + self.alpha * (feedback.paid - feedback.limit)))

    def relax(self, state: Kappa) -> Kappa | None:
        """Exponential search: halve κ, at the start and whenever a plan is infeasible later."""
        if state.kappa <= 0.0:
            return None
        half = state.kappa / 2.0
        return Kappa(half if half >= self.smallest else 0.0)
