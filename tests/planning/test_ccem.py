"""The planner scores, ranks and samples its candidates as CAP does. Rollouts here are fixed arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax.core.errors import InputError
from capax.core.types import Imagined
from capax.planning import ccem
from capax.planning.ccem import CEM, candidates_around, colour_matrix, sample_noise, shifted
from capax.planning.scoring import Scores, Terms, score_candidates

rank = jax.jit(ccem.rank_candidates)


@jax.jit
def score(imagined: Imagined, kappa: Any, limit: Any, binary: Any) -> Scores:
    """Scores under a limit on the mean cost per step, with binary costs as flags."""
    return score_candidates(imagined, Terms(kappa, limit, jnp.asarray(binary)), budget=False, flags=True)


def best(scores: Any, count: int) -> Any:
    """The elites' numbers, best first."""
    return jnp.argsort(rank(scores))[:count]


def make_imagined(reward: Any, cost: Any, uncertainty: Any = 0.0, alive: Any = 1.0) -> Imagined:
    """One particle and one step per candidate, from lists `[N]`; arrays `[N, P, H]` pass as they are."""
    shape = np.shape(reward) if np.ndim(reward) == 3 else (len(reward), 1, 1)
    parts = (reward, cost, uncertainty, alive)
    arrays = (np.full(shape, part) if np.ndim(part) == 0 else np.reshape(part, shape) for part in parts)
    return Imagined(*(jnp.asarray(part, jnp.float32) for part in arrays))


def elites(imagined: Imagined, count: int, kappa: float = 0.0, limit: float = 1.0, binary: bool = False) -> list[int]:
    return sorted(best(score(imagined, kappa, limit, binary), count).tolist())


# Scores.


def test_return_is_the_sum_and_cost_the_mean_over_the_horizon():
    # two particles, three steps: rewards 1 2 3 and 3 4 5, so the sums are 6 and 12; costs 0 1 2 and 0 0 3, sums 3 and 3
    imagined = make_imagined([[[1, 2, 3], [3, 4, 5]]], [[[0, 1, 2], [0, 0, 3]]], [[[1, 1, 1], [2, 2, 5]]])
    scores = score(imagined, 0.5, 9.0, False)
    assert scores.earned == pytest.approx([9.0])
    assert scores.cost == pytest.approx([1.0])
    assert scores.uncertainty == pytest.approx([2.0])
    assert scores.penalised == pytest.approx([2.0])  # 1 + .5 · 2


def test_a_cost_of_exactly_the_limit_is_feasible():
    assert score(make_imagined([0, 0], [0.5, 0.5000001]), 0.0, 0.5, False).feasible.tolist() == [True, False]


@pytest.mark.parametrize("kappa", [0.0, 0.3, 2.0])
def test_only_the_uncertain_candidate_is_penalised_and_by_kappa_u(kappa):
    certain = score(make_imagined([1, 1, 1], [0.1, 0.2, 0.3]), kappa, 1.0, False)
    uncertain = score(make_imagined([1, 1, 1], [0.1, 0.2, 0.3], [0.0, 0.7, 0.0]), kappa, 1.0, False)
    np.testing.assert_allclose(uncertain.penalised - certain.penalised, [0.0, kappa * 0.7, 0.0], atol=1e-7)
    np.testing.assert_array_equal(uncertain.cost, certain.cost)
    np.testing.assert_array_equal(uncertain.earned, certain.earned)


def test_a_binary_cost_counts_the_steps_that_may_have_a_cost():
    # logit + κ u with κ = 2:  −1 + 2·.4 = −.2,  −1 + 2·.6 = .2,  3,  −1 + 2·.5 = 0, which is not above 0
    imagined = make_imagined([[[0, 0, 0, 0]]], [[[-1, -1, 3, -1]]], [[[0.4, 0.6, 0.0, 0.5]]])
    scores = score(imagined, 2.0, 1.0, True)
    assert scores.cost == pytest.approx([0.25])  # the third step alone
    assert scores.penalised == pytest.approx([0.5])


def test_steps_after_an_imagined_end_earn_nothing_and_cost_what_the_lived_ones_do():
    # the particle ends with its second step; what is predicted after it does not count, and is not finite
    later = [9.0, np.nan]
    imagined = make_imagined([[[1, 2, *later]]], [[[1, 1, *later]]], [[[1, 1, *later]]], [[[1, 1, 0, 0]]])
    scores = score(imagined, 1.0, 9.0, False)
    assert scores.earned == pytest.approx([3.0])
    assert scores.cost == pytest.approx([1.0])
    assert scores.penalised == pytest.approx([2.0])
    assert bool(scores.feasible[0])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["reward", "cost", "uncertainty"])
