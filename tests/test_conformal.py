"""Does the conformal rule keep its rate of violations against anybody, and are its numbers those derived by hand?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax.conformal import Conformal, ConformalState, real_residual, upper_quantile
from capax.errors import InputError
from capax.kappa import Feedback

LIMIT = 1.0
EDGE = 1e-9
"""What rounding may add to a count of violations."""


# The game of docs/guarantees.md: in each episode somebody picks κ*, and the episode violates if κ is below it.

Opponent = Callable[[int, float, float, Any], float]
"""(episode, κ, κ_max, rng) → κ* in [0, κ_max]."""
Stream = Callable[[int, float, float, Any], float]
"""(episode, κ, κ*, rng) → residual."""


def play(rule: Any, T: int, kappa_max: float, opponent: Opponent, stream: Stream, seed: int = 0, unit: float = 1.0):
    """Which of T episodes violated, and the rule's state at the end."""
    rng, state, violated = np.random.default_rng(seed), rule.init(), np.zeros(T, bool)
    for t in range(T):
        needed = opponent(t, state.kappa, kappa_max, rng)
        assert 0.0 <= needed <= kappa_max
        violated[t] = state.kappa < needed
        paid = 2.0 * LIMIT if violated[t] else LIMIT  # what is exactly at the limit does not violate
        residual = stream(t, state.kappa, needed, rng)
        state = rule.update(state, Feedback(paid, LIMIT, False, residual, unit * (0.5 + rng.random())))
    return violated, state


def excess(violated: np.ndarray, step: float, rate: float, kappa_max: float) -> float:
    """By how much the violations pass  εT + (κ_max + (1−ε)η)/η  at the worst T; not above 0 if the bound holds."""
    T = np.arange(1, len(violated) + 1)
    extra = kappa_max / step + 1.0 - rate if step > 0.0 else 0.0
    return float(np.max(np.cumsum(violated) - rate * T - extra))


def greedy(t, kappa, kappa_max, rng):
    return kappa_max


def barely(t, kappa, kappa_max, rng):
    """As little as violates, whenever that is allowed."""
    return min(kappa_max, math.nextafter(kappa, math.inf))


def patient(t, kappa, kappa_max, rng):
    """Asks for nothing in 260 episodes, in which k falls, and then for everything in 40."""
    return kappa_max if t % 300 >= 260 else 0.0


def ambush(t, kappa, kappa_max, rng):
    """Strikes the more often the lower κ is, and lets it fall in between."""
    return kappa_max if rng.random() * kappa_max > kappa else 0.0


def drifting(t, kappa, kappa_max, rng):
    return kappa_max * (0.5 + 0.5 * math.sin(0.003 * t) * rng.random())


def periodic(t, kappa, kappa_max, rng):
    return kappa_max * (t // 7 % 2)


def noisy(t, kappa, kappa_max, rng):
    return kappa_max * rng.random()


def falling(t, kappa, kappa_max, rng):
    return kappa_max * max(0.0, 1.0 - t / 1000)


def silent(t, kappa, needed, rng):
    return 0.0


def honest(t, kappa, needed, rng):
    return needed


def huge(t, kappa, needed, rng):
    return 1e300


def hopeless(t, kappa, needed, rng):
    return -1e300


def alternating(t, kappa, needed, rng):
    return 1e300 * (-1) ** t


def misleading(t, kappa, needed, rng):
    """High where little was needed, low where much was."""
    return kappa - needed


def heavy(t, kappa, needed, rng):
    return float(rng.standard_cauchy())


OPPONENTS = [greedy, barely, patient, ambush, drifting, periodic, noisy, falling]
STREAMS = [silent, honest, huge, hopeless, alternating, misleading, heavy]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("opponent", OPPONENTS)
def test_the_share_of_violations_is_bounded_at_every_moment_against_anybody(opponent, stream):
    for rate in (0.02, 0.05, 0.4):
        for seed, (T, kappa_max) in enumerate([(2500, 0.5), (300, 5.0), (300, 0.03)]):
            violated, state = play(Conformal(rate), T, kappa_max, opponent, stream, seed)
            assert excess(violated, state.step, rate, kappa_max) <= EDGE


episodes = st.tuples(st.floats(0, 1), st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-3, 1e3))


