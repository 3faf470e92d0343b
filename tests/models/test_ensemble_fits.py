"""The ensemble learns transitions, costs and episode ends in any units. Its settings and buffer check their input."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from support.compiled_ensemble import init, predict, rollout

from capax.core.errors import InputError
from capax.core.types import Episode
from capax.data.transitions import TransitionBuffer
from capax.models import ensemble_fit
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling, scaling

TINY = EnsembleSettings(
    members=2, hidden=16, layers=2, particles=4, batch=64, least_updates=800, most_updates=800, learning_rate=5e-3
)
CAPACITY = 512


def transitions(
    rng: Any, n: int = 400, noise: float = 0.0, binary: bool = False, ends: bool = False
) -> TransitionBuffer:
    """x' = x + .5 a + noise,  r = x + 2a,  c = x² or 1[x > .5]; ends where x > 1."""
    x, a = rng.uniform(-2.0, 2.0, (n, 1)), rng.uniform(-1.0, 1.0, (n, 1))
    next_x = x + 0.5 * a + noise * rng.normal(size=(n, 1))
    cost = x[:, 0] > 0.5 if binary else x[:, 0] ** 2
    parts = (x, a, x[:, 0] + 2.0 * a[:, 0], cost, next_x, ends & (x[:, 0] > 1.0))
    return TransitionBuffer(*(np.asarray(part, np.float32) for part in parts))


def fit_model(
    buffer: TransitionBuffer, seed: int = 0, settings: EnsembleSettings = TINY
) -> tuple[tuple[Ensemble, Scaling], float]:
    scale = scaling(buffer)
    net = init(jr.key(seed), buffer.obs.shape[1], buffer.action.shape[1], settings)
    optimiser = optax.adam(settings.learning_rate).init(net)
    net, _, loss = ensemble_fit.fit(
        net, optimiser, scale, buffer.padded(CAPACITY), buffer.size, jr.key(seed + 1), settings
    )
    return (net, scale), float(loss)


def one_step(params: tuple[Ensemble, Scaling], obs: Any, action: Any) -> tuple[Any, Any, Any]:
    """Δs, reward and cost `[E, B, S+2]` in the data's units, their standard deviations, and the logits of an end."""
    net, scale = params
    x = (np.concatenate([obs, action], 1) - scale.input_mean) / scale.input_sd
    p = predict(net, jnp.broadcast_to(jnp.asarray(x, jnp.float32), (net.weights[0].shape[0], *x.shape)))
    mean = p.mean * scale.target_sd + scale.target_mean
    return np.asarray(mean), np.asarray(jnp.exp(p.logvar / 2) * scale.target_sd), np.asarray(p.end)


@pytest.fixture(scope="module")
def linear_model() -> tuple[tuple[Ensemble, Scaling], float]:
    """A model fitted to x' = x + .5 a + .1 ε."""
    return fit_model(transitions(np.random.default_rng(0), noise=0.1))


# Units.


def test_scaling_by_hand():
    # Δs is 1, 3; rewards 2, 4; costs .5, 1.5: standard deviations 1, 1 and .5. The states are 0, 1, 2, 5
    buffer = TransitionBuffer(*(np.asarray(part, np.float32) for part in (
        [[0], [2]], [[-1], [1]], [2, 4], [0.5, 1.5], [[1], [5]], [0, 0]
    )))  # fmt: skip
    scale = scaling(buffer)
    np.testing.assert_allclose(scale.input_mean, [1.0, 0.0])
    np.testing.assert_allclose(scale.input_sd, [1.0, 1.0])
    np.testing.assert_allclose(scale.target_sd, [1.0, 1.0, 0.5])
    np.testing.assert_allclose([scale.low[0], scale.high[0]], [-5.0, 10.0])  # the range of 5 is added at both ends
    assert not scale.binary and not scale.ends


def test_constant_quantities_keep_their_unit():
    rng = np.random.default_rng(0)
    buffer = transitions(rng)
    constant = np.full((400, 1), 1e6, np.float32)
    buffer = buffer._replace(
        obs=np.hstack([buffer.obs, constant]),
        next_obs=np.hstack([buffer.next_obs, constant]),
        reward=constant[:, 0] * 0.0,
    )
    scale = scaling(buffer)
    assert scale.input_sd[1] == 1.0 and scale.target_sd[1] == 1.0 and scale.target_sd[2] == 1.0
    assert scale.target_sd[0] == pytest.approx(0.5 / np.sqrt(3.0), rel=0.1)


