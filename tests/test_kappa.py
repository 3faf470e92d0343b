"""Does κ move as each rule says, and does a rule of one's own fit in?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.random as jr
import numpy as np
import pytest
from cmdps import told

from capax.agents.tabular import TabularCAP
from capax.errors import InputError
from capax.kappa import PI, Feedback, Fixed, Kappa
from capax.loop import run
from capax.tabular import gridworld
from capax.tabular.sampler import WorldCollector
from capax.types import Spec


def test_fixed_never_moves():
    rule = Fixed(0.3)
    state = rule.init()
    for paid in (0.0, 0.1, 5.0):
        state = rule.update(state, Feedback(paid, 0.1))
    assert state.kappa == 0.3 and rule.relax(state) is None


@pytest.mark.parametrize("kappa", [-0.1, float("nan"), float("inf")])
def test_fixed_refuses_what_is_no_weight(kappa):
    with pytest.raises(InputError, match="kappa"):
        Fixed(kappa)


@pytest.mark.parametrize(("kappa", "paid", "expected"), [
    (0.5, 0.3, 0.52),  # .5 + .1 (.3 − .1)
    (0.5, 0.0, 0.49),  # .5 + .1 (0 − .1)
    (0.005, 0.0, 0.0),  # .005 − .01 < 0
    (0.0, 0.1, 0.0),  # paid exactly the limit
])  # fmt: skip
def test_pi_by_hand(kappa, paid, expected):
    assert PI().update(Kappa(kappa), Feedback(paid, 0.1)).kappa == pytest.approx(expected, abs=1e-15)


def test_pi_uses_its_gain():
    assert PI(alpha=2.0).update(Kappa(1.0), Feedback(0.4, 0.1)).kappa == pytest.approx(1.6, rel=1e-15)


def test_pi_relaxes_by_halving_until_zero_and_then_gives_up():
    # 10/2^k falls below 1e-6 at k = 24 (10/2^23 = 1.19e-6), where 0 is tried; then there is nothing left to give.
    rule = PI()
    state, path = rule.init(), []
    while state is not None:
        path.append(state.kappa)
        state = rule.relax(state)
    assert path == [10.0 / 2**k for k in range(24)] + [0.0]


def test_rules_leave_the_state_they_are_given():
    state = Kappa(1.0)
    PI().update(state, Feedback(1.0, 0.1)), PI().relax(state)
    assert state == Kappa(1.0)


class Streak(NamedTuple):
    kappa: float
    violations: int


@dataclass(frozen=True)
class Doubling:
    """A rule that capax does not have: κ doubles after each violation, and its state counts them."""

    start: float

    def init(self) -> Streak:
        return Streak(self.start, 0)

    def update(self, state: Streak, feedback: Feedback) -> Streak:
        violated = feedback.paid > feedback.limit
        return Streak(state.kappa * (2.0 if violated else 1.0), state.violations + violated)

    def relax(self, state: Streak) -> Streak | None:
        return None


def test_a_rule_of_ones_own_works_in_the_agent_unchanged():
    world = gridworld(np.random.default_rng(0), size=3, gamma=0.9)
    cmdp, limit, rule = world.cmdp, 0.11, Doubling(1e-4)
    agent = TabularCAP(told(world), Spec(limit, 0.9), rule)
    _, *outcomes = run(agent, WorldCollector(cmdp, 30), start=30, steps=180, key=jr.key(0))
    seen, state = [(o.metrics["kappa"], o.episode.paid) for o in outcomes], outcomes[-1].state
    violations = np.cumsum([paid > limit for _, paid in seen])
    assert 0 < violations[-1] < 5
    assert [kappa for kappa, _ in seen] == [1e-4 * 2.0**count for count in (0, *violations[:-1])]
    assert state.rule == Streak(1e-4 * 2.0 ** violations[-1], violations[-1])


@pytest.mark.parametrize("bad", [{"alpha": -0.1}, {"start": -1.0}, {"start": float("inf")}, {"alpha": float("nan")}])
def test_the_pi_rule_refuses_numbers_that_would_make_kappa_negative_or_no_number(bad):
    with pytest.raises(InputError, match="finite number"):
        PI(**bad)


def test_the_pi_rule_refuses_a_cost_that_is_no_number():
    # max(0, NaN) is 0 in Python: the least careful κ of all
    with pytest.raises(InputError, match="not a number"):
        PI().update(Kappa(1.0), Feedback(float("nan"), 0.1))
