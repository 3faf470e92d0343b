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

import numpy as np

from capax.core.checks import number
from capax.core.contracts import Kind, PlanningRule
from capax.core.settings import Above, Flag, Whole, settle
from capax.core.types import MAX_ERROR, Feedback, Metrics, Rest
from capax.kappa import binary
from capax.kappa.allowance import allowed_count, noise_margin
from capax.kappa.base import MAX_KAPPA, bounded, checked

DEFAULT_RATE = 0.02
"""ε where neither the user nor the task names one."""
MAX_RESIDUAL_UNITS = 0.5
"""Largest amount that one residual may add to the present κ, in units of the κ that fills the limit. With a whole unit,
no plan would be feasible, and nothing would be learned, until that residual has left the window."""

MAX_BUDGET_SHARE = 0.5
"""Largest share of an undiscounted limit that q may keep in reserve."""
FORGOTTEN_AFTER = 5.0
"""Safe episodes after which an error that the present model does not make is forgotten."""
TIME_SHARE = 0.5
"""Share of ε by which k falls with time alone, under a budget. The rest of ε is for violations that the model explains."""
FREELY_FORGIVEN = 5.0
"""G, violations that are forgiven beyond that: most are made by the first models."""
MIN_ALLOWED_SHARE = 0.2
"""Share of what is left that may be spent, however noisy costs are."""


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
    explained: tuple[float, ...] = ()
    """How much of each error the present model no longer makes; below 0 if it makes a greater one. 0 until a later fit has
    been tried on the episode."""
    excess: tuple[float, ...] = ()
    """For each error: what its episode paid beyond the limit; 0 or below if it kept the limit."""
    noises: tuple[float, ...] = ()
    """For each error: the standard deviation of the errors of single steps."""
    max_error: float = MAX_ERROR
    """Largest error that counts: under a budget, a part of it, so that some plans stay within."""
    episodes: int = 0
    """T, planned episodes so far, under a budget."""
    forgiven: float = 0.0
    """F, violations whose step of k was taken back because the model foresees them now."""


