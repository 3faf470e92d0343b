"""Does the planner choose as CAP says? Models here are bandits whose answers are known."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax.errors import InputError
from capax.planning import ccem
from capax.planning.ccem import CEM, Imagined, PlanInfo, Rollout, around, correlate, noise, plan, shifted

judge, best = jax.jit(ccem.judge), jax.jit(ccem.best, static_argnums=1)

SMALL = CEM(horizon=2, iterations=3, population=64, elites=8)


def imagined(reward: Any, cost: Any, uncertainty: Any = 0.0, alive: Any = 1.0) -> Imagined:
    """One particle and one step per candidate, from lists `[N]`; arrays `[N, P, H]` pass as they are."""
    shape = np.shape(reward) if np.ndim(reward) == 3 else (len(reward), 1, 1)
    parts = (reward, cost, uncertainty, alive)
    filled = (np.full(shape, part) if np.ndim(part) == 0 else np.reshape(part, shape) for part in parts)
    return Imagined(*(jnp.asarray(part, jnp.float32) for part in filled))


def elites(thought: Imagined, count: int, kappa: float = 0.0, limit: float = 1.0, binary: bool = False) -> list[int]:
    return sorted(best(judge(thought, kappa, limit, binary), count).tolist())


# What a candidate is worth.


def test_return_is_summed_over_the_horizon_and_cost_is_the_mean_of_a_step():
    # two particles, three steps: rewards 1 2 3 and 3 4 5, so the sums are 6 and 12; costs 0 1 2 and 0 0 3, sums 3 and 3
    thought = imagined([[[1, 2, 3], [3, 4, 5]]], [[[0, 1, 2], [0, 0, 3]]], [[[1, 1, 1], [2, 2, 5]]])
    scores = judge(thought, 0.5, 9.0, False)
    assert scores.earned == pytest.approx([9.0])
    assert scores.cost == pytest.approx([1.0])
    assert scores.uncertainty == pytest.approx([2.0])
    assert scores.penalised == pytest.approx([2.0])  # 1 + .5 · 2


def test_a_cost_of_exactly_the_limit_is_feasible():
    assert judge(imagined([0, 0], [0.5, 0.5000001]), 0.0, 0.5, False).feasible.tolist() == [True, False]


@pytest.mark.parametrize("kappa", [0.0, 0.3, 2.0])
def test_only_the_uncertain_candidate_is_penalised_and_by_kappa_u(kappa):
    sure = judge(imagined([1, 1, 1], [0.1, 0.2, 0.3]), kappa, 1.0, False)
    unsure = judge(imagined([1, 1, 1], [0.1, 0.2, 0.3], [0.0, 0.7, 0.0]), kappa, 1.0, False)
    np.testing.assert_allclose(unsure.penalised - sure.penalised, [0.0, kappa * 0.7, 0.0], atol=1e-7)
    np.testing.assert_array_equal(unsure.cost, sure.cost)
    np.testing.assert_array_equal(unsure.earned, sure.earned)


def test_a_binary_cost_counts_the_steps_that_may_pay():
    # logit + κ u with κ = 2:  −1 + 2·.4 = −.2,  −1 + 2·.6 = .2,  3,  −1 + 2·.5 = 0, which is not above 0
    thought = imagined([[[0, 0, 0, 0]]], [[[-1, -1, 3, -1]]], [[[0.4, 0.6, 0.0, 0.5]]])
    scores = judge(thought, 2.0, 1.0, True)
    assert scores.cost == pytest.approx([0.25])  # the third step alone
    assert scores.penalised == pytest.approx([0.5])


def test_what_follows_an_imagined_ending_counts_for_nothing():
    # the particle ends with its second step; what comes later would otherwise earn, pay, and not even be finite
    later = [9.0, np.nan]
    thought = imagined([[[1, 2, *later]]], [[[1, 1, *later]]], [[[1, 1, *later]]], [[[1, 1, 0, 0]]])
    scores = judge(thought, 1.0, 9.0, False)
    assert scores.earned == pytest.approx([3.0])
    assert scores.cost == pytest.approx([0.5])  # 2 of 4 steps
    assert scores.penalised == pytest.approx([1.0])
    assert bool(scores.feasible[0])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["reward", "cost", "uncertainty"])
def test_what_is_not_finite_is_infeasible_and_no_elite(where, bad, binary):
    parts = {name: np.full(4, -1.0) for name in ("reward", "cost", "uncertainty")}
    parts[where][1] = bad
    thought = imagined(parts["reward"], parts["cost"], parts["uncertainty"])
    scores = judge(thought, 0.0, 1.0, binary)
    assert scores.feasible.tolist() == [True, False, True, True]
    assert scores.earned[1] == -np.inf and scores.penalised[1] == scores.cost[1] == np.inf
    assert elites(thought, 3, binary=binary) == [0, 2, 3]
    assert elites(thought, 3, limit=-2.0, binary=binary) == [0, 2, 3]  # also where nothing is feasible


def test_one_particle_that_is_not_finite_spoils_its_candidate_alone():
    reward = np.zeros((2, 3, 2))
    reward[0, 2, 1] = np.nan
    assert judge(imagined(reward, 0.0), 0.0, 1.0, False).feasible.tolist() == [False, True]


# Which are the elites.


def test_elites_are_the_best_returns_among_the_feasible():
    # costs above 1 drop out: candidates 0, 2, 4, 5 stay, and 5 and 2 earn most of them
    thought = imagined([1, 9, 4, 8, 3, 5], [0.0, 2.0, 1.0, 1.5, 0.9, 0.2])
    assert elites(thought, 2) == [2, 5]


def test_elites_are_the_least_penalised_costs_where_too_few_are_feasible():
    # κ = 1: penalised costs 3.0, 2.0, 4.0, .9, 1.2; one is within 1 but two are wanted, so return plays no part
    thought = imagined([9, 1, 8, 0, 0], [1.0, 1.5, 3.0, 0.5, 0.2], [2.0, 0.5, 1.0, 0.4, 1.0])
    assert elites(thought, 2, kappa=1.0) == [3, 4]


def test_binary_costs_that_tie_are_told_apart_by_how_near_they_are_to_a_flag():
    # κ = 1 flags every step of all four; the logits with their penalty are 2, .5, 3 and 1, so 1 and 3 are the least
    assert elites(imagined([9, 1, 8, 2], [1, -0.5, 2, 0.0], 1.0), 2, kappa=1.0, limit=0.5, binary=True) == [1, 3]
    # and no logit, however large, outweighs a step that is not flagged: costs 1/3, 2/3 and 1
    logits = [[[50, -1, -1]], [[1, 1, -1]], [[1, 1, 1]]]
    assert elites(imagined(np.zeros((3, 1, 3)), logits), 1, limit=0.1, binary=True) == [0]


def test_as_many_feasible_as_elites_are_enough():
    assert elites(imagined([1, 2, 99], [1.0, 0.9, 1.1]), 2) == [0, 1]


def test_without_a_limit_the_elites_are_cems():
    reward, cost = np.random.default_rng(0).normal(size=(2, 50))
    chosen = elites(imagined(reward, cost, np.ones(50)), 7, kappa=3.0, limit=np.inf)
    assert chosen == sorted(np.argsort(reward)[-7:].tolist())


def test_without_kappa_the_uncertainty_plays_no_part():
    reward, cost, u, other = np.random.default_rng(1).normal(size=(4, 50))
    assert elites(imagined(reward, cost, u), 7, limit=0.3) == elites(imagined(reward, cost, other), 7, limit=0.3)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kappas=st.tuples(st.floats(0.0, 10.0, width=32), st.floats(0.0, 10.0, width=32)),
    limit=st.floats(-1.0, 3.0, width=32),
    binary=st.booleans(),
)
def test_more_kappa_never_makes_a_candidate_feasible(seed, kappas, limit, binary):
    rng = np.random.default_rng(seed)
    thought = imagined(rng.normal(size=(12, 2, 3)), rng.normal(size=(12, 2, 3)), rng.exponential(size=(12, 2, 3)))
    less, more = (np.asarray(judge(thought, kappa, limit, binary).feasible) for kappa in sorted(kappas))
    assert not (more & ~less).any()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), limit=st.floats(-1.0, 2.0, width=32), wanted=st.sampled_from([1, 5, 12]))
def test_elites_are_feasible_whenever_enough_are(seed, limit, wanted):
    rng = np.random.default_rng(seed)
    scores = judge(imagined(rng.normal(size=(12, 2, 3)), rng.normal(size=(12, 2, 3))), 0.0, limit, False)
    index = best(scores, wanted)
    assert len(set(index.tolist())) == wanted
    if scores.feasible.sum() >= wanted:
        assert bool(scores.feasible[index].all())


# The plan.


def quadratic(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
    """r = −(a − params)²,  c = a + start,  u = 1 where a > 0."""
    reward, cost = -jnp.square(actions - params).sum(-1), (actions + start).mean(-1)
    parts = (reward, cost, (actions > 0.0).mean(-1), jnp.ones_like(reward))
    return Imagined(*(part[:, None, :] for part in parts))


@partial(jax.jit, static_argnames="cem")
def compiled(key: Any, peak: Any, start: Any, warm: Any, kappa: Any, limit: Any, cem: CEM) -> Any:
    return plan(key, peak, start, warm, kappa, limit, False, rollout=quadratic, cem=cem)


def planned(
    cem: CEM, *, peak: float = 0.5, start: float = 0.0, warm: float = 0.0, kappa: float = 0.0, limit: float = np.inf
) -> tuple[Any, PlanInfo]:
    """What is acted on, and what is expected of it."""
    chosen, _, info = compiled(jr.key(0), peak, start, jnp.full((cem.horizon, 1), warm), kappa, limit, cem)
    return chosen, info


VARIANTS = {
    "paper": CEM(horizon=2, iterations=8, population=200, elites=20),
    "shrinking": CEM(horizon=2, iterations=4, population=300, elites=15, shrink=1.2, keep=0.3, smoothing=0.0),
    "coloured": CEM(horizon=2, iterations=8, population=200, elites=20, colour=1.0),
    "best": CEM(horizon=2, iterations=4, population=300, elites=15, execute="best"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_plan_finds_the_peak(variant):
    mean, info = planned(VARIANTS[variant], peak=0.5)
    np.testing.assert_allclose(mean, 0.5, atol=0.03)
    assert info.feasible == 1.0 and info.enough == 1.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_plan_stops_at_the_limit(variant):
    # the mean of a_1 and a_2 is at most −.25, and by symmetry both are there: the peak at .5 is out of reach; along the
    # limit the return is flat, (a_1 − a_2)²/2 below its best
    mean, info = planned(VARIANTS[variant], peak=0.5, limit=-0.25)
    assert float(mean.mean()) == pytest.approx(-0.25, abs=0.02)
    assert float(jnp.square(mean[0] - mean[1]).sum()) / 2.0 < 0.03
    assert info.enough == 1.0 and info.penalised <= -0.25


def test_plan_keeps_away_from_where_kappa_u_exceeds_the_limit():
    # c̃ = a + u with u = 1[a > 0] and the limit .9: any step above 0 alone pays (a + 1)/2 ≤ .9 in the mean of two, both
    # pay a + 1 > .9, so the best plan has a step at the peak of .5 and another at 0 or below
    free, _ = planned(VARIANTS["paper"], peak=0.5, limit=0.9)
    np.testing.assert_allclose(free, 0.5, atol=0.02)
    careful, info = planned(VARIANTS["paper"], peak=0.5, limit=0.9, kappa=1.0)
    assert sorted(np.sign(np.round(careful[:, 0], 2)))[0] <= 0.0
    assert info.penalised <= 0.9


def test_nothing_feasible_plans_the_least_cost():
    # the cost a + 5 is never within 1, and it is least at a = −1; the return, best at .5, plays no part
    mean, info = planned(VARIANTS["paper"], peak=0.5, start=5.0, limit=1.0)
    np.testing.assert_allclose(mean, -1.0, atol=0.05)
    assert info.feasible == 0.0 and info.enough == 0.0


def test_info_is_the_mean_over_the_elites():
    # every candidate is an elite: the means are those of all, which are those of the rewards that were handed out
    rewards = jnp.asarray([[[1.0, 3.0]], [[5.0, 7.0]]])  # [N P H]
    costs, u = jnp.asarray([[[0.0, 1.0]], [[1.0, 4.0]]]), jnp.asarray([[[1.0, 1.0]], [[3.0, 1.0]]])

    def fixed(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        return Imagined(rewards, costs, u, jnp.ones_like(rewards))

    cem = CEM(horizon=2, iterations=1, population=2, elites=2)
    *_, info = plan(jr.key(0), None, None, jnp.zeros((2, 1)), 1.0, 2.0, False, rollout=fixed, cem=cem)
    assert info == pytest.approx(PlanInfo(
        earned=8.0,  # (4 + 12)/2
        cost=1.5,  # (.5 + 2.5)/2
        uncertainty=1.5,  # (1 + 2)/2
        penalised=3.0,
        feasible=0.5,  # 1.5 is within 2, and 4.5 is not
        enough=0.0,
        first_cost=0.5,
        first_uncertainty=2.0,
    ))  # fmt: skip


def listen(rounds: list[tuple[Any, Any]]) -> Rollout:
    """A model whose peak is at .9 and that writes down its keys and candidates."""

    def rollout(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        rounds.append((tuple(jr.key_data(key).tolist()), np.asarray(actions)))
        return quadratic(0.9, 0.0, actions, key)

    return rollout


KEEPING = CEM(horizon=3, iterations=3, population=12, elites=4, keep=0.5)


@pytest.fixture(scope="module")
def rounds() -> list[tuple[Any, Any]]:
    """Keys and candidates of each round of one plan that keeps half of its elites, and the plan."""
    heard: list[tuple[Any, Any]] = []
    chosen, mean, info = plan(
        jr.key(0), None, None, jnp.zeros((3, 1)), 0.0, np.inf, False, rollout=listen(heard), cem=KEEPING
    )
    np.testing.assert_array_equal(chosen, mean)
    return [*heard, (chosen, info)]


def test_jit_changes_nothing(rounds):
    for one, other in zip(jax.tree.leaves(planned(KEEPING, peak=0.9)), jax.tree.leaves(rounds[-1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_rounds_differ_in_their_noise(rounds):
    keys, candidates = zip(*rounds[:-1], strict=True)
    assert len(set(keys)) == 3
    assert [len(actions) for actions in candidates] == [12, 14, 14]
    spread = [np.abs(one[:12] - other[:12]).min() for one, other in pairwise(candidates)]
    assert min(spread) > 0.0


def test_kept_elites_enter_the_next_round_so_the_best_never_gets_worse(rounds):
    candidates = [actions for _, actions in rounds[:-1]]
    for now, later in pairwise(candidates):
        earned, after = (-np.square(actions - 0.9).sum((1, 2)) for actions in (now, later))
        two = now[np.argsort(-earned, kind="stable")[:2]]  # half of the four elites
        np.testing.assert_array_equal(later[-2:], two)
        assert after.max() >= earned.max()


def test_changing_kappa_limit_or_convention_compiles_nothing():
    traces = []

    def counted(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        traces.append(actions.shape)
        return quadratic(params, start, actions, key)

    act = jax.jit(lambda kappa, limit, binary: plan(
        jr.key(0), 0.5, 0.0, jnp.zeros((2, 1)), kappa, limit, binary, rollout=counted, cem=SMALL
    ))  # fmt: skip
    act(np.float32(0.0), np.float32(1.0), np.bool_(False))
    first = len(traces)
    for kappa, limit, binary in ((1.0, 1.0, False), (3.0, 0.1, False), (3.0, np.inf, True)):
        act(np.float32(kappa), np.float32(limit), np.bool_(binary))
    assert len(traces) == first


def test_lanes_do_not_touch_one_another():
    # the first lane pays a, of which much is within .3; the second pays a + 5, of which nothing is
    keys, starts = jr.split(jr.key(3), 2), jnp.asarray([0.0, 5.0])

    def lane(key: Any, start: Any) -> Any:
        return compiled(key, 0.5, start, jnp.zeros((2, 1)), 0.0, 0.3, SMALL)

    together, _, infos = jax.vmap(lane)(keys, starts)
    assert infos.enough.tolist() == [1.0, 0.0]
    for number in range(2):
        alone, _, info = lane(keys[number], starts[number])
        np.testing.assert_allclose(together[number], alone, atol=1e-6)
        np.testing.assert_allclose([x[number] for x in infos], info, rtol=1e-5)


def test_smoothing_keeps_its_share_of_the_mean():
    # one round from the mean .2: the new mean is α .2 + (1 − α) m, so m is the same for every α of one key
    def mean_for(alpha: float) -> Any:
        return planned(CEM(horizon=2, iterations=1, population=30, elites=5, smoothing=alpha), peak=0.9, warm=0.2)[0]

    np.testing.assert_allclose(mean_for(0.25), 0.25 * 0.2 + 0.75 * mean_for(0.0), rtol=1e-5)
    assert (np.abs(mean_for(0.0) - 0.2) > 0.05).all()


def test_the_best_of_the_last_round_is_acted_on_and_it_alone_is_described():
    # the mean before the last round is among its candidates; the search goes on from the elites' mean
    cem = CEM(horizon=3, iterations=2, population=12, elites=4, execute="best")
    heard: list[tuple[Any, Any]] = []
    chosen, mean, info = plan(
        jr.key(0), None, None, jnp.zeros((3, 1)), 0.0, np.inf, False, rollout=listen(heard), cem=cem
    )
    (_, first), (_, last) = heard
    earned = [-np.square(actions - 0.9).sum((1, 2)) for actions in (first, last)]
    order = [np.argsort(-each, kind="stable")[:4] for each in earned]
    assert len(last) == 13 and cem.evaluations == 12 + 13
    np.testing.assert_allclose(last[-1], 0.9 * first[order[0]].mean(0), rtol=1e-5)  # a tenth is the old mean, 0
    np.testing.assert_array_equal(chosen, last[order[1][0]])
    np.testing.assert_allclose(mean, 0.1 * last[-1] + 0.9 * last[order[1]].mean(0), rtol=1e-5)
    assert float(info.earned) == pytest.approx(earned[1].max(), rel=1e-5)


def test_sizes_shrink_down_to_twice_the_elites():
    # 80, 80/1.3 = 61.5, 80/1.69 = 47.3, 80/2.197 = 36.4, 80/2.8561 = 28.0, and never below 2 · 15
    cem = CEM(iterations=5, population=80, elites=15, shrink=1.3, keep=0.2)
    assert cem.sizes == [80, 61, 47, 36, 30]
    assert cem.evaluations == 80 + 61 + 47 + 36 + 30 + 4 * 3  # three kept ones in each later round
    assert CEM(population=20, elites=15, shrink=2.0, iterations=3).sizes == [20, 20, 20]


def test_the_papers_numbers_are_the_defaults():
    cem = CEM()
    assert (cem.horizon, cem.iterations, cem.population, cem.elites) == (30, 5, 500, 50)
    assert cem.evaluations == 2500


# Candidates.


@partial(jax.jit, static_argnums=(3, 4))
def sample(key: Any, mean: Any, sd: Any, size: int, colour: float, clip: bool = False) -> Any:
    return around(mean, sd, noise(key, (size, *mean.shape), colour, clip), colour, clip)


@settings(max_examples=50, deadline=None)
@given(
    mean=st.floats(-1.0, 1.0, width=32),
    sd=st.floats(0.0, 2.0, width=32),
    seed=st.integers(0, 2**31 - 1),
    colour=st.sampled_from([0.0, 1.0]),
)
def test_candidates_stay_in_bounds(mean, sd, seed, colour):
    drawn = sample(jr.key(seed), jnp.full((3, 2), mean), jnp.full((3, 2), sd), 50, colour)
    assert drawn.shape == (50, 3, 2)
    assert float(jnp.abs(drawn).max()) <= 1.0


def test_truncated_noise_has_the_deviation_of_its_truncation():
    # a standard normal cut at ±2 has the variance 1 − 4 φ(2)/(2Φ(2) − 1) = 1 − .21596/.9545 = .7737; with 40,000 draws
    # its estimate is off by some .7737 √(2/40000) = .005
    drawn = sample(jr.key(0), jnp.full((1, 1), 0.1), jnp.full((1, 1), 0.3), 40_000, 0.0)
    assert float(drawn.mean()) == pytest.approx(0.1, abs=0.006)
    assert float(drawn.var()) == pytest.approx(0.7737 * 0.09, rel=0.03)
    assert float(jnp.abs(drawn - 0.1).max()) <= 0.6


def test_deviation_is_at_most_half_the_distance_to_the_bound():
    # at .8 the bound is .2 away: a deviation of .1, cut at twice that, whatever was asked
    drawn = sample(jr.key(0), jnp.full((1, 1), 0.8), jnp.full((1, 1), 2.0), 40_000, 0.0)
    assert float(drawn.var()) == pytest.approx(0.7737 * 0.01, rel=0.03)


@pytest.mark.parametrize("colour", [0.5, 2.0])
def test_coloured_noise_has_the_power_that_is_asked(colour):
    # The covariance at lag k of a process with power |f|^−β, over the 2H frequencies −1/2 … 1/2 of a period of 2H steps,
    # is Σ_f |f|^−β cos 2πfk, with f = 0 given the power of the slowest wave.
    H = 6
    f = np.arange(-H, H) / (2 * H)
    power = np.where(f == 0.0, 1 / (2 * H), np.abs(f)) ** -colour
    lags = np.array([(power * np.cos(2 * np.pi * f * k)).sum() for k in range(H)]) / power.sum()
    expected = lags[np.abs(np.subtract.outer(np.arange(H), np.arange(H)))]
    matrix = correlate(H, colour)
    np.testing.assert_allclose(matrix @ matrix.T, expected, atol=1e-5)
    drawn = np.asarray(sample(jr.key(0), jnp.zeros((H, 1)), jnp.full((H, 1), 0.1), 40_000, colour))[..., 0]
    # the error of a correlation from 40,000 draws is at most 1/√40000 = .005
    np.testing.assert_allclose(np.corrcoef(drawn.T), expected, atol=0.025)
    np.testing.assert_allclose(drawn.std(0), 0.1, rtol=0.02)


def test_more_colour_is_slower_noise():
    lags = [float((m @ m.T)[0, 1]) for m in (correlate(10, colour) for colour in (0.0, 0.5, 1.0, 2.0, 8.0))]
    assert lags[0] == pytest.approx(0.0, abs=1e-6)
    assert lags == sorted(lags) and lags[-1] > 0.8


@pytest.mark.parametrize("steps", [1, 2, 100])
@pytest.mark.parametrize("colour", [0.1, 8.0])
def test_any_horizon_and_colour_can_be_correlated(steps, colour):
    matrix = correlate(steps, colour)
    assert matrix.shape == (steps, steps) and np.isfinite(matrix).all()
    np.testing.assert_allclose(np.square(matrix).sum(1), 1.0, rtol=1e-5)


def test_shifted_drops_the_first_action_and_appends_the_middle():
    np.testing.assert_array_equal(shifted(jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), [[3, 4], [5, 6], [0, 0]])
    np.testing.assert_array_equal(shifted(jnp.ones((1, 2))), [[0, 0]])


@pytest.mark.parametrize(("bad", "said"), [
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
def test_bad_sizes_are_refused(bad, said):
    with pytest.raises(InputError, match=f"^{said}"):
        CEM(**bad)
