"""Does the ensemble learn what it is shown, in any units, and imagine what it has learned?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from scipy.stats import norm

from capax.buffer import Buffer
from capax.errors import InputError
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling, bce, nll, scaling
from capax.planning.ccem import Imagined
from capax.types import Episode

TINY = EnsembleSettings(
    members=2, hidden=16, layers=2, particles=4, batch=64, least_updates=800, most_updates=800, learning_rate=5e-3
)
CAPACITY = 512

init, predict = jax.jit(ensemble.init, static_argnums=(1, 2, 3)), jax.jit(ensemble.predict)
rollout = jax.jit(ensemble.rollout, static_argnames="settings")


def swish(x: Any) -> Any:
    return x / (1.0 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def forward(net: Ensemble, member: int, x: Any) -> tuple[Any, Any, Any]:
    """Mean, log-variance and the logit of an end for inputs `[B, in]` of one member, in NumPy and float64."""
    h = np.asarray(x, np.float64)
    for number, (w, b) in enumerate(zip(net.weights, net.biases, strict=True)):
        h = h @ np.asarray(w[member], np.float64) + np.asarray(b[member, 0], np.float64)
        h = swish(h) if number < len(net.weights) - 1 else h
    high, low = np.asarray(net.max_logvar, np.float64), np.asarray(net.min_logvar, np.float64)
    D = len(high)
    logvar = high - softplus(high - h[:, D : 2 * D])
    return h[:, :D], low + softplus(logvar - low), h[:, 2 * D]


def transitions(rng: Any, n: int = 400, noise: float = 0.0, binary: bool = False, ends: bool = False) -> Buffer:
    """x' = x + .5 a + noise,  r = x + 2a,  c = x² or 1[x > .5]; ends where x > 1."""
    x, a = rng.uniform(-2.0, 2.0, (n, 1)), rng.uniform(-1.0, 1.0, (n, 1))
    next_x = x + 0.5 * a + noise * rng.normal(size=(n, 1))
    cost = x[:, 0] > 0.5 if binary else x[:, 0] ** 2
    parts = (x, a, x[:, 0] + 2.0 * a[:, 0], cost, next_x, ends & (x[:, 0] > 1.0))
    return Buffer(*(np.asarray(part, np.float32) for part in parts))


def fitted(buffer: Buffer, seed: int = 0, settings: EnsembleSettings = TINY) -> tuple[tuple[Ensemble, Scaling], float]:
    scale = scaling(buffer)
    net = init(jr.key(seed), buffer.obs.shape[1], buffer.action.shape[1], settings)
    optimiser = optax.adam(settings.learning_rate).init(net)
    net, _, loss = ensemble.fit(net, optimiser, scale, buffer.padded(CAPACITY), buffer.size, jr.key(seed + 1), settings)
    return (net, scale), float(loss)


def one_step(params: tuple[Ensemble, Scaling], obs: Any, action: Any) -> tuple[Any, Any, Any]:
    """Δs, reward and cost `[E, B, S+2]` in the data's units, their deviations, and the logits of an end."""
    net, scale = params
    x = (np.concatenate([obs, action], 1) - scale.input_mean) / scale.input_sd
    p = predict(net, jnp.broadcast_to(jnp.asarray(x, jnp.float32), (net.weights[0].shape[0], *x.shape)))
    mean = p.mean * scale.target_sd + scale.target_mean
    return np.asarray(mean), np.asarray(jnp.exp(p.logvar / 2) * scale.target_sd), np.asarray(p.end)


@pytest.fixture(scope="module")
def linear() -> tuple[tuple[Ensemble, Scaling], float]:
    """A model of x' = x + .5 a + .1 ε."""
    return fitted(transitions(np.random.default_rng(0), noise=0.1))


# Losses.


def test_nll_is_twice_the_normals_without_its_constant():
    rng = np.random.default_rng(0)
    mean, logvar, y = rng.normal(size=(3, 50))
    expected = -2.0 * norm.logpdf(y, mean, np.exp(logvar / 2.0)) - np.log(2.0 * np.pi)
    np.testing.assert_allclose(nll(mean, logvar, y), expected, rtol=1e-5, atol=1e-6)


