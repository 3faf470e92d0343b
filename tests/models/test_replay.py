"""A replay predicts each step of an episode from states that lie up to a plan's length before it."""

from __future__ import annotations

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.models.replay import replay

SETTINGS = EnsembleSettings(members=2, hidden=4, layers=1, particles=2, sampled=0.0)
HORIZON, STEPS = 8, 11


@pytest.fixture(scope="module")
def params():
    """A model with random weights, in the units of the environment, that knows no end of an episode."""
    ones, zeros = np.ones, np.zeros
    bounds = jnp.full(2, 1e6, jnp.float32)
    parts = [jnp.asarray(x, jnp.float32) for x in (zeros(3), ones(3), zeros(4), ones(4))]
    flags = jnp.asarray(False), jnp.asarray(False)
    return ensemble.init(jr.key(0), 2, 1, SETTINGS), ensemble.Scaling(*parts, -bounds, bounds, *flags)


@pytest.fixture(scope="module")
def episode():
    rng = np.random.default_rng(0)
    return rng.normal(size=(STEPS, 2)).astype(np.float32), rng.uniform(-1, 1, (STEPS, 1)).astype(np.float32)


def test_a_step_is_predicted_from_the_start_of_its_stretch(params, episode):
    obs, action = episode
    found = replay(params, obs, action, jr.key(0), HORIZON, SETTINGS, STEPS)
    assert found.part == 2 and found.cost.shape == (4, STEPS)
    # step 7 in row 2 comes from a stretch that began at step 2, six steps long until then
    imagined = ensemble.rollout(
        params, jnp.asarray(obs[2]), jnp.asarray(action[None, 2:8]), jr.key(0), settings=SETTINGS
    )
    assert found.cost[2, 7] == pytest.approx(float(imagined.cost[0, :, 5].mean()), rel=1e-5)
    assert found.uncertainty[2, 7] == pytest.approx(float(imagined.uncertainty[0, :, 5].mean()), rel=1e-5)


def test_no_stretch_begins_before_the_episode(params, episode):
    found = replay(params, *episode, jr.key(0), HORIZON, SETTINGS, STEPS)
    for age in range(4):
        assert np.isnan(found.cost[age, : 2 * age]).all() and np.isfinite(found.cost[age, 2 * age :]).all()


def test_with_sight_a_new_stretch_begins_after_so_many_parts(params, episode):
    found = replay(params, *episode, jr.key(0), HORIZON, SETTINGS, STEPS)
    ages = {1: [0] * 11, 2: [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1], 4: [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1]}
    for parts, expected in ages.items():
        np.testing.assert_array_equal(found.with_sight(parts)[0], found.cost[expected, np.arange(STEPS)])


def test_a_short_episode_is_replayed_as_if_it_were_padded(params, episode):
    obs, action = episode
    short = replay(params, obs[:5], action[:5], jr.key(0), HORIZON, SETTINGS, STEPS)
    whole = replay(params, obs, action, jr.key(0), HORIZON, SETTINGS, STEPS)
    np.testing.assert_allclose(short.with_sight(2)[0], whole.with_sight(2)[0][:5], rtol=1e-5)