@settings(max_examples=100, deadline=None)
@given(st.lists(episodes, min_size=1, max_size=60), st.sampled_from([0.02, 0.05, 0.4]), st.floats(0, 10))
def test_the_bound_holds_for_whatever_is_thought_of(seen, rate, kappa_max):
    rule = Conformal(rate)
    state, violated = rule.init(), []
    for share, residual, unit in seen:
        violated.append(state.kappa < share * kappa_max)
        state = rule.update(state, Feedback(2.0 if violated[-1] else 0.0, LIMIT, False, residual, unit))
        assert state.kappa >= state.k >= 0.0
        assert state.k <= kappa_max + (1.0 - rate) * state.step + EDGE  # step 1 of the proof
        if state.step > 0.0:  # step 2: what the log proves without any assumption
            assert sum(violated) <= rate * len(violated) + state.k / state.step + EDGE
    assert excess(np.array(violated), state.step, rate, kappa_max) <= EDGE


def test_the_worst_case_of_the_docs_comes_within_a_hundredth_of_a_violation():
    # η = .1, ε = .02, κ* = .499: k is .098 n after n violations in a row, .49 after 5, .588 after 6; then it falls by .002 an
    # episode and is below .499 again after 45, in the 52nd. At T = 52 there are 7 violations, εT + 5.96; the bound for
    # κ_max = .499 is εT + 4.99 + .98.
    rule, state, violated = Conformal(), ConformalState(), []
    for _ in range(3000):
        violated.append(state.kappa < 0.499)
        state = rule.update(state, Feedback(2.0 if violated[-1] else 0.0, LIMIT, False, 0.0, 1.0))
    assert state.step == 0.1
    assert np.flatnonzero(violated[:100]).tolist() == [0, 1, 2, 3, 4, 5, 51]
    assert [sum(violated[:T]) for T in (6, 50, 100, 300, 1000, 3000)] == [6, 6, 7, 11, 25, 65]
    assert excess(np.array(violated), 0.1, 0.02, 0.499) == pytest.approx(-0.01, abs=1e-9)


# A harness that no rule can fail shows nothing.


@dataclass(frozen=True)
class Altered:
    """The shipped rule with another k: `change(old state, new state, violated)`."""

    change: Callable[[ConformalState, ConformalState, bool], float]

    def init(self) -> ConformalState:
        return Conformal().init()

    def update(self, state: ConformalState, feedback: Feedback) -> ConformalState:
        new = Conformal().update(state, feedback)
        k = self.change(state, new, feedback.paid > feedback.limit)
        return new._replace(k=k, kappa=new.kappa - new.k + k)


def worst(rule: Any) -> float:
    excesses = []
    for opponent in OPPONENTS:
        violated, state = play(rule, 1000, 0.5, opponent, silent)
        excesses.append(excess(violated, state.step, 0.02, 0.5))
    return max(excesses)


@pytest.mark.parametrize("change", [
    pytest.param(lambda old, new, violated: 0.0, id="k is never raised"),
    pytest.param(lambda old, new, violated: max(0.0, old.k - new.step * (violated - 0.02)), id="sign error"),
    pytest.param(lambda old, new, violated: new.k if violated else 0.0, id="k is forgotten"),
    pytest.param(lambda old, new, violated: max(0.0, old.k + new.step * (violated - 0.04)), id="twice the rate"),
    pytest.param(lambda old, new, violated: max(0.0, old.k + new.step * (0.5 * violated - 0.02)), id="half the step"),
])  # fmt: skip
def test_a_wrong_rule_breaks_the_bound(change):
    assert worst(Altered(change)) > 1.0


