"""Do the bounds on the transition error hold, exactly where they can be enumerated, and what follows for a policy's cost?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log, sqrt

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import gammaln, xlogy

from capax.errors import InputError
from capax.tabular.bounds import (
    bernstein,
    certificate,
    certified_cost,
    count_share,
    gap_bound,
    paper_u,
    paper_valid,
    samples_needed,
    simulation_gap,
    smoothing,
    successor_bernstein,
    total_variation,
    value_penalty,
    weissman,
)
from capax.tabular.cmdp import CMDP, evaluate, penalised, values
from capax.tabular.gridworld import gridworld

EDGE = 1e-12
"""A deviation counts as a failure only if it exceeds its bound by more than rounding."""


def outcomes(n: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All counts of n draws from p, and their exact probabilities (multinomial)."""
    heads = product(range(n + 1), repeat=len(p) - 1)
    counts = np.array([(*head, n - sum(head)) for head in heads if sum(head) <= n], float)
    logs = gammaln(n + 1) - gammaln(counts + 1).sum(1) + xlogy(counts, p).sum(1)
    return counts, np.exp(logs)


def failure(n: int, p: np.ndarray, bound: float) -> float:
    """The exact probability that the empirical frequencies are further than `bound` from p in TV."""
    counts, chances = outcomes(n, p)
    return float(chances[np.abs(counts / n - p).sum(1) / 2 > bound + EDGE].sum())


def simplex(k: int, steps: int) -> list[np.ndarray]:
    grid = product(range(1, steps), repeat=k - 1)
    return [np.array((*head, steps - sum(head))) / steps for head in grid if sum(head) < steps]


def random_cmdp(rng: np.random.Generator, S: int = 4, A: int = 3, gamma: float = 0.9) -> CMDP:
    P = rng.dirichlet(np.full(S, 0.5), size=(S, A))
    return CMDP(P=P, r=rng.random((S, A)), c=rng.random((S, A)), mu0=rng.dirichlet(np.ones(S)), gamma=gamma)


def other_model(rng: np.random.Generator, cmdp: CMDP) -> CMDP:
    return replace(cmdp, P=rng.dirichlet(np.full(cmdp.S, 0.5), size=(cmdp.S, cmdp.A)))


def random_policy(rng: np.random.Generator, cmdp: CMDP) -> np.ndarray:
    return rng.dirichlet(np.full(cmdp.A, 0.5), size=cmdp.S)


def doors(p: float, gamma: float = 0.9) -> CMDP:
    """From the start, state 0, to a free trap (1) with 1 − p, or to one that costs 1 a step for ever (2) with p."""
    P = np.array([[[0, 1 - p, p]], [[0, 1, 0]], [[0, 0, 1]]], float)
    return CMDP(P=P, r=np.zeros((3, 1)), c=np.array([[0.0], [0.0], [1.0]]), mu0=np.array([1.0, 0, 0]), gamma=gamma)


# The paper's u.


def test_paper_u_is_the_formula():
    assert paper_u(1000, S=20, A=4, delta=0.1, K=30) == pytest.approx(
        sqrt(20 / 8000 * log(4 * 30 * 20 * 4 / 0.1)), rel=1e-14
    )


@pytest.mark.parametrize(
    ("S", "A", "K", "delta"), [(5, 1, 1, 0.0063), (8, 2, 1, 1.0), (10, 1, 2, 1.0), (64, 4, 31, 0.05)]
)
def test_paper_u_is_implied_by_weissman_where_it_is_called_valid(S, A, K, delta):
    # Weissman's own radius at the same per-pair probability must not be larger.
    assert paper_valid(S, A, delta, K=K)
    assert weissman(1000, S, delta / (K * S * A)) <= paper_u(1000, S=S, A=A, delta=delta, K=K)


@pytest.mark.parametrize(
    ("S", "A", "K", "delta"), [(5, 1, 1, 0.0064), (10, 1, 1, 1.0), (4, 9, 9, 1e-9), (3, 1, 1, 0.1)]
)
def test_paper_u_is_below_weissman_where_it_is_refused(S, A, K, delta):
    assert not paper_valid(S, A, delta, K=K)
    assert weissman(1000, S, delta / (K * S * A)) > paper_u(1000, S=S, A=A, delta=delta, K=K, strict=False)


