"""The default rule: κ such that at most a chosen share of the planned episodes violate the limit.

κ = max(0, q) + k. The first term looks ahead: q is an upper quantile of recent residuals. A residual is the κ at which
an executed episode would have paid exactly its limit. The second term is feedback: k ≥ 0 rises after a violation and
falls slowly after other episodes. So the share of violations falls to at most ε, whatever the model does (proved in
docs/guarantees.md). Residuals, k and its step are in units of κ: nothing depends on the scale of the task.

For binary costs, an episode within its limit has no residual. There `binary.py` chooses κ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from capax.core.checks import number
from capax.core.contracts import Kind, PlanningRule
from capax.core.settings import Above, Whole, settle
from capax.core.types import MAX_ERROR, Feedback, Metrics
from capax.kappa import binary
from capax.kappa.base import MAX_KAPPA, bounded, checked

DEFAULT_RATE = 0.02
"""ε where neither the user nor the task names one."""
MAX_RESIDUAL_UNITS = 0.5
"""Largest amount that one residual may add to the present κ, in units of the κ that fills the limit. With a whole unit,
no plan would be feasible, and nothing would be learned, until that residual has left the window."""


class ViolationRate:
    """The check of the share of episodes that may violate."""

    wanted = "a number above 0 and below 1"

    def __call__(self, name: str, value: Any) -> float:
        return as_rate(value)


class ConformalState(NamedTuple):
    """κ, and the numbers that it is computed from."""

    kappa: float = 0.0
    k: float = 0.0
    step: float = 0.0
    """η, what a violation adds to k. It is set at the first violation; before that, k is 0 anyway."""
    errors: tuple[float, ...] = ()
    """The last residuals, oldest first, each times the uncertainty of its episode."""
    uncertainty: float = 1.0
    """U of the last episode, in which these errors are restated as residuals."""
    share: float = binary.FIRST_SHARE
    """p. Binary costs use κ, `share` and `margins`; the other fields are for other costs."""
    margins: tuple[float, ...] = ()
    """Margins of good steps, ascending, for binary costs; empty for other costs."""


@dataclass(frozen=True)
class Conformal(PlanningRule):
    """κ = max(0, q) + k,  k ← max(0, k + η (1[J_c > C] − ε))."""

    rate: Annotated[float, ViolationRate()] = DEFAULT_RATE
    """ε: the share of planned episodes that may violate."""
    window: Annotated[int, Whole()] = 12
    """Number of recent residuals that q is the upper quantile of."""
    gain: Annotated[float, Above(0.0, MAX_KAPPA)] = 0.1
    """η in units of the κ whose penalty alone would fill the limit."""

    def __post_init__(self) -> None:
        settle(self)

    def init(self) -> ConformalState:
        return ConformalState()

    def update(self, state: ConformalState, feedback: Feedback) -> ConformalState:
        feedback = checked(feedback)
        violated = feedback.violated
        if feedback.binary and not feedback.random:
            share = binary.share_after_episode(state.share, violated, self.rate)
            return state._replace(share=share, kappa=bounded(binary.kappa_at(state.margins, share)))
        residual, unit = feedback.residual, feedback.unit
        if feedback.random or residual is None or unit is None:
            return state
        unit = bounded(unit) if math.isfinite(unit) else 0.0
        step = state.step if state.step > 0.0 or not violated else bounded(self.gain * unit)
        k = bounded(state.k + step * (violated - self.rate))
        errors, uncertainty = state.errors, state.uncertainty
        # an infinite plan says nothing about the error of the model
        if math.isfinite(residual) and 0.0 < feedback.uncertainty < math.inf:
            uncertainty = feedback.uncertainty
            # an early model's plans are far off, so no residual counts for too much
            error = min(residual, state.kappa + MAX_RESIDUAL_UNITS * unit) * uncertainty
            errors = (*errors, max(-MAX_ERROR, min(MAX_ERROR, error)))[-self.window :]
        state = state._replace(k=k, step=step, errors=errors, uncertainty=uncertainty)
        return state._replace(kappa=bounded(max(0.0, self.quantile(state) or 0.0) + k))

    def quantile(self, state: ConformalState) -> float | None:
        """q, in the uncertainty of the last episode: as a model learns, U falls faster than the errors do."""
        return upper_quantile(state.errors, self.rate) / state.uncertainty if state.errors else None

    def kappa_within_episode(self, state: ConformalState, excess: float, reward_weight: float) -> float:
        """For binary costs, κ rises with the cost so far and as later rewards weigh less. For others, the present κ."""
        share = binary.share_within_episode(state.share, excess, reward_weight)
        return bounded(max(state.kappa, binary.kappa_at(state.margins, share)))

    def step_limit(self, limit: float, left: float) -> float:
        """The smaller of the two: an episode that has spent too much may spend less, but none may spend more."""
        return min(limit, left)

    def after_fit(self, state: ConformalState, margins: tuple[float, ...]) -> ConformalState:
        """For binary costs, κ is computed again from the logits of the new model."""
        margins = margins or state.margins
        return state._replace(margins=margins, kappa=bounded(binary.kappa_at(margins, state.share)))

    def report(self, state: ConformalState) -> Metrics:
        if state.margins:
            return {"flagged_share": state.share}
        return {"quantile": self.quantile(state), "k": state.k, "k_step": state.step}


def default(kind: Kind, violation_rate: float) -> Conformal:
    """The rule for a violation rate."""
    return Conformal(violation_rate)


def as_rate(value: Any) -> float:
    """The check of a violation rate; messages call it "the violation rate"."""
    return number("the violation rate", value, ViolationRate.wanted, lambda rate: 0.0 < rate < 1.0)


def upper_quantile(residuals: Sequence[float], rate: float) -> float:
    """The k-th smallest of n residuals with k = ⌈(n + 1)(1 − ε)⌉, or the largest if k > n.

    A new residual exceeds it with probability ε or less if residuals are exchangeable and n ≥ 1/ε − 1 (split conformal
    prediction).
    """
    n = len(residuals)
    rank = min(n, math.ceil((n + 1) * (1.0 - rate) - 1e-9))
    return sorted(residuals)[max(rank, 1) - 1]


def residual_kappa(paid: float, planned: float, uncertainty: float) -> float:
    """(J_c − Ĵ_c) / U: the κ at which the planned cost with its penalty would have been the paid cost.

    `planned` includes the part of the limit that plans leave unused.
    """
    return (paid - planned) / uncertainty if uncertainty > 0.0 else 0.0