def test_a_non_finite_candidate_is_infeasible_and_no_elite(where, bad, binary):
    parts = {name: np.full(4, -1.0) for name in ("reward", "cost", "uncertainty")}
    parts[where][1] = bad
    imagined = make_imagined(parts["reward"], parts["cost"], parts["uncertainty"])
    scores = score(imagined, 0.0, 1.0, binary)
    assert scores.feasible.tolist() == [True, False, True, True]
    assert scores.earned[1] == -np.inf and scores.penalised[1] == scores.cost[1] == np.inf
    assert elites(imagined, 3, binary=binary) == [0, 2, 3]
    assert elites(imagined, 3, limit=-2.0, binary=binary) == [0, 2, 3]  # also if nothing is feasible


def test_one_non_finite_particle_affects_only_its_candidate():
    reward = np.zeros((2, 3, 2))
    reward[0, 2, 1] = np.nan
    assert score(make_imagined(reward, 0.0), 0.0, 1.0, False).feasible.tolist() == [False, True]


# Elites.


def test_elites_are_the_best_returns_among_the_feasible():
    # costs above 1 are infeasible: candidates 0, 2, 4, 5 stay, and 5 and 2 have the highest returns
    imagined = make_imagined([1, 9, 4, 8, 3, 5], [0.0, 2.0, 1.0, 1.5, 0.9, 0.2])
    assert elites(imagined, 2) == [2, 5]


def test_elites_are_the_least_penalised_costs_where_too_few_are_feasible():
    # κ = 1: penalised costs 3.0, 2.0, 4.0, .9, 1.2; one is within 1 but two are needed, so return does not matter
    imagined = make_imagined([9, 1, 8, 0, 0], [1.0, 1.5, 3.0, 0.5, 0.2], [2.0, 0.5, 1.0, 0.4, 1.0])
    assert elites(imagined, 2, kappa=1.0) == [3, 4]


def test_ties_of_binary_costs_are_broken_by_the_logits():
    # every step of all four counts as a cost; at κ = 1 the penalised logits are 2, .5, 3 and 1: 1 and 3 are lowest
    for kappa in (1.0, 20.0, 100.0):
        imagined = make_imagined(
            *(np.tile(np.reshape(each, (4, 1, 1)), 12) for each in ([9, 1, 8, 2], [1, -0.5, 2, 0])), 1.0
        )
        assert elites(imagined, 2, kappa=kappa, limit=0.5, binary=True) == [1, 3]
    # no logit, however large, outweighs a step without a cost: costs 1/3, 2/3 and 1
    logits = [[[50, -1, -1]], [[1, 1, -1]], [[1, 1, 1]]]
    assert elites(make_imagined(np.zeros((3, 1, 3)), logits), 1, limit=0.1, binary=True) == [0]


def test_exactly_as_many_feasible_as_elites_are_enough():
    assert elites(make_imagined([1, 2, 99], [1.0, 0.9, 1.1]), 2) == [0, 1]


def test_without_a_limit_the_elites_are_those_of_cem():
    reward, cost = np.random.default_rng(0).normal(size=(2, 50))
    elite_numbers = elites(make_imagined(reward, cost, np.ones(50)), 7, kappa=3.0, limit=np.inf)
    assert elite_numbers == sorted(np.argsort(reward)[-7:].tolist())


def test_without_kappa_the_uncertainty_does_not_matter():
    reward, cost, u, other = np.random.default_rng(1).normal(size=(4, 50))
    assert elites(make_imagined(reward, cost, u), 7, limit=0.3) == elites(
        make_imagined(reward, cost, other), 7, limit=0.3
    )


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kappas=st.tuples(st.floats(0.0, 10.0, width=32), st.floats(0.0, 10.0, width=32)),
    limit=st.floats(-1.0, 3.0, width=32),
    binary=st.booleans(),
)
def test_more_kappa_never_makes_a_candidate_feasible(seed, kappas, limit, binary):
    rng = np.random.default_rng(seed)
    imagined = make_imagined(rng.normal(size=(12, 2, 3)), rng.normal(size=(12, 2, 3)), rng.exponential(size=(12, 2, 3)))
    less, more = (np.asarray(score(imagined, kappa, limit, binary).feasible) for kappa in sorted(kappas))
    assert not (more & ~less).any()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), limit=st.floats(-1.0, 2.0, width=32), wanted=st.sampled_from([1, 5, 12]))
