"""Tabular CAP plans the optimum of Eq. 5 on its counts, and its rule relaxes κ."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax.random as jr
import numpy as np
import pytest
from support.cmdps import agent_knowledge

from capax.agents.tabular import TabularCAP, TabularState
from capax.core.contracts import PlanningRule
from capax.core.types import Episode, Spec
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI
from capax.tabular import CMDP, CountModel, World, gridworld, neighbour_prior, penalised, solve
from capax.tabular.sampler import WorldCollector

GAMMA, LIMIT = 0.95, 0.12
KEY = jr.key(0)


@pytest.fixture(scope="module")
def world() -> World:
    return gridworld(np.random.default_rng(0), size=4, gamma=GAMMA)


def agent_of(world: World, rule: PlanningRule, limit: float = LIMIT) -> TabularCAP:
    return TabularCAP(agent_knowledge(world), Spec(limit, GAMMA), rule)


def random_start(world: World, agent: TabularCAP, steps: int = 400) -> tuple[TabularState, Episode]:
    """The state before any data, and an episode with its policy."""
    state = agent.init(KEY)
    return state, WorldCollector(world.cmdp, steps).collect(agent, state, jr.key(1))


def planned(world: World, rule: PlanningRule, limit: float = LIMIT) -> tuple[TabularState, Any]:
    """The state and the metrics after learning from the random start."""
    agent = agent_of(world, rule, limit)
    state, episode = random_start(world, agent)
    return agent.learn(state, [episode], KEY)


def counts_by_loop(world: World) -> CountModel:
    """The counts of the same random start, step by step."""
    agent = agent_of(world, Fixed(0.0))
    _, episode = random_start(world, agent)
    model = CountModel.init(neighbour_prior(world.successors, 4))
    for step in zip(episode.obs, episode.action, episode.next_obs, strict=True):
        model = model.fit(*(np.array([index]) for index in step))
    return model


def conservative_cmdp(world: World, kappa: float) -> CMDP:
    """The CMDP of Eq. 5 on those counts, with costs c + κ/√max(n, 1)."""
    model = counts_by_loop(world)
    estimate = CMDP(model.P, world.cmdp.r, world.cmdp.c, world.cmdp.mu0, GAMMA)
    return penalised(estimate, kappa / np.sqrt(np.maximum(model.n, 1.0)))


def least_cost(world: World, kappa: float) -> float:
    """The least conservative cost of any policy."""
    return solve(conservative_cmdp(world, kappa), -np.inf, "highs").cost


def test_it_acts_at_random_before_any_data(world):
    agent = agent_of(world, Fixed(0.0))
    np.testing.assert_array_equal(agent.begin(agent.init(KEY)), np.full((16, 4), 0.25))


@pytest.mark.parametrize("kappa", [0.0, 0.01, 0.1])
def test_plan_is_the_optimum_of_the_conservative_problem(world, kappa):
    limit = least_cost(world, kappa) + 0.02
    state, metrics = planned(world, Fixed(kappa), limit)
    expected = solve(conservative_cmdp(world, kappa), limit, "highs")
    assert (state.plan.reward, state.plan.cost) == pytest.approx((expected.reward, expected.cost), abs=1e-9)
    assert state.plan.cost == pytest.approx(limit, abs=1e-9)  # and the limit is active
    assert metrics == {"kappa": kappa, "planned_cost": state.plan.cost, "feasible": True}


def test_at_kappa_zero_that_is_the_optimum_of_the_estimate(world):
    model = counts_by_loop(world)
    estimate = CMDP(model.P, world.cmdp.r, world.cmdp.c, world.cmdp.mu0, GAMMA)
    state, _ = planned(world, Fixed(0.0))
    assert state.plan.reward == pytest.approx(solve(estimate, LIMIT, "highs").reward, abs=1e-9)


def test_more_kappa_never_improves_plans_and_ends_without_one(world):
    # A larger penalty leaves fewer policies, so the best of them earns no more. Without any policy, more κ gives none back.
    kappas = (0.0, 0.005, 0.02, 0.1, 0.5, 2.0)
    results = [planned(world, Fixed(kappa)) for kappa in kappas]
    feasible = [metrics["feasible"] for _, metrics in results]
    assert feasible == sorted(feasible, reverse=True) and len(set(feasible)) == 2
    rewards = [state.plan.reward for state, metrics in results if metrics["feasible"]]
    assert len(rewards) >= 3
    assert all(with_more <= with_less + 1e-12 for with_less, with_more in pairwise(rewards))


def test_without_a_feasible_plan_a_fixed_kappa_chooses_the_least_costly(world):
    state, metrics = planned(world, Fixed(5.0))
    assert metrics["feasible"] is False and metrics["kappa"] == 5.0
    assert state.plan.cost == pytest.approx(least_cost(world, 5.0), abs=1e-9)


def test_exponential_search_halves_until_a_plan_is_feasible(world):
    kappa = 10.0
    while least_cost(world, kappa) > LIMIT:
        kappa /= 2.0
    assert 0.0 < kappa < 10.0
    state, metrics = planned(world, PI())
    assert metrics["kappa"] == state.rule.kappa == kappa and metrics["feasible"] is True


def test_exponential_search_ends_at_zero_with_the_least_cost_plan(world):
    # No policy of the estimate costs nothing, so no κ helps.
    state, metrics = planned(world, PI(), limit=0.0)
    assert metrics["kappa"] == 0.0 and metrics["feasible"] is False
    assert state.plan.cost == pytest.approx(least_cost(world, 0.0), abs=1e-9)


def test_adapt_moves_kappa_by_the_true_cost(world):
    # κ + .1 (.3 − limit), whatever the planned cost was.
    agent = agent_of(world, PI())
    state, episode = random_start(world, agent)
    state, metrics = agent.learn(state, [episode], KEY)
    adapted, _ = agent.adapt(state, episode._replace(paid=0.3))
    assert adapted.rule.kappa == pytest.approx(metrics["kappa"] + 0.1 * (0.3 - LIMIT), rel=1e-15)
    assert adapted.policy is state.policy


@pytest.mark.parametrize(("excess", "violated"), [(5e-7, False), (2e-6, True)])
def test_a_rule_sees_the_violations_that_rows_of_finite_worlds_count(world, excess, violated, monkeypatch):
    answers: list[bool] = []
    monkeypatch.setattr(PI, "update", lambda self, state, feedback: answers.append(feedback.violated) or state)
    agent = agent_of(world, PI())
    state, episode = random_start(world, agent)
    agent.adapt(state, episode._replace(paid=LIMIT + excess))
    assert answers == [violated]


def test_counts_accumulate_over_iterations(world):
    agent = agent_of(world, Fixed(0.01))
    state, episode = random_start(world, agent)
    for number in (1, 2, 3):
        state, _ = agent.learn(state, [episode], KEY)
        assert state.model.n.sum() == 400 * number


def test_several_episodes_are_learned_at_once(world):
    agent = agent_of(world, Fixed(0.01))
    state, episode = random_start(world, agent)
    at_once, _ = agent.learn(state, [episode, episode], KEY)
    first, _ = agent.learn(state, [episode], KEY)
    in_turn, _ = agent.learn(first, [episode], KEY)
    np.testing.assert_array_equal(at_once.model.counts, in_turn.model.counts)
    assert at_once.plan.reward == pytest.approx(in_turn.plan.reward, abs=1e-12)


def test_a_large_sparse_world_has_a_feasible_plan():
    world = gridworld(np.random.default_rng(1), size=20, gamma=GAMMA)
    state, metrics = planned(world, PI())
    assert metrics["feasible"] and state.plan.cost <= LIMIT + 1e-9
    np.testing.assert_allclose(state.policy.sum(1), 1.0, rtol=1e-12)
