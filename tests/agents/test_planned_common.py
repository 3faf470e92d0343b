"""The feedback of an episode for a rule, and the budget that is left within an episode."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.episodes import PLANS, planned_episode

from capax.agents.planned_common import EpisodeBudget, feedback
from capax.core.types import Feedback, Spec

WHOLE = Spec(25.0, 0.99, False, 50)


def test_feedback_of_an_undiscounted_limit():
    # Ĵ = .2 + .3 + .1 = .6, U = 4, J = 2, so the residual is (2 − .6)/4 = .35
    learned, metrics = feedback(WHOLE, False, planned_episode(WHOLE, [1.0, 0.5, 0.5], PLANS))
    assert metrics.pop("unit") == pytest.approx(0.375)
    assert metrics == pytest.approx(
        {"planned_cost": 0.6, "planned_uncertainty": 4.0, "paid_cost": 2.0, "planned_slack": 0.0, "residual": 0.35},
        rel=1e-12,
    )
    assert learned[:4] == pytest.approx((2.0, 25.0, False, 0.35), rel=1e-12)


def test_feedback_of_a_discounted_limit():
    # γ = .5: weights 1, .5, .25. Ĵ = .2 + .15 + .025 = .375, U = 1 + 1 + .25 = 2.25, J = 1 + .25 + .125 = 1.375
    spec = Spec(4.5, 0.5, True, 50)
    learned, metrics = feedback(spec, False, planned_episode(spec, [1.0, 0.5, 0.5], PLANS))
    assert metrics.pop("unit") == pytest.approx(1.75)
    assert metrics == pytest.approx(
        {
            "planned_cost": 0.375,
            "planned_uncertainty": 2.25,
            "paid_cost": 1.375,
            "planned_slack": 0.0,
            "residual": 1.0 / 2.25,
        },
        rel=1e-12,
    )
    # the steps have 1.75 of the weights' sum of 2: for the whole episode U = 2.25 · 2/1.75, and 4.5 over that is 1.75
    assert learned.unit == pytest.approx(1.75)


def test_what_plans_leave_unused_counts_where_the_limit_binds():
    # only in the second step, where .7 of .75 are used: the first step's candidates are all feasible, the third's plan costs
    # more than the limit
    plans = PLANS | dict(limit=[0.75] * 3, feasible=[1.0, 0.5, 0.0], penalised=[0.7, 0.7, 0.9])
    learned, metrics = feedback(WHOLE, False, planned_episode(WHOLE, [1.0, 0.5, 0.5], plans))
    assert metrics["planned_slack"] == pytest.approx(0.05) and learned.residual == pytest.approx(
        (2.0 - 0.6 - 0.05) / 4.0
    )
    # plans far below the limit leave it unused for other reasons, and infinite ones say nothing
    for penalised in ([0.5] * 3, [np.inf] * 3, [np.nan] * 3):
        unbound = plans | dict(feasible=[0.5] * 3, penalised=penalised)
        assert feedback(WHOLE, False, planned_episode(WHOLE, [1.0, 0.5, 0.5], unbound))[1]["planned_slack"] == 0.0


def test_the_residual_is_the_kappa_that_pays_exactly_the_limit():
    # plans stay .02 below the limit of .5 with κ = .36, at .3 + .36 · .5; a step pays .45, .05 less than it may
    spec = Spec(25.0, 0.99, False, 50)
    each = dict(
        cost=0.3, uncertainty=0.5, first_cost=0.0, first_uncertainty=0.0, penalised=0.48, feasible=0.3, limit=0.5
    )
    plans = {name: [value] * 50 for name, value in each.items()}
    learned, _ = feedback(spec, False, planned_episode(spec, [0.45] * 50, plans))
    assert learned.residual == pytest.approx(0.36 - 0.05 / 0.5)


def test_the_rest_of_a_budget_is_weighed_by_the_tasks_convention():
    spec, budget = Spec(10.5, 0.5, True, 3), EpisodeBudget()  # 6 a step: 6 + 3 + 1.5
    for cost in (4.0, 4.0):
        budget = budget.after(spec, cost)
    assert budget == (6.0, 1.5, 2) and budget.left(spec) == pytest.approx(4.5 / 0.25)
    assert budget.after(spec, 4.0).left(spec) == pytest.approx(3.5 / 0.125)  # a step beyond the last
    # 2 more than its share, and the 6 · .5 of one step in reserve, made up for in a quarter of .75
    assert EpisodeBudget().after(spec, 8.0).left(spec) == pytest.approx(6.0 - 4.0 * (2.0 + 3.0) / 0.75)
    plain = Spec(12.0, 0.5, False, 3)
    assert EpisodeBudget().after(plain, 13.0).left(plain) == pytest.approx(4.0 - 4.0 * (9.0 + 4.0) / 2.0)
    assert EpisodeBudget().left(Spec(math.inf, 0.5, True, 3)) == math.inf


def test_feedback_of_a_binary_cost():
    spec = Spec(1.0, 0.99, False, 50)
    learned, metrics = feedback(spec, True, planned_episode(spec, [1, 1, 1], PLANS))
    assert learned == Feedback(3.0, 1.0, binary=True)
    assert metrics == pytest.approx({"planned_cost": 0.6, "planned_uncertainty": 4.0, "paid_cost": 3.0}, rel=1e-12)


def test_a_limit_of_zero_has_a_unit_too():
    # no κ fills a limit of 0: the paid cost of 2 takes its place
    spec = Spec(0.0, 0.99, False, 50)
    learned, _ = feedback(spec, False, planned_episode(spec, [1.0, 0.5, 0.5], PLANS))
    assert learned.unit == pytest.approx(2.0 / (4.0 * 50 / 3))


def test_an_episode_that_ended_early_counts_as_uncertain_as_a_whole_one():
    # three of fifty steps have U = 4: fifty steps have 4 · 50/3, and a κ of 25/(4 · 50/3) = .375 fills the limit of 25
    learned, _ = feedback(WHOLE, False, planned_episode(WHOLE, [1.0, 0.5, 0.5], PLANS))
    assert (learned.residual, learned.unit, learned.uncertainty) == pytest.approx((0.35, 0.375, 200 / 3), rel=1e-12)


def test_overspending_is_made_up_for_soon():
    # a discounted limit of 152 over 1,000 steps: an agent that spends exactly what it may is back at its share after about
    # fifty steps; if all remaining steps made up for it, the agent would never be back
    spec = Spec(152.0, 0.99, True, 1000)
    share, budget = spec.limit / spec.scale, EpisodeBudget()
    for _ in range(20):
        budget = budget.after(spec, 1.5 * share)
    spent = []
    for _ in range(980):
        spent.append(max(0.0, min(share, budget.left(spec))))
        budget = budget.after(spec, spent[-1])
    assert spent[0] < 0.7 * share and min(spent[60:]) > 0.9 * share
    assert 0.98 * spec.limit < budget.spent < spec.limit