@pytest.mark.parametrize(("cost", "binary"), [
    ([0, 1, 1, 0], True), ([0, 0, 0, 0], True), ([1, 1, 1, 1], True), ([0, 1, 0.5, 0], False), ([0, 1, 2, 0], False),
    ([0, -1, 0, 1], False),
])  # fmt: skip
def test_a_cost_is_binary_if_all_its_values_are_0_or_1(cost, binary):
    buffer = transitions(np.random.default_rng(0), n=4)._replace(cost=np.asarray(cost, np.float32))
    scale = scaling(buffer)
    assert bool(scale.binary) is binary
    assert not binary or scale.target_sd[-1] == 1.0


def test_episode_ends_are_detected():
    rng = np.random.default_rng(0)
    assert bool(scaling(transitions(rng, ends=True)).ends) and not bool(scaling(transitions(rng)).ends)


def test_scaling_stays_exact_far_from_zero_and_in_small_units():
    # 1e6 and 1e-6 together: standard deviations come from sums in float64
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (2000, 2)) * [1e6, 1e-6]
    obs = x.astype(np.float32)
    rest = [np.zeros(len(x), np.float32)] * 2
    buffer = TransitionBuffer(obs, np.zeros((2000, 1), np.float32), *rest, (1.1 * x).astype(np.float32), rest[0])
    scale = scaling(buffer)
    np.testing.assert_allclose(scale.input_sd[:2], obs.std(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(scale.target_sd[:2], (0.1 * x).std(0), rtol=1e-4)


# Fits.


def test_fit_learns_a_linear_system_and_its_noise(linear_model):
    params, loss = linear_model
    rng = np.random.default_rng(1)
    obs, action = rng.uniform(-1.8, 1.8, (200, 1)), rng.uniform(-0.9, 0.9, (200, 1))
    mean, sd, _ = one_step(params, obs, action)
    truth = np.hstack([0.5 * action, obs + 2.0 * action, obs**2])
    rmse = np.sqrt(np.square(mean - truth).mean((0, 1)))
    assert (rmse < [0.05, 0.1, 0.1]).all()  # the standard deviations are .29, 1.6 and 1.2
    assert np.median(sd[..., 0]) == pytest.approx(0.1, rel=0.3)
    untrained = init(jr.key(0), 1, 1, TINY)
    before = np.abs(one_step((untrained, params[1]), obs, action)[0] - truth).mean()
    assert np.abs(mean - truth).mean() < 0.1 * before
    # an ideal model: 2 NLL without its constant is 1 + log σ² for the noise, σ = .1/√(.1² + .5²/3) in scaled
    # units; reward and cost have no noise, so theirs is far below that
    assert loss < 1.0 + np.log(0.1**2 / (0.1**2 + 0.25 / 3.0))


def test_a_fit_lowers_the_loss_that_it_reports():
    buffer = transitions(np.random.default_rng(0), noise=0.1)
    scale, net = scaling(buffer), init(jr.key(0), 1, 1, TINY)
    optimiser, losses = optax.adam(TINY.learning_rate).init(net), []
    for number in range(2):
        net, optimiser, loss = ensemble_fit.fit(
            net, optimiser, scale, buffer.padded(CAPACITY), buffer.size, jr.key(number), TINY
        )
        losses.append(float(loss))
    assert losses[1] < losses[0]


def test_members_differ(linear_model):
    (net, _), _ = linear_model
    for w in net.weights:
        assert not np.allclose(w[0], w[1], atol=1e-3)


def test_members_see_different_resamplings():
    # equal weights at the start: only the rows that each member reads differ
    buffer = transitions(np.random.default_rng(0), noise=0.1)
    net = init(jr.key(0), 1, 1, TINY)
    same = jax.tree.map(lambda x: x if x.ndim == 1 else jnp.broadcast_to(x[:1], x.shape), net)
    optimiser = optax.adam(TINY.learning_rate).init(same)
    fitted, *_ = ensemble_fit.fit(same, optimiser, scaling(buffer), buffer.padded(CAPACITY), 400, jr.key(0), TINY)
    assert not np.allclose(fitted.weights[0][0], fitted.weights[0][1], atol=1e-3)


@pytest.mark.parametrize("garbage", [1e30, np.nan])
def test_padding_is_never_read(garbage):
    buffer = transitions(np.random.default_rng(0), noise=0.1)
    net = init(jr.key(0), 1, 1, TINY)
    optimiser, scale = optax.adam(TINY.learning_rate).init(net), scaling(buffer)
    padded = buffer.padded(CAPACITY)
    spoiled = TransitionBuffer(*(np.where(np.arange(CAPACITY).reshape(-1, *[1] * (a.ndim - 1)) < 400, a, garbage)
                       .astype(np.float32) for a in padded.columns))  # fmt: skip
    one, other = (ensemble_fit.fit(net, optimiser, scale, rows, 400, jr.key(0), TINY) for rows in (padded, spoiled))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_growing_buffer_compiles_nothing(linear_model):
    before = ensemble_fit.fit.__wrapped__._cache_size()
    for size in (2, 64, 65):
        buffer = transitions(np.random.default_rng(0), n=size)
        _, loss = fit_model(buffer)
        assert np.isfinite(loss)
    assert ensemble_fit.fit.__wrapped__._cache_size() == before


@pytest.mark.parametrize(("count", "updates"), [
    (100, 6),  # ⌈100/32⌉ = 4 batches, and half as many again
    (128, 6),
    (129, 8),  # 5 batches, 7.5
    (3, 3),  # 1 batch, 1.5, but at least 3
    (250, 10),  # 8 batches, 12, but at most 10
])  # fmt: skip
def test_updates_of_a_fit(count, updates):
    settings = EnsembleSettings(
        members=2, hidden=2, layers=1, particles=2, batch=32, epochs=1.5, least_updates=3, most_updates=10
    )
    buffer = transitions(np.random.default_rng(0), n=count)
    net = init(jr.key(0), 1, 1, settings)
    optimiser = optax.adam(settings.learning_rate).init(net)
    _, optimiser, _ = ensemble_fit.fit(net, optimiser, scaling(buffer), buffer.padded(256), count, jr.key(0), settings)
    assert int(optimiser[0].count) == updates


def test_a_partial_batch_counts_each_row_once():
    # fifty rows as a batch of 50, or in a batch of 64: the same gradient
    buffer, losses = transitions(np.random.default_rng(0), n=50), []
    for batch in (50, 64):
        settings = EnsembleSettings(
            members=2, hidden=2, layers=1, particles=2, batch=batch, epochs=3.0, least_updates=0
        )
        net = init(jr.key(0), 1, 1, settings)
        optimiser = optax.adam(settings.learning_rate).init(net)
        arguments = (scaling(buffer), buffer.padded(64), 50, jr.key(0), settings)
        losses.append(float(ensemble_fit.fit(net, optimiser, *arguments)[2]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_very_different_scales_are_learned_equally_well():
    # both states change by a tenth of their range, 1e6 and 1e-6; errors are in each state's own unit
    rng = np.random.default_rng(0)
    unit = np.array([1e6, 1e-6])
    x, a = rng.uniform(-1.0, 1.0, (500, 2)), rng.uniform(-1.0, 1.0, (500, 2))
    next_x = x + 0.1 * a
    parts = (x * unit, a, 1e4 * x[:, 0], 1e-4 * (1.0 + x[:, 1]), next_x * unit, np.zeros(500))
    params, _ = fit_model(TransitionBuffer(*(np.asarray(part, np.float32) for part in parts)))
    mean, *_ = one_step(params, x * unit, a)
    error = np.abs(mean - np.hstack([0.1 * a * unit, 1e4 * x[:, :1], 1e-4 * (1.0 + x[:, 1:])]))
    # in units of a largest change .1 · 1e6 and .1 · 1e-6, and of the largest reward and cost
    assert (error.mean((0, 1)) < 0.05 * np.array([1e5, 1e-7, 1e4, 1e-4])).all()


@pytest.fixture(scope="module")
def ending_model() -> tuple[Ensemble, Scaling]:
    """A model fitted to episodes that end where x > 1."""
    return fit_model(transitions(np.random.default_rng(0), ends=True))[0]


def test_episode_ends_are_learned(ending_model):
    obs = np.array([[-1.5], [0.0], [0.7], [1.3], [1.9]])
    *_, end = one_step(ending_model, obs, np.zeros((5, 1)))
    assert ((end > 0.0) == [False, False, False, True, True]).all()


def test_a_binary_cost_is_learned_as_a_logit():
    params, _ = fit_model(transitions(np.random.default_rng(0), binary=True))
    mean, *_ = one_step(params, np.array([[-1.5], [0.2], [0.8], [1.5]]), np.zeros((4, 1)))
    assert bool(params[1].binary) and ((mean[..., -1] > 0.0) == [False, False, True, True]).all()


def test_a_cost_with_an_offset_is_learned_as_well_as_one_without():
    # 300 is a thousand standard deviations of the cost
    rng = np.random.default_rng(0)
    buffer = transitions(rng)
    shifted = buffer._replace(cost=(300.0 + 0.1 * buffer.cost).astype(np.float32))
    params, _ = fit_model(shifted)
    obs, action = buffer.obs[:200], buffer.action[:200]
    wrong = one_step(params, obs, action)[0][..., -1] - shifted.cost[:200]
    assert np.sqrt(np.square(wrong).mean()) < 0.2 * shifted.cost.std()


def test_a_learned_end_appears_in_rollouts(ending_model):
    # x moves by .5 per step at full action, and the first step from above 1 ends the episode: 0, .5, 1, 1.5. The end
    # may come one step early, since 1 is on the border
    actions = np.stack([np.ones((6, 1)), -np.ones((6, 1)) * 0.3])
    imagined = rollout(ending_model, jnp.zeros(1), jnp.asarray(actions, jnp.float32), jr.key(0), settings=TINY)
    assert set(np.asarray(imagined.alive[0].sum(-1)).tolist()) <= {3.0, 4.0}
    assert bool((imagined.alive[1] == 1.0).all())


# Settings and buffer.


@pytest.mark.parametrize(("bad", "message"), [
    ({"members": 0}, "members is 0"),
    ({"hidden": 0}, "hidden is 0"),
    ({"most_updates": 0}, "most_updates is 0"),
    ({"particles": 7}, "particles is 7: give a multiple of the 5 members."),
    ({"products": "float16"}, "products is 'float16': choose auto, float32 or bfloat16."),
    ({"learning_rate": 0.0}, r"learning_rate is 0.0: give a number above 0, at most 1e\+09."),
    ({"epochs": float("nan")}, "epochs is nan: give a number above 0"),
    ({"epochs": [5]}, r"epochs is \[5\]: give a number above 0"),
    ({"floor": -0.1}, "floor is -0.1: give a number from 0"),
    ({"weight_decay": float("inf")}, "weight_decay is inf: give a number from 0"),
    ({"least_updates": 9, "most_updates": 8}, "least_updates is 9, more than most_updates, 8: give fewer."),
    ({"least_updates": -1}, "least_updates is -1: give a whole number >= 0."),
    ({"exact": 1}, "exact is 1: give True or False."),
    ({"layers": True}, "layers is True: give a whole number >= 1."),
    ({"batch": None}, "batch is None: give a whole number >= 1."),
    ({"products": ["auto"]}, r"products is \['auto'\]: choose auto, float32 or bfloat16."),
    ({"hidden": 10**5}, "members 5 × layers 4 × hidden 100000 × hidden 100000 is an array of 745 GiB: give smaller"),
    ({"batch": 10**8}, "members 5 × batch 100000000 × hidden 200 is an array of 373 GiB"),
])  # fmt: skip
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(InputError, match=f"^{message}"):
        EnsembleSettings(**bad)


def episode(start: int, count: int) -> Episode:
    at = np.arange(start, start + count, dtype=float)
    return Episode(at[:, None], -at[:, None], at, 2 * at, at[:, None] + 1, 0.0, 0.0, {}, at % 2)


def test_buffer_keeps_the_newest_in_order():
    buffer = TransitionBuffer.empty(1, 1).add(episode(0, 3), 5).add(episode(3, 4), 5)
    assert buffer.reward.tolist() == [2, 3, 4, 5, 6] and buffer.size == 5
    assert buffer.next_obs[:, 0].tolist() == [3, 4, 5, 6, 7] and buffer.action[:, 0].tolist() == [-2, -3, -4, -5, -6]
    assert buffer.cost.tolist() == [4, 6, 8, 10, 12] and buffer.terminated.tolist() == [0, 1, 0, 1, 0]


def test_buffer_is_padded_with_zeros_at_the_end():
    padded = TransitionBuffer.empty(1, 1).add(episode(1, 2), 5).padded(4)
    assert padded.reward.tolist() == [1, 2, 0, 0] and padded.obs.shape == (4, 1)
    assert all(part.dtype == np.float32 for part in padded.columns)