def test_bce_is_the_log_likelihood_and_survives_large_logits():
    logit = np.array([-2.0, 0.0, 3.0, -2.0, 3.0])
    label = np.array([0.0, 1.0, 1.0, 1.0, 0.0])
    p = 1.0 / (1.0 + np.exp(-logit))
    np.testing.assert_allclose(bce(logit, label), -label * np.log(p) - (1 - label) * np.log(1 - p), rtol=1e-5)
    np.testing.assert_allclose(bce(np.array([200.0, -200.0]), np.array([0.0, 0.0])), [200.0, 0.0])


@pytest.fixture(scope="module")
def tiny() -> Ensemble:
    """Three members with S = 2, A = 1, one hidden layer of 4, and biases that are not 0."""
    settings = EnsembleSettings(members=3, hidden=4, layers=1, particles=6)
    net = init(jr.key(0), 2, 1, settings)
    keys = jr.split(jr.key(1), 2)
    biases = tuple(jr.normal(k, b.shape) for k, b in zip(keys, net.biases, strict=True))
    return Ensemble(net.weights, biases, jnp.asarray([0.5, 0.2, 0.0, 1.0]), jnp.asarray([-9.0, -8.0, -7.0, -6.0]))


def made_scale(binary: bool = False, ends: bool = False, S: int = 2, A: int = 1) -> Scaling:
    wide = jnp.full(S, 1e6)
    return Scaling(
        jnp.zeros(S + A), jnp.ones(S + A), jnp.zeros(S + 2), jnp.ones(S + 2), -wide, wide,
        jnp.asarray(binary), jnp.asarray(ends),
    )  # fmt: skip


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_loss_by_hand(tiny, binary, ends):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 5, 3)), rng.normal(size=(3, 5, 4))
    y[..., 3] = (y[..., 3] > 0) if binary else y[..., 3]
    end, weight, decays = rng.integers(0, 2, (3, 5)).astype(float), np.array([1.0, 1.0, 1.0, 1.0, 0.0]), (0.1, 0.3)
    losses = []
    for e in range(3):
        mean, logvar, logit = forward(tiny, e, x[e])
        gaussian = (mean - y[e]) ** 2 / np.exp(logvar) + logvar
        each = gaussian[:, :2].mean(1) + gaussian[:, 2]  # the states' head is averaged over its dimensions
        each += np.log1p(np.exp(mean[:, 3])) - y[e, :, 3] * mean[:, 3] if binary else gaussian[:, 3]
        each += (np.log1p(np.exp(logit)) - end[e] * logit) * ends
        losses.append(each[:4].mean())  # the fifth row has no weight
    total = sum(losses) + 0.01 * (np.array([0.5, 0.2, 0.0, 1.0]) + np.array([9.0, 8.0, 7.0, 6.0])).sum()
    total += sum(d / 2.0 * float(np.square(w).sum()) for d, w in zip(decays, tiny.weights, strict=True))
    parts = (jnp.asarray(part, jnp.float32) for part in (x, y, end, weight))
    got, logged = jax.jit(ensemble.loss)(tiny, *parts, made_scale(binary, ends), decays)
    assert float(got) == pytest.approx(total, rel=1e-5)
    assert float(logged) == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_members_gradient_knows_nothing_of_the_others(tiny):
    rng = np.random.default_rng(0)
    parts = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 5, 3), (3, 5, 4), (3, 5))]
    changed = [part.at[1:].add(1.0) for part in parts]  # what the second and the third are shown

    @jax.jit
    def slope(given: Any) -> Any:
        return jax.grad(lambda net: ensemble.loss(net, *given, jnp.ones(5), made_scale(), (0.1, 0.1))[0])(tiny)

    one, other = slope(parts), slope(changed)
    for w, v in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(w[0], v[0])
        assert not np.allclose(w[1], v[1])


