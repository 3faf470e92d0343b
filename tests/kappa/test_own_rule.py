"""A user's own rule for κ: which classes work, and how wrong states are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
import pytest
from support.cmdps import agent_knowledge

import capax
from capax.agents.tabular import TabularCAP
from capax.core.errors import InputError
from capax.core.loop import run
from capax.core.types import Feedback, Spec
from capax.kappa.checked import CheckedRule
from capax.kappa.fixed import Fixed
from capax.kappa.rules import checked_kappa
from capax.tabular import gridworld
from capax.tabular.sampler import WorldCollector

PAID = Feedback(2.0, 1.0)
"""A cost of 1 above the limit."""


class GainState(NamedTuple):
    """κ, the count of updates, and the last errors."""

    kappa: float = 0.5
    updates: int = 0
    errors: tuple[float, ...] = ()


class PlainRule:
    """κ moves by a quarter of the error. A plain class without a base."""

    def init(self) -> Any:
        return GainState()

    def update(self, state: Any, feedback: Feedback) -> Any:
        kappa = max(0.0, state.kappa + 0.25 * feedback.error)
        return GainState(kappa, state.updates + 1, (*state.errors, feedback.error))


class DerivedRule(capax.Rule):
    """The same rule as a subclass of `capax.Rule`, with a report."""

    def init(self) -> GainState:
        return GainState()

    def update(self, state: GainState, feedback: Feedback) -> GainState:
        return PlainRule().update(state, feedback)

    def report(self, state: GainState) -> dict[str, Any]:
        return {"updates": state.updates, "last_error": state.errors[-1] if state.errors else None}


def rule_with(**methods: Any) -> Any:
    """A plain rule of the class `Own` with other methods."""
    return type("Own", (PlainRule,), methods)()


def message_of(call: Any, *arguments: Any) -> str:
    """The message of the InputError that a call raises: one line, one sentence."""
    with pytest.raises(InputError) as error:
        call(*arguments)
    message = str(error.value)
    assert "\n" not in message and message.endswith(".") and len(message) < 300
    return message


# Classes that work.


@pytest.mark.parametrize("own", [PlainRule(), DerivedRule()])
def test_a_rule_with_init_and_update_works(own):
    rule = CheckedRule(own)
    state = rule.update(rule.update(rule.init(), PAID), Feedback(0.0, 4.0))
    assert state == GainState(0.0, 2, (1.0, -4.0))  # .5 + .25 − 1 < 0
    assert rule.name == type(own).__name__


def test_methods_that_a_rule_lacks_have_the_defaults_of_a_planning_rule():
    rule, fixed = CheckedRule(PlainRule()), Fixed(0.5)
    state = rule.init()
    assert rule.report(state) == fixed.report(fixed.init()) == {}
    assert rule.relax(state) is None
    assert rule.kappa_within_episode(state, 3.0, 0.5) == 0.5 == fixed.kappa_within_episode(fixed.init(), 3.0, 0.5)
    assert rule.step_limit(0.25, 0.125) == 0.25 == fixed.step_limit(0.25, 0.125)
    assert rule.after_fit(state, (1.0, 2.0)) is state


def test_a_report_is_passed_on():
    rule = CheckedRule(DerivedRule())
    assert rule.report(rule.init()) == {"updates": 0, "last_error": None}
    assert rule.report(rule.update(rule.init(), PAID)) == {"updates": 1, "last_error": 1.0}


def test_the_methods_of_a_planning_rule_are_called():
    rule = CheckedRule(rule_with(
        relax=lambda self, state: state._replace(kappa=state.kappa / 2.0) if state.kappa > 0.2 else None,
        kappa_within_episode=lambda self, state, excess, reward_weight: state.kappa + excess * reward_weight,
        step_limit=lambda self, limit, left: min(limit, left),
        after_fit=lambda self, state, margins: state._replace(kappa=margins[0]),
    ))  # fmt: skip
    state = rule.init()
    relaxed = rule.relax(rule.relax(state))
    assert relaxed.kappa == 0.125 and rule.relax(relaxed) is None
    assert rule.kappa_within_episode(state, 3.0, 0.5) == 2.0
    assert rule.step_limit(0.25, 0.125) == 0.125
    assert rule.after_fit(state, (7.0,)).kappa == 7.0


@pytest.mark.parametrize("kappa", [0, 1.5, np.float64(2.0), np.int64(3), 1e30])
def test_kappa_may_be_any_number_that_is_finite_and_not_negative(kappa):
    assert CheckedRule(rule_with(init=lambda self: GainState(kappa))).init().kappa == kappa


def test_checked_kappa_wraps_an_own_rule_once():
    rule = checked_kappa(DerivedRule(), "vector")
    assert isinstance(rule, CheckedRule) and checked_kappa(rule, "vector") is rule


@pytest.mark.parametrize("own", [PlainRule(), DerivedRule()])
def test_an_own_rule_moves_kappa_in_the_loop(own):
    world = gridworld(np.random.default_rng(0), size=3, gamma=0.9)
    limit = 0.11
    agent = TabularCAP(agent_knowledge(world), Spec(limit, 0.9), CheckedRule(own))
    _, *outcomes = run(agent, WorldCollector(world.cmdp, 30), start=30, steps=120, key=jr.key(0))
    kappa = 0.5
    for outcome in outcomes:
        assert outcome.metrics["kappa"] == pytest.approx(kappa, rel=1e-12)
        kappa = max(0.0, kappa + 0.25 * (outcome.episode.paid - limit))
    assert outcomes[-1].state.rule.updates == len(outcomes) == 3


# Rules that are refused at once.


@pytest.mark.parametrize("missing", ["init", "update"])
def test_a_rule_without_init_or_update_is_refused(missing):
    message = message_of(CheckedRule, rule_with(**{missing: None}))
    assert message.startswith("kappa is <") and message.endswith(": give a rule with the methods init and update.")


def test_a_class_in_place_of_an_instance_is_refused():
    assert message_of(CheckedRule, PlainRule) == "kappa is the class PlainRule: give an instance, PlainRule(...)."


class StateWithoutKappa(NamedTuple):
    gain: float = 1.0


class StateWithAList(NamedTuple):
    kappa: float
    errors: Any


@dataclass
class DataclassState:
    kappa: float = 1.0


NOT_A_NAMED_TUPLE = "return a NamedTuple with a field kappa."
NOT_A_NUMBER = "a state holds numbers and tuples of numbers, so that it can be kept in a checkpoint."
NOT_A_KAPPA = "return a finite number >= 0."
WRONG_STATES = {
    "no kappa": (StateWithoutKappa(), f"StateWithoutKappa(gain=1.0): {NOT_A_NAMED_TUPLE}"),
    "None": (None, f"None: {NOT_A_NAMED_TUPLE}"),
    "a number": (0.5, f"0.5: {NOT_A_NAMED_TUPLE}"),
    "a tuple": ((0.5, 1), f"(0.5, 1): {NOT_A_NAMED_TUPLE}"),
    "a dict": ({"kappa": 0.5}, f"{{'kappa': 0.5}}: {NOT_A_NAMED_TUPLE}"),
    "a dataclass": (DataclassState(), f"DataclassState(kappa=1.0): {NOT_A_NAMED_TUPLE}"),
    "the class": (GainState, f"<class '{__name__}.GainState'>: {NOT_A_NAMED_TUPLE}"),
    "NaN": (GainState(float("nan")), f"kappa=nan: {NOT_A_KAPPA}"),
    "infinite": (GainState(float("inf")), f"kappa=inf: {NOT_A_KAPPA}"),
    "negative": (GainState(-0.25), f"kappa=-0.25: {NOT_A_KAPPA}"),
    "too large": (GainState(1e31), f"kappa=1e+31: {NOT_A_KAPPA}"),
    "a flag": (GainState(True), f"kappa=True: {NOT_A_KAPPA}"),
    "a text": (GainState("1"), f"kappa='1': {NOT_A_NUMBER}"),
    "a list": (StateWithAList(1.0, [1.0]), f"errors=[1.0]: {NOT_A_NUMBER}"),
    "an array": (StateWithAList(1.0, np.zeros(2)), f"errors=array([0., 0.]): {NOT_A_NUMBER}"),
    "nothing in a field": (StateWithAList(1.0, None), f"errors=None: {NOT_A_NUMBER}"),
    "nested tuples": (StateWithAList(1.0, ((1.0,),)), f"errors=((1.0,),): {NOT_A_NUMBER}"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_STATES)
def test_a_wrong_initial_state_is_refused(name):
    state, words = WRONG_STATES[name]
    message = message_of(CheckedRule, rule_with(init=lambda self: state))
    assert message == f"init of the rule Own returns {words}"


@pytest.mark.parametrize("name", WRONG_STATES)
def test_a_wrong_later_state_is_refused(name):
    state, words = WRONG_STATES[name]
    methods = ("update", "relax", "after_fit")
    rule = CheckedRule(rule_with(**dict.fromkeys(methods, lambda self, *arguments: state)))
    first = rule.init()
    calls = [(rule.update, first, PAID), (rule.after_fit, first, (1.0,))]
    if state is not None:  # None from `relax` means that κ stays
        calls.append((rule.relax, first))
    for call in calls:
        assert message_of(*call) == f"{call[0].__name__} of the rule Own returns {words}"


def test_a_subclass_that_omits_a_method_of_the_contract_is_refused():
    class Unfinished(capax.Rule):
        def update(self, state: Any, feedback: Feedback) -> Any:
            return state

    message = message_of(CheckedRule, Unfinished())
    assert message == f"init of the rule Unfinished returns None: {NOT_A_NAMED_TUPLE}"


# Later states that are not like the first one: a checkpoint could not be read against it.


class OtherState(NamedTuple):
    kappa: float = 1.0


def test_another_class_returned_by_update_is_refused():
    rule = CheckedRule(rule_with(update=lambda self, state, feedback: OtherState()))
    message = message_of(rule.update, rule.init(), PAID)
    assert (
        message == "update of the rule Own returns a OtherState after a GainState: return the class that init returns."
    )


@pytest.mark.parametrize(("first", "later", "words"), [
    ((0.0,), 1.0, "errors=1.0: return a tuple of numbers"),
    ((), 1.0, "errors=1.0: return a tuple of numbers"),
    (0.0, (1.0,), "errors=(1.0,): return a number"),
])  # fmt: skip
def test_a_field_that_changes_its_shape_is_refused(first, later, words):
    rule = CheckedRule(rule_with(
        init=lambda self: StateWithAList(1.0, first), update=lambda self, state, feedback: StateWithAList(1.0, later),
    ))  # fmt: skip
    message = message_of(rule.update, rule.init(), PAID)
    assert message == f"update of the rule Own returns {words}, as init does."


@pytest.mark.parametrize(("first", "later"), [((), (1.0,)), ((1.0,), (1.0, 2.0)), ((1.0, 2.0), ())])
def test_a_tuple_of_numbers_may_change_its_length(first, later):
    rule = CheckedRule(rule_with(
        init=lambda self: StateWithAList(1.0, first), update=lambda self, state, feedback: StateWithAList(1.0, later),
    ))  # fmt: skip
    assert rule.update(rule.init(), PAID) == StateWithAList(1.0, later)


# What methods raise, and other wrong results.


def raise_key_error(self: Any, *arguments: Any) -> Any:
    raise KeyError("gain")


@pytest.mark.parametrize(("method", "arguments"), [
    ("update", (GainState(), PAID)), ("report", (GainState(),)), ("relax", (GainState(),)),
    ("kappa_within_episode", (GainState(), 0.0, 1.0)), ("step_limit", (1.0, 1.0)), ("after_fit", (GainState(), ())),
])  # fmt: skip
def test_an_exception_is_named_with_its_method(method, arguments):
    rule = CheckedRule(rule_with(**{method: raise_key_error}))
    message = message_of(getattr(rule, method), *arguments)
    assert message == f"{method} of the rule Own raised KeyError ('gain'): fix it."


def test_an_exception_in_init_is_named_at_once():
    assert message_of(CheckedRule, rule_with(init=raise_key_error)) == (
        "init of the rule Own raised KeyError ('gain'): fix it."
    )


def test_an_input_error_of_a_rule_is_passed_on():
    def refuse(self: Any, state: Any, feedback: Feedback) -> Any:
        raise InputError("the gain is 0: give a larger one.")

    rule = CheckedRule(rule_with(update=refuse))
    assert message_of(rule.update, rule.init(), PAID) == "the gain is 0: give a larger one."


@pytest.mark.parametrize("metrics", [None, [1.0], {"gain": [1.0]}, {1: 2.0}, {"gain": "high"}])
def test_a_report_that_no_row_can_hold_is_refused(metrics):
    rule = CheckedRule(rule_with(report=lambda self, state: metrics))
    message = message_of(rule.report, rule.init())
    assert message == f"report of the rule Own returns {metrics!r}: return a dict of names and numbers."


@pytest.mark.parametrize("kappa", [0.5, 0.75])
def test_a_relaxed_kappa_that_is_not_smaller_is_refused(kappa):
    # the search for a feasible plan would never end
    rule = CheckedRule(rule_with(relax=lambda self, state: state._replace(kappa=kappa)))
    message = message_of(rule.relax, rule.init())
    assert message == f"relax of the rule Own returns kappa={kappa} for 0.5: return a smaller kappa, or None."


@pytest.mark.parametrize("kappa", [None, -1.0, float("nan")])
def test_a_wrong_kappa_within_an_episode_is_refused(kappa):
    rule = CheckedRule(rule_with(kappa_within_episode=lambda self, *arguments: kappa))
    message = message_of(rule.kappa_within_episode, rule.init(), 0.0, 1.0)
    assert message == f"kappa_within_episode of the rule Own returns kappa={kappa}: {NOT_A_KAPPA}"


@pytest.mark.parametrize("limit", [None, float("nan"), (1.0,)])
def test_a_wrong_step_limit_is_refused(limit):
    rule = CheckedRule(rule_with(step_limit=lambda self, *arguments: limit))
    message = message_of(rule.step_limit, 1.0, 1.0)
    assert message == f"step_limit of the rule Own returns {limit!r}: return a number."