def test_the_right_rule_does_not():
    assert worst(Altered(lambda old, new, violated: new.k)) <= EDGE


# What q adds in practice.


def test_foresight_saves_violations():
    # the numbers of docs/guarantees.md: κ* even on [0, .5], residuals that are the κ* of their episodes, or none
    def mean(stream, T, seeds):
        return np.mean([count(noisy, stream, T, seed) for seed in range(seeds)])

    def count(opponent, stream, T, seed):
        rng, rule, state, total = np.random.default_rng(seed), Conformal(), ConformalState(), 0
        for t in range(T):
            needed = opponent(t, state.kappa, 0.5, rng)
            total += state.kappa < needed
            paid = 2.0 if state.kappa < needed else 0.0
            state = rule.update(state, Feedback(paid, LIMIT, False, stream(t, state.kappa, needed, rng), 1.0))
        return total

    assert mean(silent, 30, 100) == pytest.approx(5.8, abs=0.05)
    assert mean(honest, 30, 100) == pytest.approx(1.8, abs=0.05)
    assert mean(silent, 1000, 3) == 25.0 and 18.0 < mean(honest, 1000, 3) < 23.0
    assert count(falling, silent, 1000, 0) == 20 and count(falling, honest, 1000, 0) == 1


# The quantile and the residuals, by hand.


@pytest.mark.parametrize(("n", "rate", "rank"), [
    (12, 0.02, 12),  # 13 · .98 = 12.74 → 13, which there is not: the largest
    (12, 0.15, 12),  # 13 · .85 = 11.05 → 12: the largest, as for every ε below 2/13
    (12, 0.16, 11),  # 13 · .84 = 10.92 → 11
    (12, 0.40, 8),  # 13 · .6 = 7.8 → 8
    (49, 0.02, 49),  # 50 · .98 = 49
    (99, 0.02, 98),  # 100 · .98 = 98
    (3, 0.25, 3),  # 4 · .75 = 3
    (3, 0.90, 1),  # 4 · .1 = .4 → 1
    (1, 0.02, 1),
])  # fmt: skip
def test_the_rank_of_the_quantile(n, rate, rank):
    shuffled = np.random.default_rng(n).permutation(np.arange(1, n + 1)).tolist()
    assert upper_quantile(shuffled, rate) == rank


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.25, 0.4])
@pytest.mark.parametrize("n", [1, 3, 9, 12, 19, 49, 99])
def test_a_fresh_exchangeable_residual_exceeds_the_quantile_with_the_rate_once_there_are_enough(n, rate):
    # of n + 1 values in random order each is as likely to be the last: count those that exceed the quantile of the rest
    values = np.random.default_rng(n).normal(size=n + 1).tolist()
    above = sum(x > upper_quantile([y for y in values if y != x], rate) for x in values)
    enough = n >= 1.0 / rate - 1.0 - EDGE
    assert (above <= rate * (n + 1) + EDGE) == enough
    assert above >= 1  # even the largest of n may be passed, with 1/(n + 1)


def test_the_largest_of_twelve_is_exceeded_by_one_in_thirteen():
    assert [upper_quantile([y for y in range(13) if y != x], 0.02) < x for x in range(13)].count(True) == 1


def test_a_real_residual_is_the_kappa_that_would_have_foretold_the_cost():
    assert real_residual(5.0, 3.0, 4.0) == 0.5  # 3 + .5 · 4 = 5
    assert real_residual(2.0, 3.0, 4.0) == -0.25
    assert real_residual(5.0, 3.0, 0.0) == 0.0  # κ means nothing without uncertainty


@pytest.mark.parametrize("paid", [0.9, 1.0, 1.1])
def test_with_a_feasible_plan_a_violation_is_a_residual_above_kappa(paid):
    # the plan fills the limit: Ĵ + κU = C with κ = .25 and U = 2, so Ĵ = .5
    assert (real_residual(paid, 0.5, 2.0) > 0.25) == (paid > LIMIT)


