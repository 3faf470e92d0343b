"""σ is the standard error of a policy's cost, and the search finds good policies within the margin."""

from __future__ import annotations

from dataclasses import replace

import jax.random as jr
import numpy as np
import pytest
from support.cmdps import agent_knowledge, random_cmdp, random_policy, sparse_copy

from capax.agents.calibrated import Calibrated
from capax.core.loop import run
from capax.core.types import Spec
from capax.paper.gridworld import Settings
from capax.tabular import evaluate, gridworld, solve
from capax.tabular.margin import (
    NUGGET,
    Posterior,
    best_policy_within,
    estimate_cost,
    exploration_bonus,
    fit_posterior,
    safest_policy,
)
from capax.tabular.sampler import WorldCollector

MANY_VISITS = 2000
"""Visits of a pair at which errors of second order are negligible."""


def random_posterior(seed: int, visits: int = MANY_VISITS, executed: int = 0, gamma: float = 0.9) -> Posterior:
    """The posterior of a random model after policies that cost 1 % more than predicted, then 1 % less, …"""
    rng = np.random.default_rng(seed)
    cmdp = random_cmdp(rng, S=5, A=2, gamma=gamma)
    executed_policies = []
    for number in range(executed):
        policy = random_policy(rng, cmdp)
        executed_policies.append((policy, evaluate(cmdp, policy).cost * (1.01 if number % 2 == 0 else 0.99)))
    return fit_posterior(cmdp, rng.integers(visits // 2, visits, size=(5, 2)).astype(float), executed_policies)


# σ.


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_sd_is_the_spread_of_exact_costs_under_sampled_transitions(gamma):
    # Dirichlet(n T̂) has the mean T̂ and the covariance (diag T̂ − T̂T̂ᵀ)/(n+1), so T·V has the variance Var_T̂(V)/(n+1).
    # A standard deviation from 4000 draws has the relative standard error 1/√8000 = 1.1 %; 6 % are allowed.
    rng = np.random.default_rng(1)
    posterior = random_posterior(0, gamma=gamma)
    cmdp, policy = posterior.cmdp, random_policy(rng, posterior.cmdp)
    draws = rng.gamma(posterior.n[..., None] * cmdp.P, size=(4000, *cmdp.P.shape))
    draws /= draws.sum(-1, keepdims=True)
    costs = [evaluate(replace(cmdp, P=P), policy).cost for P in draws]
    assert estimate_cost(posterior, policy, 0.0).sd == pytest.approx(np.std(costs), rel=0.06)


def test_sd_is_the_one_derived_by_hand():
    # State 0 leads to 1 or 2 with probability ½ each; these are absorbing. Only state 1 costs 1 per step. V is
    # (·, 1/(1−γ), 0), its variance is β²/4 with β = 1/(1−γ), and ρ(0) = 1−γ: σ = γ (1−γ) (β/2)/√(n+1) = γ/(2√(n+1)).
    P = np.array([[[0.0, 0.5, 0.5]], [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    cmdp = replace(
        random_cmdp(np.random.default_rng(0), S=3, A=1, gamma=0.8),
        P=P,
        c=np.array([[0.0], [1.0], [0.0]]),
        mu0=np.array([1.0, 0.0, 0.0]),
    )
    estimate = estimate_cost(fit_posterior(cmdp, np.full((3, 1), 99.0)), np.ones((3, 1)), 3.0)
    assert estimate.sd == pytest.approx(0.8 / 20, rel=1e-12)
    assert estimate.cost == pytest.approx(0.4, rel=1e-12)  # γ/2
    assert estimate.upper == pytest.approx(0.4 + 3 * 0.04, rel=1e-12)


def test_sd_falls_with_the_root_of_the_visits():
    posterior = random_posterior(2)
    policy = random_policy(np.random.default_rng(3), posterior.cmdp)
    with_more_visits = posterior._replace(n=4.0 * posterior.n + 3.0)  # n + 1 is four times as large
    assert estimate_cost(with_more_visits, policy, 0.0).sd == pytest.approx(
        estimate_cost(posterior, policy, 0.0).sd / 2.0, rel=1e-12
    )


def test_sd_is_zero_where_nothing_is_random():
    cmdp = random_cmdp(np.random.default_rng(4), kind="chain")
    estimate = estimate_cost(fit_posterior(cmdp, np.zeros((6, 3))), random_policy(np.random.default_rng(5), cmdp), 4.0)
    assert estimate.sd == 0.0 and estimate.upper == estimate.cost and np.isfinite(estimate.slope).all()


def test_sparse_model_gives_the_same_estimate():
    posterior = random_posterior(6)
    policy = random_policy(np.random.default_rng(7), posterior.cmdp)
    sparse, dense = (
        estimate_cost(fit_posterior(sparse_copy(posterior.cmdp), posterior.n), policy, 2.0),
        estimate_cost(posterior, policy, 2.0),
    )
    assert (sparse.cost, sparse.sd) == pytest.approx((dense.cost, dense.sd), rel=1e-12)
    np.testing.assert_allclose(sparse.slope, dense.slope, rtol=1e-12)


@pytest.mark.parametrize("executed", [0, 3])
def test_slope_and_occupancy_multiply_to_the_upper_value(executed):
    # At fixed values, cost + zσ is homogeneous of degree one in ρ. By Euler's theorem Σ ρ ∂/∂ρ is cost + zσ itself.
    posterior = random_posterior(8, executed=executed)
    estimate = estimate_cost(posterior, random_policy(np.random.default_rng(9), posterior.cmdp), 3.0)
    assert (estimate.slope * estimate.occupancy).sum() == pytest.approx(estimate.upper, rel=1e-12)


def test_slope_is_the_derivative_at_fixed_values():
    # σ(ρ) = γ √Σ ρ² Var_T̂(V)/(n+1) with V fixed. The numeric derivative by each ρ(s,a) uses Var alone.
    posterior, z, h = random_posterior(10), 3.0, 1e-6
    cmdp = posterior.cmdp
    policy = random_policy(np.random.default_rng(11), cmdp)
    estimate = estimate_cost(posterior, policy, z)
    v = np.linalg.solve(np.eye(5) - cmdp.gamma * np.einsum("sa,sat->st", policy, cmdp.P), (policy * cmdp.c).sum(1))
    variance = cmdp.gamma**2 * (cmdp.P @ v**2 - (cmdp.P @ v) ** 2) / (posterior.n + 1)

    def upper(rho: np.ndarray) -> float:
        return (rho * cmdp.c).sum() + z * np.sqrt((rho**2 * variance).sum())

    for s, a in np.ndindex(5, 2):
        step = np.zeros((5, 2))
        step[s, a] = h
        numeric = (upper(estimate.occupancy + step) - upper(estimate.occupancy - step)) / (2 * h)
        assert estimate.slope[s, a] == pytest.approx(numeric, rel=1e-6)


# The correction by executed policies.


def test_corrected_cost_of_an_executed_policy_is_its_exact_cost():
    # With one policy, the correction is error · φ·φ/(φ·φ(1 + NUGGET) + 1e-12): all but 1/1001 of the prediction error.
    cmdp = random_cmdp(np.random.default_rng(12), S=5, A=2)
    policy = random_policy(np.random.default_rng(13), cmdp)
    predicted = evaluate(cmdp, policy).cost
    posterior = fit_posterior(cmdp, np.full((5, 2), 20.0), [(policy, predicted + 0.01)])
    assert estimate_cost(posterior, policy, 0.0).cost - predicted == pytest.approx(0.01 / (1 + NUGGET), rel=1e-5)


def test_every_executed_policy_is_corrected():
    rng = np.random.default_rng(14)
    cmdp = random_cmdp(rng, S=5, A=2)
    executed = [(policy, evaluate(cmdp, policy).cost + rng.normal() * 0.01) for policy in
              (random_policy(rng, cmdp) for _ in range(3))]  # fmt: skip
    posterior = fit_posterior(cmdp, np.full((5, 2), 20.0), executed)
    for policy, exact_cost in executed:
        error_before = abs(evaluate(cmdp, policy).cost - exact_cost)
        assert abs(estimate_cost(posterior, policy, 0.0).cost - exact_cost) < 0.1 * error_before


def test_correction_reduces_the_error_for_a_new_policy():
    # The true world is near the model. The costs of five executed policies correct the prediction for a sixth.
    rng = np.random.default_rng(15)
    model, n = random_cmdp(rng, S=5, A=2), np.full((5, 2), 200.0)
    errors, corrected_errors = [], []
    for _ in range(40):
        P = rng.gamma(n[..., None] * model.P)
        true = replace(model, P=P / P.sum(-1, keepdims=True))
        *executed, new = (random_policy(rng, model) for _ in range(6))
        posterior = fit_posterior(model, n, [(policy, evaluate(true, policy).cost) for policy in executed])
        cost = evaluate(true, new).cost
        errors.append(evaluate(model, new).cost - cost)
        corrected_errors.append(estimate_cost(posterior, new, 0.0).cost - cost)
    assert np.std(corrected_errors) < 0.7 * np.std(errors)


def test_correction_is_zero_without_prediction_errors():
    cmdp = random_cmdp(np.random.default_rng(16), S=5, A=2)
    policy = random_policy(np.random.default_rng(17), cmdp)
    posterior = fit_posterior(cmdp, np.full((5, 2), 20.0), [(policy, evaluate(cmdp, policy).cost)])
    np.testing.assert_allclose(posterior.correction, 0.0, atol=1e-12)


# The search.


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("z", [0.0, 2.0, 6.0])
def test_search_stays_within_the_margin_and_only_improves(seed, z):
    posterior = random_posterior(seed, visits=60, executed=seed % 3)
    cmdp = posterior.cmdp
    starts = [estimate_cost(posterior, solve(cmdp, -np.inf).policy, z), safest_policy(posterior, z)]
    least_upper = min(start.upper for start in starts)
    limit = least_upper + 0.3 * (estimate_cost(posterior, solve(cmdp, np.inf).policy, z).upper - least_upper)
    best, _ = best_policy_within(posterior, cmdp.r, limit, z, starts)
    assert best.upper <= limit
    assert estimate_cost(posterior, best.policy, z).upper == pytest.approx(best.upper, rel=1e-12)
    assert (best.occupancy * cmdp.r).sum() >= max(
        (start.occupancy * cmdp.r).sum() for start in starts if start.upper <= limit
    )


@pytest.mark.parametrize("seed", range(6))
def test_search_without_a_margin_finds_the_optimum_of_the_linear_program(seed):
    posterior = random_posterior(seed)
    cmdp = posterior.cmdp
    least, unconstrained = solve(cmdp, -np.inf), solve(cmdp, np.inf)
    limit = least.cost + 0.5 * (unconstrained.cost - least.cost)
    best, _ = best_policy_within(posterior, cmdp.r, limit, 0.0, [estimate_cost(posterior, least.policy, 0.0)])
    optimum = solve(cmdp, limit, "highs").reward
    assert optimum - 1e-3 <= (best.occupancy * cmdp.r).sum() <= optimum + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_search_with_a_margin_beats_random_policies(seed):
    rng = np.random.default_rng(seed)
    posterior, z = random_posterior(seed, visits=60), 3.0
    cmdp = posterior.cmdp
    start = safest_policy(posterior, z)
    limit = start.upper + 0.05
    best, _ = best_policy_within(posterior, cmdp.r, limit, z, [start])
    candidates = [estimate_cost(posterior, random_policy(rng, cmdp), z) for _ in range(2000)]
    feasible_returns = [(candidate.occupancy * cmdp.r).sum() for candidate in candidates if candidate.upper <= limit]
    assert feasible_returns and (best.occupancy * cmdp.r).sum() >= max(feasible_returns)


def test_search_without_a_feasible_start_finds_no_policy():
    posterior = random_posterior(0)
    start = safest_policy(posterior, 4.0)
    warm = solve(posterior.cmdp, np.inf)
    assert best_policy_within(posterior, posterior.cmdp.r, start.upper - 1e-6, 4.0, [start], warm) == (None, warm)


@pytest.mark.parametrize("seed", range(6))
def test_safest_policy_is_no_worse_than_the_least_cost_policy(seed):
    posterior = random_posterior(seed, visits=20, executed=seed % 3)
    cheapest = estimate_cost(posterior, solve(posterior.cmdp, -np.inf).policy, 4.0)
    assert safest_policy(posterior, 4.0).upper <= cheapest.upper


def test_safest_policy_prefers_well_tried_actions_to_cheap_ones():
    # Action 0 is predicted to cost a little less, but was tried once; action 1 was tried often.
    P = np.tile([[0.5, 0.5], [0.5, 0.5]], (2, 1, 1)).reshape(2, 2, 2)
    cmdp = replace(random_cmdp(np.random.default_rng(0), S=2, A=2), P=P, c=np.array([[0.0, 0.01], [1.0, 1.01]]))
    posterior = fit_posterior(cmdp, np.tile([1.0, 1e6], (2, 1)))
    assert solve(cmdp, -np.inf).policy[:, 0].min() == 1.0
    assert safest_policy(posterior, 4.0).policy[:, 1].min() > 0.5


def test_exploration_bonus_is_the_standard_error_of_a_pair():
    # γ √(Var_T̂(V)/(n+1)) with V of r − λc.
    posterior, multiplier = random_posterior(18), 2.0
    cmdp = posterior.cmdp
    policy = random_policy(np.random.default_rng(19), cmdp)
    signal = (policy * (cmdp.r - multiplier * cmdp.c)).sum(1)
    v = np.linalg.solve(np.eye(5) - cmdp.gamma * np.einsum("sa,sat->st", policy, cmdp.P), signal)
    variance = cmdp.P @ v**2 - (cmdp.P @ v) ** 2
    expected = cmdp.gamma * np.sqrt(variance / (posterior.n + 1))
    np.testing.assert_allclose(exploration_bonus(posterior, policy, multiplier), expected, rtol=1e-9)


# The calibrated agent.


def test_agent_plans_within_its_margin_and_stores_exact_costs():
    world = gridworld(np.random.default_rng(20), size=4, gamma=0.95)
    agent = Calibrated(agent_knowledge(world, 0.5), Spec(0.2, 0.95), z_first=5.0, z_last=3.0, z_fall=4)
    _, *outcomes = run(agent, WorldCollector(world.cmdp, 400, 4), start=400, steps=8 * 400, key=jr.key(0))
    metrics, state = [outcome.metrics for outcome in outcomes], outcomes[-1].state
    assert [entry["kappa"] for entry in metrics] == pytest.approx([5.0, 4.5, 4.0, 3.5, 3.0, 3.0, 3.0])
    assert any(entry["feasible"] for entry in metrics)
    for entry in metrics:
        if entry["feasible"]:
            assert entry["planned_cost"] + entry["kappa"] * entry["planned_sd"] <= 0.2
    assert [paid for _, paid in state.executed] == [outcome.episode.paid for outcome in outcomes]


def test_agent_remembers_a_fixed_number_of_policies_and_counts_all():
    # Each remembered policy is evaluated in every new model, and is in every checkpoint.
    world = gridworld(np.random.default_rng(21), size=3, gamma=0.9)
    agent = Calibrated(agent_knowledge(world, 0.5), Spec(0.2, 0.9), z_first=5.0, z_last=3.0, z_fall=8, memory=4)
    _, *outcomes = run(agent, WorldCollector(world.cmdp, 100, 4), start=100, steps=11 * 100, key=jr.key(0))
    assert [len(outcome.state.executed) for outcome in outcomes] == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert [outcome.metrics["kappa"] for outcome in outcomes] == pytest.approx([*np.linspace(5.0, 3.0, 9), 3.0])
    assert [paid for _, paid in outcomes[-1].state.executed] == [outcome.episode.paid for outcome in outcomes[-4:]]


def test_agent_remembers_all_policies_of_the_papers_experiment():
    assert Calibrated.memory >= Settings().iterations + 1
