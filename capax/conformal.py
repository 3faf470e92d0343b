"""Which κ keeps a wanted rate of violations? The rule that capax uses by default.

κ = max(0, q) + k. The first part is foresight: q is an upper quantile of recent residuals, where a residual is the κ with
which an executed episode would have paid what it may. The second is feedback: k ≥ 0 rises when an episode
violates and falls slowly when it does not, so that the share of violating episodes is driven to at most ε whatever the
model does (proved in docs/guarantees.md). Residuals, k and its step are all in units of κ: nothing depends on the task's.

Where costs are flags an episode within its limit has no residual, so κ is chosen otherwise: see flags.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from capax import flags
from capax.checks import above_0, number, settle, whole
from capax.kappa import FAR, MOST_KAPPA, Feedback, Rule, bounded
from capax.types import Metrics

MOST = 0.5
"""What one residual may ask for beyond the present κ, in units of the κ that fills the limit: with a whole unit no plan would
be feasible any more, and nothing learned, until that residual is forgotten."""


class ConformalState(NamedTuple):
    """κ and what it is made of."""

    kappa: float = 0.0
    k: float = 0.0
    step: float = 0.0
    """η: what a violation adds to k; fixed at the first violation, before which k is 0 anyway."""
    errors: tuple[float, ...] = ()
    """The last residuals, each times the uncertainty that it was met with; oldest first."""
    uncertainty: float = 1.0
    """U of the last episode, in which these errors are restated as residuals."""
    share: float = flags.FIRST_SHARE
    """p, where costs are flags; the fields above but κ are not used there."""
    margins: tuple[float, ...] = ()
    """Of good steps, in order; empty where costs are not flags."""


@dataclass(frozen=True)
class Conformal(Rule):
    """κ = max(0, q) + k,  k ← max(0, k + η (1[J_c > C] − ε))."""

    rate: float = 0.02
    """ε: the share of planned episodes that may violate."""
    window: int = 12
    """Residuals that q is the upper quantile of."""
    gain: float = 0.1
    """η in units of the κ whose penalty alone would fill the limit."""

    def __post_init__(self) -> None:
        settle(self, lambda _, value: as_rate(value), "rate")
        settle(self, whole, "window")
        settle(self, above_0(MOST_KAPPA), "gain")

    def init(self) -> ConformalState:
        return ConformalState()

    def update(self, state: ConformalState, feedback: Feedback) -> ConformalState:
        feedback = feedback.checked()
        violated = feedback.paid > feedback.limit
        if feedback.binary and not feedback.random:
            share = flags.moved(state.share, violated, self.rate)
            return state._replace(share=share, kappa=bounded(flags.kappa_at(state.margins, share)))
        residual, unit = feedback.residual, feedback.unit
        if feedback.random or residual is None or unit is None:
            return state
        unit = bounded(unit) if math.isfinite(unit) else 0.0
        step = state.step if state.step > 0.0 or not violated else bounded(self.gain * unit)
        k = bounded(state.k + step * (violated - self.rate))
        # an early model plans nonsense, so no residual counts for too much
        errors, uncertainty = state.errors, state.uncertainty
        # a plan that was all infinite teaches nothing
        if math.isfinite(residual) and 0.0 < feedback.uncertainty < math.inf:
            uncertainty = feedback.uncertainty
            error = min(residual, state.kappa + MOST * unit) * uncertainty
            errors = (*errors, max(-FAR, min(FAR, error)))[-self.window :]
        state = state._replace(k=k, step=step, errors=errors, uncertainty=uncertainty)
        return state._replace(kappa=bounded(max(0.0, self.quantile(state) or 0.0) + k))

    def quantile(self, state: ConformalState) -> float | None:
        """q: as a model learns, U falls faster than the errors do, so they are seen in the uncertainty of the last episode."""
        return upper_quantile(state.errors, self.rate) / state.uncertainty if state.errors else None

    def careful(self, state: ConformalState, beyond: float, worth: float) -> float:
        """Where costs are flags, larger where more was paid and less is to be earned; elsewhere, the present one."""
        return bounded(max(state.kappa, flags.kappa_at(state.margins, flags.within(state.share, beyond, worth))))

    def allowed(self, limit: float, left: float) -> float:
        """An episode that has spent more than its share has less to spend; one that has spent less has no more."""
        return min(limit, left)

    def fitted(self, state: ConformalState, margins: tuple[float, ...]) -> ConformalState:
        """Where costs are flags, κ is restated in the new model's logits."""
        known = margins or state.margins
        return state._replace(margins=known, kappa=bounded(flags.kappa_at(known, state.share)))

    def relax(self, state: ConformalState) -> ConformalState | None:
        return None

    def report(self, state: ConformalState) -> Metrics:
        if state.margins:
            return {"flagged_share": state.share}
        return {"quantile": self.quantile(state), "k": state.k, "k_step": state.step}


def as_rate(value: Any) -> float:
    """The check of a share of episodes that may violate."""
    return number("the violation rate", value, "a number above 0 and below 1", lambda rate: 0.0 < rate < 1.0)


def upper_quantile(residuals: Sequence[float], rate: float) -> float:
    """The ⌈(n + 1)(1 − ε)⌉-th smallest of n, the largest at most: exceeded by a fresh one with probability ε or less,
    if residuals are exchangeable and n ≥ 1/ε − 1 (split conformal prediction)."""
    n = len(residuals)
    rank = min(n, math.ceil((n + 1) * (1.0 - rate) - 1e-9))
    return sorted(residuals)[max(rank, 1) - 1]


def real_residual(paid: float, planned: float, uncertainty: float) -> float:
    """(J_c − Ĵ_c) / U: the κ at which the planned cost with its penalty would have been the cost that was paid; what plans
    leave unused of the limit is to be counted with the planned cost."""
    return (paid - planned) / uncertainty if uncertainty > 0.0 else 0.0
