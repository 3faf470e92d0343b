"""Is σ the standard error of a policy's cost, and does the search find good policies within the margin?"""

from __future__ import annotations

from dataclasses import replace

import jax.random as jr
import numpy as np
import pytest
from cmdps import random_cmdp, random_policy, thin, told

from capax.agents.calibrated import Calibrated
from capax.loop import run
from capax.tabular import evaluate, gridworld, solve
from capax.tabular.margin import NUGGET, Belief, believe, best_within, bonus, judge, safest
from capax.tabular.sampler import WorldCollector
from capax.types import Spec

LARGE = 2000
"""Visits of a pair at which first order is all there is."""


def belief_of(seed: int, visits: int = LARGE, executed: int = 0, gamma: float = 0.9) -> Belief:
    """A belief around a random model, corrected by policies that cost 1 % more than predicted, then 1 % less, …"""
    rng = np.random.default_rng(seed)
    cmdp = random_cmdp(rng, S=5, A=2, gamma=gamma)
    played = []
    for number in range(executed):
        policy = random_policy(rng, cmdp)
        played.append((policy, evaluate(cmdp, policy).cost * (1.01 if number % 2 == 0 else 0.99)))
    return believe(cmdp, rng.integers(visits // 2, visits, size=(5, 2)).astype(float), played)


# σ.


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_sd_is_the_spread_of_exact_costs_under_errors_of_that_size(gamma):
    # Dirichlet(n T̂) has the mean T̂ and the covariance (diag T̂ − T̂T̂ᵀ)/(n+1), so T·V has the variance Var_T̂(V)/(n+1).
    # A standard deviation from 4000 draws has the relative standard error 1/√8000 = 1.1 %; 6 % are allowed.
    rng = np.random.default_rng(1)
    belief = belief_of(0, gamma=gamma)
    cmdp, policy = belief.cmdp, random_policy(rng, belief.cmdp)
    draws = rng.gamma(belief.n[..., None] * cmdp.P, size=(4000, *cmdp.P.shape))
    draws /= draws.sum(-1, keepdims=True)
    costs = [evaluate(replace(cmdp, P=P), policy).cost for P in draws]
    assert judge(belief, policy, 0.0).sd == pytest.approx(np.std(costs), rel=0.06)


def test_sd_by_hand():
    # State 0 goes to 1 or 2 with ½ each, which stay; cost 1 a step in state 1 alone. V = (·, 1/(1−γ), 0), its variance
    # is β²/4 with β = 1/(1−γ), and ρ(0) = 1−γ: σ = γ (1−γ) (β/2)/√(n+1) = γ/(2√(n+1)).
    P = np.array([[[0.0, 0.5, 0.5]], [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    cmdp = replace(
        random_cmdp(np.random.default_rng(0), S=3, A=1, gamma=0.8),
        P=P,
        c=np.array([[0.0], [1.0], [0.0]]),
        mu0=np.array([1.0, 0.0, 0.0]),
    )
    judged = judge(believe(cmdp, np.full((3, 1), 99.0)), np.ones((3, 1)), 3.0)
    assert judged.sd == pytest.approx(0.8 / 20, rel=1e-12)
    assert judged.cost == pytest.approx(0.4, rel=1e-12)  # γ/2
    assert judged.upper == pytest.approx(0.4 + 3 * 0.04, rel=1e-12)


def test_sd_falls_with_the_root_of_the_visits():
    belief = belief_of(2)
    policy = random_policy(np.random.default_rng(3), belief.cmdp)
    more = belief._replace(n=4.0 * belief.n + 3.0)  # n + 1 is four times as much
    assert judge(more, policy, 0.0).sd == pytest.approx(judge(belief, policy, 0.0).sd / 2.0, rel=1e-12)


def test_sd_is_zero_where_nothing_is_random():
    cmdp = random_cmdp(np.random.default_rng(4), kind="chain")
    judged = judge(believe(cmdp, np.zeros((6, 3))), random_policy(np.random.default_rng(5), cmdp), 4.0)
    assert judged.sd == 0.0 and judged.upper == judged.cost and np.isfinite(judged.slope).all()


def test_sparse_model_gives_the_same_judgement():
    belief = belief_of(6)
    policy = random_policy(np.random.default_rng(7), belief.cmdp)
    sparse, dense = judge(believe(thin(belief.cmdp), belief.n), policy, 2.0), judge(belief, policy, 2.0)
    assert (sparse.cost, sparse.sd) == pytest.approx((dense.cost, dense.sd), rel=1e-12)
    np.testing.assert_allclose(sparse.slope, dense.slope, rtol=1e-12)


@pytest.mark.parametrize("executed", [0, 3])
def test_slope_and_occupancy_multiply_to_the_upper_value(executed):
    # cost + zσ is homogeneous of degree one in ρ at fixed values, so by Euler Σ ρ ∂/∂ρ is the value itself.
    belief = belief_of(8, executed=executed)
    judged = judge(belief, random_policy(np.random.default_rng(9), belief.cmdp), 3.0)
    assert (judged.slope * judged.occupancy).sum() == pytest.approx(judged.upper, rel=1e-12)


def test_slope_is_the_derivative_at_fixed_values():
    # σ(ρ) = γ √Σ ρ² Var_T̂(V)/(n+1) with V fixed; its numeric derivative by each ρ(s,a), built from Var alone.
    belief, z, h = belief_of(10), 3.0, 1e-6
    cmdp = belief.cmdp
    policy = random_policy(np.random.default_rng(11), cmdp)
    judged = judge(belief, policy, z)
    v = np.linalg.solve(np.eye(5) - cmdp.gamma * np.einsum("sa,sat->st", policy, cmdp.P), (policy * cmdp.c).sum(1))
    variance = cmdp.gamma**2 * (cmdp.P @ v**2 - (cmdp.P @ v) ** 2) / (belief.n + 1)

    def upper(rho: np.ndarray) -> float:
        return (rho * cmdp.c).sum() + z * np.sqrt((rho**2 * variance).sum())

    for s, a in np.ndindex(5, 2):
        step = np.zeros((5, 2))
        step[s, a] = h
        numeric = (upper(judged.occupancy + step) - upper(judged.occupancy - step)) / (2 * h)
        assert judged.slope[s, a] == pytest.approx(numeric, rel=1e-6)


# What executed policies teach.


def test_corrected_cost_of_an_executed_policy_is_what_it_paid():
    # With one policy the correction is surprise · φ·φ/(φ·φ(1 + NUGGET) + 1e-12): all but 1/1001 of the surprise.
    cmdp = random_cmdp(np.random.default_rng(12), S=5, A=2)
    policy = random_policy(np.random.default_rng(13), cmdp)
    predicted = evaluate(cmdp, policy).cost
    belief = believe(cmdp, np.full((5, 2), 20.0), [(policy, predicted + 0.01)])
    assert judge(belief, policy, 0.0).cost - predicted == pytest.approx(0.01 / (1 + NUGGET), rel=1e-5)


def test_every_executed_policy_is_corrected():
    rng = np.random.default_rng(14)
    cmdp = random_cmdp(rng, S=5, A=2)
    played = [(policy, evaluate(cmdp, policy).cost + rng.normal() * 0.01) for policy in
              (random_policy(rng, cmdp) for _ in range(3))]  # fmt: skip
    belief = believe(cmdp, np.full((5, 2), 20.0), played)
    for policy, paid in played:
        before = abs(evaluate(cmdp, policy).cost - paid)
        assert abs(judge(belief, policy, 0.0).cost - paid) < 0.1 * before


def test_correction_brings_a_new_policy_nearer_to_its_true_cost():
    # A true world near the model; the costs of policies already played say something about one that was not.
    rng = np.random.default_rng(15)
    model, n = random_cmdp(rng, S=5, A=2), np.full((5, 2), 200.0)
    errors, corrected = [], []
    for _ in range(40):
        P = rng.gamma(n[..., None] * model.P)
        true = replace(model, P=P / P.sum(-1, keepdims=True))
        *played, new = (random_policy(rng, model) for _ in range(6))
        belief = believe(model, n, [(policy, evaluate(true, policy).cost) for policy in played])
        cost = evaluate(true, new).cost
        errors.append(evaluate(model, new).cost - cost)
        corrected.append(judge(belief, new, 0.0).cost - cost)
    assert np.std(corrected) < 0.7 * np.std(errors)


def test_without_surprise_nothing_is_corrected():
    cmdp = random_cmdp(np.random.default_rng(16), S=5, A=2)
    policy = random_policy(np.random.default_rng(17), cmdp)
    belief = believe(cmdp, np.full((5, 2), 20.0), [(policy, evaluate(cmdp, policy).cost)])
    np.testing.assert_allclose(belief.correction, 0.0, atol=1e-12)


# The search.


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("z", [0.0, 2.0, 6.0])
def test_search_stays_within_the_margin_and_only_improves(seed, z):
    belief = belief_of(seed, visits=60, executed=seed % 3)
    cmdp = belief.cmdp
    starts = [judge(belief, solve(cmdp, -np.inf).policy, z), safest(belief, z)]
    least = min(start.upper for start in starts)
    limit = least + 0.3 * (judge(belief, solve(cmdp, np.inf).policy, z).upper - least)
    best, _ = best_within(belief, cmdp.r, limit, z, starts)
    assert best.upper <= limit
    assert judge(belief, best.policy, z).upper == pytest.approx(best.upper, rel=1e-12)
    assert (best.occupancy * cmdp.r).sum() >= max(
        (start.occupancy * cmdp.r).sum() for start in starts if start.upper <= limit
    )


@pytest.mark.parametrize("seed", range(6))
def test_search_without_a_margin_is_the_linear_program(seed):
    belief = belief_of(seed)
    cmdp = belief.cmdp
    least, free = solve(cmdp, -np.inf), solve(cmdp, np.inf)
    limit = least.cost + 0.5 * (free.cost - least.cost)
    best, _ = best_within(belief, cmdp.r, limit, 0.0, [judge(belief, least.policy, 0.0)])
    optimum = solve(cmdp, limit, "highs").reward
    assert optimum - 1e-3 <= (best.occupancy * cmdp.r).sum() <= optimum + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_search_with_a_margin_is_as_good_as_many_random_policies(seed):
    rng = np.random.default_rng(seed)
    belief, z = belief_of(seed, visits=60), 3.0
    cmdp = belief.cmdp
    start = safest(belief, z)
    limit = start.upper + 0.05
    best, _ = best_within(belief, cmdp.r, limit, z, [start])
    found = [judge(belief, random_policy(rng, cmdp), z) for _ in range(2000)]
    feasible = [(judged.occupancy * cmdp.r).sum() for judged in found if judged.upper <= limit]
    assert feasible and (best.occupancy * cmdp.r).sum() >= max(feasible)


def test_without_a_feasible_start_there_is_no_answer():
    belief = belief_of(0)
    start = safest(belief, 4.0)
    warm = solve(belief.cmdp, np.inf)
    assert best_within(belief, belief.cmdp.r, start.upper - 1e-6, 4.0, [start], warm) == (None, warm)


@pytest.mark.parametrize("seed", range(6))
def test_safest_is_no_worse_than_the_least_cost_policy(seed):
    belief = belief_of(seed, visits=20, executed=seed % 3)
    cheapest = judge(belief, solve(belief.cmdp, -np.inf).policy, 4.0)
    assert safest(belief, 4.0).upper <= cheapest.upper


def test_safest_prefers_what_is_known_to_what_is_cheap():
    # Action 0 is predicted to cost a little less, but was tried once; action 1 was tried often.
    P = np.tile([[0.5, 0.5], [0.5, 0.5]], (2, 1, 1)).reshape(2, 2, 2)
    cmdp = replace(random_cmdp(np.random.default_rng(0), S=2, A=2), P=P, c=np.array([[0.0, 0.01], [1.0, 1.01]]))
    belief = believe(cmdp, np.tile([1.0, 1e6], (2, 1)))
    assert solve(cmdp, -np.inf).policy[:, 0].min() == 1.0
    assert safest(belief, 4.0).policy[:, 1].min() > 0.5


def test_bonus_is_the_standard_error_of_a_pair():
    # γ √(Var_T̂(V)/(n+1)) with V of r − λc.
    belief, multiplier = belief_of(18), 2.0
    cmdp = belief.cmdp
    policy = random_policy(np.random.default_rng(19), cmdp)
    signal = (policy * (cmdp.r - multiplier * cmdp.c)).sum(1)
    v = np.linalg.solve(np.eye(5) - cmdp.gamma * np.einsum("sa,sat->st", policy, cmdp.P), signal)
    variance = cmdp.P @ v**2 - (cmdp.P @ v) ** 2
    expected = cmdp.gamma * np.sqrt(variance / (belief.n + 1))
    np.testing.assert_allclose(bonus(belief, policy, multiplier), expected, rtol=1e-9)


# The agent that uses it.


def test_agent_plays_within_its_margin_and_remembers_what_was_paid():
    world = gridworld(np.random.default_rng(20), size=4, gamma=0.95)
    agent = Calibrated(told(world, 0.5), Spec(0.2, 0.95), z_first=5.0, z_last=3.0, z_fall=4)
    _, *seen = run(agent, WorldCollector(world.cmdp, 400, 4), start=400, steps=8 * 400, key=jr.key(0))
    metrics, state = [outcome.metrics for outcome in seen], seen[-1].state
    assert [entry["kappa"] for entry in metrics] == pytest.approx([5.0, 4.5, 4.0, 3.5, 3.0, 3.0, 3.0])
    assert any(entry["feasible"] for entry in metrics)
    for entry in metrics:
        if entry["feasible"]:
            assert entry["planned_cost"] + entry["kappa"] * entry["planned_sd"] <= 0.2
    assert [paid for _, paid in state.executed] == [outcome.episode.paid for outcome in seen]
