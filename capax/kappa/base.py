"""Shared parts of the rules for κ: bounds, checks, and the state of a rule that keeps only κ.

A rule is a frozen dataclass with pure methods over a state that has a field `kappa` (`core.contracts.Rule`). κ is never
negative, unless `adam` is told so, as published. The default rule is in `conformal.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from capax.core.checks import number
from capax.core.settings import Between
from capax.core.types import Feedback

MAX_KAPPA = 1e30
"""Largest κ; float32 can hold it. No plan is feasible at values far below it."""
KappaValue = Annotated[float, Between(0.0, MAX_KAPPA)]
"""The type of a setting that is a κ, or a step of κ."""


class Kappa(NamedTuple):
    """The state of a rule that keeps only κ."""

    kappa: float


def bounded(kappa: float, least: float = 0.0) -> float:
    """κ clipped to the range from 0, or `least`, to MAX_KAPPA."""
    return max(least, min(MAX_KAPPA, kappa))


def checked(feedback: Feedback) -> Feedback:
    """The feedback as plain floats. A NaN as cost or limit is refused: max(0, NaN) would be 0, the least careful κ."""
    paid = number("the paid cost", feedback.paid, "a number, as the costs of all steps are", _not_nan)
    limit = number("the limit", feedback.limit, "a number", _not_nan)
    residual, unit = (None if x is None else float(x) for x in (feedback.residual, feedback.unit))
    U, binary = float(feedback.uncertainty), bool(feedback.binary)
    return feedback._replace(paid=paid, limit=limit, residual=residual, unit=unit, uncertainty=U, binary=binary)


def _not_nan(x: float) -> bool:
    return not math.isnan(x)