def test_weight_decay_grows_with_depth():
    assert EnsembleSettings(layers=4, weight_decay=1.0).decays() == [1.0, 2.0, 3.0, 3.0, 4.0]
    assert EnsembleSettings(layers=1, weight_decay=0.5).decays() == [0.5, 2.0]


# Predictions.


def test_prediction_is_the_networks(tiny):
    x = np.random.default_rng(0).normal(size=(3, 7, 3)).astype(np.float32)
    p = predict(tiny, jnp.asarray(x))
    for e in range(3):
        for got, expected in zip((p.mean[e], p.logvar[e], p.end[e]), forward(tiny, e, x[e]), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-5)


def test_log_variance_stays_within_its_bounds(tiny):
    x = 1e4 * np.random.default_rng(0).normal(size=(3, 200, 3)).astype(np.float32)
    logvar = np.asarray(predict(tiny, jnp.asarray(x)).logvar)
    # softplus(max − min) is above max − min by e^−(max − min) at most, which is e^−7 here
    assert (logvar <= np.asarray(tiny.max_logvar) + np.exp(-7.0)).all()
    assert (logvar >= np.asarray(tiny.min_logvar)).all()
    assert logvar.max() > 0.9 and logvar.min() < -8.9  # both are reached


def test_weights_begin_as_published():
    # a normal of deviation 1/(2√in), truncated at two of them: its deviation is √.7737 = .8796 times that
    net = init(jr.key(0), 17, 6, EnsembleSettings())
    assert [w.shape for w in net.weights] == [(5, 23, 200), *[(5, 200, 200)] * 3, (5, 200, 39)]  # 2 (17 + 2) + 1
    for w in net.weights:
        assert float(w.std()) == pytest.approx(0.8796 / (2.0 * np.sqrt(w.shape[1])), rel=0.02)
        assert float(jnp.abs(w).max()) <= 1.0 / np.sqrt(w.shape[1])
    assert not any(bool(b.any()) for b in net.biases)


def test_padding_for_matrix_units_changes_nothing(tiny):
    wide = ensemble.for_products(tiny, "float32")
    assert wide.weights[0].shape[1:] == (8, 4) and wide.weights[-1].shape[1:] == (4, 16)  # of 3 inputs and 9 outputs
    x = jr.normal(jr.key(1), (3, 9, 3))
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, 5)), constant_values=7.0)
    for plain, other in zip(predict(tiny, x), predict(wide, padded), strict=True):
        np.testing.assert_allclose(plain, other, rtol=1e-5, atol=1e-6)


# Units.


def test_scaling_by_hand():
    # Δs is 1, 3; rewards 2, 4; costs .5, 1.5: deviations 1, 1 and .5. The states seen are 0, 1, 2, 5
    two = Buffer(*(np.asarray(part, np.float32) for part in (
        [[0], [2]], [[-1], [1]], [2, 4], [0.5, 1.5], [[1], [5]], [0, 0]
    )))  # fmt: skip
    scale = scaling(two)
    np.testing.assert_allclose(scale.input_mean, [1.0, 0.0])
    np.testing.assert_allclose(scale.input_sd, [1.0, 1.0])
    np.testing.assert_allclose(scale.target_sd, [1.0, 1.0, 0.5])
    np.testing.assert_allclose([scale.low[0], scale.high[0]], [-5.0, 10.0])  # a range of 5 beyond either end
    assert not scale.binary and not scale.ends


def test_what_never_changes_keeps_its_unit():
    rng = np.random.default_rng(0)
    buffer = transitions(rng)
    still = np.full((400, 1), 1e6, np.float32)
    buffer = buffer._replace(
        obs=np.hstack([buffer.obs, still]), next_obs=np.hstack([buffer.next_obs, still]), reward=still[:, 0] * 0.0
    )
    scale = scaling(buffer)
    assert scale.input_sd[1] == 1.0 and scale.target_sd[1] == 1.0 and scale.target_sd[2] == 1.0
    assert scale.target_sd[0] == pytest.approx(0.5 / np.sqrt(3.0), rel=0.1)


