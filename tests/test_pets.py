"""Does CAP with an ensemble learn under a limit, repeat itself, and tell its rule the truth?"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from episodes import PLANNED, fabricated

from capax.agents.pets import Carried, Pets, PetsSettings, PetsState, capacity_for, planning
from capax.agents.start import Random
from capax.collect import EpisodeCollector
from capax.conformal import Conformal, ConformalState
from capax.envs.adapt import make
from capax.errors import TrainingFailed
from capax.kappa import Adam, Fixed
from capax.loop import run
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM
from capax.types import Episode, Spec

ENSEMBLE = EnsembleSettings(
    members=5, hidden=32, layers=2, particles=5, batch=64, learning_rate=3e-3, least_updates=300, most_updates=300
)
SETTINGS = PetsSettings(
    ensemble=ENSEMBLE, cem=CEM(horizon=5, iterations=3, population=40, elites=6, colour=1.0), start_steps=300
)
UNDISCOUNTED = Spec(25.0, 0.99, False, 50)


def agent(rule: Any = None, spec: Spec = UNDISCOUNTED, settings: PetsSettings = SETTINGS) -> Pets:
    return Pets(spec, rule or Conformal(), 1, 1, settings, 512)


def outcomes(made: Pets, steps: int = 700, seed: int = 0) -> list[Any]:
    """A run of 14 episodes on the integrator, six of them random."""
    task = make("capax/Integrator-v0")
    collector = EpisodeCollector(task, UNDISCOUNTED)
    return list(run(made, collector, start=300, steps=steps, key=jr.key(seed), starter=Random(1)))


@pytest.fixture(scope="module")
def cap() -> Pets:
    return agent()


@pytest.fixture(scope="module")
def ran(cap) -> list[Any]:
    return outcomes(cap)


def acted(episodes: list[Any]) -> list[list[float]]:
    return [outcome.episode.action[:, 0].tolist() for outcome in episodes]


# Under the loop.


def test_the_same_seed_gives_the_same_run(cap, ran):
    again = outcomes(cap)
    assert acted(again) == acted(ran)
    assert [outcome.metrics for outcome in again] == [outcome.metrics for outcome in ran]


def test_another_seed_gives_another_run(cap, ran):
    other = outcomes(cap, steps=400, seed=1)
    assert all(one != two for one, two in zip(acted(other), acted(ran), strict=False))


def test_cap_ends_within_the_limit_and_cem_does_not(ran):
    # full speed to the end costs 429, staying at 0 nothing; the limit is 25, and 33 can be earned within it
    careful = [outcome.episode for outcome in ran[-3:]]
    assert all(episode.paid <= 25.0 for episode in careful)
    assert min(episode.earned for episode in careful) > 15.0
    unlimited = agent(Fixed(0.0), UNDISCOUNTED._replace(limit=float("inf")))
    careless = [outcome.episode for outcome in outcomes(unlimited, steps=500)[-3:]]
    assert all(episode.paid > 100.0 for episode in careless)


def test_a_binary_cost_with_a_limit_of_zero_is_soon_kept():
    # above .7 a step pays 1, and none may; without κ, plans go up to where the model thinks that is
    spec = UNDISCOUNTED._replace(limit=0.0)
    task = make("capax/Integrator-v0", cost=lambda obs, action, next_obs, info: float(next_obs[0] > 0.7))

    def planned(rule: Any) -> list[Any]:
        made = agent(rule, spec)
        *_, last = kept = list(
            run(made, EpisodeCollector(task, spec), start=300, steps=900, key=jr.key(0), starter=Random(1))
        )
        assert bool(last.state.scaling.binary) and last.state.rule.kappa == kept[-1].state.rule.kappa
        return [outcome.episode for outcome in kept[6:]]

    careful, careless = planned(Conformal(0.1)), planned(Fixed(0.0))
    assert sum(episode.paid > 0.0 for episode in careful) <= 3 and not any(episode.paid for episode in careful[-5:])
    assert sum(episode.paid > 0.0 for episode in careless) >= 7  # of twelve
    assert min(episode.earned for episode in careful[-5:]) > 15.0  # of some 33 at most


def test_before_the_first_fit_it_acts_at_random(cap):
    state = cap.init(jr.key(0))
    actions = [cap.act(state, cap.begin(state), np.zeros(1), jr.key(seed)) for seed in range(50)]
    assert all(said == {} for *_, said in actions)
    drawn = np.array([action for action, *_ in actions])
    assert drawn.shape == (50, 1) and np.abs(drawn).max() <= 1.0 and drawn.std() == pytest.approx(0.577, abs=0.15)


def test_what_is_planned_is_reported_each_step(ran):
    planned = ran[-1].episode.extras
    assert sorted(planned) == [
        "plan_bad", "plan_cost", "plan_earned", "plan_enough", "plan_feasible", "plan_first_cost", "plan_first_uncertainty",
        "plan_limit", "plan_penalised", "plan_uncertainty",
    ]  # fmt: skip
    assert all(values.shape == (50,) for values in planned.values())
    assert ran[0].episode.extras == {}


def test_the_plan_is_carried_from_step_to_step(cap, ran):
    # the next plan begins with what is left of this one, so a warm carry and a fresh one do not agree
    state = ran[-1].state
    _, carry, _ = cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    left = carry.warm
    assert left.shape == (5, 1) and float(left[-1, 0]) == 0.0 and bool(jnp.abs(left[:-1]).max() > 0.0)
    warm, fresh = (cap.act(state, start, np.zeros(1), jr.key(1))[0] for start in (carry, cap.begin(state)))
    assert warm != fresh


def test_act_compiles_once_while_kappa_and_the_model_change(cap, ran):
    compiled = planning(cap.settings, cap.obs_dim, cap.action_dim)[1].__wrapped__
    before = compiled._cache_size()
    for outcome, kappa in zip(ran[-3:], (0.0, 0.5, 30.0), strict=True):
        state = outcome.state._replace(rule=ConformalState(kappa))
        cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    assert before == compiled._cache_size() == 1


def test_kappa_reaches_the_planner(cap, ran):
    state = ran[-1].state

    def said(kappa: float) -> Any:
        return cap.act(state._replace(rule=ConformalState(kappa)), cap.begin(state), np.array([0.5]), jr.key(0))[2]

    assert said(0.0)["plan_penalised"] == pytest.approx(said(0.0)["plan_cost"], rel=1e-5)
    assert said(0.0)["plan_feasible"] > said(1e6)["plan_feasible"] == 0.0


# Learning.


def copied(state: PetsState) -> Any:
    return jax.tree.map(lambda leaf: np.array(leaf), state)


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_learn_and_adapt_are_pure(cap, ran):
    state, episode = ran[-2].state, ran[-1].episode
    before = copied(state)
    first, _ = cap.learn(state, [episode], jr.key(0))
    cap.adapt(state, episode)
    assert same(before, copied(state))
    again, _ = cap.learn(state, [episode], jr.key(0))
    assert same(copied(first), copied(again)) and not same(copied(first.model), before.model)


def piece(steps: int, value: float = 0.0) -> Episode:
    """So many steps of a logged episode."""
    rng = np.random.default_rng(steps)
    x, a = rng.normal(size=(2, steps, 1))
    return Episode(x, a, x[:, 0], x[:, 0] ** 2, x + 0.1 * a, 0.0, value, {}, np.zeros(steps))


@pytest.mark.parametrize(("fit_every", "fits"), [
    (1000, [True, False, True]),  # an episode has 50 steps: 30, then 20 + 30 since the last fit
    (25, [True, False, True]),  # 20, then 50
    (20, [True, True, True]),
])  # fmt: skip
def test_a_fit_waits_for_enough_new_steps(cap, fit_every, fits):
    made = Pets(cap.spec, cap.rule, 1, 1, PetsSettings(ENSEMBLE, SETTINGS.cem, fit_every=fit_every), 512)
    state, seen = made.init(jr.key(0)), []
    for steps in (30, 20, 30):
        state, metrics = made.learn(state, [piece(steps)], jr.key(0))
        seen.append("model_loss" in metrics)
    assert seen == fits
    assert state.buffer.size == 80


def test_the_oldest_steps_are_forgotten(cap):
    settings = PetsSettings(replace(ENSEMBLE, batch=32), SETTINGS.cem, start_steps=40, buffer=40, fit_every=40)
    made = Pets(cap.spec, cap.rule, 1, 1, settings, 512)
    state, _ = made.learn(made.init(jr.key(0)), [piece(30), piece(20)], jr.key(0))
    assert state.buffer.size == 40 and state.buffer.obs[-1, 0] == pytest.approx(piece(20).obs[-1, 0] - state.origin[0])


def test_what_the_rule_remembers_is_forgotten_when_a_binary_cost_turns_out_to_be_none(cap, ran):
    remembered = ConformalState(kappa=3.0, k=1.0, step=0.5, errors=(2.0,))
    for binary, kept in ((False, True), (True, False)):
        state = lived(ran, binary)._replace(rule=remembered)
        later, _ = cap.learn(state, [piece(50)], jr.key(0))
        assert not bool(later.scaling.binary) and (later.rule == remembered) is kept


@pytest.mark.parametrize(("count", "capacity", "padded"), [(5, 8, 8), (8, 8, 8), (9, 8, 16), (40, 8, 64), (3, 1, 4)])
def test_a_longer_run_than_was_meant_doubles_the_capacity(count, capacity, padded):
    assert capacity_for(count, capacity) == padded


# What the rule is told.


def lived(ran: list[Any], binary: bool = False) -> PetsState:
    state = ran[-1].state
    return state._replace(scaling=state.scaling._replace(binary=jnp.asarray(binary)))


def test_the_conformal_rule_plans_with_what_is_left(cap, ran):
    # 25 for 50 steps: after 10 steps of 1 each, 5 too much and .5 kept back, in ten steps; after 10 of .1 each, no more than
    # the task gives
    state = ran[-1].state

    def limits(made: Pets, cost: float) -> list[float]:
        carry, used = made.begin(state), []
        for _ in range(11):
            _, carry, said = made.act(state, carry, np.zeros(1), jr.key(0))
            carry = made.paid(carry, cost)
            used.append(said["plan_limit"])
        return used

    assert limits(cap, 1.0)[0] == 0.5 and limits(cap, 1.0)[10] == pytest.approx(0.5 - 5.5 / 10.0)
    assert limits(cap, 0.1) == [0.5] * 11
    assert limits(agent(Adam()), 1.0) == [0.5] * 11  # the paper's rule has the paper's limit


def test_random_episodes_move_adam_and_leave_the_conformal_rule(ran):
    for rule, moves in ((Conformal(), False), (Adam(), True)):
        made = agent(rule)
        state = made.init(jr.key(0))
        later, told = made.adapt(state, piece(50, value=100.0)._replace(random=True))
        assert (later.rule != state.rule) is moves
        assert told["kappa"] == state.rule.kappa and "residual" not in told


def test_kappa_is_reported_as_it_was_used(ran):
    made = agent(Adam())
    state = lived(ran)._replace(rule=Adam().init())
    later, told = made.adapt(state, fabricated(made.spec, [10.0, 10.0, 10.0], PLANNED))
    assert told["kappa"] == 1.0 and later.rule.kappa == pytest.approx(1.1)  # Adam's first step is its rate


# What may go wrong.


def broken(ran: list[Any]) -> PetsState:
    state = ran[-1].state
    return state._replace(model=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), state.model))


def test_a_broken_model_gives_way_to_the_parameters_before(cap, ran):
    state = broken(ran)
    action, carry, said = cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    before = state._replace(model=state.good[0], scaling=state.good[1])
    wanted, warm, _ = cap.act(before, cap.begin(before), np.zeros(1), jr.key(0))
    np.testing.assert_array_equal(action, wanted)
    np.testing.assert_array_equal(carry.warm, warm.warm)
    assert said["plan_bad"] == 1.0 and said["plan_feasible"] > 0.0


def test_a_broken_model_without_another_goes_on_with_the_plan_before(cap, ran):
    state, plan = broken(ran)._replace(good=None), jnp.linspace(0.1, 0.9, cap.settings.cem.horizon)[:, None]
    action, carry, said = cap.act(state, Carried(plan), np.zeros(1), jr.key(0))
    left = carry.warm
    assert action == pytest.approx([0.1]) and left[:-1] == pytest.approx(np.asarray(plan[1:])) and left[-1] == 0.0
    assert said["plan_bad"] == 1.0 and said["plan_feasible"] == 0.0 and said["plan_enough"] == 0.0


def test_an_observation_too_large_for_the_network_reaches_no_action(cap, ran):
    state = ran[-1].state
    action, carry, _ = cap.act(state, cap.begin(state), np.array([1e300]), jr.key(0))
    assert np.isfinite(action).all() and np.isfinite(carry.warm).all()


def spoiled_fits(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    real = ensemble.fit
    monkeypatch.setattr(ensemble, "fit", lambda *arguments, **named: spoil(*real(*arguments, **named)))


def nan_loss(model: Any, optimiser: Any, loss: Any) -> Any:
    return model, optimiser, jnp.nan


def infinite_weight(model: Any, optimiser: Any, loss: Any) -> Any:
    last = model.weights[-1].at[0, 0, 0].set(jnp.inf)
    return dataclasses.replace(model, weights=(*model.weights[:-1], last)), optimiser, loss


@pytest.mark.parametrize("spoil", [nan_loss, infinite_weight])
def test_a_fit_that_is_not_finite_is_thrown_away_and_three_stop_the_run(ran, monkeypatch, spoil):
    made, state = agent(), ran[-1].state
    fresh, key = [ran[-1].episode], jr.key(1)
    fitted, _ = made.learn(state._replace(waiting=1000), fresh, key)  # a good one, to come after bad ones
    with monkeypatch.context() as patch:
        spoiled_fits(patch, spoil)
        for number in (1, 2):
            state, told = made.learn(state._replace(waiting=1000), fresh, key)
            assert told == {"bad_fits": number} and state.waiting == 0
            for kept, before in zip(jax.tree.leaves(state[:3]), jax.tree.leaves(ran[-1].state[:3]), strict=True):
                np.testing.assert_array_equal(kept, before)
        with pytest.raises(TrainingFailed, match=r"^3 fits in a row .* lower learning_rate .*\.$"):
            made.learn(state._replace(waiting=1000), fresh, key)
    after, told = made.learn(state._replace(waiting=1000), fresh, key)
    assert after.trouble.fits == 0 and np.isfinite(told["model_loss"])
    assert after.good[0] is state.model and not np.array_equal(after.model.weights[0], state.model.weights[0])
    assert fitted.trouble.fits == 0


def test_the_first_fit_may_fail_too(cap, ran, monkeypatch):
    spoiled_fits(monkeypatch, nan_loss)
    state, told = cap.learn(cap.init(jr.key(0)), [ran[0].episode], jr.key(0))
    assert told == {"bad_fits": 1} and state.scaling is None
    action, _, said = cap.act(state, cap.begin(state), np.zeros(1), jr.key(0))
    assert np.isfinite(action).all() and said == {}


def test_plans_that_are_not_finite_stop_the_run_in_the_third_episode(cap, ran):
    good, state = ran[-1].episode, ran[-1].state
    bad = good._replace(extras={**good.extras, "plan_bad": np.eye(50)[7]})
    for number in (1, 2):
        state, _ = cap.adapt(state, bad)
        assert state.trouble.plans == number
    assert cap.adapt(state, good)[0].trouble.plans == 0
    with pytest.raises(TrainingFailed, match=r"^plans of 3 episodes in a row were not finite"):
        cap.adapt(state, bad)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_plan_that_is_not_finite_does_not_make_the_agent_careless(ran, bad, binary):
    # one step whose candidates were all refused: the episode teaches nothing about the model, and κ does not fall
    made = agent()
    rule = ConformalState(kappa=3.0, k=1.0, step=0.5, errors=(2.0,), margins=(3.0,) * 61)
    planned = {name: [0.1, bad, 0.1] for name in PLANNED}
    later, _ = made.adapt(lived(ran, binary)._replace(rule=rule), fabricated(made.spec, [20.0] * 3, planned))
    assert later.rule.kappa >= 3.0 and np.isfinite(jax.tree.leaves(later.rule)).all()
