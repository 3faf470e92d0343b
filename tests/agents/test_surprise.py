"""A cost that was not foreseen is learned from within its episode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.agents import surprise
from capax.agents.pets import Pets, PetsSettings
from capax.agents.surprise import RECALLED_STEPS, Recalled, relearned
from capax.core.types import Episode, Spec
from capax.kappa.fixed import Fixed
from capax.models import cost_networks, ensemble
from capax.models.ensemble import EnsembleSettings, Scaling
from capax.planning.ccem import CEM

ENSEMBLE = EnsembleSettings(
    members=2, hidden=8, layers=2, particles=2, batch=16, least_updates=20, most_updates=20, cost_networks="own"
)
SETTINGS = PetsSettings(ensemble=ENSEMBLE, cem=CEM(horizon=4, iterations=1, population=8, elites=2), start_steps=20)
AGENT = Pets(Spec(5.0, 0.99, False, 20), Fixed(0.0), 2, 1, SETTINGS, 64)


def scale_of(dim: int) -> Scaling:
    """Data in units of 1."""
    ones = (jnp.zeros(dim + 1), jnp.ones(dim + 1), jnp.zeros(dim + 2), jnp.ones(dim + 2))
    return Scaling(*ones, jnp.full(dim, -9.0), jnp.full(dim, 9.0), jnp.asarray(True), jnp.asarray(False))


def probability(model: Any, place: float) -> float:
    """The probability of a cost at (place, 0), without an action."""
    x = jnp.broadcast_to(jnp.array([place, 0.0, 0.0]), (2, 1, 3))
    return float(1.0 / (1.0 + np.exp(-np.asarray(cost_networks.logits(model.costs, x)).mean())))


def test_the_oldest_step_is_forgotten_first():
    steps = Recalled.nothing(1, 1)
    for number in range(RECALLED_STEPS + 2):
        steps = steps.with_step(np.array([number]), np.array([0.0])).with_cost(float(number % 2))
    assert steps.steps == RECALLED_STEPS + 2
    assert steps.obs[:3, 0].tolist() == [RECALLED_STEPS, RECALLED_STEPS + 1, 2]
    assert steps.cost[:3].tolist() == [0.0, 1.0, 0.0]


def test_recalled_steps_are_never_changed():
    one = Recalled.nothing(1, 1).with_step(np.array([3.0]), np.array([0.0]))
    one.with_cost(1.0), one.with_step(np.array([4.0]), np.array([0.0]))
    assert one.cost[0] == 0.0 and one.obs[1, 0] == 0.0


def test_places_that_cost_are_avoided_at_once_and_others_are_not():
    # the episode came from place −1 to place 1, where its last two steps cost
    steps = Recalled.nothing(2, 1)
    for place, cost in zip(np.linspace(-1.0, 1.0, 20), [0.0] * 18 + [1.0] * 2, strict=True):
        steps = steps.with_step(np.array([place, 0.0]), np.zeros(1)).with_cost(cost)
    model = ensemble.init(jr.key(0), 2, 1, replace(ENSEMBLE, hidden=32))
    after = relearned(model, scale_of(2), steps, 1e-3)
    assert probability(model, 1.0) < 0.6 and probability(after, 1.2) > 0.7
    assert probability(after, -1.0) < 0.3
    assert all(one is other for one, other in zip(after.weights, model.weights, strict=True))


def played(cost: Any = 0.0, steps: int = 20) -> Episode:
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(steps + 1, 2)), rng.uniform(-1.0, 1.0, (steps, 1)).astype(np.float32)
    costs = np.broadcast_to(np.asarray(cost, np.float64), steps).copy()
    paid = float(costs.sum())
    return Episode(obs[:-1], action, np.zeros(steps), costs, obs[1:], 0.0, paid, {}, np.zeros(steps), random=True)


@pytest.fixture(scope="module")
def state() -> Any:
    """After a fit to an episode with costs of 0 and 1."""
    return AGENT.learn(AGENT.init(jr.key(0)), [played([0.0, 1.0] * 10)], jr.key(1))[0]


def after_cost(state: Any, cost: float, foreseen: float) -> Any:
    """The carry of the second step, after a first one that cost this much."""
    obs = np.zeros(2)
    _, carry, _ = AGENT.act(state, AGENT.begin(state), obs, jr.key(2))
    carry = AGENT.observe_cost(carry._replace(unpaid=foreseen), cost)
    return AGENT.act(state, carry, obs, jr.key(3))[1]


@pytest.mark.parametrize(("cost", "foreseen", "learns"), [(1.0, 0.1, True), (1.0, 0.9, False), (0.0, 0.1, False)])
def test_only_a_cost_that_was_not_foreseen_is_learned_from(state, cost, foreseen, learns):
    assert (after_cost(state, cost, foreseen).model is not None) == learns


def test_who_reports_no_costs_gets_the_same_model_all_the_time(state):
    carry = AGENT.begin(state)
    for number in range(3):
        _, carry, _ = AGENT.act(state, carry, np.zeros(2), jr.key(number))
    assert carry.model is None and carry.budget.steps == 2


def test_the_next_episode_begins_with_the_model_of_the_fit(state):
    assert AGENT.begin(state).model is None and AGENT.begin(state).recalled.steps == 0


def test_costs_that_are_no_flags_are_not_learned_from_within_an_episode():
    state = AGENT.learn(AGENT.init(jr.key(0)), [played(np.linspace(0.0, 0.5, 20))], jr.key(1))[0]
    carry = after_cost(state, 5.0, 0.0)
    assert carry.recalled is None and carry.model is None


def test_it_takes_one_compilation(state):
    surprise._learn.clear_cache()
    for foreseen in (0.1, 0.2):
        after_cost(state, 1.0, foreseen)
    assert surprise._learn._cache_size() == 1