@pytest.mark.parametrize(("cost", "binary"), [
    ([0, 1, 1, 0], True), ([0, 0, 0, 0], True), ([1, 1, 1, 1], True), ([0, 1, 0.5, 0], False), ([0, 1, 2, 0], False),
    ([0, -1, 0, 1], False),
])  # fmt: skip
def test_a_cost_is_binary_if_it_was_never_other_than_0_or_1(cost, binary):
    buffer = transitions(np.random.default_rng(0), n=4)._replace(cost=np.asarray(cost, np.float32))
    scale = scaling(buffer)
    assert bool(scale.binary) is binary
    assert not binary or scale.target_sd[-1] == 1.0


def test_endings_are_noticed():
    rng = np.random.default_rng(0)
    assert bool(scaling(transitions(rng, ends=True)).ends) and not bool(scaling(transitions(rng)).ends)


def test_scaling_stays_exact_far_from_zero_and_in_small_units():
    # 1e6 and 1e-6 beside each other: deviations come from sums in float64
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (2000, 2)) * [1e6, 1e-6]
    obs = x.astype(np.float32)
    rest = [np.zeros(len(x), np.float32)] * 2
    buffer = Buffer(obs, np.zeros((2000, 1), np.float32), *rest, (1.1 * x).astype(np.float32), rest[0])
    scale = scaling(buffer)
    np.testing.assert_allclose(scale.input_sd[:2], obs.std(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(scale.target_sd[:2], (0.1 * x).std(0), rtol=1e-4)


# Fits.


def test_fit_learns_a_linear_system_and_its_noise(linear):
    params, loss = linear
    rng = np.random.default_rng(1)
    obs, action = rng.uniform(-1.8, 1.8, (200, 1)), rng.uniform(-0.9, 0.9, (200, 1))
    mean, sd, _ = one_step(params, obs, action)
    truth = np.hstack([0.5 * action, obs + 2.0 * action, obs**2])
    worst = np.sqrt(np.square(mean - truth).mean((0, 1)))
    assert (worst < [0.05, 0.1, 0.1]).all()  # of deviations .29, 1.6 and 1.2
    assert np.median(sd[..., 0]) == pytest.approx(0.1, rel=0.3)
    untrained = init(jr.key(0), 1, 1, TINY)
    before = np.abs(one_step((untrained, params[1]), obs, action)[0] - truth).mean()
    assert np.abs(mean - truth).mean() < 0.1 * before
    # an ideal model: 2 NLL without its constant is 1 + log σ² for the noise, σ = .1/√(.1² + .5²/3) in scaled units;
    # the other two are learned without noise, so theirs is far below that
    assert loss < 1.0 + np.log(0.1**2 / (0.1**2 + 0.25 / 3.0))


def test_a_fit_lowers_the_loss_that_it_reports():
    buffer = transitions(np.random.default_rng(0), noise=0.1)
    scale, net = scaling(buffer), init(jr.key(0), 1, 1, TINY)
    optimiser, losses = optax.adam(TINY.learning_rate).init(net), []
    for number in range(2):
        net, optimiser, loss = ensemble.fit(
            net, optimiser, scale, buffer.padded(CAPACITY), buffer.size, jr.key(number), TINY
        )
        losses.append(float(loss))
    assert losses[1] < losses[0]


def test_members_differ(linear):
    (net, _), _ = linear
    for w in net.weights:
        assert not np.allclose(w[0], w[1], atol=1e-3)


def test_members_see_different_resamplings():
    # equal weights at the start: all that differs is what each is shown
    buffer = transitions(np.random.default_rng(0), noise=0.1)
    net = init(jr.key(0), 1, 1, TINY)
    same = jax.tree.map(lambda x: x if x.ndim == 1 else jnp.broadcast_to(x[:1], x.shape), net)
    optimiser = optax.adam(TINY.learning_rate).init(same)
    got, *_ = ensemble.fit(same, optimiser, scaling(buffer), buffer.padded(CAPACITY), 400, jr.key(0), TINY)
    assert not np.allclose(got.weights[0][0], got.weights[0][1], atol=1e-3)


@pytest.mark.parametrize("garbage", [1e30, np.nan])
def test_padding_is_never_looked_at(garbage):
    buffer = transitions(np.random.default_rng(0), noise=0.1)
    net = init(jr.key(0), 1, 1, TINY)
    optimiser, scale = optax.adam(TINY.learning_rate).init(net), scaling(buffer)
    padded = buffer.padded(CAPACITY)
    spoiled = Buffer(*(np.where(np.arange(CAPACITY).reshape(-1, *[1] * (a.ndim - 1)) < 400, a, garbage)
                       .astype(np.float32) for a in padded.columns))  # fmt: skip
    one, other = (ensemble.fit(net, optimiser, scale, given, 400, jr.key(0), TINY) for given in (padded, spoiled))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_growing_buffer_compiles_nothing(linear):
    before = ensemble.fit.__wrapped__._cache_size()
    for size in (2, 64, 65):
        buffer = transitions(np.random.default_rng(0), n=size)
        _, loss = fitted(buffer)
        assert np.isfinite(loss)
    assert ensemble.fit.__wrapped__._cache_size() == before


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
    _, optimiser, _ = ensemble.fit(net, optimiser, scaling(buffer), buffer.padded(256), count, jr.key(0), settings)
    assert int(optimiser[0].count) == updates


def test_a_batch_that_is_not_full_weighs_no_row_twice():
    # fifty rows as one batch of fifty, or as fifty of a batch of 64: the same gradient
    buffer, losses = transitions(np.random.default_rng(0), n=50), []
    for batch in (50, 64):
        settings = EnsembleSettings(
            members=2, hidden=2, layers=1, particles=2, batch=batch, epochs=3.0, least_updates=0
        )
        net = init(jr.key(0), 1, 1, settings)
        optimiser = optax.adam(settings.learning_rate).init(net)
        given = (scaling(buffer), buffer.padded(64), 50, jr.key(0), settings)
        losses.append(float(ensemble.fit(net, optimiser, *given)[2]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_very_different_scales_are_learned_alike():
    # both states are pushed by a tenth of their own range, 1e6 and 1e-6; errors are in each one's own unit
    rng = np.random.default_rng(0)
    unit = np.array([1e6, 1e-6])
    x, a = rng.uniform(-1.0, 1.0, (500, 2)), rng.uniform(-1.0, 1.0, (500, 2))
    next_x = x + 0.1 * a
    parts = (x * unit, a, 1e4 * x[:, 0], 1e-4 * (1.0 + x[:, 1]), next_x * unit, np.zeros(500))
    params, _ = fitted(Buffer(*(np.asarray(part, np.float32) for part in parts)))
    mean, *_ = one_step(params, x * unit, a)
    error = np.abs(mean - np.hstack([0.1 * a * unit, 1e4 * x[:, :1], 1e-4 * (1.0 + x[:, 1:])]))
    # in units of a largest change .1 · 1e6 and .1 · 1e-6, and of the largest reward and cost
    assert (error.mean((0, 1)) < 0.05 * np.array([1e5, 1e-7, 1e4, 1e-4])).all()


@pytest.fixture(scope="module")
def ending() -> tuple[Ensemble, Scaling]:
    """A model of episodes that end where x > 1."""
    return fitted(transitions(np.random.default_rng(0), ends=True))[0]


def test_endings_are_learned(ending):
    obs = np.array([[-1.5], [0.0], [0.7], [1.3], [1.9]])
    *_, end = one_step(ending, obs, np.zeros((5, 1)))
    assert ((end > 0.0) == [False, False, False, True, True]).all()


def test_a_binary_cost_is_learned_as_a_logit():
    params, _ = fitted(transitions(np.random.default_rng(0), binary=True))
    mean, *_ = one_step(params, np.array([[-1.5], [0.2], [0.8], [1.5]]), np.zeros((4, 1)))
    assert bool(params[1].binary) and ((mean[..., -1] > 0.0) == [False, False, True, True]).all()


# Imagination.


IMAGINE = EnsembleSettings(members=3, hidden=4, layers=1, particles=6, products="float32", floor=0.002)


def fixed_net(net: Ensemble, logvar: float, end: float = -5.0) -> Ensemble:
    """The same means and the given log-variance and ending for every input; logvars still depend on the input a little."""
    D = net.max_logvar.shape[0]
    last = net.weights[-1].at[..., 2 * D :].set(0.0)
    bias = net.biases[-1].at[..., D : 2 * D].set(logvar).at[..., 2 * D :].set(end)
    return Ensemble((net.weights[0], last), (net.biases[0], bias), jnp.full(D, 10.0), jnp.full(D, -60.0))


def imagine(net: Ensemble, actions: Any, scale: Scaling, start: Any = (0.3, -0.2), **changes: Any) -> Imagined:
    given = (jnp.asarray(part, jnp.float32) for part in (start, actions))
    return rollout((net, scale), *given, jr.key(5), settings=replace(IMAGINE, **changes))


def units(ends: bool = False, wide: float = 1e6) -> Scaling:
    """Units of three inputs and four targets that are none of them 1."""
    return Scaling(
        jnp.asarray([0.1, -0.2, 0.3]),
        jnp.asarray([2.0, 0.5, 1.5]),
        jnp.asarray([0.02, -0.03, 0.4, 2.0]),
        jnp.asarray([0.3, 0.7, 5.0, 0.2]),
        jnp.full(2, -wide),
        jnp.full(2, wide),
        jnp.asarray(False),
        jnp.asarray(ends),
    )


ACTIONS = np.random.default_rng(7).uniform(-1.0, 1.0, (4, 5, 1))  # [N H A]


def walk(net: Ensemble, scale: Scaling, actions: Any) -> tuple[Any, Any, Any, Any]:
    """States before each step `[E, N, H, S]`, rewards, costs `[E, N, H]` and inputs, in a Python loop without noise."""
    mean, sd, centre, unit = (np.asarray(part, np.float64) for part in scale[:4])
    E, (N, H, _) = net.weights[0].shape[0], actions.shape
    states, rewards, costs = np.zeros((E, N, H, 2)), np.zeros((E, N, H)), np.zeros((E, N, H))
    inputs = np.zeros((E, N, H, 3))
    for e in range(E):
        for n in range(N):
            state = np.array([0.3, -0.2])
            for h in range(H):
                x = (np.concatenate([state, actions[n, h]]) - mean) / sd
                out = forward(net, e, x[None])[0][0] * unit + centre
                states[e, n, h], inputs[e, n, h] = state, x
                rewards[e, n, h], costs[e, n, h] = out[2:]
                state = np.clip(state + out[:2], scale.low, scale.high)
    return states, rewards, costs, inputs


@pytest.mark.parametrize("wide", [1e6, 0.5])
def test_rollout_without_noise_is_a_python_loop(tiny, wide):
    # σ = e^−20. Particles are grouped by members: the first two are the first member's (TS∞)
    net, scale = fixed_net(tiny, -40.0), units(wide=wide)
    thought = imagine(net, ACTIONS, scale)
    states, rewards, costs, _ = walk(net, scale, ACTIONS)
    assert (np.abs(states).max() > 0.5) == (wide > 0.5)  # the bounds of the states do something only if they are near
    for particle in range(6):
        np.testing.assert_allclose(thought.reward[:, particle], rewards[particle // 2], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(thought.cost[:, particle], costs[particle // 2], rtol=1e-3, atol=1e-4)
    assert np.abs(rewards[0] - rewards[1]).max() > 0.1  # members do disagree
    assert bool((thought.alive == 1.0).all())


def test_noise_is_as_large_as_it_is_predicted(tiny):
    # one step changes the state by (μ + σ ε) · unit, and the reward of the next step sees it. A net that says 0 for Δs
    # and s_1 for the reward lets that be read: sd of the second reward = σ · unit of the state
    settings = EnsembleSettings(members=2, hidden=2, layers=1, particles=4000, products="float32")
    net = init(jr.key(0), 1, 1, settings)
    # swish(z + 20) ≈ z + 20 for small z: a linear unit
    first = jnp.zeros_like(net.weights[0]).at[:, 0, 0].set(1.0)
    last = jnp.zeros_like(net.weights[1]).at[:, 0, 1].set(1.0)
    bias = jnp.zeros_like(net.biases[1]).at[..., 1].set(-20.0).at[..., 3:6].set(2.0 * np.log(0.4))
    net = Ensemble((first, last), (jnp.full_like(net.biases[0], 20.0), bias), jnp.full(3, 9.0), jnp.full(3, -60.0))
    scale = made_scale(S=1)._replace(target_sd=jnp.asarray([0.5, 1.0, 1.0]))
    thought = rollout((net, scale), jnp.zeros(1), jnp.zeros((1, 2, 1)), jr.key(0), settings=settings)
    np.testing.assert_allclose(thought.reward[0, :, 0], 0.0, atol=1e-5)
    assert float(thought.reward[0, :, 1].std()) == pytest.approx(0.4 * 0.5, rel=0.05)
    assert float(thought.reward[0, :, 1].mean()) == pytest.approx(0.0, abs=0.02)
    assert len(np.unique(np.asarray(thought.reward[0, :, 1]).round(6))) > 3000  # each particle has its own noise


def test_identical_candidates_share_their_noise(tiny):
    net = fixed_net(tiny, -1.0)
    thought = imagine(net, np.stack([ACTIONS[0], ACTIONS[1], ACTIONS[0]]), units())
    for part in thought:
        np.testing.assert_array_equal(part[0], part[2])
    assert float(jnp.abs(thought.reward[0] - thought.reward[1]).max()) > 0.01
    assert float(thought.reward[0, :2, 1].std()) > 0.0  # two particles of one member differ


def uneven(tiny: Ensemble) -> Ensemble:
    """Deviations of some e^−6 that depend on the input and the member, small enough to leave the states where they are."""
    D = 4
    bias = tiny.biases[-1].at[..., D : 2 * D].add(-12.0).at[..., 2 * D :].set(-5.0)
    weights = (tiny.weights[0], tiny.weights[1].at[..., D : 2 * D].multiply(4.0))
    return Ensemble(weights, (tiny.biases[0], bias), jnp.full(D, 10.0), jnp.full(D, -60.0))


def deviation(net: Ensemble, e: int, x: Any) -> Any:
    """‖σ_e(s, a)‖ over the state's dimensions, with the floor of the settings in quadrature."""
    variance = np.exp(forward(net, e, np.atleast_2d(x))[1][:, :2])
    return np.sqrt((variance + IMAGINE.floor**2).sum(1))[0]


@pytest.mark.parametrize("exact", [False, True])
def test_uncertainty_is_the_largest_of_the_members(tiny, exact):
    # exact: every member is asked about the state of the particle; otherwise each about that of its own
    net, scale = uneven(tiny), units()
    thought = imagine(net, ACTIONS, scale, exact=exact)
    *_, inputs = walk(net, scale, ACTIONS)  # [E N H 3]
    seen = np.zeros((3, 4, 5))
    for e, n, h in np.ndindex(3, 4, 5):
        asked = [inputs[e if exact else other, n, h] for other in range(3)]
        seen[e, n, h] = max(deviation(net, other, x) for other, x in enumerate(asked))
    for particle in range(6):
        np.testing.assert_allclose(thought.uncertainty[:, particle], seen[particle // 2], rtol=0.02)
    assert seen.max() / seen.min() > 1.2


def test_exact_and_own_uncertainty_agree_where_all_particles_are_in_one_state(tiny):
    net = uneven(tiny)
    own, exact = (imagine(net, ACTIONS, units(), exact=flag).uncertainty for flag in (False, True))
    np.testing.assert_allclose(own[..., 0], exact[..., 0], rtol=1e-5)
    assert float(jnp.abs(own[..., 1:] / exact[..., 1:] - 1.0).max()) > 0.01


@pytest.mark.parametrize(("ends", "alive"), [(True, [1, 0, 0, 0, 0]), (False, [1, 1, 1, 1, 1])])
def test_an_end_that_is_foreseen_is_the_last_step_that_counts(tiny, ends, alive):
    # a net that says so everywhere, with and without an ending in the data
    thought = imagine(fixed_net(tiny, -40.0, end=3.0), ACTIONS, units(ends=ends))
    np.testing.assert_array_equal(thought.alive, np.broadcast_to(alive, (4, 6, 5)))


def test_a_cost_with_an_offset_is_learned_as_well_as_one_without():
    # 300 is a thousand deviations of what the cost changes by
    rng = np.random.default_rng(0)
    buffer = transitions(rng)
    shifted = buffer._replace(cost=(300.0 + 0.1 * buffer.cost).astype(np.float32))
    params, _ = fitted(shifted)
    obs, action = buffer.obs[:200], buffer.action[:200]
    wrong = one_step(params, obs, action)[0][..., -1] - shifted.cost[:200]
    assert np.sqrt(np.square(wrong).mean()) < 0.2 * shifted.cost.std()


def test_a_learned_end_is_imagined(ending):
    # x moves by .5 a step at full action and ends with the step that is taken above 1: 0, .5, 1, 1.5; the end may come
    # a step early as 1 is on the border
    actions = np.stack([np.ones((6, 1)), -np.ones((6, 1)) * 0.3])
    thought = rollout(ending, jnp.zeros(1), jnp.asarray(actions, jnp.float32), jr.key(0), settings=TINY)
    assert set(np.asarray(thought.alive[0].sum(-1)).tolist()) <= {3.0, 4.0}
    assert bool((thought.alive[1] == 1.0).all())


def test_bfloat16_products_are_close(tiny):
    # bfloat16 has 8 bits: products are off by some 2^−8 of themselves, a few of which add up over five steps
    net = fixed_net(tiny, -3.0)
    plain, rough = (imagine(net, ACTIONS, units(), products=kind) for kind in ("float32", "bfloat16"))
    size = float(jnp.abs(plain.reward).max())
    assert float(jnp.abs(plain.reward - rough.reward).max()) < 0.05 * size
    np.testing.assert_allclose(plain.uncertainty, rough.uncertainty, rtol=0.05)
    assert rough.reward.dtype == jnp.float32
    assert not np.array_equal(plain.reward, rough.reward)


def test_shapes(tiny):
    thought = imagine(fixed_net(tiny, -3.0), ACTIONS[:, :3], units())
    assert all(part.shape == (4, 6, 3) and part.dtype == jnp.float32 for part in thought)


# Settings and buffer.


@pytest.mark.parametrize(("bad", "said"), [
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
def test_bad_sizes_are_refused(bad, said):
    with pytest.raises(InputError, match=f"^{said}"):
        EnsembleSettings(**bad)


def episode(start: int, count: int) -> Episode:
    at = np.arange(start, start + count, dtype=float)
    return Episode(at[:, None], -at[:, None], at, 2 * at, at[:, None] + 1, 0.0, 0.0, {}, at % 2)


def test_buffer_keeps_the_newest_in_order():
    buffer = Buffer.empty(1, 1).add(episode(0, 3), 5).add(episode(3, 4), 5)
    assert buffer.reward.tolist() == [2, 3, 4, 5, 6] and buffer.size == 5
    assert buffer.next_obs[:, 0].tolist() == [3, 4, 5, 6, 7] and buffer.action[:, 0].tolist() == [-2, -3, -4, -5, -6]
    assert buffer.cost.tolist() == [4, 6, 8, 10, 12] and buffer.terminated.tolist() == [0, 1, 0, 1, 0]


def test_buffer_is_padded_with_zeros_behind():
    padded = Buffer.empty(1, 1).add(episode(1, 2), 5).padded(4)
    assert padded.reward.tolist() == [1, 2, 0, 0] and padded.obs.shape == (4, 1)
    assert all(part.dtype == np.float32 for part in padded.columns)
