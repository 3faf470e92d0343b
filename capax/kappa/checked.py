"""A user's own rule for κ. Whatever it returns is checked: its states must fit into a checkpoint and have a valid κ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from capax.core.checks import error_text, is_number, short_repr
from capax.core.contracts import PlanningRule
from capax.core.errors import InputError
from capax.core.types import Feedback, Metrics
from capax.kappa.base import MAX_KAPPA


@dataclass(frozen=True)
class CheckedRule(PlanningRule):
    """A user's rule. Methods that it does not have get the defaults of `PlanningRule`."""

    rule: Any

    def __post_init__(self) -> None:
        if isinstance(self.rule, type):
            raise InputError(f"kappa is the class {self.rule.__name__}: give an instance, {self.rule.__name__}(...).")
        for method in ("init", "update"):
            if not self._has(method):
                raise InputError(f"kappa is {short_repr(self.rule)}: give a rule with the methods init and update.")
        self._check_fields("init", self._initial)

    @property
    def name(self) -> str:
        """Name of the rule's class, as in `config.json`."""
        return type(self.rule).__name__

    @cached_property
    def _initial(self) -> Any:
        """The example that all later states must be like."""
        return self._call("init")

    def init(self) -> Any:
        return self._state("init", self._call("init"))

    def update(self, state: Any, feedback: Feedback) -> Any:
        return self._state("update", self._call("update", state, feedback))

    def report(self, state: Any) -> Metrics:
        if not self._has("report"):
            return {}
        metrics = self._call("report", state)
        if not isinstance(metrics, Mapping) or not all(_is_metric(*item) for item in metrics.items()):
            raise self._refusal("report", short_repr(metrics), "return a dict of names and numbers")
        return dict(metrics)

    def relax(self, state: Any) -> Any | None:
        relaxed = self._call("relax", state) if self._has("relax") else None
        if relaxed is None:
            return None
        relaxed = self._state("relax", relaxed)
        if not relaxed.kappa < state.kappa:  # or the search for a feasible plan would never end
            raise self._refusal("relax", f"kappa={relaxed.kappa} for {state.kappa}", "return a smaller kappa, or None")
        return relaxed

    def kappa_within_episode(self, state: Any, excess: float, reward_weight: float) -> float:
        if not self._has("kappa_within_episode"):
            return float(state.kappa)
        return self._kappa("kappa_within_episode", self._call("kappa_within_episode", state, excess, reward_weight))

    def step_limit(self, limit: float, left: float) -> float:
        if not self._has("step_limit"):
            return limit
        chosen = self._call("step_limit", limit, left)
        if not is_number(chosen) or chosen != chosen:
            raise self._refusal("step_limit", short_repr(chosen), "return a number")
        return float(chosen)

    def after_fit(self, state: Any, margins: tuple[float, ...]) -> Any:
        return self._state("after_fit", self._call("after_fit", state, margins)) if self._has("after_fit") else state

    def _has(self, method: str) -> bool:
        return callable(getattr(self.rule, method, None))

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.rule, method)(*arguments)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{method} of the rule {self.name} raised {error_text(error)}: fix it.") from error

    def _refusal(self, method: str, returned: str, advice: str) -> InputError:
        return InputError(f"{method} of the rule {self.name} returns {returned}: {advice}.")

    def _state(self, method: str, state: Any) -> Any:
        """A state that a method returned, if it is like the initial one."""
        self._check_fields(method, state)
        first = self._initial
        if type(state) is not type(first):
            classes = f"a {type(state).__name__} after a {type(first).__name__}"
            raise self._refusal(method, classes, "return the class that init returns")
        for name, value, initial in zip(state._fields, state, first, strict=True):
            if isinstance(value, tuple) != isinstance(initial, tuple):
                kind = "a tuple of numbers" if isinstance(initial, tuple) else "a number"
                raise self._refusal(method, f"{name}={short_repr(value)}", f"return {kind}, as init does")
        return state

    def _check_fields(self, method: str, state: Any) -> None:
        """Refuse anything but a NamedTuple of numbers and tuples of numbers with a valid κ."""
        fields = getattr(type(state), "_fields", ()) if isinstance(state, tuple) else ()
        if "kappa" not in fields:
            raise self._refusal(method, short_repr(state), "return a NamedTuple with a field kappa")
        for name in fields:
            value = getattr(state, name)
            items = value if type(value) is tuple else (value,)
            if not all(is_number(item) or isinstance(item, bool) for item in items):
                advice = "a state holds numbers and tuples of numbers, so that it can be kept in a checkpoint"
                raise self._refusal(method, f"{name}={short_repr(value)}", advice)
        self._kappa(method, state.kappa)

    def _kappa(self, method: str, kappa: Any) -> float:
        if not is_number(kappa) or not 0.0 <= kappa <= MAX_KAPPA:  # NaN is in no range
            raise self._refusal(method, f"kappa={short_repr(kappa)}", "return a finite number >= 0")
        return float(kappa)


def _is_metric(name: Any, value: Any) -> bool:
    """Whether a row of a run can hold a value under this name."""
    return isinstance(name, str) and (value is None or isinstance(value, bool) or is_number(value))