def test_more_iterations_can_make_the_paper_u_valid():
    # |S| = 5 needs K|S||A|/δ ≥ 30⁴/2¹⁰ = 791.02 (|S|−4 = 1): 50·5/.32 = 781 is too little, 51·5/.32 = 797 enough.
    assert [paper_valid(5, 1, 0.32, K=K) for K in (50, 51)] == [False, True]


def test_eleven_states_are_always_enough_and_four_never():
    assert all(paper_valid(S, 1, 1.0) for S in range(11, 400))
    assert not any(paper_valid(S, 1000, 1e-300, K=1000) for S in (2, 3, 4))


@pytest.mark.parametrize("S", [2, 3, 4])
def test_paper_u_refuses_small_state_spaces(S):
    with pytest.raises(InputError, match="weissman"):
        paper_u(100, S=S, A=4, delta=0.01)


def test_paper_u_fails_for_two_states():
    # |S|=2, |A|=2, δ=.04: each of the four pairs may fail with δ/(|S||A|) = 1e-2. At 12 draws of p = .46 one fails with 1.6e-2.
    bound = float(paper_u(12, S=2, A=2, delta=0.04, strict=False))
    chance = failure(12, np.array([0.46, 0.54]), bound)
    assert chance == pytest.approx(0.0164, abs=5e-5)
    assert chance > 0.04 / 4
    assert 1 - (1 - chance) ** 4 > 0.04  # and so does the statement about all pairs together


def test_paper_u_fails_for_two_states_by_hand():
    # Three draws of p = ½ all agree with probability ¼, and are then ½ away; u = √(ln 20 / 12) = .4997 at nominal .4/2 = .2.
    bound = float(paper_u(3, S=2, A=1, delta=0.4, strict=False))
    assert failure(3, np.array([0.5, 0.5]), bound) == pytest.approx(0.25, rel=1e-12)


def test_paper_u_fails_for_three_states():
    # Seven draws of p = ⅓ all agree with probability 3⁻⁶ = 1.37e-3, and are then ⅔ away; u = .66658 at nominal 1e-3.
    bound = float(paper_u(7, S=3, A=1, delta=0.003, strict=False))
    assert failure(7, np.full(3, 1 / 3), bound) == pytest.approx(3.0**-6, rel=1e-9)
    assert 3.0**-6 > 0.003 / 3


def test_paper_u_fails_for_three_states_more_at_smaller_delta():
    bound = float(paper_u(28, S=3, A=1, delta=3e-6, strict=False))
    assert failure(28, np.full(3, 1 / 3), bound) > 3.5 * 3e-6 / 3  # three and a half times nominal


def test_the_theorem_itself_fails_for_two_states():
    # One action; 0 → 1 with p = .59, 1 is a trap that costs 1 a step. Ten samples of state 0, any number of state 1. The
    # true cost exceeds the limit, so the LP must be infeasible but for probability δ = 1e-5; it accepts when no sample
    # ever leaves state 0, with probability .41¹⁰ = 1.3e-4, since then ρ̂ never reaches 1 and the penalty is γβu(0,0).
    gamma, p, delta = 0.01, 0.59, 1e-5
    c, mu0 = np.array([[0.0], [1.0]]), np.array([1.0, 0.0])
    true = CMDP(P=np.array([[[1 - p, p]], [[0, 1]]]), r=c, c=c, mu0=mu0, gamma=gamma)
    limit = evaluate(true, np.zeros(2, int)).cost - 1e-9
    u = paper_u(np.array([[10.0], [1e9]]), S=2, A=1, delta=delta, strict=False)
    accepted = 0.0
    for counts, chance in zip(*outcomes(10, np.array([1 - p, p])), strict=True):
        model = replace(true, P=np.array([[counts / 10], [[0, 1]]]))
        accepted += chance * (evaluate(penalised(model, gamma / (1 - gamma) * u), np.zeros(2, int)).cost <= limit)
    assert accepted == pytest.approx(0.41**10, rel=1e-9)
    assert accepted > 13 * delta


# Weissman's bound with known support.


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01, 1e-4])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 40])
def test_weissman_holds_for_two_successors(n, delta):
    bound = float(weissman(n, 2, delta))
    assert max(failure(n, p, bound) for p in simplex(2, 100)) <= delta


