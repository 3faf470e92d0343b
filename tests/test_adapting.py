"""What does a rule learn from an episode, and what is left of a limit within one?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from episodes import PLANNED, fabricated

from capax.agents.adapting import Purse, feedback
from capax.kappa import Feedback
from capax.types import Spec

WHOLE = Spec(25.0, 0.99, False, 50)


def test_feedback_of_an_undiscounted_limit():
    # Ĵ = .2 + .3 + .1 = .6, U = 4, J = 2, so the residual is (2 − .6)/4 = .35
    learned, told = feedback(WHOLE, False, fabricated(WHOLE, [1.0, 0.5, 0.5], PLANNED))
    assert told.pop("unit") == pytest.approx(0.375)
    assert told == pytest.approx(
        {"planned_cost": 0.6, "planned_uncertainty": 4.0, "paid_cost": 2.0, "planned_slack": 0.0, "residual": 0.35},
        rel=1e-12,
    )
    assert learned[:4] == pytest.approx((2.0, 25.0, False, 0.35), rel=1e-12)


def test_feedback_of_a_discounted_limit():
    # γ = .5: weights 1, .5, .25. Ĵ = .2 + .15 + .025 = .375, U = 1 + 1 + .25 = 2.25, J = 1 + .25 + .125 = 1.375
    spec = Spec(4.5, 0.5, True, 50)
    learned, told = feedback(spec, False, fabricated(spec, [1.0, 0.5, 0.5], PLANNED))
    assert told.pop("unit") == pytest.approx(1.75)
    assert told == pytest.approx(
        {
            "planned_cost": 0.375,
            "planned_uncertainty": 2.25,
            "paid_cost": 1.375,
            "planned_slack": 0.0,
            "residual": 1.0 / 2.25,
        },
        rel=1e-12,
    )
    # 1.75 of the weights' sum of 2 were played: kept up, U = 2.25 · 2/1.75, and 4.5 over that is 1.75
    assert learned.unit == pytest.approx(1.75)


def test_what_plans_leave_unused_counts_where_the_limit_binds():
    # the second step's: .7 of .75 are used; the first step's candidates were all feasible, and the third's too costly
    planned = PLANNED | dict(limit=[0.75] * 3, feasible=[1.0, 0.5, 0.0], penalised=[0.7, 0.7, 0.9])
    learned, told = feedback(WHOLE, False, fabricated(WHOLE, [1.0, 0.5, 0.5], planned))
    assert told["planned_slack"] == pytest.approx(0.05) and learned.residual == pytest.approx((2.0 - 0.6 - 0.05) / 4.0)
    # plans that are far from the limit leave it unused for other reasons, and what is not finite teaches nothing
    for penalised in ([0.5] * 3, [np.inf] * 3, [np.nan] * 3):
        far = planned | dict(feasible=[0.5] * 3, penalised=penalised)
        assert feedback(WHOLE, False, fabricated(WHOLE, [1.0, 0.5, 0.5], far))[1]["planned_slack"] == 0.0


def test_the_residual_is_the_kappa_that_pays_what_may_be_paid():
    # plans stay .02 below the limit of .5 with κ = .36, at .3 + .36 · .5; .45 are paid in a step, .05 less than may be
    spec = Spec(25.0, 0.99, False, 50)
    each = dict(
        cost=0.3, uncertainty=0.5, first_cost=0.0, first_uncertainty=0.0, penalised=0.48, feasible=0.3, limit=0.5
    )
    planned = {name: [value] * 50 for name, value in each.items()}
    learned, _ = feedback(spec, False, fabricated(spec, [0.45] * 50, planned))
    assert learned.residual == pytest.approx(0.36 - 0.05 / 0.5)


def test_what_is_left_is_weighed_as_the_task_weighs_it():
    spec, purse = Spec(10.5, 0.5, True, 3), Purse()  # 6 a step: 6 + 3 + 1.5
    for cost in (4.0, 4.0):
        purse = purse.after(spec, cost)
    assert purse == (6.0, 1.5, 2) and purse.left(spec) == pytest.approx(4.5 / 0.25)
    assert purse.after(spec, 4.0).left(spec) == pytest.approx(3.5 / 0.125)  # a step beyond the last
    hasty = Purse().after(spec, 8.0)  # 2 more than its share, and one step's 6 · .5 kept back, in a quarter of .75
    assert hasty.left(spec) == pytest.approx(6.0 - 4.0 * (2.0 + 3.0) / 0.75)
    plain = Spec(12.0, 0.5, False, 3)
    assert Purse().after(plain, 13.0).left(plain) == pytest.approx(4.0 - 4.0 * (9.0 + 4.0) / 2.0)
    assert Purse().left(Spec(math.inf, 0.5, True, 3)) == math.inf


def test_feedback_of_a_binary_cost():
    spec = Spec(1.0, 0.99, False, 50)
    learned, told = feedback(spec, True, fabricated(spec, [1, 1, 1], PLANNED))
    assert learned == Feedback(3.0, 1.0, binary=True)
    assert told == pytest.approx({"planned_cost": 0.6, "planned_uncertainty": 4.0, "paid_cost": 3.0}, rel=1e-12)


def test_a_limit_of_zero_has_a_unit_too():
    # nothing fills a limit of 0: what was paid, 2, takes its place
    spec = Spec(0.0, 0.99, False, 50)
    learned, _ = feedback(spec, False, fabricated(spec, [1.0, 0.5, 0.5], PLANNED))
    assert learned.unit == pytest.approx(2.0 / (4.0 * 50 / 3))


def test_an_episode_that_ended_early_counts_as_uncertain_as_a_whole_one():
    # three of fifty steps with U = 4: kept up, that is 4 · 50/3, and a κ of 25/(4 · 50/3) = .375 fills the limit of 25
    learned, _ = feedback(WHOLE, False, fabricated(WHOLE, [1.0, 0.5, 0.5], PLANNED))
    assert (learned.residual, learned.unit, learned.uncertainty) == pytest.approx((0.35, 0.375, 200 / 3), rel=1e-12)


def test_what_was_spent_too_much_is_made_up_for_soon():
    # 152 discounted over 1,000 steps: an agent that spends exactly what it may is back at its share after some fifty
    # steps, and may go on as before; were it made up for in all that is left, it would never be
    spec = Spec(152.0, 0.99, True, 1000)
    share, purse = spec.limit / spec.scale, Purse()
    for _ in range(20):
        purse = purse.after(spec, 1.5 * share)
    spent = []
    for _ in range(980):
        spent.append(max(0.0, min(share, purse.left(spec))))
        purse = purse.after(spec, spent[-1])
    assert spent[0] < 0.7 * share and min(spent[60:]) > 0.9 * share
    assert 0.98 * spec.limit < purse.spent < spec.limit
