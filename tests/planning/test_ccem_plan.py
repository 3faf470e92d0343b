"""The planner finds the best plan of small models with known answers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.core.types import Imagined, Rollout
from capax.planning.ccem import CEM, PlanInfo, plan
from capax.planning.scoring import Terms

SMALL = CEM(horizon=2, iterations=3, population=64, elites=8)


# The plan.


def quadratic(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
    """r = −(a − params)²,  c = a + start,  u = 1 where a > 0."""
    reward, cost = -jnp.square(actions - params).sum(-1), (actions + start).mean(-1)
    parts = (reward, cost, (actions > 0.0).mean(-1), jnp.ones_like(reward))
    return Imagined(*(part[:, None, :] for part in parts))


@partial(jax.jit, static_argnames="cem")
def compiled_plan(key: Any, peak: Any, start: Any, warm: Any, kappa: Any, limit: Any, cem: CEM) -> Any:
    return plan(key, peak, start, warm, Terms(kappa, limit, False), rollout=quadratic, cem=cem)


def run_plan(
    cem: CEM, *, peak: float = 0.5, start: float = 0.0, warm: float = 0.0, kappa: float = 0.0, limit: float = np.inf
) -> tuple[Any, PlanInfo]:
    """The plan and its predictions."""
    actions, _, info = compiled_plan(jr.key(0), peak, start, jnp.full((cem.horizon, 1), warm), kappa, limit, cem)
    return actions, info


VARIANTS = {
    "paper": CEM(horizon=2, iterations=8, population=200, elites=20),
    "shrinking": CEM(horizon=2, iterations=4, population=300, elites=15, shrink=1.2, keep=0.3, smoothing=0.0),
    "coloured": CEM(horizon=2, iterations=8, population=200, elites=20, colour=1.0),
    "best": CEM(horizon=2, iterations=4, population=300, elites=15, execute="best"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_plan_finds_the_peak(variant):
    mean, info = run_plan(VARIANTS[variant], peak=0.5)
    np.testing.assert_allclose(mean, 0.5, atol=0.03)
    assert info.feasible == 1.0 and info.enough == 1.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_plan_meets_the_limit(variant):
    # the mean of a_1 and a_2 is at most −.25, and by symmetry both are −.25: the peak at .5 is infeasible. Along
    # the limit the return is flat, (a_1 − a_2)²/2 below its best
    mean, info = run_plan(VARIANTS[variant], peak=0.5, limit=-0.25)
    assert float(mean.mean()) == pytest.approx(-0.25, abs=0.02)
    assert float(jnp.square(mean[0] - mean[1]).sum()) / 2.0 < 0.03
    assert info.enough == 1.0 and info.penalised <= -0.25


def test_plan_avoids_actions_where_kappa_u_exceeds_the_limit():
    # c̃ = a + u with u = 1[a > 0] and the limit .9: one step above 0 has the mean cost (a + 1)/2 ≤ .9, two have
    # a + 1 > .9, so the best plan has one step at the peak of .5 and the other at 0 or below
    without_kappa, _ = run_plan(VARIANTS["paper"], peak=0.5, limit=0.9)
    np.testing.assert_allclose(without_kappa, 0.5, atol=0.02)
    with_kappa, info = run_plan(VARIANTS["paper"], peak=0.5, limit=0.9, kappa=1.0)
    assert sorted(np.sign(np.round(with_kappa[:, 0], 2)))[0] <= 0.0
    assert info.penalised <= 0.9


def test_plan_has_the_lowest_cost_if_nothing_is_feasible():
    # the cost a + 5 is never within 1 and lowest at a = −1; the return, best at .5, does not matter
    mean, info = run_plan(VARIANTS["paper"], peak=0.5, start=5.0, limit=1.0)
    np.testing.assert_allclose(mean, -1.0, atol=0.05)
    assert info.feasible == 0.0 and info.enough == 0.0


def test_info_is_the_mean_over_the_elites():
    # every candidate is an elite: the means are those of all rewards that the model returned
    rewards = jnp.asarray([[[1.0, 3.0]], [[5.0, 7.0]]])  # [N P H]
    costs, u = jnp.asarray([[[0.0, 1.0]], [[1.0, 4.0]]]), jnp.asarray([[[1.0, 1.0]], [[3.0, 1.0]]])

    def fixed(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        return Imagined(rewards, costs, u, jnp.ones_like(rewards))

    cem = CEM(horizon=2, iterations=1, population=2, elites=2)
    *_, info = plan(jr.key(0), None, None, jnp.zeros((2, 1)), Terms(1.0, 2.0, False), rollout=fixed, cem=cem)
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


def recording_rollout(rounds: list[tuple[Any, Any]]) -> Rollout:
    """A model with its peak at .9 that records its keys and candidates."""

    def rollout(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        rounds.append((tuple(jr.key_data(key).tolist()), np.asarray(actions)))
        return quadratic(0.9, 0.0, actions, key)

    return rollout


KEEPING = CEM(horizon=3, iterations=3, population=12, elites=4, keep=0.5)


@pytest.fixture(scope="module")
def rounds() -> list[tuple[Any, Any]]:
    """Keys and candidates of each round of one plan that keeps half of its elites, then the plan."""
    recorded: list[tuple[Any, Any]] = []
    actions, mean, info = plan(
        jr.key(0),
        None,
        None,
        jnp.zeros((3, 1)),
        Terms(0.0, np.inf, False),
        rollout=recording_rollout(recorded),
        cem=KEEPING,
    )
    np.testing.assert_array_equal(actions, mean)
    return [*recorded, (actions, info)]


def test_jit_gives_the_same_plan(rounds):
    for one, other in zip(jax.tree.leaves(run_plan(KEEPING, peak=0.9)), jax.tree.leaves(rounds[-1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_each_round_has_its_own_noise(rounds):
    keys, candidates = zip(*rounds[:-1], strict=True)
    assert len(set(keys)) == 3
    assert [len(actions) for actions in candidates] == [12, 14, 14]
    differences = [np.abs(one[:12] - other[:12]).min() for one, other in pairwise(candidates)]
    assert min(differences) > 0.0


def test_kept_elites_enter_the_next_round_so_the_best_never_gets_worse(rounds):
    candidates = [actions for _, actions in rounds[:-1]]
    for one, following in pairwise(candidates):
        returns, following_returns = (-np.square(actions - 0.9).sum((1, 2)) for actions in (one, following))
        kept = one[np.argsort(-returns, kind="stable")[:2]]  # half of the four elites
        np.testing.assert_array_equal(following[-2:], kept)
        assert following_returns.max() >= returns.max()


def test_changing_kappa_limit_or_binary_compiles_nothing():
    traces = []

    def counting_rollout(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        traces.append(actions.shape)
        return quadratic(params, start, actions, key)

    act = jax.jit(lambda kappa, limit, binary: plan(
        jr.key(0), 0.5, 0.0, jnp.zeros((2, 1)), Terms(kappa, limit, binary), rollout=counting_rollout, cem=SMALL
    ))  # fmt: skip
    act(np.float32(0.0), np.float32(1.0), np.bool_(False))
    first = len(traces)
    for kappa, limit, binary in ((1.0, 1.0, False), (3.0, 0.1, False), (3.0, np.inf, True)):
        act(np.float32(kappa), np.float32(limit), np.bool_(binary))
    assert len(traces) == first


def test_lanes_are_independent():
    # the first lane's cost is a, often within .3; the second lane's cost is a + 5, never within .3
    keys, starts = jr.split(jr.key(3), 2), jnp.asarray([0.0, 5.0])

    def lane(key: Any, start: Any) -> Any:
        return compiled_plan(key, 0.5, start, jnp.zeros((2, 1)), 0.0, 0.3, SMALL)

    batched, _, infos = jax.vmap(lane)(keys, starts)
    assert infos.enough.tolist() == [1.0, 0.0]
    for number in range(2):
        single, _, info = lane(keys[number], starts[number])
        np.testing.assert_allclose(batched[number], single, atol=1e-6)
        np.testing.assert_allclose([x[number] for x in infos], info, rtol=1e-5)


def test_smoothing_keeps_a_share_of_the_old_mean():
    # one round from the mean .2: the new mean is α .2 + (1 − α) m, so m is the same for every α of one key
    def mean_for(alpha: float) -> Any:
        return run_plan(CEM(horizon=2, iterations=1, population=30, elites=5, smoothing=alpha), peak=0.9, warm=0.2)[0]

    np.testing.assert_allclose(mean_for(0.25), 0.25 * 0.2 + 0.75 * mean_for(0.0), rtol=1e-5)
    assert (np.abs(mean_for(0.0) - 0.2) > 0.05).all()


def test_execute_best_returns_and_describes_the_best_candidate():
    # the mean before the last round is one of its candidates; the search continues from the elites' mean
    cem = CEM(horizon=3, iterations=2, population=12, elites=4, execute="best")
    rounds: list[tuple[Any, Any]] = []
    actions, mean, info = plan(
        jr.key(0), None, None, jnp.zeros((3, 1)), Terms(0.0, np.inf, False), rollout=recording_rollout(rounds), cem=cem
    )
    (_, first), (_, last) = rounds
    round_returns = [-np.square(actions - 0.9).sum((1, 2)) for actions in (first, last)]
    order = [np.argsort(-returns, kind="stable")[:4] for returns in round_returns]
    assert len(last) == 13 and cem.evaluations == 12 + 13
    np.testing.assert_allclose(last[-1], 0.9 * first[order[0]].mean(0), rtol=1e-5)  # a tenth is the old mean, 0
    np.testing.assert_array_equal(actions, last[order[1][0]])
    np.testing.assert_allclose(mean, 0.1 * last[-1] + 0.9 * last[order[1]].mean(0), rtol=1e-5)
    assert float(info.earned) == pytest.approx(round_returns[1].max(), rel=1e-5)


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