@dataclass(frozen=True)
class Conformal(PlanningRule):
    """κ = max(0, q) + k,  k ← max(0, k + η (1[J_c > C] − ε))."""

    rate: Annotated[float, ViolationRate()] = DEFAULT_RATE
    """ε: the share of planned episodes that may violate."""
    window: Annotated[int, Whole()] = 12
    """Number of recent residuals that q is the upper quantile of."""
    gain: Annotated[float, Above(0.0, MAX_KAPPA)] = 0.1
    """η in units of the κ whose penalty alone would fill the limit."""
    within_episode: Annotated[bool, Flag()] = True
    """Plans keep to what their episode has left of the limit, and from images κ changes within an episode. False: all plans of
    an episode have the same limit and κ, as with the other rules. An undiscounted limit stays a budget, for every rule."""

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
        if math.isfinite(feedback.allowance):
            state = self._with_forgiven(state._replace(episodes=state.episodes + 1), violated)
            k = bounded(state.k + step * (violated - TIME_SHARE * self.rate))
        uncertainty = state.uncertainty
        # an infinite plan says nothing about the error of the model
        if math.isfinite(residual) and 0.0 < feedback.uncertainty < math.inf:
            uncertainty = feedback.uncertainty
            # an early model's plans are far off, so no residual counts for too much
            error = min(residual, state.kappa + MAX_RESIDUAL_UNITS * unit) * uncertainty
            state = state._replace(max_error=min(MAX_ERROR, MAX_BUDGET_SHARE * max(0.0, feedback.allowance)))
            excess = feedback.error if violated else min(0.0, feedback.error)
            state = self._with_error(state, error, excess, feedback.noise)
        return self._with_kappa(state._replace(k=k, step=step, uncertainty=uncertainty))

    def _with_forgiven(self, state: ConformalState, violated: bool) -> ConformalState:
        """After a safe episode, a part of the steps of k is taken back for violations that the model foresees by now.

        At most FREELY_FORGIVEN violations, and a share of ε/2 of all episodes, are forgiven.
        """
        room = FREELY_FORGIVEN + (1.0 - TIME_SHARE) * self.rate * state.episodes - state.forgiven
        count = len(state.errors)
        explained, excess = (_padded(part, count) for part in (state.explained, state.excess))
        foreseen = sum(
            beyond > 0.0 and error - less <= beyond and later < FORGOTTEN_AFTER
            for error, less, beyond, later in zip(state.errors, explained, excess, self._safe_since(state), strict=True)
        )
        part = 0.0 if violated else max(0.0, min(room, foreseen / FORGOTTEN_AFTER, state.k / (state.step or 1.0)))
        return state._replace(k=bounded(state.k - part * state.step), forgiven=state.forgiven + part)

    def _safe_since(self, state: ConformalState) -> list[float]:
        """For each error, how many later episodes kept the limit."""
        kept = np.array(_padded(state.excess, len(state.errors))) <= 0.0
        return [float(kept[place + 1 :].sum()) for place in range(len(kept))]

    def _with_error(self, state: ConformalState, error: float, excess: float, noise: float) -> ConformalState:
        """The state with one more error, of which nothing is explained yet."""
        error = max(-MAX_ERROR, min(state.max_error, error))
        return state._replace(
            errors=(*state.errors, error)[-self.window :],
            explained=(*state.explained, 0.0)[-self.window :],
            excess=(*state.excess, excess)[-self.window :],
            noises=(*state.noises, min(MAX_ERROR, abs(noise)) if math.isfinite(noise) else 0.0)[-self.window :],
        )

    def _with_kappa(self, state: ConformalState) -> ConformalState:
        error = min(self.error_quantile(state) or 0.0, state.max_error)
        return state._replace(kappa=bounded(max(0.0, error / state.uncertainty) + state.k))

    def quantile(self, state: ConformalState) -> float | None:
        """q, in the uncertainty of the last episode: as a model learns, U falls faster than the errors do."""
        error = self.error_quantile(state)
        return None if error is None else error / state.uncertainty

    def error_quantile(self, state: ConformalState) -> float | None:
        """The upper quantile of the errors.

        What the present model has explained of an error is forgotten over the next FORGOTTEN_AFTER safe episodes. Where it
        makes a greater error than was made, that counts at once.
        """
        count = len(state.errors)
        if count == 0:
            return None
        explained = np.array(_padded(state.explained, count))
        share = np.minimum(1.0, np.array(self._safe_since(state)) / FORGOTTEN_AFTER)
        forgotten = np.where(explained > 0.0, share, 1.0)
        return upper_quantile((state.errors - forgotten * explained).tolist(), self.rate)

    def before_planning(self, state: ConformalState, feedback: Feedback) -> ConformalState:
        """κ begins with the error of the model on start data that it was not fitted to."""
        if feedback.residual is None or not 0.0 < feedback.uncertainty < math.inf:
            return state
        reserve = min(MAX_ERROR, MAX_BUDGET_SHARE * max(0.0, feedback.allowance))
        state = state._replace(uncertainty=feedback.uncertainty, max_error=reserve)
        state = self._with_error(state, feedback.residual * feedback.uncertainty, 0.0, feedback.noise)
        return self._with_kappa(
            state._replace(explained=(max(0.0, state.errors[-1]),))
        )  # the first fit is to these data

    def reconsider(self, state: ConformalState, errors: tuple[float, ...], uncertainty: float) -> ConformalState:
        """An error that the model of now makes no longer is forgotten, and one that it makes now counts."""
        if not 0.0 < uncertainty < math.inf or len(errors) > len(state.errors):
            return state
        before = state.errors[len(state.errors) - len(errors) :]
        pairs = zip(before, errors, strict=True)
        earlier = _padded(state.explained, len(state.errors))[: len(state.errors) - len(errors)]
        explained = *earlier, *(old - now if math.isfinite(now) else 0.0 for old, now in pairs)
        return self._with_kappa(state._replace(explained=explained, uncertainty=uncertainty))

    def allowance(self, state: ConformalState, rest: Rest) -> float:
        """Less than what is left, so that costs that come at random violate with a probability of about ε."""
        if rest.binary:
            return allowed_count(rest.left, self.rate, rest.run_length) - (rest.risk if rest.left < 1.0 else 0.0)
        noise = math.sqrt(np.mean(np.square(state.noises))) if state.noises else 0.0
        margin = noise_margin(noise, rest.steps, self.rate)
        return max(rest.left - margin, MIN_ALLOWED_SHARE * rest.left)

    def kappa_within_episode(self, state: ConformalState, excess: float, reward_weight: float) -> float:
        """For binary costs, κ rises with the cost so far and as later rewards weigh less. For others, the present κ."""
        if not self.within_episode:
            return state.kappa
        share = binary.share_within_episode(state.share, excess, reward_weight)
        return bounded(max(state.kappa, binary.kappa_at(state.margins, share)))

    def step_limit(self, limit: float, left: float) -> float:
        """The smaller of the two: an episode that has spent too much may spend less, but none may spend more."""
        return min(limit, left) if self.within_episode else limit

    def after_fit(self, state: ConformalState, margins: tuple[float, ...]) -> ConformalState:
        """For binary costs, κ is computed again from the logits of the new model."""
        margins = margins or state.margins
        return state._replace(margins=margins, kappa=bounded(binary.kappa_at(margins, state.share)))

    def report(self, state: ConformalState) -> Metrics:
        if state.margins:
            return {"flagged_share": state.share}
        terms = {"quantile": self.quantile(state), "k": state.k, "k_step": state.step}
        if state.episodes == 0:
            return terms
        return {**terms, "forgiven": state.forgiven, "violation_bound": self.violation_bound(state)}

    def violation_bound(self, state: ConformalState) -> float:
        """The share of the planned episodes so far that can have violated at most: (εT/2 + F + k/η) / T.

        It follows from what k has counted, whatever the model and the environment did (docs/guarantees.md).
        """
        count = TIME_SHARE * self.rate * state.episodes + state.forgiven
        count += state.k / state.step if state.step > 0.0 else 0.0
        return min(1.0, count / max(1, state.episodes))


def default(kind: Kind, violation_rate: float) -> Conformal:
    """The rule for a violation rate."""
    return Conformal(violation_rate)


def _padded(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """The values with zeros before them, `count` in all."""
    return (*(0.0,) * (count - len(values)), *values)


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
