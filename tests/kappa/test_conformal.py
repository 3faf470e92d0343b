"""The quantile, the residuals and the updates of the conformal rule, derived by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax.core.errors import InputError
from capax.core.types import Feedback
from capax.kappa.conformal import Conformal, ConformalState, residual_kappa, upper_quantile

LIMIT = 1.0
EDGE = 1e-9
"""Tolerance for rounding in a count."""


# The quantile and the residuals, by hand.


@pytest.mark.parametrize(("n", "rate", "rank"), [
    (12, 0.02, 12),  # 13 · .98 = 12.74 → 13, which is more than 12: the largest
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
def test_a_new_exchangeable_residual_exceeds_the_quantile_with_the_rate_once_there_are_enough(n, rate):
    # each of n + 1 values in random order is equally likely to be the last: count those above the quantile of the others
    values = np.random.default_rng(n).normal(size=n + 1).tolist()
    above = sum(x > upper_quantile([y for y in values if y != x], rate) for x in values)
    enough = n >= 1.0 / rate - 1.0 - EDGE
    assert (above <= rate * (n + 1) + EDGE) == enough
    assert above >= 1  # even the largest of n is exceeded with probability 1/(n + 1)


def test_the_largest_of_twelve_is_exceeded_by_one_in_thirteen():
    assert [upper_quantile([y for y in range(13) if y != x], 0.02) < x for x in range(13)].count(True) == 1


def test_a_residual_is_the_kappa_that_would_have_predicted_the_cost():
    assert residual_kappa(5.0, 3.0, 4.0) == 0.5  # 3 + .5 · 4 = 5
    assert residual_kappa(2.0, 3.0, 4.0) == -0.25
    assert residual_kappa(5.0, 3.0, 0.0) == 0.0  # without uncertainty κ has no effect


@pytest.mark.parametrize("paid", [0.9, 1.0, 1.1])
def test_with_a_feasible_plan_a_violation_is_a_residual_above_kappa(paid):
    # the plan fills the limit: Ĵ + κU = C with κ = .25 and U = 2, so Ĵ = .5
    assert (residual_kappa(paid, 0.5, 2.0) > 0.25) == (paid > LIMIT)


# The update, by hand.


def test_an_update_by_hand():
    rule = Conformal(rate=0.25, window=3, gain=0.5)
    state = rule.init()
    path = []
    for paid, residual, unit in [
        (0.5, -1.0, 2.0),  # no violation, so no η; q = −1 counts as 0
        (1.5, 0.5, 2.0),  # first violation: η = .5 · 2 = 1, k = 1 · .75; q: rank ⌈3 · .75⌉ = 3 → the largest of two, .5
        (0.5, 0.25, 8.0),  # η stays; k = .75 − .25; q = .5: rank 4 · .75 = 3
        (2.0, 1.5, 8.0),  # k = .5 + .75; q = 1.5
        (1.0, 0.0, 8.0),  # the limit itself is no violation: k = 1; the window holds .25, 1.5 and 0, no longer .5
    ]:
        state = rule.update(state, Feedback(paid, 1.0, False, residual, unit))
        path.append((state.kappa, state.k, state.step))
    assert path == [(0.0, 0.0, 0.0), (1.25, 0.75, 1.0), (1.0, 0.5, 1.0), (2.75, 1.25, 1.0), (2.5, 1.0, 1.0)]
    assert state.errors == (0.25, 1.5, 0.0)
    assert rule.report(state) == {"quantile": 1.5, "k": 1.0, "k_step": 1.0} and rule.relax(state) is None
    assert rule.report(rule.init()) == {"quantile": None, "k": 0.0, "k_step": 0.0}


def test_the_first_violation_sets_the_step_and_k_never_falls_below_zero():
    rule, state = Conformal(), ConformalState()
    for _ in range(50):
        state = rule.update(state, Feedback(0.0, 1.0, False, 0.0, 7.0))
    assert (state.k, state.step) == (0.0, 0.0)  # the same with any η: max(0, 0 − εη) = 0
    for unit in (2.0, 100.0, 0.01):
        state = rule.update(state, Feedback(3.0, 1.0, False, 0.0, unit))
    assert state.step == 0.2 and state.k == pytest.approx(3 * 0.98 * 0.2, rel=1e-14)


def test_a_violation_without_uncertainty_sets_no_step():
    # docs/guarantees.md: such a violation adds to the bound
    rule = Conformal()
    state = rule.update(rule.init(), Feedback(3.0, 1.0, False, 0.0, 0.0))
    assert (state.kappa, state.k, state.step) == (0.0, 0.0, 0.0)
    assert rule.update(state, Feedback(3.0, 1.0, False, 0.0, 2.0)).step == 0.2


def test_no_residual_exceeds_the_present_kappa_by_more_than_half_a_unit():
    state = ConformalState(0.3, 0.0, 0.0, (0.3,))
    new = Conformal().update(state, Feedback(0.5, 1.0, False, 50.0, 0.5))
    assert new.errors == (0.3, 0.55) and new.kappa == 0.55


@pytest.mark.parametrize("feedback", [
    Feedback(9.0, 1.0, True, 5.0, 1.0),
    Feedback(9.0, 1.0, True),
    Feedback(9.0, 1.0),  # without a plan
])  # fmt: skip
def test_an_episode_without_a_plan_moves_nothing(feedback):
    state = ConformalState(0.7, 0.2, 0.1, (0.5, 0.4))
    assert Conformal().update(state, feedback) == state


def test_a_nan_as_cost_is_refused():
    with pytest.raises(InputError, match="the paid cost is nan: give a number"):
        Conformal().update(ConformalState(), Feedback(float("nan"), 1.0, False, 0.0, 1.0))


@pytest.mark.parametrize("bad", [
    {"rate": 0.0}, {"rate": 1.0}, {"rate": float("nan")}, {"rate": "2%"}, {"window": 0}, {"window": 2.5}, {"window": True},
    {"gain": 0.0}, {"gain": float("inf")}, {"gain": None}, {"gain": [0.1]},
])  # fmt: skip
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(InputError, match="give a"):
        Conformal(**bad)


def states_in_units(costs: float, spreads: float) -> list[ConformalState]:
    """States of the rule in 60 episodes of a task with these units of cost and of uncertainty."""
    rng, rule, states = np.random.default_rng(0), Conformal(), [ConformalState()]
    for _ in range(60):
        limit, U = costs * 1.0, spreads * (0.5 + rng.random())
        paid, planned = costs * (0.2 + rng.random()), costs * rng.random()
        feedback = Feedback(paid, limit, False, residual_kappa(paid, planned, U), limit / U, U)
        states.append(rule.update(states[-1], feedback))
    return states


@pytest.mark.parametrize(("costs", "spreads"), [(8.0, 1.0), (1.0, 0.25), (1024.0, 2.0**-20), (2.0**-30, 64.0)])
def test_units_cancel_exactly(costs, spreads):
    # powers of two scale floats without rounding
    ratio = costs / spreads
    plain = states_in_units(1.0, 1.0)
    assert plain[-1].k > 0.0 and plain[-1].kappa > plain[-1].k
    for one, other in zip(plain[1:], states_in_units(costs, spreads)[1:], strict=True):
        assert other == one._replace(
            kappa=ratio * one.kappa,
            k=ratio * one.k,
            step=ratio * one.step,
            errors=tuple(costs * e for e in one.errors),
            uncertainty=spreads * one.uncertainty,
            excess=tuple(costs * e for e in one.excess),
        )


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_units_cancel(costs, spreads):
    ratio = costs / spreads
    for one, other in zip(states_in_units(1.0, 1.0), states_in_units(costs, spreads), strict=True):
        assert other[:3] == pytest.approx([ratio * x for x in one[:3]], rel=1e-9, abs=1e-9 * ratio)


def test_a_state_is_plain_numbers():
    state = states_in_units(1.0, 1.0)[-1]
    assert all(type(x) in (float, int) for x in (*state[:3], *state.errors)) and len(state.errors) == 12
    fields = (tuple(field) if isinstance(field, list) else field for field in json.loads(json.dumps(state)))
    assert ConformalState(*fields) == state


def test_an_error_is_restated_in_the_uncertainty_of_the_last_episode():
    # the plan was 3 too low at U = 6, a residual of .5; when U has fallen to 2, the same 3 needs a κ of 1.5
    rule, state = Conformal(), ConformalState()
    for residual, uncertainty in ((0.5, 6.0), (0.0, 2.0)):
        state = rule.update(state, Feedback(0.0, 10.0, False, residual, 5.0, uncertainty))
    assert state.errors == (3.0, 0.0) and state.kappa == 1.5 and rule.report(state)["quantile"] == 1.5


def test_an_absurd_plan_leaves_a_state_of_finite_numbers():
    # −1e300 · 1e20 is beyond a float
    state = Conformal().update(ConformalState(), Feedback(9.0, 1.0, False, -1e300, 1e300, 1e20))
    assert np.isfinite(state.errors).all() and np.isfinite(state[:3]).all()
    # an error of (κ + ½ · 1e30) · 1e90, restated at an uncertainty of 1e-300
    state = Conformal().update(ConformalState(), Feedback(0.0, 1.0, False, 1e300, 1e300, 1e90))
    state = Conformal().update(state, Feedback(0.0, 1.0, False, 0.0, 1.0, 1e-300))
    assert state.kappa == 1e30


def test_an_update_does_not_change_the_old_state():
    state = ConformalState(0.7, 0.2, 0.1, (0.5,))
    Conformal().update(state, Feedback(2.0, 1.0, False, 0.4, 1.0))
    assert state == ConformalState(0.7, 0.2, 0.1, (0.5,))
