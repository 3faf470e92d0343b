"""The conformal rule under a budget: it begins with the model's own error and learns from its model."""

from __future__ import annotations

from typing import Any

import pytest

from capax.core.types import Feedback, Rest
from capax.kappa.conformal import FORGOTTEN_AFTER, FREELY_FORGIVEN, MAX_BUDGET_SHARE, Conformal, ConformalState

RULE = Conformal(0.02)


def feedback(
    error: float, *, paid: float = 5.0, U: float = 2.0, allowance: float = 10.0, noise: float = 0.0
) -> Feedback:
    """The feedback of an episode under a limit of 10."""
    return Feedback(paid, 10.0, False, error / U, allowance / U, U, noise=noise, allowance=allowance)


def after(*errors: float, state: ConformalState | None = None, **more: Any) -> ConformalState:
    """The rule's state after episodes with these errors."""
    state = state or RULE.init()
    for error in errors:
        state = RULE.update(state, feedback(error, **more))
    return state


def test_kappa_begins_with_the_error_on_the_start_data():
    # 3 too little was predicted at U = 2: κ = 1.5 would have covered it
    state = RULE.before_planning(RULE.init(), feedback(3.0))
    assert state.kappa == pytest.approx(1.5)


def test_q_keeps_at_most_half_of_the_budget_in_reserve():
    state = RULE.before_planning(RULE.init(), feedback(300.0))
    assert state.kappa * 2.0 == pytest.approx(MAX_BUDGET_SHARE * 10.0)
    assert after(300.0).kappa * 2.0 <= MAX_BUDGET_SHARE * 10.0


def test_what_the_new_model_explains_is_forgotten_over_safe_episodes():
    state = after(4.0)
    kappas = []
    for _ in range(7):
        state = RULE.update(state, feedback(0.0))
        state = RULE.reconsider(state, (0.0,) * len(state.errors), 2.0)  # it makes no error in any of them
        kappas.append(state.kappa * 2.0)
    assert kappas == pytest.approx([4.0 * (1.0 - age / FORGOTTEN_AFTER) for age in (1, 2, 3, 4)] + [0.0] * 3)


def test_what_the_new_model_does_not_explain_is_remembered():
    state = after(4.0)
    for _ in range(7):
        state = RULE.update(state, feedback(0.0))
        state = RULE.reconsider(state, (4.0, *(0.0,) * (len(state.errors) - 1)), 2.0)
    assert state.kappa * 2.0 == pytest.approx(4.0)


def test_violations_forget_nothing():
    state = after(4.0)
    for _ in range(3):
        state = RULE.update(state, feedback(0.0, paid=11.0))
        state = RULE.reconsider(state, (0.0,) * len(state.errors), 2.0)
    assert RULE.error_quantile(state) == pytest.approx(4.0)


def test_an_error_that_only_the_new_model_makes_counts_at_once():
    state = RULE.reconsider(after(0.0, 0.0), (3.0, 0.0), 2.0)
    assert state.kappa * 2.0 == pytest.approx(3.0)


def test_errors_of_the_start_data_are_forgotten_too():
    state = RULE.before_planning(RULE.init(), feedback(4.0))
    for _ in range(5):
        state = RULE.update(state, feedback(0.0))
        state = RULE.reconsider(state, (0.0,) * (len(state.errors) - 1), 2.0)  # of the planned episodes alone
    assert state.kappa == pytest.approx(0.0)


def test_errors_are_restated_in_the_uncertainty_of_the_new_model():
    assert RULE.reconsider(after(4.0), (4.0,), 8.0).kappa == pytest.approx(0.5)


def rest(left: float, steps: int = 50, *, binary: bool = False, risk: float = 0.0) -> Rest:
    return Rest(left, steps, 100, binary, risk)


def test_noise_is_kept_in_reserve_but_never_all():
    # z = 2.054, and four steps with noise of .25: .5 · 2.054
    assert RULE.allowance(after(0.0, noise=0.25), rest(6.0)) == pytest.approx(6.0 - 1.0269, abs=1e-3)
    assert RULE.allowance(after(0.0, noise=25.0), rest(6.0)) == pytest.approx(0.2 * 6.0)


def test_with_no_cost_left_the_risk_already_taken_is_deducted():
    # ε granted anew in each step would sum to ε · log T
    state = RULE.init()
    start, later = (RULE.allowance(state, rest(0.0, binary=True, risk=risk)) for risk in (0.0, 0.015))
    assert start == pytest.approx(0.0202, abs=1e-4) and start - later == pytest.approx(0.015)


@pytest.mark.parametrize("needed", [0.4, 1.7])
def test_violations_are_bounded_whatever_the_model_explains(needed):
    # an adversary whose errors are explained at once, and who violates whenever κ is below what is needed. η is .1 · 10/2 = .5
    state, violations = RULE.init(), 0
    for T in range(1, 3001):
        violated = state.kappa < needed
        violations += violated
        state = RULE.update(state, feedback(1.5 if violated else 0.0, paid=11.0 if violated else 5.0))
        state = RULE.reconsider(state, (0.0,) * len(state.errors), 2.0)
        assert state.forgiven <= FREELY_FORGIVEN + 0.01 * T + 1e-9
        assert violations <= 0.01 * T + state.k / 0.5 + state.forgiven + 1e-6  # from the log alone
        assert violations <= 0.02 * T + (needed + 0.5) / 0.5 + FREELY_FORGIVEN  # the theorem


def test_a_violation_that_the_new_model_foresees_is_forgiven_and_another_is_not():
    # 11 paid of 10; at an error of 1 or less the new model would have predicted 10 or more
    for now, forgiven in ((0.5, 1.0), (1.5, 0.0)):
        state = after(3.0, paid=11.0)
        step_of_violation = state.k
        for _ in range(6):
            state = RULE.reconsider(state, (now, *(0.0,) * (len(state.errors) - 1)), 2.0)
            state = after(0.0, state=state)
        assert state.forgiven == pytest.approx(forgiven, abs=0.06)  # k was at 0 before the last part
        assert state.k == pytest.approx(max(0.0, step_of_violation - 0.5 * (forgiven + 6 * 0.01)))


def test_rows_show_the_bound_for_the_episodes_that_were_played():
    # two violations in ten episodes, at first: k is at 2 − 2 · .01 − 8 · .01 steps, plus ten times .01, so 2 of 10
    state = after(3.0, 3.0, paid=11.0)
    assert RULE.report(state)["violation_bound"] == pytest.approx(1.0)
    state = after(*[0.0] * 8, state=state)
    assert RULE.report(state)["violation_bound"] == pytest.approx(0.2)
    assert "violation_bound" not in RULE.report(RULE.init())
