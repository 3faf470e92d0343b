"""Scores under a budget: what is left of an episode, what comes after the horizon, and what a termination costs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from capax.core.types import Imagined
from capax.planning.scoring import Scores, Terms, at_least, score_candidates, step_weights


def imagined(cost: Any, *, reward: Any = 0.0, uncertainty: Any = 0.0, alive: Any = 1.0) -> Imagined:
    """One particle per candidate, from lists `[N, H]`."""
    shape = np.shape(cost)
    parts = (np.broadcast_to(np.asarray(part, np.float32), shape) for part in (reward, cost, uncertainty, alive))
    return Imagined(*(jnp.asarray(part)[:, None] for part in parts))


def score(model: Imagined, *, budget: bool = True, flags: bool = False, **terms: Any) -> Scores:
    """Scores without κ and without a limit, unless `terms` have them."""
    defaults = dict(kappa=0.0, limit=np.inf, binary=jnp.asarray(False))
    return score_candidates(model, Terms(**{**defaults, **terms}), budget=budget, flags=flags)


def charges(horizon: int, steps_left: float, sight: int = 4) -> Any:
    """How often each step's cost is charged, for the two means that may stand for the steps after the sight."""
    weights = step_weights(horizon, steps_left, sight)
    return weights.inside + weights.after * weights.beyond


def test_the_last_quarter_stands_for_the_steps_after_the_horizon():
    # 8 steps ahead of 20: the last two stand for the other 12, 6 each, or all eight do, 1.5 each
    costs = charges(8, 20.0)
    np.testing.assert_allclose(costs, [[1, 1, 1, 1, 1, 1, 7, 7], [2.5] * 8], rtol=1e-6)


def test_steps_after_the_end_of_the_episode_do_not_count():
    np.testing.assert_allclose(charges(8, 3.0), [[1, 1, 1, 0, 0, 0, 0, 0]] * 2, rtol=1e-6)
    model = imagined([[0.0] * 8], reward=1.0)
    assert score(model, steps_left=3.0).earned == pytest.approx([3.0])


def test_a_cost_that_is_paid_at_first_may_use_what_the_rest_does_not():
    # 100 steps, a budget of 10. The first plan pays 9 at once and nothing later: 9 in all. The second pays .2 in each
    # step, 20 in all. Their means over the horizon are 1.125 and .2, so a limit on the pace of .1 refuses both
    model = imagined([[9.0] + [0.0] * 7, [0.2] * 8])
    assert score(model, limit=0.1, steps_left=100.0).feasible.tolist() == [True, False]
    assert score(model, limit=0.1, budget=False).feasible.tolist() == [False, False]


def test_kappa_is_charged_for_the_steps_after_the_horizon_too():
    # u is 2 in each step: the penalty per step is κ · 2 whatever the horizon
    scores = score(imagined([[1.0] * 8], uncertainty=2.0), kappa=0.5, steps_left=100.0)
    assert scores.penalised == pytest.approx([2.0])
    assert scores.uncertainty == pytest.approx([2.0])


@pytest.mark.parametrize("budget", [True, False])
def test_dying_saves_no_cost(budget):
    # both pay 3 in their first two steps; one dies then, the other lives on and pays no more. Until the horizon of 4,
    # the dead one is charged 3 for each of the others, so its mean is 3, and that of the other 1.5
    model = imagined([[3.0, 3.0, 0.0, 0.0], [3.0, 3.0, 0.0, 0.0]], alive=[[1, 1, 0, 0], [1, 1, 1, 1]])
    scores = score(model, budget=budget, steps_left=4.0)
    assert scores.cost == pytest.approx([3.0, 1.5])
    assert scores.danger[0] > scores.danger[1]


def test_a_dead_plan_earns_nothing_more():
    model = imagined([[0.0] * 4] * 2, reward=1.0, alive=[[1, 1, 0, 0], [1, 1, 1, 1]])
    assert score(model, steps_left=4.0).earned == pytest.approx([2.0, 4.0])
    assert score(model, steps_left=6.0).earned == pytest.approx([2.0, 6.0])  # the last step counts three times