@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-3])
@pytest.mark.parametrize("n", [1, 3, 7, 12])
def test_weissman_holds_for_three_successors(n, delta):
    bound = float(weissman(n, 3, delta))
    assert max(failure(n, p, bound) for p in simplex(3, 20)) <= delta


def test_two_thirds_of_weissman_would_not_hold():
    # Nearly Gaussian: the radius is √(ln 20 / 800) = 2.45 sd at δ = .1, and .65 of it, 1.59 sd, is exceeded with .11.
    assert failure(400, np.array([0.5, 0.5]), 0.65 * float(weissman(400, 2, 0.1))) > 0.1


def test_weissman_covers_four_successors():
    rng, n, delta = np.random.default_rng(0), 30, 0.3
    p = np.array([0.4, 0.3, 0.2, 0.1])
    distance = np.abs(rng.multinomial(n, p, size=20_000) / n - p).sum(1) / 2
    assert (distance > weissman(n, 4, delta)).mean() <= delta


def test_weissman_for_one_successor_and_for_none_counted():
    np.testing.assert_array_equal(weissman([0, 5, 0, 1], [1, 1, 4, 4], 0.1), [1.0, 0.0, 1.0, 1.0])


def test_weissman_does_not_overflow():
    # ln(2^k − 2) = k ln 2 for k = 5000, where 2^k itself is infinite.
    assert weissman(10**6, 5000, 1.0) == pytest.approx(sqrt(5000 * log(2) / 2e6), rel=1e-14)


@pytest.mark.parametrize("bound", [
    lambda n, d: weissman(n, 4, d),
    lambda n, d: weissman(n, 4, count_share(d, n, pairs=8)),
    lambda n, d: paper_u(n, S=64, A=4, delta=float(d)),
    lambda n, d: bernstein(0.1, n, span=1.0, delta=d),
])  # fmt: skip
def test_bounds_fall_with_samples_and_with_delta(bound):
    over_n = [float(bound(n, 0.1)) for n in (1, 10, 100, 10**3, 10**4, 10**5)]
    over_delta = [float(bound(10**4, d)) for d in (1e-6, 1e-3, 0.1, 1.0)]
    assert (np.diff(over_n) <= 0).all() and over_n[-1] < over_n[-2] < over_n[-3]
    assert (np.diff(over_delta) < 0).all()


# Smoothing and random counts.


def test_smoothing_term_is_needed_and_enough():
    # T̂ = (count + prior)/(n + m) with all prior mass on the successor that never comes: exactly m/(n+m) away.
    n, prior, p = 6, np.array([0.0, 4.0]), np.array([1.0, 0.0])
    smoothed = (np.array([6.0, 0.0]) + prior) / 10
    assert np.abs(smoothed - p).sum() / 2 == pytest.approx(float(smoothing(n, 4)), rel=1e-14)


@pytest.mark.parametrize("prior", [[1.0, 1.0], [4.0, 0.0], [0.0, 0.3]])
def test_weissman_with_smoothing_holds(prior):
    prior, n, delta = np.array(prior), 8, 0.1
    bound = weissman(n, 2, delta) + smoothing(n, prior.sum())
    for p in simplex(2, 50):
        counts, chances = outcomes(n, p)
        distance = np.abs((counts + prior) / (n + prior.sum()) - p).sum(1) / 2
        assert chances[distance > bound + EDGE].sum() <= delta


def stopping_failure(bounds: np.ndarray, p: float = 0.5) -> float:
    """The exact chance that the frequency leaves its bound at *some* n: what a sampler that stops when it likes can find."""
    alive = np.ones(1)
    for n, bound in enumerate(bounds, start=1):
        alive = np.append(alive * (1 - p), 0.0) + np.append(0.0, alive * p)
        alive[np.abs(np.arange(n + 1) / n - p) > bound + EDGE] = 0.0
    return 1.0 - float(alive.sum())


def test_a_bound_for_fixed_counts_fails_when_the_count_depends_on_the_data():
    assert stopping_failure(weissman(np.arange(1, 2001), 2, 0.1)) > 0.1


def test_shares_of_delta_make_the_bound_hold_at_every_count():
    n = np.arange(1, 2001)
    assert 0 < stopping_failure(weissman(n, 2, count_share(0.1, n, pairs=1))) <= 0.1


