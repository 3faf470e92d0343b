"""Does κ follow the margins of good steps where costs are flags, and is what is paid kept to the rate?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax import flags
from capax.conformal import Conformal, ConformalState
from capax.kappa import PI, Adam, Feedback, Fixed

EDGE = 1e-9
KNOWN = tuple((10.0 * flags.LEVELS).tolist())
"""Margins that are even on [0, 10]: the share p of safe steps is below 10p."""


def test_the_share_by_hand():
    # ε = .56, so the aim is .28: η = .28/.28 = 1
    assert flags.moved(0.1, False, 0.56) == pytest.approx(0.1 * math.exp(-0.28), rel=1e-6)
    assert flags.moved(0.01, True, 0.56) == pytest.approx(0.01 * math.exp(0.72), rel=1e-6)
    assert flags.moved(0.01, True, 0.02) == pytest.approx(0.01 * math.exp(2.0 * 0.99), rel=1e-6)  # no faster than that
    assert flags.moved(0.8, True, 0.4) == flags.MOST_SHARE
    assert flags.moved(flags.LEAST_SHARE, False, 0.4) == flags.LEAST_SHARE


def test_margins_are_of_the_steps_that_were_safe_and_earned_most():
    # κ = 2, 4 and 6 flag the three best of the fifteen safe ones; the step that paid is not asked though it earned more,
    # nor are those without a number
    logit = np.array([-1.0, -2.0, -6.0, -100.0, np.nan, -np.inf, *[-50.0] * 12])
    u = np.array([0.5, 0.5, 1.0, 1.0, 1.0, 1.0, *[1.0] * 12])
    cost, earned = np.zeros(18), np.array([3.0, 3.0, 3.0, 9.0, 9.0, 9.0, *[-1.0] * 12])
    cost[3] = 1.0
    known = flags.margins(logit, u, cost, earned)
    assert len(known) == len(flags.LEVELS) and list(known) == sorted(known)
    assert known[-1] == pytest.approx(5.6)  # nine tenths of the way from 2 to 6
    assert flags.kappa_at(known, 0.5) == pytest.approx(4.0, abs=0.05)
    assert known[0] == pytest.approx(2.0 + 2 * 2.0 * flags.LEAST_SHARE)
    none = np.zeros(0)
    assert flags.margins(logit, u, np.ones(18), earned) == () == flags.margins(none, none, none, none)


def test_doing_nothing_often_does_not_make_kappa_larger():
    # what earned, at margins of 1 to 2; then ten times as many steps that earned nothing and were sure of it
    rng = np.random.default_rng(0)
    moving, still = 1.0 + rng.random(1000), 50.0 + rng.random(10_000)
    before, after = (
        flags.margins(-x, np.ones(len(x)), np.zeros(len(x)), 1.0 * (np.arange(len(x)) < 1000))
        for x in (moving, np.concatenate([moving, still]))
    )
    assert flags.kappa_at(before, 0.1) == pytest.approx(1.1, abs=0.1)
    assert flags.kappa_at(after, 0.1) < 1.3


def test_a_step_without_uncertainty_is_flagged_by_no_kappa():
    n = 15
    known = flags.margins(-np.ones(n), np.array([1.0, 1.0, *[0.0] * (n - 2)]), np.zeros(n), np.arange(n)[::-1])
    assert flags.kappa_at(known, 0.4) == pytest.approx(1.0) and np.isfinite(known).all()


def test_kappa_is_the_margin_at_the_share():
    for level, margin in zip(flags.LEVELS, KNOWN, strict=True):
        assert flags.kappa_at(KNOWN, float(level)) == pytest.approx(margin, rel=1e-12)
    between = [flags.kappa_at(KNOWN, share) for share in np.geomspace(0.0005, 0.5, 500)]
    assert between == sorted(between)
    assert flags.kappa_at((), 0.1) == 0.0
    assert flags.kappa_at(tuple(m - 20.0 for m in KNOWN), 0.1) == 0.0  # all flagged already


def test_what_kappa_flags_does_not_depend_on_the_units_of_uncertainty():
    rng = np.random.default_rng(0)
    logit, u, none = -10.0 * rng.random(4000), rng.lognormal(size=4000), np.zeros(4000)
    for scale in (1.0, 1e-6, 1e6):
        kappa = flags.kappa_at(flags.margins(logit, scale * u, none, none), 0.1)
        assert np.mean((logit + kappa * scale * u > 0.0)[:800]) == pytest.approx(0.1, abs=2e-3)  # a fifth, all alike


def test_what_is_paid_beyond_the_limit_raises_p_at_the_fastest_pace():
    share, at_first = 0.002, partial(flags.within, worth=1.0)
    assert at_first(share, 0.0) == at_first(share, -3.0) == share
    assert at_first(share, 1.0) == pytest.approx(math.exp(flags.FASTEST) * share, rel=1e-12)
    assert at_first(share, 2.0) == pytest.approx(at_first(at_first(share, 1.0), 1.0), rel=1e-12)
    assert at_first(share, 1.0) > max(flags.moved(share, True, rate) for rate in (0.01, 0.05, 0.4, 0.9))
    assert at_first(share, 1e300) == flags.MOST_SHARE


def test_the_odds_of_p_grow_as_less_is_to_be_earned():
    assert flags.within(0.1, 0.0, 0.25) == pytest.approx(4.0 / 13.0, rel=1e-12)  # 1 : 9 becomes 4 : 9
    assert flags.within(0.1, 1.0, 0.9) == pytest.approx(
        math.exp(flags.FASTEST) * flags.within(0.1, 0.0, 0.9), rel=1e-12
    )
    assert flags.within(flags.LEAST_SHARE, 0.0, 1e-9) == flags.within(0.1, 0.0, 0.0) == flags.MOST_SHARE


# The rule.


def test_the_conformal_rule_moves_the_share_and_takes_kappa_from_the_margins():
    rule = Conformal(rate=0.4)
    state = rule.fitted(rule.init(), KNOWN)
    assert (state.share, state.kappa) == (0.1, pytest.approx(1.0, rel=1e-2))  # before anything was planned
    later = rule.update(state, Feedback(2.0, 0.0, binary=True))
    assert later.share == flags.moved(0.1, True, 0.4) and later.kappa == flags.kappa_at(KNOWN, later.share)
    doubled = rule.fitted(later, tuple(2.0 * m for m in KNOWN))
    assert doubled.share == later.share and doubled.kappa == pytest.approx(2.0 * later.kappa)
    assert rule.fitted(later, ()) == later  # a model that says nothing finite changes nothing
    assert rule.report(later) == {"flagged_share": later.share}
    assert rule.update(later, Feedback(9.0, 0.0, random=True, binary=True)) == later


def test_costs_that_are_not_flags_leave_the_share_alone():
    state = Conformal().update(ConformalState(), Feedback(2.0, 1.0, False, 0.5, 1.0))
    assert state.share == flags.FIRST_SHARE and state.kappa > 0.0 and "k" in Conformal().report(state)


@pytest.mark.parametrize("rule", [Fixed(0.3), PI(), Adam()])
def test_other_rules_take_no_notice_of_a_fit(rule):
    assert rule.fitted(rule.init(), KNOWN) == rule.init()


# The game of docs/guarantees.md: in each episode somebody picks a share that is enough.

Opponent = Callable[[int, float, float, np.random.Generator], float]
"""(episode, share, the largest p* that the bound is for, rng) → the share that is enough, at most that."""

OPPONENTS: dict[str, Opponent] = {
    "greedy": lambda t, share, most, rng: most,
    "barely": lambda t, share, most, rng: min(most, math.nextafter(share, 1.0)),
    "patient": lambda t, share, most, rng: most if t % 100 >= 60 else 0.0,
    "noisy": lambda t, share, most, rng: most * rng.random(),
    "periodic": lambda t, share, most, rng: most * (t // 7 % 2),
}


def worst(opponent: Opponent, move: Callable[[float, bool, float], float], rate: float, T: int = 2000) -> float:
    """By how much the violations pass  aT + log(p_max/p_1)/η  at the worst T, where a is half of ε."""
    rng, share, total, most = np.random.default_rng(0), flags.FIRST_SHARE, 0, -math.inf
    extra = math.log(flags.MOST_SHARE / flags.FIRST_SHARE) / flags.pace(rate / 2)
    enough = flags.MOST_SHARE * math.exp(-flags.pace(rate / 2))  # from below it no step is cut off at the top
    for t in range(T):
        violated = share < opponent(t, share, enough, rng)
        total += violated
        share = move(share, violated, rate)
        most = max(most, total - rate / 2 * (t + 1) - extra)
    return most


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.4])
@pytest.mark.parametrize("name", OPPONENTS)
def test_the_share_of_violations_is_bounded_at_every_moment(name, rate):
    assert worst(OPPONENTS[name], flags.moved, rate) <= EDGE


def test_the_bound_is_hardly_larger_than_it_has_to_be():
    assert worst(OPPONENTS["greedy"], flags.moved, 0.05) > -1.0


@pytest.mark.parametrize("wrong", [
    pytest.param(lambda share, violated, rate: flags.FIRST_SHARE, id="p stays"),
    pytest.param(lambda share, violated, rate: flags.moved(share, violated, 2.0 * rate), id="twice the rate"),
    pytest.param(lambda share, violated, rate: flags.moved(share, violated, rate) if violated else 0.01, id="p is forgotten"),
])  # fmt: skip
def test_a_wrong_rule_breaks_the_bound(wrong):
    assert max(worst(opponent, wrong, 0.05) for opponent in OPPONENTS.values()) > 1.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.floats(0.01, 0.9))
def test_the_log_proves_what_violated_unless_the_share_met_its_end(seen, rate):
    share = flags.FIRST_SHARE
    for number, violated in enumerate(seen, start=1):
        share = flags.moved(share, violated, rate)
        if share == flags.MOST_SHARE:
            break
        passed = sum(seen[:number]) - rate / 2 * number
        assert passed <= math.log(share / flags.FIRST_SHARE) / flags.pace(rate / 2) + 1e-6
