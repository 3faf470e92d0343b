"""The conventions of the published ensemble, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from optax.tree_utils import tree_get

from capax.data.transitions import TransitionBuffer
from capax.models import ensemble, ensemble_fit
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling, scaling
from capax.models.kernels.ensemble_kernel import unsupported_reason

STEPS = TransitionBuffer(*(np.asarray(part, np.float32) for part in (
    [[0], [2]], [[-1], [1]], [2, 4], [0.5, 1.5], [[1], [5]], [0, 0]
)))  # fmt: skip
"""Two transitions: Δs is 1 and 3, the rewards are 2 and 4, the costs .5 and 1.5."""


def settings(**changes: Any) -> EnsembleSettings:
    return EnsembleSettings(**{"members": 1, "hidden": 1, "layers": 1, "particles": 1, **changes})


def constant_model(binary: bool = False, bound: float = 1e6) -> tuple[Ensemble, Scaling]:
    """Δs = .5 ± 2, reward swish(s) ± 3, cost 2 ± .5, whatever the action. All units are 1."""
    weights = jnp.array([1.0, 0.0]).reshape(1, 2, 1), jnp.array([0.0, 1.0, *[0.0] * 5]).reshape(1, 1, 7)
    logvar = jnp.log(jnp.square(jnp.array([2.0, 3.0, 0.5])))
    last = jnp.concatenate([jnp.array([0.5, 0.0, 2.0]), logvar, jnp.zeros(1)])
    net = Ensemble(weights, (jnp.zeros((1, 1, 1)), last.reshape(1, 1, 7)), jnp.full(3, 30.0), jnp.full(3, -30.0))
    units = jnp.zeros(2), jnp.ones(2), jnp.zeros(3), jnp.ones(3)
    return net, Scaling(*units, jnp.full(1, -bound), jnp.full(1, bound), jnp.asarray(binary), jnp.asarray(False))


def imagine(monkeypatch: Any, binary: bool = False, bound: float = 1e6, **changes: Any) -> tuple[Any, Any]:
    """Rewards and costs of two steps from s = 1, with noise 1.5 everywhere."""
    monkeypatch.setattr(ensemble, "particle_noise", lambda key, count, shape, chosen: jnp.full((2, 1, 1, 1, 3), 1.5))
    start, actions = jnp.ones(1), jnp.zeros((1, 2, 1))
    imagined = ensemble.rollout(
        constant_model(binary, bound), start, actions, jr.key(0), settings=settings(floor=0.0, **changes)
    )
    return np.asarray(imagined.reward[0, 0]), np.asarray(imagined.cost[0, 0])


@pytest.mark.parametrize(("noise", "second"), [
    ("shared", 4.5), ("own", 4.5),  # 1 + .5 + 2 · 1.5
    ("squared", 7.5),  # 1 + .5 + 2² · 1.5
])  # fmt: skip
def test_noise_moves_a_state_by_its_deviation_or_by_the_square_of_it(noise, second, monkeypatch):
    reward, cost = imagine(monkeypatch, noise=noise)
    assert reward == pytest.approx([1.0 / (1.0 + np.exp(-1.0)), second / (1.0 + np.exp(-second))], rel=1e-5)
    assert cost == pytest.approx([2.0, 2.0], rel=1e-5)


@pytest.mark.parametrize(("noise", "reward", "cost"), [
    ("own", 4.5, 2.75),  # 3 · 1.5 more than the mean, and 2 + .5 · 1.5
    ("squared", 13.5, 2.375),  # 3² · 1.5 more, and 2 + .5² · 1.5
])  # fmt: skip
def test_rewards_and_costs_can_be_samples(noise, reward, cost, monkeypatch):
    rewards, costs = imagine(monkeypatch, noise=noise, outcomes="sample")
    assert rewards[0] - 1.0 / (1.0 + np.exp(-1.0)) == pytest.approx(reward, rel=1e-5)
    assert costs[0] == pytest.approx(cost, rel=1e-5)
    _, logits = imagine(monkeypatch, binary=True, noise=noise, outcomes="sample")
    assert logits == pytest.approx([2.0, 2.0], rel=1e-5)  # the logit of a cost has no noise


def test_states_are_clamped(monkeypatch):
    # 4.5 becomes 2
    reward, _ = imagine(monkeypatch, bound=2.0, noise="own")
    assert reward[1] == pytest.approx(2.0 / (1.0 + np.exp(-2.0)), rel=1e-5)


def test_the_clamp_is_around_zero_of_the_environment():
    # states of the buffer are relative to 3, so ± 100 is −103 to 97
    scale = scaling(STEPS, settings(clamp=100.0), np.array([3.0]))
    assert (float(scale.low[0]), float(scale.high[0])) == (-103.0, 97.0)
    # without a clamp: the range of 5 is added at both ends
    assert (float(scaling(STEPS).low[0]), float(scaling(STEPS).high[0])) == (-5.0, 10.0)


def test_raw_targets_keep_their_units():
    scale = scaling(STEPS, settings(targets="raw"))
    assert (scale.target_mean.tolist(), scale.target_sd.tolist()) == ([0.0] * 3, [1.0] * 3)
    # inputs are scaled all the same: states 0 and 2, actions −1 and 1
    assert (scale.input_mean.tolist(), scale.input_sd.tolist()) == ([1.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize("outcomes", ["mean", "sample"])
def test_candidates_share_their_noise_or_have_their_own(outcomes):
    chosen, shape = settings(outcomes=outcomes), (3, 1, 1, 4)
    size = 4 if outcomes == "sample" else 2
    assert ensemble.particle_noise(jr.key(0), 5, shape, chosen).shape == (3, 1, 1, 1, size)
    own = settings(outcomes=outcomes, noise="own")
    each = ensemble.particle_noise(jr.key(0), 5, shape, own)
    assert each.shape == (3, 1, 5, 1, size) and len(np.unique(each)) == each.size
    # a candidate's noise follows from its own key, so it does not matter who else is imagined
    keys = jr.split(jr.key(0), 5)
    assert jnp.array_equal(ensemble.particle_noise(keys[3:4], 1, shape, own)[:, :, 0], each[:, :, 3])


def test_a_pass_has_every_row_of_the_bootstrap_once():
    resampled = jnp.array([[7, 7, 2, 0, 9, 9], [4, 1, 1, 3, 9, 9]])  # four rows each, and padding
    order = np.asarray(ensemble_fit.pass_order(jr.key(1), resampled, jnp.asarray(4)))
    assert sorted(order[0, :4]) == [0, 2, 7, 7] and sorted(order[1, :4]) == [1, 1, 3, 4]


@pytest.mark.parametrize(("least", "updates"), [(0, 15), (40, 40)])
def test_five_passes_are_the_length_of_a_fit(least, updates):
    # ⌈6 / 2⌉ = 3 batches a pass, 15 gradient steps in 5 passes; or as many as are asked for
    chosen = settings(batch=2, least_updates=least, batches="passes", epochs=5.0)
    buffer = TransitionBuffer(*(np.concatenate([part] * 3) for part in STEPS.columns))
    net = ensemble.init(jr.key(0), 1, 1, chosen)
    optimiser = optax.adam(1e-3).init(net)
    fitted, optimiser, loss = ensemble_fit.fit(
        net, optimiser, scaling(buffer, chosen), buffer.padded(8), 6, jr.key(1), settings=chosen
    )
    assert int(tree_get(optimiser, "count")) == updates and np.isfinite(loss)
    assert not jnp.array_equal(fitted.weights[0], net.weights[0])


@pytest.mark.parametrize(("changes", "word"), [
    ({}, ""), ({"noise": "own"}, "noise is own"), ({"outcomes": "sample"}, "outcomes is sample"),
])  # fmt: skip
def test_the_fused_kernel_leaves_published_imagination_to_the_plain_path(changes, word):
    reason = unsupported_reason(17, 6, 200, 4, jnp.bfloat16, **changes)
    assert (word in reason) if word else reason == ""
    assert "float32" in unsupported_reason(17, 6, 200, 4, jnp.float32)