def test_shares_add_up_to_delta():
    # Σ_{n≤N} 1/(n(n+1)) = 1 − 1/(N+1), over 8 pairs of which each has its eighth.
    assert 8 * count_share(0.3, np.arange(1, 1000), pairs=8).sum() == pytest.approx(0.3 * (1 - 1 / 1000), rel=1e-12)


# Bernstein-type bounds.


def test_bernstein_is_the_formula():
    # L = ln(4/.04) = ln 100: √(2·.09·L/50) + 7·2·L/(3·49).
    expected = sqrt(2 * 0.09 * log(100) / 50) + 14 * log(100) / 147
    assert bernstein(0.09, 50, span=2.0, delta=0.04) == pytest.approx(expected, rel=1e-14)


def test_bernstein_says_nothing_below_two_samples():
    np.testing.assert_array_equal(bernstein(0.0, [0, 1], span=3.0, delta=0.1), [3.0, 3.0])


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("n", [20, 100, 400])
def test_bernstein_holds_exactly_for_a_coin(n, p):
    delta = 0.1
    counts, chances = outcomes(n, np.array([p, 1 - p]))
    mean = counts[:, 0] / n
    wrong = np.abs(mean - p) > bernstein(mean * (1 - mean) * n / (n - 1), n, span=1.0, delta=delta) + EDGE
    assert chances[wrong].sum() <= delta


def test_bernstein_covers_a_fixed_value_function():
    rng, n, delta = np.random.default_rng(1), 60, 0.2
    p, V = np.array([0.85, 0.05, 0.05, 0.05]), np.array([3.0, 0.0, 5.0, 4.0])
    draws = V[rng.choice(4, p=p, size=(20_000, n))]
    wrong = np.abs(draws.mean(1) - p @ V) > bernstein(draws.var(1, ddof=1), n, span=5.0, delta=delta)
    assert wrong.mean() <= delta


def test_successor_radii_share_delta_among_the_possible_successors():
    # 30 of 40 draws: p̂ = .75, variance .75·.25·40/39, and δ/2 each for the two possible ones of three.
    radii = successor_bernstein(np.array([30.0, 10.0, 0.0]), delta=0.1, possible=np.array([True, True, False]))
    expected = bernstein(0.1875 * 40 / 39, 40, span=1.0, delta=0.05)
    np.testing.assert_allclose(radii, [expected, expected, 0.0], rtol=1e-14)


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_successor_radii_cover_all_successors_at_once(prior):
    rng, n, delta = np.random.default_rng(2), 200, 0.3
    p = np.array([0.8, 0.1, 0.1, 0.0])
    counts = rng.multinomial(n, p, size=20_000).astype(float)
    possible = np.broadcast_to(p > 0, counts.shape)
    model = (counts + prior) / (n + 4 * prior)
    radii = successor_bernstein(counts, delta=delta, possible=possible, centre=model)
    assert (np.abs(model - p) > radii + EDGE).any(1).mean() <= delta


def test_successor_radii_without_the_shift_do_not_cover_a_smoothed_model():
    # A certain successor leaves no error in the frequencies; prior counts on the others put one there.
    counts, model = np.array([[6.0, 0.0]]), np.array([[0.6, 0.4]])
    possible = np.array([[True, False]])
    np.testing.assert_array_equal(successor_bernstein(counts, delta=0.1, possible=possible), [[0.0, 0.0]])
    shifted = successor_bernstein(counts, delta=0.1, possible=possible, centre=model)
    np.testing.assert_allclose(shifted, [[0.4, 0.4]], rtol=1e-14)


def test_uncounted_pairs_have_radius_one():
    possible = np.array([True, True, False])
    np.testing.assert_array_equal(successor_bernstein(np.zeros(3), delta=0.1, possible=possible), [1.0, 1.0, 0.0])


def test_counts_on_an_impossible_successor_are_refused():
    with pytest.raises(InputError, match="possible"):
        successor_bernstein(np.array([3.0, 1.0]), delta=0.1, possible=np.array([True, False]))


# The simulation lemma.


@pytest.mark.parametrize("seed", range(10))
def test_simulation_gap_is_the_difference_of_costs(seed):
    rng = np.random.default_rng(seed)
    true = random_cmdp(rng, gamma=float(rng.uniform(0.0, 0.99)))
    model, policy = other_model(rng, true), random_policy(rng, true)
    difference = evaluate(true, policy).cost - evaluate(model, policy).cost
    assert simulation_gap(true, model, policy) == pytest.approx(difference, abs=1e-12)


