"""Bounds on the transition error hold: exactly where all outcomes can be enumerated, else by sampling."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log, sqrt

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import gammaln, xlogy
from support.cmdps import two_doors

from capax.core.errors import InputError
from capax.tabular.bounds import (
    bernstein,
    certificate,
    certified_cost,
    count_share,
    gap_bound,
    paper_u,
    paper_valid,
    samples_needed,
    smoothing,
    successor_bernstein,
    value_penalty,
    weissman,
)
from capax.tabular.cmdp import CMDP, evaluate, penalised

TOLERANCE = 1e-12
"""A deviation counts as a failure only if it exceeds its bound by more than this rounding error."""


def outcomes(n: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All counts of n draws from p, and their exact multinomial probabilities."""
    prefixes = product(range(n + 1), repeat=len(p) - 1)
    counts = np.array([(*prefix, n - sum(prefix)) for prefix in prefixes if sum(prefix) <= n], float)
    logs = gammaln(n + 1) - gammaln(counts + 1).sum(1) + xlogy(counts, p).sum(1)
    return counts, np.exp(logs)


def failure_probability(n: int, p: np.ndarray, bound: float) -> float:
    """The exact probability that the TV between the empirical frequencies and p exceeds `bound`."""
    counts, probabilities = outcomes(n, p)
    return float(probabilities[np.abs(counts / n - p).sum(1) / 2 > bound + TOLERANCE].sum())


def simplex(k: int, steps: int) -> list[np.ndarray]:
    """Distributions over k outcomes, on a grid with `steps` steps, without zeros."""
    grid = product(range(1, steps), repeat=k - 1)
    return [np.array((*prefix, steps - sum(prefix))) / steps for prefix in grid if sum(prefix) < steps]


# The paper's u.


def test_paper_u_is_the_formula():
    assert paper_u(1000, S=20, A=4, delta=0.1, K=30) == pytest.approx(
        sqrt(20 / 8000 * log(4 * 30 * 20 * 4 / 0.1)), rel=1e-14
    )


@pytest.mark.parametrize(
    ("S", "A", "K", "delta"), [(5, 1, 1, 0.0063), (8, 2, 1, 1.0), (10, 1, 2, 1.0), (64, 4, 31, 0.05)]
)
def test_paper_u_is_implied_by_weissman_where_it_is_valid(S, A, K, delta):
    # Weissman's radius with the same probability per pair must not be larger.
    assert paper_valid(S, A, delta, K=K)
    assert weissman(1000, S, delta / (K * S * A)) <= paper_u(1000, S=S, A=A, delta=delta, K=K)


@pytest.mark.parametrize(
    ("S", "A", "K", "delta"), [(5, 1, 1, 0.0064), (10, 1, 1, 1.0), (4, 9, 9, 1e-9), (3, 1, 1, 0.1)]
)
def test_paper_u_is_below_weissman_where_it_is_refused(S, A, K, delta):
    assert not paper_valid(S, A, delta, K=K)
    assert weissman(1000, S, delta / (K * S * A)) > paper_u(1000, S=S, A=A, delta=delta, K=K, strict=False)


def test_more_iterations_can_make_the_paper_u_valid():
    # |S| = 5 needs K|S||A|/δ ≥ 30⁴/2¹⁰ = 791.02 (|S|−4 = 1): 50·5/.32 = 781 is too small, 51·5/.32 = 797 is large enough.
    assert [paper_valid(5, 1, 0.32, K=K) for K in (50, 51)] == [False, True]


def test_paper_u_is_always_valid_from_eleven_states_on_and_never_for_two_to_four():
    assert all(paper_valid(S, 1, 1.0) for S in range(11, 400))
    assert not any(paper_valid(S, 1000, 1e-300, K=1000) for S in (2, 3, 4))


@pytest.mark.parametrize("S", [2, 3, 4])
def test_paper_u_refuses_small_state_spaces(S):
    with pytest.raises(InputError, match="weissman"):
        paper_u(100, S=S, A=4, delta=0.01)


def test_paper_u_fails_for_two_states():
    # |S|=2, |A|=2, δ=.04: each of the four pairs may fail with probability δ/(|S||A|) = 1e-2.
    # With 12 draws of p = .46, a pair fails with probability 1.6e-2.
    bound = float(paper_u(12, S=2, A=2, delta=0.04, strict=False))
    probability = failure_probability(12, np.array([0.46, 0.54]), bound)
    assert probability == pytest.approx(0.0164, abs=5e-5)
    assert probability > 0.04 / 4
    assert 1 - (1 - probability) ** 4 > 0.04  # the statement about all pairs fails too


