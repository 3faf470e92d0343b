"""Certificates on a policy's cost follow from bounds on the transitions: simulation lemma, theorem, certified cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log, sqrt

import numpy as np
import pytest
from support.cmdps import random_cmdp, random_policy, sparse_copy, two_doors

from capax.core.errors import InputError
from capax.tabular.bounds import (
    certificate,
    certified_cost,
    count_share,
    gap_bound,
    paper_u,
    samples_needed,
    simulation_gap,
    successor_bernstein,
    total_variation,
    value_penalty,
    weissman,
)
from capax.tabular.cmdp import CMDP, evaluate, penalised, values
from capax.tabular.gridworld import gridworld

TOLERANCE = 1e-12
"""A deviation counts as a failure only if it exceeds its bound by more than this rounding error."""


def other_model(rng: np.random.Generator, cmdp: CMDP) -> CMDP:
    """The same CMDP with other random transitions."""
    return replace(cmdp, P=rng.dirichlet(np.full(cmdp.S, 0.5), size=(cmdp.S, cmdp.A)))


# The simulation lemma.


@pytest.mark.parametrize("seed", range(10))
def test_simulation_gap_is_the_difference_of_costs(seed):
    rng = np.random.default_rng(seed)
    true = random_cmdp(rng, S=4, gamma=float(rng.uniform(0.0, 0.99)))
    model, policy = other_model(rng, true), random_policy(rng, true)
    difference = evaluate(true, policy).cost - evaluate(model, policy).cost
    assert simulation_gap(true, model, policy) == pytest.approx(difference, abs=1e-12)


def test_simulation_gap_is_the_same_for_sparse_transitions():
    rng = np.random.default_rng(0)
    true = random_cmdp(rng, S=4)
    model, policy = other_model(rng, true), random_policy(rng, true)
    sparse = [sparse_copy(cmdp) for cmdp in (true, model)]
    for gap in (simulation_gap, gap_bound):
        assert gap(*sparse, policy) == pytest.approx(gap(true, model, policy), abs=1e-13)


@pytest.mark.parametrize("seed", range(10))
def test_gap_is_within_its_bound(seed):
    rng = np.random.default_rng(seed)
    true = random_cmdp(rng, S=4)
    model, policy = other_model(rng, true), random_policy(rng, true)
    assert abs(simulation_gap(true, model, policy)) <= gap_bound(true, model, policy)


def test_gap_bound_is_reached_so_beta_cannot_be_smaller():
    # V is 0 in one trap and 1/(1−γ) in the other, so the span is β. TV is .7 − .2 in the first state and 0 elsewhere.
    true, model, policy = two_doors(0.7), two_doors(0.2), np.zeros(3, int)
    assert simulation_gap(true, model, policy) == pytest.approx(0.9 * 0.5, rel=1e-12)
    assert gap_bound(true, model, policy) == pytest.approx(0.9 * 0.5, rel=1e-12)


def test_gap_needs_cmdps_that_differ_in_transitions_alone():
    true = two_doors(0.7)
    with pytest.raises(InputError, match="P alone"):
        simulation_gap(true, replace(true, c=true.c + 1.0), np.zeros(3, int))


# The corrected theorem.


@pytest.mark.parametrize("seed", range(5))
def test_penalised_cost_covers_the_true_cost_if_the_penalty_covers_the_distance(seed):
    rng = np.random.default_rng(seed)
    true = random_cmdp(rng, S=4)
    model = other_model(rng, true)
    u = true.gamma * true.c.max() / (1 - true.gamma) * total_variation(true, model)
    for _ in range(20):
        policy = random_policy(rng, true)
        assert evaluate(true, policy).cost <= evaluate(penalised(model, u), policy).cost + TOLERANCE


def test_certificate_is_the_formula():
    # n = 10⁶, k = 4, |S||A| = 6: γβ = 9, Weissman's t at δ/(6 n(n+1)), and 4/(n+4) for the prior.
    n = np.full((3, 2), 1e6)
    t = sqrt(log(14 * 6 * 1e6 * (1e6 + 1) / 0.05) / 2e6)
    np.testing.assert_allclose(certificate(n, 4, delta=0.05, gamma=0.9, prior=4), 9 * (t + 4 / 1000004), rtol=1e-12)


def test_certificate_of_uncounted_pairs_is_gamma_beta():
    np.testing.assert_allclose(certificate(np.zeros((2, 2)), 2, delta=0.1, gamma=0.9, c_max=3.0), 27.0, rtol=1e-12)


def test_certificate_holds_at_data_dependent_counts():
    # Sampling of the first state stops where the model looks safest, within 10 to 400 draws. u must cover this too.
    rng, gamma, delta, runs = np.random.default_rng(3), 0.9, 0.3, 2000
    true, policy = two_doors(0.3, gamma), np.zeros(3, int)
    cost = evaluate(true, policy).cost
    failures = fixed_failures = 0
    for _ in range(runs):
        frequency = np.cumsum(rng.random(400) < 0.3) / np.arange(1, 401)
        z = (0.3 - frequency) * np.sqrt(np.arange(1, 401))
        n = 10 + int(z[9:].argmax())
        model = two_doors(float(frequency[n - 1]), gamma)
        counts = np.array([[n], [50], [50]])
        u = certificate(counts, np.array([[2], [1], [1]]), delta=delta, gamma=gamma)
        fixed = gamma / (1 - gamma) * weissman(counts, np.array([[2], [1], [1]]), delta)
        failures += evaluate(penalised(model, u), policy).cost < cost - TOLERANCE
        fixed_failures += evaluate(penalised(model, fixed), policy).cost < cost - TOLERANCE
    assert failures <= delta * runs
    assert fixed_failures > failures  # the union over counts matters here


# The certificate within radii.


def perturbed(rng: np.random.Generator, model: CMDP, radii: np.ndarray) -> CMDP:
    """The model with other transitions within the radii: a step towards random ones, as far as the radii allow."""
    direction = rng.dirichlet(np.full(model.S, 0.3), size=(model.S, model.A)) - model.P
    max_step = np.where(direction == 0, np.inf, radii / np.maximum(np.abs(direction), 1e-300)).min(-1, keepdims=True)
    return replace(model, P=model.P + np.minimum(max_step, 1.0) * direction)


@pytest.mark.parametrize("seed", range(5))
def test_certified_cost_covers_every_transition_matrix_within_the_radii(seed):
    rng = np.random.default_rng(seed)
    model = random_cmdp(rng, S=4)
    policy, radii = random_policy(rng, model), rng.uniform(0, 0.3, size=(4, 3, 4))
    worst = certified_cost(model, policy, radii).cost
    assert all(evaluate(perturbed(rng, model, radii), policy).cost <= worst + TOLERANCE for _ in range(50))


def test_certified_cost_is_reached():
    # The costly trap has probability .2 in the model and at most .2 + .1 in truth. The cost is γ times that.
    radii = np.zeros((3, 1, 3))
    radii[0] = 0.1
    assert certified_cost(two_doors(0.2), np.zeros(3, int), radii).cost == pytest.approx(0.9 * 0.3, rel=1e-12)


def test_certified_cost_agrees_with_value_iteration():
    # W ← Σ_a π (c + γ max_T T·W), with max_T T·W by brute force over the corners of the box.
    rng = np.random.default_rng(4)
    model = random_cmdp(rng, S=3, A=2, gamma=0.6)
    policy, radii = random_policy(rng, model), rng.uniform(0, 0.3, size=(3, 2, 3))
    low, high = np.maximum(model.P - radii, 0), np.minimum(model.P + radii, 1)
    W = np.zeros(3)
    for _ in range(80):
        best = np.zeros((3, 2))
        for s, a in product(range(3), range(2)):
            corners = []
            for free in range(3):  # all successors but one are at an end of their interval; that one has the rest
                fixed = [i for i in range(3) if i != free]
                for ends in product(*((low[s, a, i], high[s, a, i]) for i in fixed)):
                    rest = 1 - sum(ends)
                    if low[s, a, free] - TOLERANCE <= rest <= high[s, a, free] + TOLERANCE:
                        corners.append(rest * W[free] + sum(e * W[i] for e, i in zip(ends, fixed, strict=True)))
            best[s, a] = max(corners)
        W = (policy * (model.c + 0.6 * best)).sum(1)
    np.testing.assert_allclose(certified_cost(model, policy, radii).values, W, rtol=1e-10)


def test_certified_cost_is_the_cost_with_its_own_penalty():
    rng = np.random.default_rng(5)
    model = random_cmdp(rng, S=4)
    policy, radii = random_policy(rng, model), rng.uniform(0, 0.2, size=(4, 3, 4))
    certified = certified_cost(model, policy, radii)
    u = value_penalty(model, radii, certified.values)
    assert evaluate(penalised(model, u), policy).cost == pytest.approx(certified.cost, rel=1e-11)


def test_certified_cost_does_not_rely_on_convergence(monkeypatch):
    # In a grid, moving all mass to the worst neighbour changes which neighbour is worst.
    model = gridworld(np.random.default_rng(0), size=4).cmdp
    policy, radii = np.zeros(16, int), np.where(model.P > 0, 0.5, 0.0)
    exact = certified_cost(model, policy, radii).cost
    monkeypatch.setattr("capax.tabular.bounds.MAX_SWEEPS", 1)
    early = certified_cost(model, policy, radii)
    assert (1 - model.gamma) * (model.mu0 @ early.values) < exact - 1e-6  # one sweep is not enough here
    assert early.cost >= exact


def test_certified_cost_of_sampled_models_fails_at_most_delta():
    rng, delta, runs, n = np.random.default_rng(7), 0.5, 200, 40
    true = random_cmdp(rng, S=3, A=2)
    policies = [random_policy(rng, true) for _ in range(3)]
    failures = 0
    for _ in range(runs):
        counts = rng.multinomial(n, true.P).astype(float)
        model = replace(true, P=(counts + 1) / (n + 3))
        radii = successor_bernstein(counts, delta=delta / 6, centre=model.P)
        failures += any(certified_cost(model, pi, radii).cost < evaluate(true, pi).cost - TOLERANCE for pi in policies)
    assert failures <= delta * runs


def test_value_penalty_is_the_largest_change_of_the_mean_value():
    # Model (.5, .3, .2), V = (0, 1, 3): moving .1 from the first to the third successor changes the mean by .3.
    P = np.tile([0.5, 0.3, 0.2], (3, 1, 1))
    cmdp = CMDP(P=P, r=np.zeros((3, 1)), c=np.ones((3, 1)), mu0=np.full(3, 1 / 3), gamma=0.5)
    radii = np.tile([0.1, 0.0, 0.1], (3, 1, 1))
    np.testing.assert_allclose(value_penalty(cmdp, radii, np.array([0.0, 1.0, 3.0])), 0.5 * 0.3, rtol=1e-12)


# How many samples.


def test_samples_needed_is_the_smallest_count():
    # γβu ≤ slack at n ≥ (γβ/slack)² · |S|/8 · ln(4|S||A|/δ) = (99/.1)² · 8 · ln 20480 = 77,837,221.7
    assert samples_needed(lambda n: 99 * paper_u(n, S=64, A=4, delta=0.05), 0.1) == 77_837_222


def test_samples_needed_refuses_a_penalty_that_does_not_fall():
    with pytest.raises(InputError, match="slack"):
        samples_needed(lambda n: 1.0, 0.5)


def least_cost_policy(cmdp: CMDP) -> np.ndarray:
    """The actions of least cost, by policy iteration."""
    policy = np.zeros(cmdp.S, int)
    while True:
        q = cmdp.c + cmdp.gamma * cmdp.P @ values(cmdp, policy, cmdp.c)
        if (q.min(1) >= q[np.arange(cmdp.S), policy] - 1e-10).all():
            return policy
        policy = q.argmin(1)


def test_samples_needed_in_the_eight_by_eight_world():
    # The numbers of docs/guarantees.md: δ = .05, the same count n for every pair, frequencies equal to the probabilities.
    world = gridworld(np.random.default_rng(0)).cmdp
    safest_policy = least_cost_policy(world)
    cost = evaluate(world, safest_policy).cost
    assert cost == pytest.approx(0.0383, abs=5e-5)

    def excess(n: int) -> float:
        delta = count_share(0.05, n, pairs=256)
        return (
            certified_cost(
                world, safest_policy, successor_bernstein(n * world.P, delta=delta, possible=world.P > 0)
            ).cost
            - cost
        )

    assert [samples_needed(excess, slack) for slack in (0.1 - cost, 0.01)] == [568, 8086]
