"""CAP with an ensemble learns under a limit, is a function of its key, and gives its rule true feedback."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.episodes import PLANS, planned_episode

from capax.agents.pets import Pets, PetsSettings, PetsState, PlanCarry, capacity_for, compiled_plan
from capax.agents.starters import Random
from capax.core.errors import TrainingFailed
from capax.core.loop import run
from capax.core.types import Episode, Spec
from capax.envs.make import make
from capax.kappa.adam import Adam
from capax.kappa.conformal import Conformal, ConformalState
from capax.kappa.fixed import Fixed
from capax.models import ensemble_fit
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM
from capax.training.collect import EpisodeCollector

ENSEMBLE = EnsembleSettings(
    members=5, hidden=32, layers=2, particles=5, batch=64, learning_rate=3e-3, least_updates=300, most_updates=300
)
SETTINGS = PetsSettings(
    ensemble=ENSEMBLE, cem=CEM(horizon=5, iterations=3, population=40, elites=6, colour=1.0), start_steps=300
)
UNDISCOUNTED = Spec(25.0, 0.99, False, 50)


def make_agent(rule: Any = None, spec: Spec = UNDISCOUNTED, settings: PetsSettings = SETTINGS) -> Pets:
    return Pets(spec, rule or Conformal(), 1, 1, settings, 512)


def run_integrator(agent: Pets, steps: int = 700, seed: int = 0) -> list[Any]:
    """The outcomes of a run on the integrator: 14 episodes, six of them random."""
    task = make("capax/Integrator-v0")
    collector = EpisodeCollector(task, UNDISCOUNTED)
    return list(run(agent, collector, start=300, steps=steps, key=jr.key(seed), starter=Random(UNDISCOUNTED, 1)))


@pytest.fixture(scope="module")
def cap() -> Pets:
    return make_agent()


@pytest.fixture(scope="module")
def outcomes(cap) -> list[Any]:
    """The outcomes of one run, which the tests share."""
    return run_integrator(cap)


def actions_of(outcomes: list[Any]) -> list[list[float]]:
    """The actions of each episode."""
    return [outcome.episode.action[:, 0].tolist() for outcome in outcomes]


# In the loop.


def test_the_same_seed_gives_the_same_run(cap, outcomes):
    again = run_integrator(cap)
    assert actions_of(again) == actions_of(outcomes)
    assert [outcome.metrics for outcome in again] == [outcome.metrics for outcome in outcomes]


def test_another_seed_gives_another_run(cap, outcomes):
    other = run_integrator(cap, steps=400, seed=1)
    assert all(one != two for one, two in zip(actions_of(other), actions_of(outcomes), strict=False))


def test_cap_ends_within_the_limit_and_cem_does_not(outcomes):
    # full speed to the end costs 429, staying at 0 costs nothing; the limit is 25, within which 33 can be earned
    of_cap = [outcome.episode for outcome in outcomes[-3:]]
    assert all(episode.paid <= 25.0 for episode in of_cap)
    assert min(episode.earned for episode in of_cap) > 15.0
    cem = make_agent(Fixed(0.0), UNDISCOUNTED._replace(limit=float("inf")))
    of_cem = [outcome.episode for outcome in run_integrator(cem, steps=500)[-3:]]
    assert all(episode.paid > 100.0 for episode in of_cem)


def test_a_binary_cost_with_a_limit_of_zero_is_soon_kept():
    # a step above .7 costs 1, and the limit is 0; without κ, plans go up to where the model places that bound
    spec = UNDISCOUNTED._replace(limit=0.0)
    task = make("capax/Integrator-v0", cost=lambda obs, action, next_obs, info: float(next_obs[0] > 0.7))

    def planned_episodes(rule: Any) -> list[Any]:
        agent, collector = make_agent(rule, spec), EpisodeCollector(task, spec)
        *_, last = all_outcomes = list(
            run(agent, collector, start=300, steps=900, key=jr.key(0), starter=Random(spec, 1))
        )
        assert bool(last.state.scaling.binary) and last.state.rule.kappa == all_outcomes[-1].state.rule.kappa
        return [outcome.episode for outcome in all_outcomes[6:]]

    conformal, without_kappa = planned_episodes(Conformal(0.1)), planned_episodes(Fixed(0.0))
    assert sum(episode.paid > 0.0 for episode in conformal) <= 3
    assert sum(episode.paid > 0.0 for episode in conformal[-5:]) <= 1  # a tenth is asked for
    assert sum(episode.paid > 0.0 for episode in without_kappa) >= 7  # of twelve
    assert min(episode.earned for episode in conformal[-5:]) > 15.0  # of about 33 at most


def test_before_the_first_fit_it_acts_at_random(cap):
    state = cap.init(jr.key(0))
    steps = [cap.act(state, cap.begin(state), np.zeros(1), jr.key(seed)) for seed in range(50)]
    assert all(metrics == {} for *_, metrics in steps)
    actions = np.array([action for action, *_ in steps])
    assert actions.shape == (50, 1) and np.abs(actions).max() <= 1.0
    assert actions.std() == pytest.approx(0.577, abs=0.15)


def test_each_step_reports_its_plan(outcomes):
    extras = outcomes[-1].episode.extras
    assert sorted(extras) == [
        "plan_bad", "plan_cost", "plan_earned", "plan_enough", "plan_feasible", "plan_first_cost", "plan_first_uncertainty",
        "plan_limit", "plan_penalised", "plan_uncertainty",
    ]  # fmt: skip
    assert all(values.shape == (50,) for values in extras.values())
    assert outcomes[0].episode.extras == {}


def test_the_plan_is_carried_from_step_to_step(cap, outcomes):
    # the next search begins with the rest of this plan, so a warm carry and a new one give different actions
    state = outcomes[-1].state
    _, carry, _ = cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    rest = carry.warm
    assert rest.shape == (5, 1) and float(rest[-1, 0]) == 0.0 and bool(jnp.abs(rest[:-1]).max() > 0.0)
    warm, fresh = (cap.act(state, start, np.zeros(1), jr.key(1))[0] for start in (carry, cap.begin(state)))
    assert warm != fresh


def test_act_compiles_once_while_kappa_and_the_model_change(cap, outcomes):
    compiled = compiled_plan(cap.settings, cap.obs_dim, cap.action_dim, (0.0,))[1].__wrapped__
    before = compiled._cache_size()
    for outcome, kappa in zip(outcomes[-3:], (0.0, 0.5, 30.0), strict=True):
        state = outcome.state._replace(rule=ConformalState(kappa))
        cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    assert before == compiled._cache_size() == 1


def test_kappa_reaches_the_planner(cap, outcomes):
    state = outcomes[-1].state

    def metrics(kappa: float) -> Any:
        return cap.act(state._replace(rule=ConformalState(kappa)), cap.begin(state), np.array([0.5]), jr.key(0))[2]

    assert metrics(0.0)["plan_penalised"] == pytest.approx(metrics(0.0)["plan_cost"], rel=1e-5)
    assert metrics(0.0)["plan_feasible"] > metrics(1e6)["plan_feasible"] == 0.0


# Learning.


def with_copied_arrays(state: PetsState) -> Any:
    return jax.tree.map(lambda leaf: np.array(leaf), state)


def equal(one: Any, other: Any) -> bool:
    """Whether all numbers of two states are equal."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_learn_and_adapt_are_pure(cap, outcomes):
    state, episode = outcomes[-2].state, outcomes[-1].episode
    before = with_copied_arrays(state)
    first, _ = cap.learn(state, [episode], jr.key(0))
    cap.adapt(state, episode)
    assert equal(before, state)
    again, _ = cap.learn(state, [episode], jr.key(0))
    assert equal(first, again) and not equal(first.model, before.model)