# The update, by hand.


def test_an_update_by_hand():
    rule = Conformal(rate=0.25, window=3, gain=0.5)
    state = rule.init()
    path = []
    for paid, residual, unit in [
        (0.5, -1.0, 2.0),  # safe: no η, q = −1 counts as 0
        (1.5, 0.5, 2.0),  # first violation: η = .5 · 2 = 1, k = 1 · .75; q: rank ⌈3 · .75⌉ = 3 → the largest of two, .5
        (0.5, 0.25, 8.0),  # η stays; k = .75 − .25; q = .5: rank 4 · .75 = 3
        (2.0, 1.5, 8.0),  # k = .5 + .75; q = 1.5
        (1.0, 0.0, 8.0),  # at the limit is within it: k = 1; the window has lost .5, and holds .25, 1.5 and 0
    ]:
        state = rule.update(state, Feedback(paid, 1.0, False, residual, unit))
        path.append((state.kappa, state.k, state.step))
    assert path == [(0.0, 0.0, 0.0), (1.25, 0.75, 1.0), (1.0, 0.5, 1.0), (2.75, 1.25, 1.0), (2.5, 1.0, 1.0)]
    assert state.errors == (0.25, 1.5, 0.0)
    assert rule.report(state) == {"quantile": 1.5, "k": 1.0, "k_step": 1.0} and rule.relax(state) is None
    assert rule.report(rule.init()) == {"quantile": None, "k": 0.0, "k_step": 0.0}


def test_the_step_is_of_the_first_violation_and_k_never_falls_below_zero():
    rule, state = Conformal(), ConformalState()
    for _ in range(50):
        state = rule.update(state, Feedback(0.0, 1.0, False, 0.0, 7.0))
    assert (state.k, state.step) == (0.0, 0.0)  # as if η had been known: max(0, 0 − εη) = 0
    for unit in (2.0, 100.0, 0.01):
        state = rule.update(state, Feedback(3.0, 1.0, False, 0.0, unit))
    assert state.step == 0.2 and state.k == pytest.approx(3 * 0.98 * 0.2, rel=1e-14)


def test_a_violation_without_uncertainty_fixes_no_step():
    # documented in docs/guarantees.md: it comes on top of the bound
    rule = Conformal()
    state = rule.update(rule.init(), Feedback(3.0, 1.0, False, 0.0, 0.0))
    assert (state.kappa, state.k, state.step) == (0.0, 0.0, 0.0)
    assert rule.update(state, Feedback(3.0, 1.0, False, 0.0, 2.0)).step == 0.2


def test_no_residual_asks_for_more_than_half_a_unit_above_the_present_kappa():
    state = ConformalState(0.3, 0.0, 0.0, (0.3,))
    new = Conformal().update(state, Feedback(0.5, 1.0, False, 50.0, 0.5))
    assert new.errors == (0.3, 0.55) and new.kappa == 0.55


@pytest.mark.parametrize("feedback", [
    Feedback(9.0, 1.0, True, 5.0, 1.0),
    Feedback(9.0, 1.0, True),
    Feedback(9.0, 1.0),  # nothing is known of a plan
])  # fmt: skip
def test_what_was_not_planned_moves_nothing(feedback):
    state = ConformalState(0.7, 0.2, 0.1, (0.5, 0.4))
    assert Conformal().update(state, feedback) == state


def test_a_cost_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="the paid cost is nan: give a number"):
        Conformal().update(ConformalState(), Feedback(float("nan"), 1.0, False, 0.0, 1.0))