def test_paper_u_fails_for_two_states_by_hand():
    # Three draws of p = ½ all agree with probability ¼. The TV is then ½, above u = √(ln 20 / 12) = .4997. The nominal
    # failure probability is .4/2 = .2.
    bound = float(paper_u(3, S=2, A=1, delta=0.4, strict=False))
    assert failure_probability(3, np.array([0.5, 0.5]), bound) == pytest.approx(0.25, rel=1e-12)


def test_paper_u_fails_for_three_states():
    # Seven draws of p = ⅓ all agree with probability 3⁻⁶ = 1.37e-3. The TV is then ⅔, above u = .66658. The nominal failure
    # probability is 1e-3.
    bound = float(paper_u(7, S=3, A=1, delta=0.003, strict=False))
    assert failure_probability(7, np.full(3, 1 / 3), bound) == pytest.approx(3.0**-6, rel=1e-9)
    assert 3.0**-6 > 0.003 / 3


def test_paper_u_fails_more_often_for_three_states_at_smaller_delta():
    bound = float(paper_u(28, S=3, A=1, delta=3e-6, strict=False))
    assert failure_probability(28, np.full(3, 1 / 3), bound) > 3.5 * 3e-6 / 3  # 3.5 times the nominal probability


def test_the_paper_theorem_fails_for_two_states():
    # One action; 0 → 1 with p = .59; state 1 is a trap that costs 1 per step. There are ten samples of state 0 and any
    # number of state 1. The true cost exceeds the limit, so the LP may be feasible with probability δ = 1e-5 at most. It
    # is feasible if no sample leaves state 0, with probability .41¹⁰ = 1.3e-4: then ρ̂ never reaches state 1, and the
    # penalty is γβu(0,0).
    gamma, p, delta = 0.01, 0.59, 1e-5
    c, mu0 = np.array([[0.0], [1.0]]), np.array([1.0, 0.0])
    true = CMDP(P=np.array([[[1 - p, p]], [[0, 1]]]), r=c, c=c, mu0=mu0, gamma=gamma)
    limit = evaluate(true, np.zeros(2, int)).cost - 1e-9
    u = paper_u(np.array([[10.0], [1e9]]), S=2, A=1, delta=delta, strict=False)
    accepted = 0.0
    for counts, probability in zip(*outcomes(10, np.array([1 - p, p])), strict=True):
        model = replace(true, P=np.array([[counts / 10], [[0, 1]]]))
        accepted += probability * (evaluate(penalised(model, gamma / (1 - gamma) * u), np.zeros(2, int)).cost <= limit)
    assert accepted == pytest.approx(0.41**10, rel=1e-9)
    assert accepted > 13 * delta


# Weissman's bound with known support.


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01, 1e-4])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 40])
def test_weissman_holds_for_two_successors(n, delta):
    bound = float(weissman(n, 2, delta))
    assert max(failure_probability(n, p, bound) for p in simplex(2, 100)) <= delta


@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-3])
@pytest.mark.parametrize("n", [1, 3, 7, 12])
def test_weissman_holds_for_three_successors(n, delta):
    bound = float(weissman(n, 3, delta))
    assert max(failure_probability(n, p, bound) for p in simplex(3, 20)) <= delta


def test_two_thirds_of_weissman_does_not_hold():
    # Nearly Gaussian: at δ = .1 the radius is √(ln 20 / 800) = 2.45 sd. Errors exceed .65 of it, 1.59 sd, with
    # probability .11.
    assert failure_probability(400, np.array([0.5, 0.5]), 0.65 * float(weissman(400, 2, 0.1))) > 0.1


def test_weissman_covers_four_successors():
    rng, n, delta = np.random.default_rng(0), 30, 0.3
    p = np.array([0.4, 0.3, 0.2, 0.1])
    distance = np.abs(rng.multinomial(n, p, size=20_000) / n - p).sum(1) / 2
    assert (distance > weissman(n, 4, delta)).mean() <= delta


def test_weissman_is_zero_for_one_successor_and_one_without_counts():
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


def test_smoothing_term_is_exact_in_the_worst_case():
    # T̂ = (count + prior)/(n + m) with all prior mass on a successor that never occurs: the TV is exactly m/(n+m).
    n, prior, p = 6, np.array([0.0, 4.0]), np.array([1.0, 0.0])
    smoothed = (np.array([6.0, 0.0]) + prior) / 10
    assert np.abs(smoothed - p).sum() / 2 == pytest.approx(float(smoothing(n, 4)), rel=1e-14)