def logged_episode(steps: int, paid: float = 0.0) -> Episode:
    """An episode of random data with this many steps."""
    rng = np.random.default_rng(steps)
    x, a = rng.normal(size=(2, steps, 1))
    return Episode(x, a, x[:, 0], x[:, 0] ** 2, x + 0.1 * a, 0.0, paid, {}, np.zeros(steps))


@pytest.mark.parametrize(("fit_every", "fits"), [
    (1000, [True, False, True]),  # an episode has 50 steps; 20 since the first fit are too few, 20 + 30 are enough
    (25, [True, False, True]),  # 20 are too few, 50 are enough
    (20, [True, True, True]),
])  # fmt: skip
def test_a_fit_waits_for_enough_new_steps(cap, fit_every, fits):
    agent = Pets(cap.spec, cap.rule, 1, 1, PetsSettings(ENSEMBLE, SETTINGS.cem, fit_every=fit_every), 512)
    state, fitted = agent.init(jr.key(0)), []
    for steps in (30, 20, 30):
        state, metrics = agent.learn(state, [logged_episode(steps)], jr.key(0))
        fitted.append("model_loss" in metrics)
    assert fitted == fits
    assert state.buffer.size == 80


def test_a_full_buffer_drops_the_oldest_steps(cap):
    settings = PetsSettings(replace(ENSEMBLE, batch=32), SETTINGS.cem, start_steps=40, buffer=40, fit_every=40)
    agent = Pets(cap.spec, cap.rule, 1, 1, settings, 512)
    state, _ = agent.learn(agent.init(jr.key(0)), [logged_episode(30), logged_episode(20)], jr.key(0))
    assert state.buffer.size == 40
    assert state.buffer.obs[-1, 0] == pytest.approx(logged_episode(20).obs[-1, 0] - state.origin[0])


