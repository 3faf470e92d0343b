"""How does the true cost of an episode move κ, the weight of the uncertainty penalty?

A rule is a frozen dataclass with pure methods over a state of its own that has a field `kappa`. κ is never below 0.
The rule that capax uses by default is in `conformal.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from capax.checks import above_0, number, settle
from capax.types import Metrics

MOST_KAPPA = 1e30
"""κ is never above this, which float32 can hold; far below it, no plan is feasible any more."""
FAR = 1e100


def bounded(kappa: float) -> float:
    """κ from 0 to the most there is."""
    return max(0.0, min(MOST_KAPPA, kappa))


class Feedback(NamedTuple):
    """What an executed policy teaches a rule."""

    paid: float
    """Its true cost J_c, in the task's convention."""
    limit: float
    """The limit C, in the same convention."""
    random: bool = False
    """Nothing was planned: a start episode."""
    residual: float | None = None
    """The κ at which the plan would have foretold what was paid; None where nothing was planned."""
    unit: float | None = None
    """The κ whose penalty alone fills the limit: what a large step of κ is, in this task's units."""
    uncertainty: float = 1.0
    """What κ was multiplied by in the plan: U, so that residual · U is the planning error in units of the cost."""

    binary: bool = False
    """Costs are flags, and κ weighs uncertainty against a logit."""

    def checked(self) -> Feedback:
        """In plain floats, unless the cost or the limit is not a number: max(0, NaN) would be 0, the least careful κ of
        all."""
        paid = number(
            "the paid cost", self.paid, "a number, as the costs of all steps are", lambda x: not math.isnan(x)
        )
        limit = number("the limit", self.limit, "a number", lambda x: not math.isnan(x))
        residual, unit = (None if x is None else float(x) for x in (self.residual, self.unit))
        return Feedback(paid, limit, self.random, residual, unit, float(self.uncertainty), bool(self.binary))

    @property
    def error(self) -> float:
        """J_c − C, within ±1e100, whose square is a float still."""
        return 0.0 if self.paid == self.limit else max(-FAR, min(FAR, self.paid - self.limit))


as_kappa = partial(
    number, wanted=f"a finite number >= 0, at most {MOST_KAPPA:g}", fits=lambda kappa: 0.0 <= kappa <= MOST_KAPPA
)
"""The check of a κ, or of what it moves by."""


class Kappa(NamedTuple):
    """The state of a rule that remembers nothing but κ."""

    kappa: float


class Rule(Protocol):
    """A way to choose κ. Its state is any tuple of numbers with a field `kappa`."""

    def init(self) -> Any:
        """The state before the first plan."""

    def update(self, state: Any, feedback: Feedback) -> Any:
        """The state after an executed policy."""

    def relax(self, state: Any) -> Any | None:
        """The state to plan with when no plan is feasible at `state.kappa`; None if the rule will not give way."""

    def careful(self, state: Any, beyond: float, worth: float) -> float:
        """κ within an episode that has paid so much beyond its limit; `worth`: what a reward counts for by now, of 1."""
        return float(state.kappa)

    def allowed(self, limit: float, left: float) -> float:
        """What a step of a plan may cost: `limit` by the task, `left` by what the episode has not spent of it."""
        return limit

    def fitted(self, state: Any, margins: tuple[float, ...]) -> Any:
        """The state after a fit, where costs are flags; `margins` are those of flags.py."""
        return state

    def report(self, state: Any) -> Metrics:
        """What κ was made of, beside κ itself."""


@dataclass(frozen=True)
class Fixed(Rule):
    """κ stays what it is; where no plan is feasible, the least-cost one is taken."""

    kappa: float
    """Weight of the penalty."""

    def __post_init__(self) -> None:
        settle(self, as_kappa, "kappa")

    def init(self) -> Kappa:
        return Kappa(self.kappa)

    def update(self, state: Kappa, feedback: Feedback) -> Kappa:
        return state

    def relax(self, state: Kappa) -> Kappa | None:
        return None

    def report(self, state: Kappa) -> Metrics:
        return {}