@pytest.mark.parametrize("prior", [[1.0, 1.0], [4.0, 0.0], [0.0, 0.3]])
def test_weissman_with_smoothing_holds(prior):
    prior, n, delta = np.array(prior), 8, 0.1
    bound = weissman(n, 2, delta) + smoothing(n, prior.sum())
    for p in simplex(2, 50):
        counts, probabilities = outcomes(n, p)
        distance = np.abs((counts + prior) / (n + prior.sum()) - p).sum(1) / 2
        assert probabilities[distance > bound + TOLERANCE].sum() <= delta


def optional_stopping_failure(bounds: np.ndarray, p: float = 0.5) -> float:
    """The exact probability that the frequency exceeds its bound at some n, where a sampler may choose to stop."""
    within = np.ones(1)
    for n, bound in enumerate(bounds, start=1):
        within = np.append(within * (1 - p), 0.0) + np.append(0.0, within * p)
        within[np.abs(np.arange(n + 1) / n - p) > bound + TOLERANCE] = 0.0
    return 1.0 - float(within.sum())


def test_a_bound_for_fixed_counts_fails_when_the_count_depends_on_the_data():
    assert optional_stopping_failure(weissman(np.arange(1, 2001), 2, 0.1)) > 0.1


def test_shares_of_delta_make_the_bound_hold_at_every_count():
    n = np.arange(1, 2001)
    assert 0 < optional_stopping_failure(weissman(n, 2, count_share(0.1, n, pairs=1))) <= 0.1


def test_shares_add_up_to_delta():
    # Σ_{n≤N} 1/(n(n+1)) = 1 − 1/(N+1), for each of 8 pairs, which have an eighth of δ each.
    assert 8 * count_share(0.3, np.arange(1, 1000), pairs=8).sum() == pytest.approx(0.3 * (1 - 1 / 1000), rel=1e-12)


# Bernstein-type bounds.


def test_bernstein_is_the_formula():
    # L = ln(4/.04) = ln 100: √(2·.09·L/50) + 7·2·L/(3·49).
    expected = sqrt(2 * 0.09 * log(100) / 50) + 14 * log(100) / 147
    assert bernstein(0.09, 50, span=2.0, delta=0.04) == pytest.approx(expected, rel=1e-14)


def test_bernstein_is_the_span_below_two_samples():
    np.testing.assert_array_equal(bernstein(0.0, [0, 1], span=3.0, delta=0.1), [3.0, 3.0])


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("n", [20, 100, 400])
def test_bernstein_holds_exactly_for_a_coin(n, p):
    delta = 0.1
    counts, probabilities = outcomes(n, np.array([p, 1 - p]))
    mean = counts[:, 0] / n
    exceeded = np.abs(mean - p) > bernstein(mean * (1 - mean) * n / (n - 1), n, span=1.0, delta=delta) + TOLERANCE
    assert probabilities[exceeded].sum() <= delta


def test_bernstein_covers_a_fixed_value_function():
    rng, n, delta = np.random.default_rng(1), 60, 0.2
    p, V = np.array([0.85, 0.05, 0.05, 0.05]), np.array([3.0, 0.0, 5.0, 4.0])
    draws = V[rng.choice(4, p=p, size=(20_000, n))]
    exceeded = np.abs(draws.mean(1) - p @ V) > bernstein(draws.var(1, ddof=1), n, span=5.0, delta=delta)
    assert exceeded.mean() <= delta


def test_successor_radii_share_delta_among_the_possible_successors():
    # 30 of 40 draws: p̂ = .75, variance .75·.25·40/39, and δ/2 for each of the two possible successors.
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
    assert (np.abs(model - p) > radii + TOLERANCE).any(1).mean() <= delta


def test_successor_radii_without_the_shift_do_not_cover_a_smoothed_model():
    # With one possible successor the frequencies have no error. Prior counts on the others add an error.
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


# Refused input.


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
    lambda: certified_cost(two_doors(0.2), np.zeros(3, int), np.zeros((3, 3))),
    lambda: certified_cost(replace(two_doors(0.2), P=sp.csr_array(two_doors(0.2).rows)), np.zeros(3, int), np.zeros((3, 1, 3))),
    lambda: value_penalty(two_doors(0.2), np.zeros((3, 1, 3)), np.zeros(2)),
    lambda: gap_bound(replace(two_doors(0.2), c=-np.ones((3, 1))), two_doors(0.2), np.zeros(3, int)),
    lambda: samples_needed(lambda n: 1 / n, -0.1),
])  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(call):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).endswith(".") and str(error.value).count(": ") >= 1