def test_simulation_gap_is_the_same_for_sparse_transitions():
    rng = np.random.default_rng(0)
    true = random_cmdp(rng)
    model, policy = other_model(rng, true), random_policy(rng, true)
    thin = [replace(cmdp, P=sp.csr_array(cmdp.rows)) for cmdp in (true, model)]
    for function in (simulation_gap, gap_bound):
        assert function(*thin, policy) == pytest.approx(function(true, model, policy), abs=1e-13)


@pytest.mark.parametrize("seed", range(10))
def test_gap_is_within_its_bound(seed):
    rng = np.random.default_rng(seed)
    true = random_cmdp(rng)
    model, policy = other_model(rng, true), random_policy(rng, true)
    assert abs(simulation_gap(true, model, policy)) <= gap_bound(true, model, policy)


def test_gap_bound_is_reached_so_beta_cannot_be_smaller():
    # V is 0 behind one door and 1/(1−γ) behind the other: the span is all of β, and TV = .7 − .2 at the start alone.
    true, model, policy = doors(0.7), doors(0.2), np.zeros(3, int)
    assert simulation_gap(true, model, policy) == pytest.approx(0.9 * 0.5, rel=1e-12)
    assert gap_bound(true, model, policy) == pytest.approx(0.9 * 0.5, rel=1e-12)


def test_gap_needs_cmdps_that_differ_in_transitions_alone():
    true = doors(0.7)
    with pytest.raises(InputError, match="P alone"):
        simulation_gap(true, replace(true, c=true.c + 1.0), np.zeros(3, int))


# The corrected theorem.


@pytest.mark.parametrize("seed", range(5))
def test_penalised_cost_covers_the_true_cost_if_the_penalty_covers_the_distance(seed):
    rng = np.random.default_rng(seed)
    true = random_cmdp(rng)
    model = other_model(rng, true)
    u = true.gamma * true.c.max() / (1 - true.gamma) * total_variation(true, model)
    for _ in range(20):
        policy = random_policy(rng, true)
        assert evaluate(true, policy).cost <= evaluate(penalised(model, u), policy).cost + EDGE


def test_certificate_is_the_formula():
    # n = 10⁶, k = 4, |S||A| = 6: γβ = 9, Weissman's t at δ/(6 n(n+1)), and 4/(n+4) for the prior.
    n = np.full((3, 2), 1e6)
    t = sqrt(log(14 * 6 * 1e6 * (1e6 + 1) / 0.05) / 2e6)
    np.testing.assert_allclose(certificate(n, 4, delta=0.05, gamma=0.9, prior=4), 9 * (t + 4 / 1000004), rtol=1e-12)


def test_certificate_of_uncounted_pairs_is_gamma_beta():
    np.testing.assert_allclose(certificate(np.zeros((2, 2)), 2, delta=0.1, gamma=0.9, c_max=3.0), 27.0, rtol=1e-12)


def test_certificate_holds_often_enough_at_data_dependent_counts():
    # The start is sampled until the model looks as harmless as it can get within 10 to 400 draws; u must cover that too.
    rng, gamma, delta, runs = np.random.default_rng(3), 0.9, 0.3, 2000
    true, policy = doors(0.3, gamma), np.zeros(3, int)
    cost = evaluate(true, policy).cost
    failed = failed_fixed = 0
    for _ in range(runs):
        frequency = np.cumsum(rng.random(400) < 0.3) / np.arange(1, 401)
        z = (0.3 - frequency) * np.sqrt(np.arange(1, 401))
        n = 10 + int(z[9:].argmax())
        model = doors(float(frequency[n - 1]), gamma)
        counts = np.array([[n], [50], [50]])
        u = certificate(counts, np.array([[2], [1], [1]]), delta=delta, gamma=gamma)
        fixed = gamma / (1 - gamma) * weissman(counts, np.array([[2], [1], [1]]), delta)
        failed += evaluate(penalised(model, u), policy).cost < cost - EDGE
        failed_fixed += evaluate(penalised(model, fixed), policy).cost < cost - EDGE
    assert failed <= delta * runs
    assert failed_fixed > failed  # the union over counts does something here


# The certificate within radii.


