"""For binary costs, κ follows the margins of good steps, and the share of violations stays within the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax.core.types import Feedback
from capax.kappa import binary
from capax.kappa.adam import Adam
from capax.kappa.conformal import Conformal, ConformalState
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI

EDGE = 1e-9
EVEN_MARGINS = tuple((10.0 * binary.LEVELS).tolist())
"""Margins that are even on [0, 10]: the share p of safe steps is below 10p."""


def test_the_share_by_hand():
    # ε = .56, so the aim is .28: η = .28/.28 = 1
    assert binary.share_after_episode(0.1, False, 0.56) == pytest.approx(0.1 * math.exp(-0.28), rel=1e-6)
    assert binary.share_after_episode(0.01, True, 0.56) == pytest.approx(0.01 * math.exp(0.72), rel=1e-6)
    # the pace is at most 2
    assert binary.share_after_episode(0.01, True, 0.02) == pytest.approx(0.01 * math.exp(2.0 * 0.99), rel=1e-6)
    assert binary.share_after_episode(0.8, True, 0.4) == binary.MAX_SHARE
    assert binary.share_after_episode(binary.MIN_SHARE, False, 0.4) == binary.MIN_SHARE


def test_margins_are_those_of_the_safe_steps_with_the_highest_rewards():
    # κ = 2, 4 and 6 flag the three best of the fifteen safe steps; the step with a cost does not count though it earned more,
    # nor do those without a finite margin
    logit = np.array([-1.0, -2.0, -6.0, -100.0, np.nan, -np.inf, *[-50.0] * 12])
    u = np.array([0.5, 0.5, 1.0, 1.0, 1.0, 1.0, *[1.0] * 12])
    cost, earned = np.zeros(18), np.array([3.0, 3.0, 3.0, 9.0, 9.0, 9.0, *[-1.0] * 12])
    cost[3] = 1.0
    margins = binary.safety_margins(logit, u, cost, earned)
    assert len(margins) == len(binary.LEVELS) and list(margins) == sorted(margins)
    assert margins[-1] == pytest.approx(5.6)  # nine tenths of the way from 2 to 6
    assert binary.kappa_at(margins, 0.5) == pytest.approx(4.0, abs=0.05)
    assert margins[0] == pytest.approx(2.0 + 2 * 2.0 * binary.MIN_SHARE)
    empty = np.zeros(0)
    assert binary.safety_margins(logit, u, np.ones(18), earned) == ()
    assert binary.safety_margins(empty, empty, empty, empty) == ()


def test_doing_nothing_often_does_not_make_kappa_larger():
    # steps with rewards, at margins of 1 to 2; then ten times as many without rewards, at margins of 50
    rng = np.random.default_rng(0)
    moving, still = 1.0 + rng.random(1000), 50.0 + rng.random(10_000)
    before, after = (
        binary.safety_margins(-x, np.ones(len(x)), np.zeros(len(x)), 1.0 * (np.arange(len(x)) < 1000))
        for x in (moving, np.concatenate([moving, still]))
    )
    assert binary.kappa_at(before, 0.1) == pytest.approx(1.1, abs=0.1)
    assert binary.kappa_at(after, 0.1) < 1.3


def test_a_step_without_uncertainty_is_flagged_by_no_kappa():
    n = 15
    u = np.array([1.0, 1.0, *[0.0] * (n - 2)])
    margins = binary.safety_margins(-np.ones(n), u, np.zeros(n), np.arange(n)[::-1])
    assert binary.kappa_at(margins, 0.4) == pytest.approx(1.0) and np.isfinite(margins).all()


def test_kappa_is_the_margin_at_the_share():
    for level, margin in zip(binary.LEVELS, EVEN_MARGINS, strict=True):
        assert binary.kappa_at(EVEN_MARGINS, float(level)) == pytest.approx(margin, rel=1e-12)
    kappas = [binary.kappa_at(EVEN_MARGINS, share) for share in np.geomspace(0.0005, 0.5, 500)]
    assert kappas == sorted(kappas)
    assert binary.kappa_at((), 0.1) == 0.0
    assert binary.kappa_at(tuple(m - 20.0 for m in EVEN_MARGINS), 0.1) == 0.0  # all steps are flagged without κ


def test_the_flagged_steps_do_not_depend_on_the_units_of_uncertainty():
    rng = np.random.default_rng(0)
    logit, u, zeros = -10.0 * rng.random(4000), rng.lognormal(size=4000), np.zeros(4000)
    for scale in (1.0, 1e-6, 1e6):
        kappa = binary.kappa_at(binary.safety_margins(logit, scale * u, zeros, zeros), 0.1)
        assert np.mean((logit + kappa * scale * u > 0.0)[:800]) == pytest.approx(
            0.1, abs=2e-3
        )  # with equal rewards, the first fifth is good


def test_a_cost_beyond_the_limit_raises_p_at_the_largest_pace():
    share, at_first = 0.002, partial(binary.share_within_episode, reward_weight=1.0)
    assert at_first(share, 0.0) == at_first(share, -3.0) == share
    assert at_first(share, 1.0) == pytest.approx(math.exp(binary.MAX_PACE) * share, rel=1e-12)
    assert at_first(share, 2.0) == pytest.approx(at_first(at_first(share, 1.0), 1.0), rel=1e-12)
    assert at_first(share, 1.0) > max(binary.share_after_episode(share, True, rate) for rate in (0.01, 0.05, 0.4, 0.9))
    assert at_first(share, 1e300) == binary.MAX_SHARE


def test_the_odds_of_p_grow_as_rewards_lose_weight():
    assert binary.share_within_episode(0.1, 0.0, 0.25) == pytest.approx(4.0 / 13.0, rel=1e-12)  # 1 : 9 becomes 4 : 9
    assert binary.share_within_episode(0.1, 1.0, 0.9) == pytest.approx(
        math.exp(binary.MAX_PACE) * binary.share_within_episode(0.1, 0.0, 0.9), rel=1e-12
    )
    assert (
        binary.share_within_episode(binary.MIN_SHARE, 0.0, 1e-9)
        == binary.share_within_episode(0.1, 0.0, 0.0)
        == binary.MAX_SHARE
    )


# The rule.


def test_the_conformal_rule_moves_the_share_and_reads_kappa_from_the_margins():
    rule = Conformal(rate=0.4)
    state = rule.after_fit(rule.init(), EVEN_MARGINS)
    assert (state.share, state.kappa) == (0.1, pytest.approx(1.0, rel=1e-2))  # before any planned episode
    later = rule.update(state, Feedback(2.0, 0.0, binary=True))
    assert later.share == binary.share_after_episode(0.1, True, 0.4)
    assert later.kappa == binary.kappa_at(EVEN_MARGINS, later.share)
    doubled = rule.after_fit(later, tuple(2.0 * m for m in EVEN_MARGINS))
    assert doubled.share == later.share and doubled.kappa == pytest.approx(2.0 * later.kappa)
    assert rule.after_fit(later, ()) == later  # a model without finite margins changes nothing
    assert rule.report(later) == {"flagged_share": later.share}
    assert rule.update(later, Feedback(9.0, 0.0, random=True, binary=True)) == later


def test_costs_that_are_not_binary_do_not_move_the_share():
    state = Conformal().update(ConformalState(), Feedback(2.0, 1.0, False, 0.5, 1.0))
    assert state.share == binary.FIRST_SHARE and state.kappa > 0.0 and "k" in Conformal().report(state)


@pytest.mark.parametrize("rule", [Fixed(0.3), PI(), Adam()])
def test_other_rules_ignore_a_fit(rule):
    assert rule.after_fit(rule.init(), EVEN_MARGINS) == rule.init()


# The game of docs/guarantees.md: in each episode an opponent picks a share; the episode violates if p is below it.

Opponent = Callable[[int, float, float, np.random.Generator], float]
"""(episode, p, p_max, rng) → p* in [0, p_max], where p_max is the largest p* that the bound covers."""

OPPONENTS: dict[str, Opponent] = {
    "greedy": lambda t, share, share_max, rng: share_max,
    "barely": lambda t, share, share_max, rng: min(share_max, math.nextafter(share, 1.0)),
    "patient": lambda t, share, share_max, rng: share_max if t % 100 >= 60 else 0.0,
    "noisy": lambda t, share, share_max, rng: share_max * rng.random(),
    "periodic": lambda t, share, share_max, rng: share_max * (t // 7 % 2),
}


def max_excess(opponent: Opponent, move: Callable[[float, bool, float], float], rate: float, T: int = 2000) -> float:
    """The largest excess of the violations over  aT + log(p_max/p_1)/η  for any T, where a is half of ε."""
    rng, share, total, largest = np.random.default_rng(0), binary.FIRST_SHARE, 0, -math.inf
    extra = math.log(binary.MAX_SHARE / binary.FIRST_SHARE) / binary.pace(rate / 2)
    share_max = binary.MAX_SHARE * math.exp(-binary.pace(rate / 2))  # a rise from below it is never cut off
    for t in range(T):
        violated = share < opponent(t, share, share_max, rng)
        total += violated
        share = move(share, violated, rate)
        largest = max(largest, total - rate / 2 * (t + 1) - extra)
    return largest


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.4])
@pytest.mark.parametrize("name", OPPONENTS)
def test_the_share_of_violations_is_bounded_at_every_moment(name, rate):
    assert max_excess(OPPONENTS[name], binary.share_after_episode, rate) <= EDGE


def test_the_bound_is_tight_within_one_violation():
    assert max_excess(OPPONENTS["greedy"], binary.share_after_episode, 0.05) > -1.0


@pytest.mark.parametrize("wrong", [
    pytest.param(lambda share, violated, rate: binary.FIRST_SHARE, id="p stays"),
    pytest.param(lambda share, violated, rate: binary.share_after_episode(share, violated, 2.0 * rate), id="twice the rate"),
    pytest.param(lambda share, violated, rate: binary.share_after_episode(share, True, rate) if violated else 0.01,
                 id="p is forgotten"),
])  # fmt: skip
def test_a_wrong_rule_breaks_the_bound(wrong):
    assert max(max_excess(opponent, wrong, 0.05) for opponent in OPPONENTS.values()) > 1.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.floats(0.01, 0.9))
def test_the_logged_share_bounds_the_violations_until_it_is_clipped(violations, rate):
    share = binary.FIRST_SHARE
    for number, violated in enumerate(violations, start=1):
        share = binary.share_after_episode(share, violated, rate)
        if share == binary.MAX_SHARE:
            break
        excess = sum(violations[:number]) - rate / 2 * number
        assert excess <= math.log(share / binary.FIRST_SHARE) / binary.pace(rate / 2) + 1e-6