def test_a_termination_may_cost_what_the_user_says():
    # 1 in the only step that is lived, then .5 in each of the other 99 (three in the plan, 96 after it)
    model = imagined([[1.0, 0.0, 0.0, 0.0]], uncertainty=4.0, alive=[[1, 0, 0, 0]])
    scores = score(model, kappa=0.25, steps_left=100.0, termination_cost=0.5)
    assert scores.cost * 100.0 == pytest.approx([1.0 + 99 * 0.5])
    assert scores.penalised * 100.0 == pytest.approx([2.0 + 99 * 0.5])
    goal = score(model, kappa=0.25, steps_left=100.0, termination_cost=0.0)
    assert goal.cost * 100.0 == pytest.approx([1.0])


def test_a_binary_cost_is_a_probability():
    # logits of 0 and log 3 are probabilities of 1/2 and 3/4
    model = imagined([[0.0, np.log(3.0)]], uncertainty=0.1)
    scores = score(model, kappa=2.0, steps_left=2.0, binary=jnp.asarray(True))
    assert scores.cost * 2.0 == pytest.approx([1.25])
    assert scores.penalised * 2.0 == pytest.approx([1.65])


def test_what_is_out_of_sight_does_not_count():
    # two of four parts are in sight, four of eight steps: the fourth and third stand for the 16 after them
    np.testing.assert_allclose(charges(8, 20.0, 2), [[1, 1, 9, 9, 0, 0, 0, 0], [5, 5, 5, 5, 0, 0, 0, 0]], rtol=1e-6)
    # 1 in each of the four, and for four of the 16 steps after them; what the other four would earn is not there
    model = imagined([[0.0] * 8], reward=[[1.0] * 4 + [9.0] * 4])
    assert score(model, steps_left=20.0, sight=2).earned == pytest.approx([8.0])


def test_a_plan_of_few_steps_has_as_many_parts():
    # parts of one step, of which there are only three
    np.testing.assert_allclose(charges(3, 10.0).sum(1), [10.0, 10.0], rtol=1e-6)


def test_the_rewards_after_the_sight_are_the_lower_of_two_rates():
    # 8 steps ahead of 20, so 8 of the 12 steps after them count. The first plan goes away from a goal (−1 a step) and
    # comes back in its last quarter (+3): 0 in all, and 0 a step after it, not 3. The second earns 1 in the last quarter
    # alone: 2 in all, and .25 a step. The third earns nothing at the end: 6, and nothing after it
    away, late, early = [-1.0] * 6 + [3.0] * 2, [0.0] * 6 + [1.0] * 2, [1.0] * 6 + [0.0] * 2
    model = imagined([[0.0] * 8] * 3, reward=[away, late, early])
    assert score(model, steps_left=20.0).earned == pytest.approx([0.0, 4.0, 6.0])


def test_no_step_makes_up_for_another():
    # a model that predicts −1 where it has seen no cost below 0: the plan costs 4, not 1
    model = imagined([[4.0, -1.0, -1.0, -1.0]])
    assert score(model, steps_left=4.0, least_cost=0.0).cost * 4.0 == pytest.approx([4.0])
    assert score(model, steps_left=4.0).cost * 4.0 == pytest.approx([1.0])
    assert score(model, steps_left=4.0, least_cost=0.0, budget=False).cost * 4.0 == pytest.approx([1.0])


def test_the_least_cost_leaves_logits_and_what_is_not_finite():
    cost = jnp.asarray([-2.0, -jnp.inf, jnp.nan, 3.0])
    np.testing.assert_array_equal(at_least(cost, 0.0, jnp.asarray(False)), [0.0, -np.inf, np.nan, 3.0])
    np.testing.assert_array_equal(at_least(cost, 0.0, jnp.asarray(True)), cost)


def test_what_is_not_finite_is_refused_even_where_the_plan_is_dead():
    alive = [[1, 0], [1, 1], [1, 1]]
    scores = score(imagined([[0.0, np.nan], [0.0, np.nan], [0.0, 0.0]], alive=alive), steps_left=50.0)
    assert scores.feasible.tolist() == [True, False, True]  # a dead step is not predicted at all
    assert scores.earned[1] == -np.inf