@pytest.mark.parametrize("bad", [
    {"rate": 0.0}, {"rate": 1.0}, {"rate": float("nan")}, {"rate": "2%"}, {"window": 0}, {"window": 2.5}, {"window": True},
    {"gain": 0.0}, {"gain": float("inf")}, {"gain": None}, {"gain": [0.1]},
])  # fmt: skip
def test_settings_that_make_no_rule_are_refused(bad):
    with pytest.raises(InputError, match="give a"):
        Conformal(**bad)


def ride(costs: float, spreads: float) -> list[ConformalState]:
    """States of the rule in 60 episodes of a task whose costs and uncertainties are counted in these units."""
    rng, rule, states = np.random.default_rng(0), Conformal(), [ConformalState()]
    for _ in range(60):
        limit, U = costs * 1.0, spreads * (0.5 + rng.random())
        paid, planned = costs * (0.2 + rng.random()), costs * rng.random()
        feedback = Feedback(paid, limit, False, real_residual(paid, planned, U), limit / U, U)
        states.append(rule.update(states[-1], feedback))
    return states


@pytest.mark.parametrize(("costs", "spreads"), [(8.0, 1.0), (1.0, 0.25), (1024.0, 2.0**-20), (2.0**-30, 64.0)])
def test_units_cancel_exactly(costs, spreads):
    # powers of two, which scale floats without rounding
    ratio = costs / spreads
    plain = ride(1.0, 1.0)
    assert plain[-1].k > 0.0 and plain[-1].kappa > plain[-1].k
    for one, other in zip(plain[1:], ride(costs, spreads)[1:], strict=True):
        errors, scale = tuple(costs * e for e in one.errors), spreads * one.uncertainty
        assert other == ConformalState(ratio * one.kappa, ratio * one.k, ratio * one.step, errors, scale)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_units_cancel(costs, spreads):
    ratio = costs / spreads
    for one, other in zip(ride(1.0, 1.0), ride(costs, spreads), strict=True):
        assert other[:3] == pytest.approx([ratio * x for x in one[:3]], rel=1e-9, abs=1e-9 * ratio)


def test_a_state_is_plain_numbers():
    state = ride(1.0, 1.0)[-1]
    assert all(type(x) in (float, int) for x in (*state[:3], *state.errors)) and len(state.errors) == 12
    *numbers, errors, uncertainty, share, margins = json.loads(json.dumps(state))
    assert ConformalState(*numbers, tuple(errors), uncertainty, share, tuple(margins)) == state


def test_an_error_is_restated_in_the_uncertainty_of_the_last_episode():
    # 3 too little was planned at U = 6, a residual of .5; when U has fallen to 2, a κ of 1.5 is needed for the same 3
    rule, state = Conformal(), ConformalState()
    for residual, uncertainty in ((0.5, 6.0), (0.0, 2.0)):
        state = rule.update(state, Feedback(0.0, 10.0, False, residual, 5.0, uncertainty))
    assert state.errors == (3.0, 0.0) and state.kappa == 1.5 and rule.report(state)["quantile"] == 1.5


def test_an_absurd_plan_leaves_a_state_of_finite_numbers():
    # −1e300 · 1e20 is beyond a float
    state = Conformal().update(ConformalState(), Feedback(9.0, 1.0, False, -1e300, 1e300, 1e20))
    assert np.isfinite(state.errors).all() and np.isfinite(state[:3]).all()
    # (κ + ½ · 1e30) · 1e90, seen again in an uncertainty of 1e-300
    state = Conformal().update(ConformalState(), Feedback(0.0, 1.0, False, 1e300, 1e300, 1e90))
    state = Conformal().update(state, Feedback(0.0, 1.0, False, 0.0, 1.0, 1e-300))
    assert state.kappa == 1e30


def test_the_given_state_is_left_as_it_is():
    state = ConformalState(0.7, 0.2, 0.1, (0.5,))
    Conformal().update(state, Feedback(2.0, 1.0, False, 0.4, 1.0))
    assert state == ConformalState(0.7, 0.2, 0.1, (0.5,))
