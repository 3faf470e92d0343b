"""Networks for costs of 0 or 1 see enough costs, find the inputs that matter, and are used for such costs alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from capax.core.errors import InputError
from capax.data.transitions import TransitionBuffer
from capax.models import cost_networks, ensemble, ensemble_fit
from capax.models.cost_networks import RATE, SELECTION, SHORTEST, CostNetworks, draw, logits, selected, stratify
from capax.models.ensemble import EnsembleSettings

SETTINGS = EnsembleSettings(
    members=2, hidden=16, layers=2, particles=2, batch=32, least_updates=400, most_updates=400, cost_networks="own"
)


def test_rows_with_a_cost_come_first_and_unused_places_last():
    # five places, of which four are used; rows 1 and 3 have a cost
    resampled = jnp.array([[0, 1, 1, 2, 3], [0, 0, 2, 2, 3]])
    strata = stratify(resampled, jnp.array([0.0, 1.0, 0.0, 1.0]), jnp.asarray(4))
    assert strata.rows.tolist() == [[1, 1, 0, 2, 3], [0, 0, 2, 2, 3]]
    assert strata.with_cost.tolist() == [2, 0]


def test_half_of_a_batch_has_a_cost_and_weights_make_up_for_it():
    # 3 of 60 rows have a cost: each of these counts 2 · 3/60, each other one 2 · 57/60
    cost = jnp.zeros(60).at[jnp.array([4, 5, 59])].set(1.0)
    strata = stratify(jnp.arange(60)[None], cost, jnp.asarray(60))
    rows, weight = draw(jr.key(0), strata, jnp.asarray(60), 20)
    np.testing.assert_allclose(cost[rows[0]], [1.0] * 10 + [0.0] * 10)
    np.testing.assert_allclose(weight[0], [0.1] * 10 + [1.9] * 10, rtol=1e-6)


def test_the_weighted_mean_of_batches_is_that_of_the_data():
    rng = np.random.default_rng(0)
    value, cost = rng.normal(size=500), (rng.random(500) < 0.03).astype(float)
    strata = stratify(jnp.arange(500)[None], jnp.asarray(cost), jnp.asarray(500))
    rows, weight = jax.vmap(lambda key: draw(key, strata, jnp.asarray(500), 64))(jr.split(jr.key(1), 4000))
    means = (np.asarray(weight) * value[np.asarray(rows)]).mean((1, 2))
    assert means.mean() == pytest.approx(value.mean(), abs=4.0 * means.std() / np.sqrt(len(means)))


@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_data_of_one_kind_only(cost):
    strata = stratify(jnp.arange(8)[None], jnp.full(8, cost), jnp.asarray(5))
    rows, weight = draw(jr.key(0), strata, jnp.asarray(5), 10)
    counted = weight[0] > 0.0
    assert counted.sum() == 5 and set(weight[0].tolist()) == {0.0, 2.0}
    assert np.asarray(rows[0][counted]).max() < 5


def with_first(first: Any) -> CostNetworks:
    """Networks of two hidden units with these weights of the first layer."""
    net = cost_networks.init(jr.key(0), 1, len(first), 2, 1)
    return CostNetworks((jnp.array([first]), *net.weights[1:]), net.biases)


def test_weights_of_an_input_shrink_by_a_fixed_length_and_not_below_0():
    net = with_first([[3.0, 4.0], [1e-4, 0.0]])  # lengths 5 and .0001
    length = 5.0 - RATE * 1e-3 * SELECTION
    after = selected(net, 1e-3)
    np.testing.assert_allclose(after.weights[0], [[[3.0 * length / 5.0, 4.0 * length / 5.0], [0.0, 0.0]]], rtol=1e-6)
    assert (after.weights[1] == net.weights[1]).all() and after.biases is net.biases


def test_the_last_input_stays():
    shortest = SHORTEST * np.sqrt(2.0)
    for first in (0.9 * shortest, 1.1 * shortest):
        after = selected(with_first([[first, 0.0], [0.5 * shortest, 0.0]]), 1e-3).weights[0][0, :, 0]
        assert (after[0] < first, after[1] < 0.5 * shortest) == ((first > shortest,) * 2)


def episodes(count: int, seed: int) -> TransitionBuffer:
    """Episodes of 20 steps with a place that costs above 1, and five numbers that stay for an episode."""
    rng = np.random.default_rng(seed)
    place = rng.normal(size=(count, 20, 1))
    label = np.broadcast_to(rng.normal(size=(count, 1, 5)), (count, 20, 5))
    obs = np.concatenate([place, label], -1).reshape(-1, 6).astype(np.float32)
    cost = (obs[:, 0] > 1.0).astype(np.float32)
    action, zero = rng.uniform(-1.0, 1.0, (len(obs), 1)).astype(np.float32), np.zeros(len(obs), np.float32)
    return TransitionBuffer(obs, action, zero, cost, obs, zero, added=len(obs))


def fitted(data: TransitionBuffer, settings: EnsembleSettings, fits: int = 1) -> tuple[Any, Any]:
    net = ensemble.init(jr.key(0), 6, 1, settings)
    scale, optimiser = ensemble.scaling(data, settings), optax.adam(settings.learning_rate).init(net)
    for key in jr.split(jr.key(1), fits):
        net, optimiser, _ = ensemble_fit.fit(
            net, optimiser, scale, data, jnp.asarray(data.size), key, settings=settings
        )
    return net, scale


def one_step(params: Any, data: TransitionBuffer, settings: EnsembleSettings) -> Any:
    """Costs (or logits) of single steps, as plans see them."""

    def imagine(obs: Any, action: Any) -> Any:
        return ensemble.rollout(params, obs, action[None, None], jr.key(0), settings=settings).cost.mean()

    return np.asarray(jax.vmap(imagine)(data.obs, data.action))


def error(settings: EnsembleSettings) -> float:
    """The logistic loss in new episodes of a model of 12 episodes."""
    new = episodes(100, 1)
    logit = one_step(fitted(episodes(12, 0), settings), new, settings)
    return float(np.logaddexp(0.0, np.where(new.cost > 0.0, -logit, logit)).mean())


def test_what_a_cost_depends_on_is_found_from_few_episodes():
    assert error(SETTINGS) < 0.6 * error(replace(SETTINGS, cost_networks="shared"))


def test_inputs_that_say_nothing_become_small():
    net = fitted(episodes(12, 0), SETTINGS, fits=5)[0].costs
    length = jnp.linalg.norm(net.weights[0], axis=-1)  # [E in]
    assert (length[:, 0] > 3.0 * length[:, 1:].max(-1)).all()


def test_other_costs_are_those_of_the_shared_networks():
    data = episodes(12, 0)._replace(cost=np.random.default_rng(0).normal(size=240).astype(np.float32))
    net, scale = fitted(data, SETTINGS)
    assert not bool(scale.binary)
    without = ensemble.Ensemble(net.weights, net.biases, net.max_logvar, net.min_logvar)
    np.testing.assert_allclose(one_step((net, scale), data, SETTINGS), one_step((without, scale), data, SETTINGS))


def test_a_rollout_has_the_logits_of_each_members_own_network():
    data = episodes(12, 0)
    net, scale = fitted(data, SETTINGS)
    settings = replace(SETTINGS, particles=4)
    sharp = scale._replace(target_sd=scale.target_sd.at[-1].set(3.0))
    actions = data.action[:6].reshape(2, 3, 1)
    imagined = ensemble.rollout((net, sharp), data.obs[0], actions, jr.key(0), settings=settings)
    x = (np.concatenate([np.tile(data.obs[0], (2, 1)), data.action[[0, 3]]], 1) - scale.input_mean) / scale.input_sd
    first = logits(net.costs, jnp.broadcast_to(x, (2, *x.shape)))  # [E N]
    np.testing.assert_allclose(imagined.cost[:, :, 0], 3.0 * jnp.repeat(first.T, 2, axis=1), rtol=1e-5)


def test_the_papers_ensemble_has_none():
    assert ensemble.init(jr.key(0), 2, 1, EnsembleSettings(hidden=4, layers=1)).costs is None


def test_the_fused_rollout_has_none():
    with pytest.raises(InputError, match="rollout is fused, which has no networks for costs alone"):
        EnsembleSettings(rollout="fused", cost_networks="own")