@dataclass(frozen=True)
class PI(Rule):
    """The paper's rule  κ ← max(0, κ + α (J_c − C))  (Eq. 6), started by exponential search (its appendix)."""

    alpha: float = 0.1
    """Gain α of the controller."""
    start: float = 10.0
    """First κ of the exponential search."""
    smallest: float = 1e-6
    """Below this, halving goes to 0."""
    most: float = MOST_KAPPA
    """κ is never above this."""

    def __post_init__(self) -> None:
        settle(self, as_kappa, "alpha", "start", "smallest", "most")

    def init(self) -> Kappa:
        return Kappa(self.start)

    def update(self, state: Kappa, feedback: Feedback) -> Kappa:
        feedback = feedback.checked()
        return Kappa(min(self.most, bounded(state.kappa + self.alpha * feedback.error)))

    def relax(self, state: Kappa) -> Kappa | None:
        """Exponential search: halve κ, at the start and whenever a plan is infeasible later."""
        if state.kappa <= 0.0:
            return None
        half = state.kappa / 2.0
        return Kappa(half if half >= self.smallest else 0.0)

    def report(self, state: Kappa) -> Metrics:
        return {}


class AdamState(NamedTuple):
    """κ and Adam's two moments."""

    kappa: float
    m: float = 0.0
    v: float = 0.0
    updates: int = 0


@dataclass(frozen=True)
class Adam(Rule):
    """The rule of the paper's hyper-parameter table: Adam on κ with the gradient −(J_c − C), here kept at κ ≥ 0.

    Random start episodes move κ too, as published.
    """

    rate: float = 0.1
    """Learning rate: about what κ moves in an episode, whatever the size of the error."""
    start: float = 1.0
    """κ before the first episode."""
    beta1: float = 0.9
    """Share of the mean error that an episode leaves."""
    beta2: float = 0.999
    """Share of the mean squared error that an episode leaves."""
    epsilon: float = 1e-8
    """Least root of the mean squared error."""

    def __post_init__(self) -> None:
        settle(self, as_kappa, "rate", "start")
        settle(
            self, partial(number, wanted="a number >= 0 and below 1", fits=lambda x: 0.0 <= x < 1.0), "beta1", "beta2"
        )
        settle(self, above_0(MOST_KAPPA), "epsilon")

    def init(self) -> AdamState:
        return AdamState(self.start)

    def update(self, state: AdamState, feedback: Feedback) -> AdamState:
        feedback = feedback.checked()
        error, updates = feedback.error, state.updates + 1
        m = self.beta1 * state.m + (1.0 - self.beta1) * error
        v = self.beta2 * state.v + (1.0 - self.beta2) * error**2
        scaled = math.sqrt(v / (1.0 - self.beta2**updates)) + self.epsilon
        step = self.rate * m / (1.0 - self.beta1**updates) / scaled
        return AdamState(bounded(state.kappa + step), m, v, updates)

    def relax(self, state: AdamState) -> AdamState | None:
        return None

    def report(self, state: AdamState) -> Metrics:
        return {"adam_m": state.m, "adam_v": state.v}


class DampedState(NamedTuple):
    """A multiplier, what it is made of, and the smoothed error."""

    kappa: float = 0.0
    integral: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Damped(Rule):
    """λ = max(0, I + β e),  I ← max(0, I + α e), where e is the smoothed error in units of the limit (Stooke et al. 2020).

    A policy that follows its gradient goes on changing as long as λ is wrong: I alone would swing about the limit, and β
    damps that.
    """

    alpha: float = 0.02
    """What an error of a whole limit adds to I in an episode."""
    beta: float = 1.0
    """What an error of a whole limit adds to λ at once."""
    smoothing: float = 0.8
    """Share of the error that an episode leaves."""
    most: float = MOST_KAPPA
    """λ is never above this."""

    def __post_init__(self) -> None:
        settle(self, as_kappa, "alpha", "beta", "most")
        settle(self, partial(number, wanted="a number >= 0 and below 1", fits=lambda x: 0.0 <= x < 1.0), "smoothing")

    def init(self) -> DampedState:
        return DampedState()

    def update(self, state: DampedState, feedback: Feedback) -> DampedState:
        feedback = feedback.checked()
        relative = feedback.error / feedback.limit if 0.0 < feedback.limit < math.inf else feedback.error
        error = self.smoothing * state.error + (1.0 - self.smoothing) * max(-FAR, min(FAR, relative))
        integral = min(self.most, bounded(state.integral + self.alpha * error))
        return DampedState(min(self.most, bounded(integral + self.beta * error)), integral, error)

    def relax(self, state: DampedState) -> DampedState | None:
        return None

    def report(self, state: DampedState) -> Metrics:
        return {"integral": state.integral}