def test_the_rule_starts_again_when_costs_turn_out_not_to_be_binary(cap, outcomes):
    rule = ConformalState(kappa=3.0, k=1.0, step=0.5, errors=(2.0,))
    for binary, kept in ((False, True), (True, False)):
        state = last_state(outcomes, binary)._replace(rule=rule)
        later, _ = cap.learn(state, [logged_episode(50)], jr.key(0))
        assert not bool(later.scaling.binary) and (later.rule == rule) is kept


@pytest.mark.parametrize(("count", "capacity", "padded"), [(5, 8, 8), (8, 8, 8), (9, 8, 16), (40, 8, 64), (3, 1, 4)])
def test_a_run_that_became_longer_doubles_the_capacity(count, capacity, padded):
    assert capacity_for(count, capacity) == padded


# The feedback for the rule.


def last_state(outcomes: list[Any], binary: bool = False) -> PetsState:
    """The state at the end of the shared run; `binary` changes what its model was fitted to."""
    state = outcomes[-1].state
    return state._replace(scaling=state.scaling._replace(binary=jnp.asarray(binary)))


def test_plans_may_spend_what_is_left_of_the_budget(outcomes):
    # 25 for 50 steps. After ten steps of 1, 15 are left for 40; after ten steps of .1, 24 are: what was saved may be spent
    state = outcomes[-1].state

    def last_limit(agent: Pets, cost: float) -> float:
        carry, metrics = agent.begin(state), {}
        for _ in range(11):
            _, carry, metrics = agent.act(state, carry, np.zeros(1), jr.key(0))
            carry = agent.observe_cost(carry, cost)
        return float(metrics["plan_limit"])

    fixed = make_agent(Fixed(state.rule.kappa))
    assert last_limit(fixed, 1.0) == pytest.approx(15.0 / 40.0)
    assert last_limit(fixed, 0.1) == pytest.approx(24.0 / 40.0)


def test_who_reports_no_cost_is_taken_to_pay_the_predicted_one(outcomes):
    state = outcomes[-1].state
    agent = make_agent(Fixed(0.0))
    _, carry, metrics = agent.act(state, agent.begin(state), np.ones(1), jr.key(0))
    silent, informed = carry, agent.observe_cost(carry, 7.0)
    _, _, after_silence = agent.act(state, silent, np.ones(1), jr.key(1))
    _, _, after_cost = agent.act(state, informed, np.ones(1), jr.key(1))
    predicted = max(0.0, metrics["plan_first_cost"])
    assert after_silence["plan_limit"] == pytest.approx((25.0 - predicted) / 49.0)
    assert after_cost["plan_limit"] == pytest.approx(18.0 / 49.0)


def test_random_episodes_move_adam_but_not_the_conformal_rule():
    for rule, moves in ((Conformal(), False), (Adam(), True)):
        agent = make_agent(rule)
        state = agent.init(jr.key(0))
        later, metrics = agent.adapt(state, logged_episode(50, paid=100.0)._replace(random=True))
        assert (later.rule != state.rule) is moves
        assert metrics["kappa"] == state.rule.kappa and "residual" not in metrics


def test_kappa_is_reported_as_it_was_used(outcomes):
    agent = make_agent(Adam())
    state = last_state(outcomes)._replace(rule=Adam().init())
    later, metrics = agent.adapt(state, planned_episode(agent.spec, [10.0, 10.0, 10.0], PLANS))
    assert metrics["kappa"] == 1.0 and later.rule.kappa == pytest.approx(1.1)  # Adam's first step is its rate


# Failures.


def state_with_a_broken_model(outcomes: list[Any]) -> PetsState:
    """The last state, with NaN for all parameters."""
    state = outcomes[-1].state
    return state._replace(model=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), state.model))


def test_a_broken_model_is_replaced_by_the_previous_parameters(cap, outcomes):
    state = state_with_a_broken_model(outcomes)
    action, carry, metrics = cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    previous = state._replace(model=state.good[0], scaling=state.good[1])
    expected, expected_carry, _ = cap.act(previous, cap.begin(previous), np.zeros(1), jr.key(0))
    np.testing.assert_array_equal(action, expected)
    np.testing.assert_array_equal(carry.warm, expected_carry.warm)
    assert metrics["plan_bad"] == 1.0 and metrics["plan_feasible"] > 0.0