def within(rng: np.random.Generator, model: CMDP, radii: np.ndarray) -> CMDP:
    """A transition matrix within the radii: a step towards a random one, as far as they allow."""
    step = rng.dirichlet(np.full(model.S, 0.3), size=(model.S, model.A)) - model.P
    reach = np.where(step == 0, np.inf, radii / np.maximum(np.abs(step), 1e-300)).min(-1, keepdims=True)
    return replace(model, P=model.P + np.minimum(reach, 1.0) * step)


@pytest.mark.parametrize("seed", range(5))
def test_certified_cost_covers_every_transition_matrix_within_the_radii(seed):
    rng = np.random.default_rng(seed)
    model = random_cmdp(rng)
    policy, radii = random_policy(rng, model), rng.uniform(0, 0.3, size=(4, 3, 4))
    worst = certified_cost(model, policy, radii).cost
    assert all(evaluate(within(rng, model, radii), policy).cost <= worst + EDGE for _ in range(50))


def test_certified_cost_is_reached():
    # The costly door is .2 likely in the model and at most .2 + .1 in truth; the cost is γ times that.
    radii = np.zeros((3, 1, 3))
    radii[0] = 0.1
    assert certified_cost(doors(0.2), np.zeros(3, int), radii).cost == pytest.approx(0.9 * 0.3, rel=1e-12)


def test_certified_cost_agrees_with_value_iteration():
    # W ← Σ_a π (c + γ max_T T·W) from an independent LP-free form: max_T T·W over the box by brute force over its corners.
    rng = np.random.default_rng(4)
    model = random_cmdp(rng, S=3, A=2, gamma=0.6)
    policy, radii = random_policy(rng, model), rng.uniform(0, 0.3, size=(3, 2, 3))
    low, high = np.maximum(model.P - radii, 0), np.minimum(model.P + radii, 1)
    W = np.zeros(3)
    for _ in range(80):
        best = np.zeros((3, 2))
        for s, a in product(range(3), range(2)):
            corners = []
            for free in range(3):  # all but one successor at an end of its interval, that one takes the rest
                fixed = [i for i in range(3) if i != free]
                for ends in product(*((low[s, a, i], high[s, a, i]) for i in fixed)):
                    rest = 1 - sum(ends)
                    if low[s, a, free] - EDGE <= rest <= high[s, a, free] + EDGE:
                        corners.append(rest * W[free] + sum(e * W[i] for e, i in zip(ends, fixed, strict=True)))
            best[s, a] = max(corners)
        W = (policy * (model.c + 0.6 * best)).sum(1)
    np.testing.assert_allclose(certified_cost(model, policy, radii).values, W, rtol=1e-10)


def test_certified_cost_is_the_penalised_cost_of_its_own_penalty():
    rng = np.random.default_rng(5)
    model = random_cmdp(rng)
    policy, radii = random_policy(rng, model), rng.uniform(0, 0.2, size=(4, 3, 4))
    certified = certified_cost(model, policy, radii)
    u = value_penalty(model, radii, certified.values)
    assert evaluate(penalised(model, u), policy).cost == pytest.approx(certified.cost, rel=1e-11)


def test_certified_cost_does_not_rely_on_convergence(monkeypatch):
    # Where every step is short, moving all the mass to the worst neighbour changes which neighbour is worst.
    model = gridworld(np.random.default_rng(0), size=4).cmdp
    policy, radii = np.zeros(16, int), np.where(model.P > 0, 0.5, 0.0)
    exact = certified_cost(model, policy, radii).cost
    monkeypatch.setattr("capax.tabular.bounds.MOST_SWEEPS", 1)
    early = certified_cost(model, policy, radii)
    assert (1 - model.gamma) * (model.mu0 @ early.values) < exact - 1e-6  # one sweep is not enough here …
    assert early.cost >= exact  # … and the bound knows


def test_certified_cost_of_sampled_models_fails_at_most_delta():
    rng, delta, runs, n = np.random.default_rng(7), 0.5, 200, 40
    true = random_cmdp(rng, S=3, A=2)
    policies = [random_policy(rng, true) for _ in range(3)]
    failed = 0
    for _ in range(runs):
        counts = rng.multinomial(n, true.P).astype(float)
        model = replace(true, P=(counts + 1) / (n + 3))
        radii = successor_bernstein(counts, delta=delta / 6, centre=model.P)
        failed += any(certified_cost(model, pi, radii).cost < evaluate(true, pi).cost - EDGE for pi in policies)
    assert failed <= delta * runs