def test_elites_are_feasible_whenever_enough_are(seed, limit, wanted):
    rng = np.random.default_rng(seed)
    scores = score(make_imagined(rng.normal(size=(12, 2, 3)), rng.normal(size=(12, 2, 3))), 0.0, limit, False)
    index = best(scores, wanted)
    assert len(set(index.tolist())) == wanted
    if scores.feasible.sum() >= wanted:
        assert bool(scores.feasible[index].all())


@pytest.mark.parametrize("ranking", [ccem.rank_by_sorting, ccem.rank_by_counting])
def test_ranks_are_those_of_a_stable_sort_with_the_feasible_first(ranking):
    rng = np.random.default_rng(0)
    value, feasible = rng.integers(0, 5, 40).astype(np.float32), rng.random(40) < 0.4  # many are equal
    value[[3, 7]] = -np.inf
    expected = np.lexsort((-value, ~feasible))
    np.testing.assert_array_equal(np.argsort(ranking(jnp.asarray(feasible), jnp.asarray(value))), expected)


def test_non_finite_candidates_rank_last():
    logit = np.array([np.nan, 1.0, 2.0, np.inf])
    scores = score(make_imagined(np.zeros(4), logit), 1.0, 0.0, True)
    assert not bool(scores.feasible.any())
    for ranking in (ccem.rank_by_sorting, ccem.rank_by_counting):
        assert ranking(scores.feasible, -scores.danger).tolist() == [2, 0, 1, 3]


# Candidates.


@partial(jax.jit, static_argnums=(3, 4, 5))
def sample(key: Any, mean: Any, sd: Any, size: int, colour: float, clip: bool = False) -> Any:
    return candidates_around(mean, sd, sample_noise(key, (size, *mean.shape), colour, clip), colour, clip)


@settings(max_examples=50, deadline=None)
@given(
    mean=st.floats(-1.0, 1.0, width=32),
    sd=st.floats(0.0, 2.0, width=32),
    seed=st.integers(0, 2**31 - 1),
    colour=st.sampled_from([0.0, 1.0]),
)
def test_candidates_stay_in_bounds(mean, sd, seed, colour):
    candidates = sample(jr.key(seed), jnp.full((3, 2), mean), jnp.full((3, 2), sd), 50, colour)
    assert candidates.shape == (50, 3, 2)
    assert float(jnp.abs(candidates).max()) <= 1.0


def test_truncated_noise_has_the_deviation_of_its_truncation():
    # a standard normal cut at ±2 has the variance 1 − 4 φ(2)/(2Φ(2) − 1) = 1 − .21596/.9545 = .7737; with
    # 40,000 draws its estimate has an error near .7737 √(2/40000) = .005
    candidates = sample(jr.key(0), jnp.full((1, 1), 0.1), jnp.full((1, 1), 0.3), 40_000, 0.0)
    assert float(candidates.mean()) == pytest.approx(0.1, abs=0.006)
    assert float(candidates.var()) == pytest.approx(0.7737 * 0.09, rel=0.03)
    assert float(jnp.abs(candidates - 0.1).max()) <= 0.6


def test_standard_deviation_is_at_most_half_the_distance_to_the_bound():
    # at .8 the bound is .2 away: a standard deviation of .1, cut at twice that, whatever sd is requested
    candidates = sample(jr.key(0), jnp.full((1, 1), 0.8), jnp.full((1, 1), 2.0), 40_000, 0.0)
    assert float(candidates.var()) == pytest.approx(0.7737 * 0.01, rel=0.03)


def test_clipped_candidates_are_often_at_the_bounds():
    # from N(0, 1), as published from images: 2 (1 − Φ(1)) = .3173 are beyond ± 1 and become ± 1; Var = ∫z²φ from −1 to 1,
    # which is .6827 − 2 φ(1) = .1987, and .3173 of the bounds: .5161
    candidates = sample(jr.key(0), jnp.zeros((1, 1)), jnp.ones((1, 1)), 40_000, 0.0, True)
    assert float((jnp.abs(candidates) == 1.0).mean()) == pytest.approx(0.3173, abs=0.007)
    assert float(candidates.var()) == pytest.approx(0.516, abs=0.01)
    # drawn within the range, none is at a bound
    assert float((jnp.abs(sample(jr.key(0), jnp.zeros((1, 1)), jnp.ones((1, 1)), 40_000, 0.0)) == 1.0).mean()) < 1e-3