def test_a_broken_model_without_previous_parameters_continues_the_last_plan(cap, outcomes):
    state = state_with_a_broken_model(outcomes)._replace(good=None)
    plan = jnp.linspace(0.1, 0.9, cap.settings.cem.horizon)[:, None]
    action, carry, metrics = cap.act(state, PlanCarry(plan), np.zeros(1), jr.key(0))
    rest = carry.warm
    assert action == pytest.approx([0.1]) and rest[:-1] == pytest.approx(np.asarray(plan[1:])) and rest[-1] == 0.0
    assert metrics["plan_bad"] == 1.0 and metrics["plan_feasible"] == 0.0 and metrics["plan_enough"] == 0.0


def test_an_observation_too_large_for_the_network_leaves_actions_finite(cap, outcomes):
    state = outcomes[-1].state
    action, carry, _ = cap.act(state, cap.begin(state), np.array([1e300]), jr.key(0))
    assert np.isfinite(action).all() and np.isfinite(carry.warm).all()


def spoil_fits(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    """Apply a function to the result of each fit."""
    real = ensemble_fit.fit
    monkeypatch.setattr(ensemble_fit, "fit", lambda *arguments, **named: spoil(*real(*arguments, **named)))


def nan_loss(model: Any, optimiser: Any, loss: Any) -> Any:
    return model, optimiser, jnp.nan


def infinite_weight(model: Any, optimiser: Any, loss: Any) -> Any:
    last = model.weights[-1].at[0, 0, 0].set(jnp.inf)
    return dataclasses.replace(model, weights=(*model.weights[:-1], last)), optimiser, loss


@pytest.mark.parametrize("spoil", [nan_loss, infinite_weight])
def test_a_fit_that_is_not_finite_is_discarded_and_three_stop_the_run(outcomes, monkeypatch, spoil):
    agent, state = make_agent(), outcomes[-1].state
    fresh, key = [outcomes[-1].episode], jr.key(1)
    fitted, _ = agent.learn(state._replace(waiting=1000), fresh, key)
    with monkeypatch.context() as patch:
        spoil_fits(patch, spoil)
        for number in (1, 2):
            state, metrics = agent.learn(state._replace(waiting=1000), fresh, key)
            assert metrics == {"bad_fits": number} and state.waiting == 0
            for kept, before in zip(jax.tree.leaves(state[:3]), jax.tree.leaves(outcomes[-1].state[:3]), strict=True):
                np.testing.assert_array_equal(kept, before)
        with pytest.raises(TrainingFailed, match=r"^3 fits in a row .* lower learning_rate .*\.$"):
            agent.learn(state._replace(waiting=1000), fresh, key)
    after, metrics = agent.learn(state._replace(waiting=1000), fresh, key)
    assert after.failures.fits == 0 and np.isfinite(metrics["model_loss"])
    assert after.good[0] is state.model and not np.array_equal(after.model.weights[0], state.model.weights[0])
    assert fitted.failures.fits == 0


def test_the_first_fit_may_fail_too(cap, outcomes, monkeypatch):
    spoil_fits(monkeypatch, nan_loss)
    state, metrics = cap.learn(cap.init(jr.key(0)), [outcomes[0].episode], jr.key(0))
    assert metrics == {"bad_fits": 1} and state.scaling is None
    action, _, metrics = cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    assert np.isfinite(action).all() and metrics == {}


def test_plans_that_are_not_finite_stop_the_run_in_the_third_episode(cap, outcomes):
    good, state = outcomes[-1].episode, outcomes[-1].state
    bad = good._replace(extras={**good.extras, "plan_bad": np.eye(50)[7]})
    for number in (1, 2):
        state, _ = cap.adapt(state, bad)
        assert state.failures.plans == number
    assert cap.adapt(state, good)[0].failures.plans == 0
    with pytest.raises(TrainingFailed, match=r"^plans of 3 episodes in a row were not finite"):
        cap.adapt(state, bad)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_plan_that_is_not_finite_does_not_lower_kappa(outcomes, bad, binary):
    # without a finite candidate in one step, the episode says nothing about the error of the model
    agent = make_agent()
    rule = ConformalState(kappa=3.0, k=1.0, step=0.5, errors=(2.0,), margins=(3.0,) * 61)
    episode = planned_episode(agent.spec, [20.0] * 3, {name: [0.1, bad, 0.1] for name in PLANS})
    later, _ = agent.adapt(last_state(outcomes, binary)._replace(rule=rule), episode)
    assert later.rule.kappa >= 3.0 and np.isfinite(jax.tree.leaves(later.rule)).all()