def test_value_penalty_is_the_largest_move_of_the_value():
    # Model (.5, .3, .2), V = (0, 1, 3): .1 more on the third, from the first, moves the mean by .3; the second keeps its .3.
    P = np.tile([0.5, 0.3, 0.2], (3, 1, 1))
    cmdp = CMDP(P=P, r=np.zeros((3, 1)), c=np.ones((3, 1)), mu0=np.full(3, 1 / 3), gamma=0.5)
    radii = np.tile([0.1, 0.0, 0.1], (3, 1, 1))
    np.testing.assert_allclose(value_penalty(cmdp, radii, np.array([0.0, 1.0, 3.0])), 0.5 * 0.3, rtol=1e-12)


# How many samples.


def test_samples_needed_is_the_smallest_count():
    # γβu ≤ slack at n ≥ (γβ/slack)² · |S|/8 · ln(4|S||A|/δ) = (99/.1)² · 8 · ln 20480 = 77,837,221.7
    assert samples_needed(lambda n: 99 * paper_u(n, S=64, A=4, delta=0.05), 0.1) == 77_837_222


def test_samples_needed_gives_up_on_a_penalty_that_stays():
    with pytest.raises(InputError, match="slack"):
        samples_needed(lambda n: 1.0, 0.5)


def least_cost_policy(cmdp: CMDP) -> np.ndarray:
    policy = np.zeros(cmdp.S, int)
    while True:
        q = cmdp.c + cmdp.gamma * cmdp.P @ values(cmdp, policy, cmdp.c)
        if (q.min(1) >= q[np.arange(cmdp.S), policy] - 1e-10).all():
            return policy
        policy = q.argmin(1)


def test_samples_needed_in_the_eight_by_eight_world():
    # The numbers of docs/guarantees.md: δ = .05, the same count n for every pair, frequencies that happen to be exact.
    world = gridworld(np.random.default_rng(0)).cmdp
    safest = least_cost_policy(world)
    cost = evaluate(world, safest).cost
    assert cost == pytest.approx(0.0383, abs=5e-5)

    def excess(n: int) -> float:
        delta = count_share(0.05, n, pairs=256)
        return (
            certified_cost(world, safest, successor_bernstein(n * world.P, delta=delta, possible=world.P > 0)).cost
            - cost
        )

    assert [samples_needed(excess, slack) for slack in (0.1 - cost, 0.01)] == [568, 8086]


# What is refused.


@pytest.mark.parametrize("call", [
    lambda: weissman(10, 2, 0.0),
    lambda: weissman(10, 2, 1.5),
    lambda: weissman(10, 2, np.nan),
    lambda: weissman(-1, 2, 0.1),
    lambda: weissman(np.inf, 2, 0.1),
    lambda: weissman("many", 2, 0.1),
    lambda: weissman(10, 0, 0.1),
    lambda: weissman(10, 2.5, 0.1),
    lambda: weissman([1, 2, 3], [2, 2], 0.1),
    lambda: paper_u(10, S=0, A=1, delta=0.1),
    lambda: paper_valid(5, 1, 2.0),
    lambda: smoothing(3, -1.0),
    lambda: count_share(0.1, 3, pairs=0),
    lambda: certificate(np.ones(4), 2, delta=0.1, gamma=0.9),
    lambda: certificate(np.ones((2, 2)), 2, delta=0.1, gamma=1.0),
    lambda: certificate(np.ones((2, 2)), 2, delta=0.1, gamma=0.9, c_max=-1.0),
    lambda: bernstein(-0.1, 10, span=1.0, delta=0.1),
    lambda: successor_bernstein(np.ones((2, 3)), delta=[0.1, 0.1, 0.1]),
    lambda: certified_cost(doors(0.2), np.zeros(3, int), np.zeros((3, 3))),
    lambda: certified_cost(replace(doors(0.2), P=sp.csr_array(doors(0.2).rows)), np.zeros(3, int), np.zeros((3, 1, 3))),
    lambda: value_penalty(doors(0.2), np.zeros((3, 1, 3)), np.zeros(2)),
    lambda: gap_bound(replace(doors(0.2), c=-np.ones((3, 1))), doors(0.2), np.zeros(3, int)),
    lambda: samples_needed(lambda n: 1 / n, -0.1),
])  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(call):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).endswith(".") and str(error.value).count(": ") >= 1