@pytest.mark.parametrize("colour", [0.5, 2.0])
def test_coloured_noise_has_the_requested_power(colour):
    # The covariance at lag k of a process with power |f|^−β, over the 2H frequencies −1/2 … 1/2 of a period of
    # 2H steps, is Σ_f |f|^−β cos 2πfk, with f = 0 given the power of the slowest wave.
    H = 6
    f = np.arange(-H, H) / (2 * H)
    power = np.where(f == 0.0, 1 / (2 * H), np.abs(f)) ** -colour
    lags = np.array([(power * np.cos(2 * np.pi * f * k)).sum() for k in range(H)]) / power.sum()
    expected = lags[np.abs(np.subtract.outer(np.arange(H), np.arange(H)))]
    matrix = colour_matrix(H, colour)
    np.testing.assert_allclose(matrix @ matrix.T, expected, atol=1e-5)
    candidates = np.asarray(sample(jr.key(0), jnp.zeros((H, 1)), jnp.full((H, 1), 0.1), 40_000, colour))[..., 0]
    # the error of a correlation from 40,000 draws is at most 1/√40000 = .005
    np.testing.assert_allclose(np.corrcoef(candidates.T), expected, atol=0.025)
    np.testing.assert_allclose(candidates.std(0), 0.1, rtol=0.02)


def test_more_colour_is_slower_noise():
    lags = [float((m @ m.T)[0, 1]) for m in (colour_matrix(10, colour) for colour in (0.0, 0.5, 1.0, 2.0, 8.0))]
    assert lags[0] == pytest.approx(0.0, abs=1e-6)
    assert lags == sorted(lags) and lags[-1] > 0.8


@pytest.mark.parametrize("steps", [1, 2, 100])
@pytest.mark.parametrize("colour", [0.1, 8.0])
def test_colour_matrix_exists_for_any_horizon_and_colour(steps, colour):
    matrix = colour_matrix(steps, colour)
    assert matrix.shape == (steps, steps) and np.isfinite(matrix).all()
    np.testing.assert_allclose(np.square(matrix).sum(1), 1.0, rtol=1e-5)


def test_shifted_drops_the_first_action_and_appends_the_middle():
    np.testing.assert_array_equal(shifted(jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), [[3, 4], [5, 6], [0, 0]])
    np.testing.assert_array_equal(shifted(jnp.ones((1, 2))), [[0, 0]])


@pytest.mark.parametrize(("bad", "message"), [
    ({"horizon": 0}, "horizon is 0: give a whole number >= 1."),
    ({"iterations": 0}, "iterations is 0"),
    ({"population": -1}, "population is -1"),
    ({"elites": 0}, "elites is 0"),
    ({"elites": 600}, "elites is 600, more than the population of 500: give fewer."),
    ({"smoothing": 1.5}, "smoothing is 1.5: give a number from 0 to 1."),
    ({"keep": -0.1}, "keep is -0.1"),
    ({"spread": float("nan")}, "spread is nan"),
    ({"colour": 9.0}, "colour is 9.0"),
    ({"shrink": 0.5}, r"shrink is 0.5: give a number from 1 to 1e\+09."),
    ({"shrink": float("inf")}, "shrink is inf"),
    ({"shrink": 1e9, "iterations": 80}, "shrink is 1000000000.0 in 80 iterations: give less"),
    ({"execute": "median"}, "execute is 'median': choose mean or best."),
    ({"execute": None}, "execute is None: choose mean or best."),
    ({"horizon": True}, "horizon is True: give a whole number >= 1."),
    ({"horizon": 2.5}, "horizon is 2.5: give a whole number >= 1."),
    ({"elites": "50"}, "elites is '50': give a whole number >= 1."),
    ({"iterations": 1001}, "iterations is 1001: give a whole number from 1 to 1000."),
    ({"population": 10**400}, "population is 1000.*…: give a whole number from 1 to 2147483647."),
    ({"population": 2**30, "horizon": 100}, "population 1073741824 × horizon 100 is an array of 400 GiB: give smaller"),
    ({"horizon": 10**5, "colour": 1.0}, "horizon 100000 × horizon 100000 is an array of 74.5 GiB"),
])  # fmt: skip
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(InputError, match=f"^{message}"):
        CEM(**bad)
