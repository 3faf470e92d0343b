"""`solve` finds the optimum under the limit, with both methods and on every kind of CMDP."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cmdps import TRANSITION_KINDS, random_cmdp, sparse_copy

from capax.core.errors import InputError
from capax.tabular import CMDP, Solution, evaluate, solve

METHODS = ("highs", "lagrangian")


def cost_range(cmdp: CMDP) -> tuple[float, float]:
    """The least cost of any policy, and the cost of the best policy without a limit."""
    return solve(cmdp, -math.inf).cost, solve(cmdp, math.inf).cost


def limit_at(cmdp: CMDP, share: float) -> float:
    """A limit: the least cost for share 0, the cost without a limit for share 1."""
    least, unconstrained = cost_range(cmdp)
    return least + share * (unconstrained - least)


def assert_agree(cmdp: CMDP, limit: float, tolerance: float) -> None:
    """Both methods agree and keep the limit. Costs must agree where they are unique: at an active limit or least cost."""
    highs, lagrangian = (solve(cmdp, limit, method) for method in METHODS)
    assert highs.status == lagrangian.status
    if highs.status == "infeasible":
        assert lagrangian.cost == pytest.approx(highs.cost, abs=tolerance)
        return
    # an error of the cost is an error of the reward that is λ times as large
    assert lagrangian.reward == pytest.approx(highs.reward, abs=tolerance * max(1.0, lagrangian.multiplier))
    assert max(highs.cost, lagrangian.cost) <= limit + tolerance
    if min(highs.multiplier, lagrangian.multiplier) > 0.0:
        assert lagrangian.cost == pytest.approx(highs.cost, abs=tolerance)


# The two methods against each other.


@pytest.mark.parametrize("kind", TRANSITION_KINDS)
@pytest.mark.parametrize(("gamma", "tolerance"), [(0.0, 1e-9), (0.5, 1e-9), (0.9, 1e-9), (0.99, 1e-9), (0.999, 1e-6)])
def test_methods_agree_on_random_cmdps(kind, gamma, tolerance):
    rng = np.random.default_rng(0)
    for S, A in ((2, 2), (5, 3), (20, 4)):
        cmdp = random_cmdp(rng, S, A, gamma, kind)
        for share in (0.05, 0.5, 0.95):
            assert_agree(cmdp, limit_at(cmdp, share), tolerance)


@pytest.mark.parametrize("kind", TRANSITION_KINDS)
@pytest.mark.parametrize("digits", [0, 1])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
def test_methods_agree_on_ties(kind, digits, gamma):
    rng = np.random.default_rng(1)
    for S, A in ((3, 2), (12, 4)):
        cmdp = random_cmdp(rng, S, A, gamma, kind, digits)
        for share in (0.0, 0.3, 0.7, 1.0):
            assert_agree(cmdp, limit_at(cmdp, share), 1e-9)


def test_highs_solves_cmdps_with_tiny_probabilities():
    # Dirichlet(.05) draws probabilities down to 1e-50, which LP solvers scale up or drop.
    rng = np.random.default_rng(16)
    for _ in range(150):
        cmdp = random_cmdp(rng, S=10, A=3, gamma=0.5, kind="peaked")
        assert_agree(cmdp, limit_at(cmdp, 1.0), 1e-9)


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("digits", [0, 16])
def test_a_single_policy_that_costs_exactly_the_limit_is_feasible(gamma, digits):
    # The only policy costs exactly the limit. Rounding must not make it infeasible for one of the methods.
    rng = np.random.default_rng(17)
    for _ in range(100):
        cmdp = random_cmdp(rng, S=3, A=1, gamma=gamma, kind="peaked", digits=digits)
        assert_agree(cmdp, evaluate(cmdp, np.zeros(3, int)).cost, 1e-9 if gamma < 0.999 else 1e-6)


@pytest.mark.parametrize(("S", "A"), [(1, 1), (1, 4), (5, 1)])
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_methods_agree_with_one_state_or_one_action(S, A, gamma):
    cmdp = random_cmdp(np.random.default_rng(2), S, A, gamma)
    for limit in (-0.1, limit_at(cmdp, 0.5), limit_at(cmdp, 1.0) + 1e-6, 2.0):
        assert_agree(cmdp, limit, 1e-9)


@given(
    seed=st.integers(0, 2**20),
    S=st.integers(1, 8),
    A=st.integers(1, 4),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    kind=st.sampled_from(TRANSITION_KINDS),
    digits=st.sampled_from([0, 1, 16]),
    share=st.floats(-0.2, 1.2),
    sparse=st.booleans(),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_methods_agree_on_fuzzed_cmdps(seed, S, A, gamma, kind, digits, share, sparse):
    cmdp = random_cmdp(np.random.default_rng(seed), S, A, gamma, kind, digits)
    limit = limit_at(cmdp, share)
    assert_agree(sparse_copy(cmdp) if sparse else cmdp, limit, 1e-9)


# Oracles that are independent of both methods.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", TRANSITION_KINDS)
def test_optimum_is_the_best_mixture_of_two_deterministic_policies(kind, method):
    # With one constraint an optimal vertex of Eq. 2 mixes the occupancies of at most two deterministic policies.
    cmdp = random_cmdp(np.random.default_rng(3), S=3, A=3, kind=kind)
    vertices = [evaluate(cmdp, np.array(actions))[:2] for actions in product(range(3), repeat=3)]
    for share in (0.1, 0.4, 0.8, 1.1):
        limit = limit_at(cmdp, share)
        rewards = [reward for reward, cost in vertices if cost <= limit]
        for (r1, c1), (r2, c2) in combinations(vertices, 2):
            if min(c1, c2) < limit < max(c1, c2):
                rewards.append(r1 + (r2 - r1) * (limit - c1) / (c2 - c1))
        assert solve(cmdp, limit, method).reward == pytest.approx(max(rewards), abs=1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_mixture_is_the_one_derived_by_hand(method):
    # One state. Action a earns 1 and costs 1; action b earns and costs nothing. Under the limit .3 the best policy plays a
    # with probability .3.
    cmdp = CMDP(np.ones((1, 2, 1)), np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]]), np.ones(1), 0.9)
    solution = solve(cmdp, 0.3, method)
    np.testing.assert_allclose(solution.policy, [[0.3, 0.7]], rtol=1e-12)
    assert solution.multiplier == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_multiplier_is_the_derivative_of_the_reward_by_the_limit(method):
    cmdp = random_cmdp(np.random.default_rng(4))
    limit, step = limit_at(cmdp, 0.45), 1e-6
    above, below = (solve(cmdp, limit + sign * step, method) for sign in (1, -1))
    assert above.multiplier == pytest.approx(below.multiplier, rel=1e-9)  # the limit is not at a kink
    slope = (above.reward - below.reward) / (2 * step)
    assert solve(cmdp, limit, method).multiplier == pytest.approx(slope, rel=1e-6)


# The solution.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", TRANSITION_KINDS)
@pytest.mark.parametrize("share", [-0.5, 0.0, 0.5, 1.5])
def test_policy_is_a_distribution_and_its_evaluation_is_exact(kind, share, method):
    cmdp = random_cmdp(np.random.default_rng(5), S=8, kind=kind)
    solution = solve(cmdp, limit_at(cmdp, share), method)
    assert solution.policy.min() >= 0.0
    np.testing.assert_allclose(solution.policy.sum(1), 1.0, rtol=1e-14)
    exact = evaluate(cmdp, solution.policy)
    assert (solution.reward, solution.cost) == (exact.reward, exact.cost)
    np.testing.assert_array_equal(solution.occupancy, exact.occupancy)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", TRANSITION_KINDS)
def test_infeasible_solution_has_the_least_cost_policy(kind, method):
    cmdp = random_cmdp(np.random.default_rng(6), S=4, A=2, kind=kind)
    least = min(evaluate(cmdp, np.array(actions)).cost for actions in product(range(2), repeat=4))
    solution = solve(cmdp, least - 1e-3, method)
    assert solution.status == "infeasible" and solution.multiplier == math.inf
    assert solution.cost == pytest.approx(least, abs=1e-11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", TRANSITION_KINDS)
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
def test_limit_of_exactly_the_least_cost_is_feasible(kind, gamma, method):
    cmdp = random_cmdp(np.random.default_rng(7), S=8, gamma=gamma, kind=kind)
    least, _ = cost_range(cmdp)
    solution = solve(cmdp, least, method)
    assert solution.status == "optimal"
    assert solution.cost == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("excess", [0.0, 1e-3, math.inf])
def test_slack_limit_gives_the_unconstrained_optimum(excess, method):
    # Value iteration is the oracle: V ← max_a r + γPV, 2000 sweeps at γ = .9 leave .9^2000 < 1e-91.
    cmdp = random_cmdp(np.random.default_rng(8))
    V = np.zeros(cmdp.S)
    for _ in range(2000):
        V = (cmdp.r + cmdp.gamma * cmdp.P @ V).max(1)
    solution = solve(cmdp, cost_range(cmdp)[1] + excess, method)
    assert solution.status == "optimal"
    assert solution.reward == pytest.approx((1 - cmdp.gamma) * cmdp.mu0 @ V, abs=1e-11)
    if excess:
        assert solution.multiplier == pytest.approx(0.0, abs=1e-12)


def test_methods_agree_on_negative_rewards_and_costs():
    rng = np.random.default_rng(9)
    cmdp = random_cmdp(rng)
    cmdp = replace(cmdp, r=cmdp.r - 0.7, c=5.0 * (cmdp.c - 0.5))
    assert_agree(cmdp, limit_at(cmdp, 0.4), 1e-9)


def test_shifting_the_reward_shifts_the_optimum():
    # Σρ = 1, so r + b earns b more under every policy.
    cmdp = random_cmdp(np.random.default_rng(10))
    limit = limit_at(cmdp, 0.5)
    shifted = solve(replace(cmdp, r=cmdp.r + 3.0), limit)
    assert shifted.reward == pytest.approx(solve(cmdp, limit).reward + 3.0, abs=1e-11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [-0.5, 0.5, 1.5])
def test_sparse_transitions_give_the_dense_optimum(share, method):
    cmdp = random_cmdp(np.random.default_rng(11), S=30, A=4, gamma=0.99, kind="sparse")
    limit = limit_at(cmdp, share)
    dense, sparse = solve(cmdp, limit, method), solve(sparse_copy(cmdp), limit, method)
    assert sparse.status == dense.status
    np.testing.assert_allclose([sparse.reward, sparse.cost], [dense.reward, dense.cost], atol=1e-10)


def test_auto_is_one_of_the_two_methods():
    cmdp = random_cmdp(np.random.default_rng(12))
    limit = limit_at(cmdp, 0.5)
    assert solve(cmdp, limit).reward in [solve(cmdp, limit, method).reward for method in METHODS]


# Warm starts.


@pytest.mark.parametrize("kind", TRANSITION_KINDS)
def test_warm_start_finds_the_same_optimum_as_a_cold_start(kind):
    # A sequence like that of an agent: P changes a little each time. The limit is sometimes infeasible.
    rng = np.random.default_rng(13)
    cmdp = random_cmdp(rng, S=12, A=4, gamma=0.95, kind=kind)
    warm: Solution | None = None
    statuses = set()
    for _ in range(25):
        change = random_cmdp(rng, S=12, A=4, kind=kind)
        cmdp = replace(cmdp, P=0.9 * cmdp.P + 0.1 * change.P, c=0.9 * cmdp.c + 0.1 * change.c)
        limit = limit_at(cmdp, float(rng.uniform(-0.3, 1.3)))
        cold, warm = solve(cmdp, limit), solve(cmdp, limit, warm=warm)
        statuses.add(cold.status)
        assert warm.status == cold.status
        assert warm.cost == pytest.approx(cold.cost, abs=1e-10)
        if cold.status == "optimal":
            assert warm.reward == pytest.approx(cold.reward, abs=1e-10)
    assert statuses == {"optimal", "infeasible"}


def test_a_misleading_warm_start_does_no_harm():
    rng = np.random.default_rng(14)
    cmdp, other = random_cmdp(rng), random_cmdp(rng, kind="chain")
    limit = limit_at(cmdp, 0.5)
    misleading = solve(other, limit_at(other, 0.2))
    for multiplier in (1e-12, 1e-3, 1e6, math.nan, math.inf):
        warm = solve(cmdp, limit, warm=misleading._replace(multiplier=multiplier))
        assert warm.reward == pytest.approx(solve(cmdp, limit).reward, abs=1e-11)


# Refused input, and extreme numbers.


@pytest.mark.parametrize("limit", [math.nan, "a lot", "0.5", True, None, [0.1, 0.2], np.array([0.5])])
def test_limit_must_be_a_number(limit):
    with pytest.raises(InputError, match="limit"):
        solve(random_cmdp(np.random.default_rng(15)), limit)


def test_unknown_method_is_refused_and_the_methods_are_listed():
    with pytest.raises(InputError, match=r"'simplex'.*auto, lagrangian or highs"):
        solve(random_cmdp(np.random.default_rng(15)), 0.5, "simplex")


@pytest.mark.parametrize("warm", [3, (), {"policy": 1}])
def test_a_warm_start_that_is_not_a_solution_is_refused(warm):
    with pytest.raises(InputError, match=r"^warm is .*: give the solution of a similar problem, or None\.$"):
        solve(random_cmdp(np.random.default_rng(15)), 0.5, warm=warm)


def test_a_limit_beyond_all_floats_equals_no_limit():
    cmdp = random_cmdp(np.random.default_rng(15))
    assert solve(cmdp, 10**400).reward == solve(cmdp, math.inf).reward


def test_a_zero_multiplier_is_zero_in_extreme_units():
    # r is scaled by 2^997 and c by 2^−963. Their ratio is not a float, but a multiplier of 0 is 0 in any unit.
    best = solve(CMDP(np.ones((1, 1, 1)), [[1e300]], [[1e-290]], [1.0], 0.0), 1.0)
    assert best.multiplier == 0.0 and best.status == "optimal"


def test_warm_start_of_another_shape_is_refused():
    rng = np.random.default_rng(15)
    with pytest.raises(InputError, match="warm"):
        solve(random_cmdp(rng, S=4), 0.5, warm=solve(random_cmdp(rng, S=5), 0.5))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("reward_scale", "cost_scale"), [(1.0, 1e-13), (1e20, 1.0), (1e-20, 1e15), (3.0, 7.0)])
def test_the_units_of_reward_and_cost_do_not_matter(method, reward_scale, cost_scale):
    # The optimal reward scales with r, cost and limit scale with c, and the multiplier scales with the ratio r/c.
    base = random_cmdp(np.random.default_rng(20), gamma=0.9)
    limit = limit_at(base, 0.5)
    plain = solve(base, limit, method)
    other = solve(replace(base, r=reward_scale * base.r, c=cost_scale * base.c), cost_scale * limit, method)
    assert other.reward / reward_scale == pytest.approx(plain.reward, rel=1e-9)
    assert other.cost / cost_scale == pytest.approx(limit, rel=1e-9)
    assert other.multiplier * cost_scale / reward_scale == pytest.approx(plain.multiplier, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_limits_that_no_policy_keeps_or_every_policy_keeps(method):
    P = [[[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.9], [0.0, 1.0]]]
    cmdp = CMDP(P, [[0.0, 1.0], [1.0, 1.0]], [[-1.0, -1.0], [0.0, 1.0]], [0.5, 0.5], 0.9)
    assert solve(cmdp, -np.inf, method).status == "infeasible"
    assert solve(cmdp, np.inf, method).reward == pytest.approx(1.0, abs=1e-12)


def test_a_huge_reward_for_a_tiny_cost_does_not_hang():
    # One state; action 1 earns 1e300 and costs 1e-9. The limit 5e-10 allows it with probability ½.
    best = solve(CMDP(np.ones((1, 2, 1)), [[0.0, 1e300]], [[0.0, 1e-9]], [1.0], 0.0), 5e-10)
    assert best.policy == pytest.approx(np.array([[0.5, 0.5]]), abs=1e-12)
