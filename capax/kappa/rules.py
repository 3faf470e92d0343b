"""The named rules for κ: a new rule needs one file, and one line here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from capax.core.checks import is_number, nearest, short_repr
from capax.core.contracts import Kind, PlanningRule
from capax.core.errors import InputError
from capax.kappa import adam, conformal, pi
from capax.kappa.checked import CheckedRule
from capax.kappa.fixed import Fixed

RULES: dict[str, Callable[[Kind, float], Any]] = {
    "conformal": conformal.default,
    "adam": adam.default,
    "pi": pi.default,
}
"""The rules that `--kappa` names: each makes the rule for a kind of task and a violation rate."""
FINITE_RULES = ("pi",)
"""Rules for finite worlds, where plans have no residual. The first is the default there."""


def rules_of(kind: Kind) -> tuple[str, ...]:
    """Names of the rules for a kind of task, the default first."""
    return FINITE_RULES if kind == "finite" else tuple(RULES)


def checked_kappa(kappa: Any, kind: Kind) -> str | float | CheckedRule:
    """A user's choice, checked: the name of a rule, a number for a constant κ, or the user's own rule."""
    names = rules_of(kind)
    if isinstance(kappa, str):
        if kappa in names:
            return kappa
        with suppress(ValueError):
            kappa = float(kappa)
    if is_number(kappa):
        return Fixed(kappa).kappa
    if kappa is not None and not isinstance(kappa, str) and callable(getattr(kappa, "update", None)):
        return kappa if isinstance(kappa, CheckedRule) else CheckedRule(kappa)
    near = nearest(kappa, names) if isinstance(kappa, str) else []
    hint = f"did you mean {' or '.join(near)}? " if near and kappa not in RULES else ""
    raise InputError(f"kappa is {short_repr(kappa)}: {hint}choose {', '.join(names)}, or give a number >= 0.")


def rule_settings(kappa: str | float, kind: Kind, violation_rate: float) -> dict[str, Any]:
    """The parameters of a named rule that `--set` may change, with their defaults; empty for a constant κ."""
    if not isinstance(kappa, str) or kappa not in RULES:
        return {}
    rule = RULES[kappa](kind, violation_rate)
    return {f.name: getattr(rule, f.name) for f in fields(rule) if f.name != "rate" or kappa != "conformal"}


def make_rule(
    kappa: str | float | None, kind: Kind, violation_rate: float, changes: Mapping[str, Any] | None = None
) -> PlanningRule:
    """The named rule with changed parameters, or a constant κ for a number; None is a κ of 0."""
    if isinstance(kappa, str) and kappa in RULES:
        return replace(RULES[kappa](kind, violation_rate), **(changes or {}))
    fixed = math.nan
    with suppress(ValueError):
        fixed = 0.0 if kappa is None else float(kappa)
    if math.isnan(fixed):
        raise InputError(f"kappa is {short_repr(kappa)}: choose {', '.join(RULES)}, or give a number >= 0.")
    return Fixed(fixed)
