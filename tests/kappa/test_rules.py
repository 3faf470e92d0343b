"""Each rule moves κ by its formula, and another rule works in an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.random as jr
import numpy as np
import pytest
from support.cmdps import agent_knowledge

from capax.agents.tabular import TabularCAP
from capax.core.contracts import PlanningRule
from capax.core.errors import InputError
from capax.core.loop import run
from capax.core.types import Feedback, Spec
from capax.kappa.adam import Adam, AdamState
from capax.kappa.base import Kappa
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI
from capax.tabular import gridworld
from capax.tabular.sampler import WorldCollector

HUGE = pytest.param(10**400, id="10^400")


def test_fixed_never_moves():
    rule = Fixed(0.3)
    state = rule.init()
    for paid in (0.0, 0.1, 5.0):
        state = rule.update(state, Feedback(paid, 0.1))
    assert state.kappa == 0.3 and rule.relax(state) is None


@pytest.mark.parametrize("kappa", [-0.1, float("nan"), float("inf"), 1e31, HUGE, "1", None, True, [1.0]])
def test_fixed_refuses_anything_but_a_finite_number_from_zero_on(kappa):
    with pytest.raises(InputError, match="kappa"):
        Fixed(kappa)


@pytest.mark.parametrize(("kappa", "paid", "expected"), [
    (0.5, 0.3, 0.52),  # .5 + .1 (.3 − .1)
    (0.5, 0.0, 0.49),  # .5 + .1 (0 − .1)
    (0.005, 0.0, 0.0),  # .005 − .01 < 0
    (0.0, 0.1, 0.0),  # the cost is exactly the limit
])  # fmt: skip
def test_pi_by_hand(kappa, paid, expected):
    assert PI().update(Kappa(kappa), Feedback(paid, 0.1)).kappa == pytest.approx(expected, abs=1e-15)


def test_pi_uses_its_gain():
    assert PI(alpha=2.0).update(Kappa(1.0), Feedback(0.4, 0.1)).kappa == pytest.approx(1.6, rel=1e-15)


def test_pi_relaxes_by_halving_until_zero_and_then_gives_up():
    # 10/2^k falls below 1e-6 at k = 24 (10/2^23 = 1.19e-6), where 0 is tried; from 0 there is no smaller κ.
    rule = PI()
    state, path = rule.init(), []
    while state is not None:
        path.append(state.kappa)
        state = rule.relax(state)
    assert path == [10.0 / 2**k for k in range(24)] + [0.0]


def test_rules_do_not_change_the_state_they_get():
    state = Kappa(1.0)
    PI().update(state, Feedback(1.0, 0.1)), PI().relax(state)
    assert state == Kappa(1.0)


class Streak(NamedTuple):
    """κ and the count of violations."""

    kappa: float
    violations: int


@dataclass(frozen=True)
class Doubling(PlanningRule):
    """A rule that capax does not have: κ doubles after each violation."""

    start: float

    def init(self) -> Streak:
        return Streak(self.start, 0)

    def update(self, state: Streak, feedback: Feedback) -> Streak:
        violated = feedback.paid > feedback.limit
        return Streak(state.kappa * (2.0 if violated else 1.0), state.violations + violated)


def test_another_rule_works_in_an_agent():
    world = gridworld(np.random.default_rng(0), size=3, gamma=0.9)
    cmdp, limit, rule = world.cmdp, 0.11, Doubling(1e-4)
    agent = TabularCAP(agent_knowledge(world), Spec(limit, 0.9), rule)
    _, *outcomes = run(agent, WorldCollector(cmdp, 30), start=30, steps=180, key=jr.key(0))
    kappas, state = [outcome.metrics["kappa"] for outcome in outcomes], outcomes[-1].state
    violations = np.cumsum([outcome.episode.paid > limit for outcome in outcomes])
    assert 0 < violations[-1] < 5
    assert kappas == [1e-4 * 2.0**count for count in (0, *violations[:-1])]
    assert state.rule == Streak(1e-4 * 2.0 ** violations[-1], violations[-1])


@pytest.mark.parametrize("bad", [
    {"alpha": -0.1}, {"start": -1.0}, {"start": float("inf")}, {"alpha": float("nan")}, {"smallest": "tiny"},
])  # fmt: skip
def test_the_pi_rule_refuses_numbers_that_would_make_kappa_negative_or_nan(bad):
    with pytest.raises(InputError, match=rf"^{next(iter(bad))} is .*: give a number from 0 to 1e\+30\.$"):
        PI(**bad)


def test_the_pi_rule_refuses_a_nan_as_cost():
    # max(0, NaN) is 0 in Python: the least careful κ of all
    with pytest.raises(InputError, match="the paid cost is nan: give a number"):
        PI().update(Kappa(1.0), Feedback(float("nan"), 0.1))


def test_random_episodes_move_the_pi_rule_as_published():
    assert PI().update(Kappa(1.0), Feedback(0.3, 0.1, random=True)).kappa == pytest.approx(1.02, rel=1e-15)


# Adam.


def test_adam_by_hand():
    # J_c − C = .2, then −.1.  1: m̂ = .2, v̂ = .04, so κ = 1 + .1 · .2/.2.
    # 2: m = .9 · .02 − .01 = .008, m̂ = .008/.19 = .0421053; v = .999 · 4e-5 + 1e-5 = 4.996e-5, v̂ = 4.996e-5/.001999 = .0249925,
    #    √v̂ = .158090; the step is .1 · .0421053/.158090 = .0266338, upwards still.
    rule = Adam()
    first = rule.update(rule.init(), Feedback(0.3, 0.1))
    assert first == pytest.approx(AdamState(1.1, 0.02, 4e-5, 1), rel=1e-7)
    second = rule.update(first, Feedback(0.0, 0.1))
    assert second == pytest.approx(AdamState(1.1266338, 0.008, 4.996e-5, 2), rel=1e-6)
    assert rule.relax(second) is None and rule.report(second) == {"adam_m": second.m, "adam_v": second.v}


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_adam_moves_kappa_by_its_rate_whatever_the_size_of_the_error(size):
    # m̂/√v̂ is ±1 as long as the error stays the same
    rule = Adam(rate=0.25)
    state = rule.init()
    for expected in (1.25, 1.5, 1.75):
        state = rule.update(state, Feedback(2.0 * size, size))
        assert state.kappa == pytest.approx(expected, rel=1e-4)


def test_adam_keeps_kappa_at_zero_or_above():
    rule = Adam(start=0.15)
    first = rule.update(rule.init(), Feedback(0.0, 1.0))
    second = rule.update(first, Feedback(0.0, 1.0))
    assert first.kappa == pytest.approx(0.05, rel=1e-6) and second.kappa == 0.0


def test_random_episodes_move_adam_too():
    state = Adam().update(Adam().init(), Feedback(0.0, 1.0, random=True))
    assert state.kappa == pytest.approx(0.9, rel=1e-7) and state.updates == 1


def test_adam_ignores_six_violations_after_many_easy_episodes():
    # A weakness of the published rule: after errors of −1, m = −1, and j errors of +1 make it 1 − 2 · .9^j. That is below 0
    # up to j = 6 (.9^6 = .531) and above at j = 7 (.478). Until then κ stays at 0.
    rule = Adam()
    state = rule.init()
    for _ in range(200):
        state = rule.update(state, Feedback(0.0, 1.0))
    kappas = []
    for _ in range(7):
        state = rule.update(state, Feedback(2.0, 1.0))
        kappas.append(state.kappa)
    assert kappas[:6] == [0.0] * 6
    # v̂ is 1 (every error is ±1) and m̂ is m to 1e-9
    assert kappas[6] == pytest.approx(0.1 * (1.0 - 2.0 * 0.9**7), rel=1e-6)


def test_adam_refuses_a_nan_as_cost():
    with pytest.raises(InputError, match="the paid cost is nan: give a number"):
        Adam().update(Adam().init(), Feedback(float("nan"), 1.0))


@pytest.mark.parametrize("bad", [
    {"rate": -0.1}, {"start": -1.0}, {"start": float("inf")}, {"rate": float("nan")}, {"beta1": 1.0}, {"beta2": -0.1},
    {"epsilon": 0.0}, {"rate": None},
])  # fmt: skip
def test_adam_refuses_numbers_that_would_make_kappa_negative_or_nan(bad):
    with pytest.raises(InputError, match=f"^{next(iter(bad))} is .*: give a "):
        Adam(**bad)


@pytest.mark.parametrize("rule", [PI(alpha=1e30), Adam(rate=1e30)])
@pytest.mark.parametrize("paid", [1e200, float("inf"), np.float64(1e308), HUGE])
def test_huge_costs_move_kappa_no_further_than_float32_reaches(rule, paid):
    state = rule.update(rule.update(rule.init(), Feedback(paid, 1.0)), Feedback(paid, 1.0))
    assert state.kappa == 1e30 and np.isfinite(np.float32(state.kappa))
    unlimited = rule.update(rule.init(), Feedback(1.0, float("inf")))
    assert unlimited.kappa == 0.0 and np.isfinite(unlimited).all()


def test_rules_hold_plain_floats():
    assert type(Fixed(np.float32(0.5)).kappa) is float and type(PI(start=1).start) is float
