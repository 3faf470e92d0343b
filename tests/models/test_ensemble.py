"""The ensemble's loss, predictions and rollouts equal values computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import norm
from support.compiled_ensemble import init, predict, rollout

from capax.core.types import Imagined
from capax.models import ensemble, ensemble_fit
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling
from capax.models.ensemble_fit import bce, nll


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


def make_scale(binary: bool = False, ends: bool = False, S: int = 2, A: int = 1) -> Scaling:
    """Units that are all 1."""
    bound = jnp.full(S, 1e6)
    return Scaling(
        jnp.zeros(S + A), jnp.ones(S + A), jnp.zeros(S + 2), jnp.ones(S + 2), -bound, bound,
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
        each = gaussian[:, :2].mean(1) + gaussian[:, 2]  # the head of the states is averaged over its dimensions
        each += np.log1p(np.exp(mean[:, 3])) - y[e, :, 3] * mean[:, 3] if binary else gaussian[:, 3]
        each += (np.log1p(np.exp(logit)) - end[e] * logit) * ends
        losses.append(each[:4].mean())  # the fifth row has no weight
    total = sum(losses) + 0.01 * (np.array([0.5, 0.2, 0.0, 1.0]) + np.array([9.0, 8.0, 7.0, 6.0])).sum()
    total += sum(d / 2.0 * float(np.square(w).sum()) for d, w in zip(decays, tiny.weights, strict=True))
    parts = (jnp.asarray(part, jnp.float32) for part in (x, y, end, weight))
    computed, logged = jax.jit(ensemble_fit.loss)(tiny, *parts, make_scale(binary, ends), decays)
    assert float(computed) == pytest.approx(total, rel=1e-5)
    assert float(logged) == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_members_gradient_does_not_depend_on_the_others(tiny):
    rng = np.random.default_rng(0)
    parts = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 5, 3), (3, 5, 4), (3, 5))]
    changed = [part.at[1:].add(1.0) for part in parts]  # inputs of the second and third member

    @jax.jit
    def gradient(arguments: Any) -> Any:
        return jax.grad(lambda net: ensemble_fit.loss(net, *arguments, jnp.ones(5), make_scale(), (0.1, 0.1))[0])(tiny)

    one, other = gradient(parts), gradient(changed)
    for w, v in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(w[0], v[0])
        assert not np.allclose(w[1], v[1])


def test_weight_decay_grows_with_depth():
    assert EnsembleSettings(layers=4, weight_decay=1.0).decays() == [1.0, 2.0, 3.0, 3.0, 4.0]
    assert EnsembleSettings(layers=1, weight_decay=0.5).decays() == [0.5, 2.0]


# Predictions.


def test_prediction_equals_the_numpy_network(tiny):
    x = np.random.default_rng(0).normal(size=(3, 7, 3)).astype(np.float32)
    p = predict(tiny, jnp.asarray(x))
    for e in range(3):
        for computed, expected in zip((p.mean[e], p.logvar[e], p.end[e]), forward(tiny, e, x[e]), strict=True):
            np.testing.assert_allclose(computed, expected, rtol=2e-4, atol=1e-5)


def test_log_variance_stays_within_its_bounds(tiny):
    x = 1e4 * np.random.default_rng(0).normal(size=(3, 200, 3)).astype(np.float32)
    logvar = np.asarray(predict(tiny, jnp.asarray(x)).logvar)
    # softplus(max − min) is above max − min by e^−(max − min) at most, which is e^−7 here
    assert (logvar <= np.asarray(tiny.max_logvar) + np.exp(-7.0)).all()
    assert (logvar >= np.asarray(tiny.min_logvar)).all()
    assert logvar.max() > 0.9 and logvar.min() < -8.9  # both are reached


def test_weights_begin_as_published():
    # a normal of standard deviation 1/(2√in), truncated at two of these: its own is √.7737 = .8796 times that
    net = init(jr.key(0), 17, 6, EnsembleSettings())
    assert [w.shape for w in net.weights] == [(5, 23, 200), *[(5, 200, 200)] * 3, (5, 200, 39)]  # 2 (17 + 2) + 1
    for w in net.weights:
        assert float(w.std()) == pytest.approx(0.8796 / (2.0 * np.sqrt(w.shape[1])), rel=0.02)
        assert float(jnp.abs(w).max()) <= 1.0 / np.sqrt(w.shape[1])
    assert not any(bool(b.any()) for b in net.biases)


def test_padding_for_matrix_units_changes_nothing(tiny):
    padded_net = ensemble.cast_for_products(tiny, "float32")
    assert padded_net.weights[0].shape[1:] == (8, 4) and padded_net.weights[-1].shape[1:] == (
        4,
        16,
    )  # from 3 inputs and 9 outputs
    x = jr.normal(jr.key(1), (3, 9, 3))
    padded_x = jnp.pad(x, ((0, 0), (0, 0), (0, 5)), constant_values=7.0)
    for plain, other in zip(predict(tiny, x), predict(padded_net, padded_x), strict=True):
        np.testing.assert_allclose(plain, other, rtol=1e-5, atol=1e-6)


# Rollouts.


IMAGINE = EnsembleSettings(members=3, hidden=4, layers=1, particles=6, products="float32", floor=0.002)


def constant_spread(net: Ensemble, logvar: float, end: float = -5.0) -> Ensemble:
    """The same means, with a nearly constant log-variance and a constant logit of the end."""
    D = net.max_logvar.shape[0]
    last = net.weights[-1].at[..., 2 * D :].set(0.0)
    bias = net.biases[-1].at[..., D : 2 * D].set(logvar).at[..., 2 * D :].set(end)
    return Ensemble((net.weights[0], last), (net.biases[0], bias), jnp.full(D, 10.0), jnp.full(D, -60.0))


def imagine(net: Ensemble, actions: Any, scale: Scaling, start: Any = (0.3, -0.2), **changes: Any) -> Imagined:
    arguments = (jnp.asarray(part, jnp.float32) for part in (start, actions))
    return rollout((net, scale), *arguments, jr.key(5), settings=replace(IMAGINE, **changes))


def units(ends: bool = False, bound: float = 1e6) -> Scaling:
    """Units of three inputs and four targets. None of them is 1."""
    return Scaling(
        jnp.asarray([0.1, -0.2, 0.3]),
        jnp.asarray([2.0, 0.5, 1.5]),
        jnp.asarray([0.02, -0.03, 0.4, 2.0]),
        jnp.asarray([0.3, 0.7, 5.0, 0.2]),
        jnp.full(2, -bound),
        jnp.full(2, bound),
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


@pytest.mark.parametrize("bound", [1e6, 0.5])
def test_rollout_without_noise_equals_a_python_loop(tiny, bound):
    # σ = e^−20. Particles are grouped by members: the first two are the first member's (TS∞)
    net, scale = constant_spread(tiny, -40.0), units(bound=bound)
    imagined = imagine(net, ACTIONS, scale)
    states, rewards, costs, _ = walk(net, scale, ACTIONS)
    assert (np.abs(states).max() > 0.5) == (bound > 0.5)  # the bounds matter only if they are near
    for particle in range(6):
        np.testing.assert_allclose(imagined.reward[:, particle], rewards[particle // 2], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(imagined.cost[:, particle], costs[particle // 2], rtol=1e-3, atol=1e-4)
    assert np.abs(rewards[0] - rewards[1]).max() > 0.1  # members do disagree
    assert bool((imagined.alive == 1.0).all())


def test_state_noise_has_the_predicted_size(tiny):
    # one step changes the state by (μ + σ ε) · unit, and the next reward depends on it. A net that predicts 0 for
    # Δs and s_1 for the reward shows the noise: sd of the second reward = σ · unit of the state
    settings = EnsembleSettings(members=2, hidden=2, layers=1, particles=4000, products="float32")
    net = init(jr.key(0), 1, 1, settings)
    # swish(z + 20) ≈ z + 20 for small z: a linear unit
    first = jnp.zeros_like(net.weights[0]).at[:, 0, 0].set(1.0)
    last = jnp.zeros_like(net.weights[1]).at[:, 0, 1].set(1.0)
    bias = jnp.zeros_like(net.biases[1]).at[..., 1].set(-20.0).at[..., 3:6].set(2.0 * np.log(0.4))
    net = Ensemble((first, last), (jnp.full_like(net.biases[0], 20.0), bias), jnp.full(3, 9.0), jnp.full(3, -60.0))
    scale = make_scale(S=1)._replace(target_sd=jnp.asarray([0.5, 1.0, 1.0]))
    imagined = rollout((net, scale), jnp.zeros(1), jnp.zeros((1, 2, 1)), jr.key(0), settings=settings)
    np.testing.assert_allclose(imagined.reward[0, :, 0], 0.0, atol=1e-5)
    assert float(imagined.reward[0, :, 1].std()) == pytest.approx(0.4 * 0.5, rel=0.05)
    assert float(imagined.reward[0, :, 1].mean()) == pytest.approx(0.0, abs=0.02)
    assert len(np.unique(np.asarray(imagined.reward[0, :, 1]).round(6))) > 3000  # each particle has its own noise


def test_identical_candidates_share_their_noise(tiny):
    net = constant_spread(tiny, -1.0)
    imagined = imagine(net, np.stack([ACTIONS[0], ACTIONS[1], ACTIONS[0]]), units())
    for part in imagined:
        np.testing.assert_array_equal(part[0], part[2])
    assert float(jnp.abs(imagined.reward[0] - imagined.reward[1]).max()) > 0.01
    assert float(imagined.reward[0, :2, 1].std()) > 0.0  # two particles of one member differ


def uneven_spread(tiny: Ensemble) -> Ensemble:
    """Standard deviations around e^−6 that depend on the input and the member, too small to move the states."""
    D = 4
    bias = tiny.biases[-1].at[..., D : 2 * D].add(-12.0).at[..., 2 * D :].set(-5.0)
    weights = (tiny.weights[0], tiny.weights[1].at[..., D : 2 * D].multiply(4.0))
    return Ensemble(weights, (tiny.biases[0], bias), jnp.full(D, 10.0), jnp.full(D, -60.0))


def deviation(net: Ensemble, e: int, x: Any) -> Any:
    """‖σ_e(s, a)‖ over the state's dimensions, with the floor of the settings in quadrature."""
    variance = np.exp(forward(net, e, np.atleast_2d(x))[1][:, :2])
    return np.sqrt((variance + IMAGINE.floor**2).sum(1))[0]


@pytest.mark.parametrize("exact", [False, True])
def test_uncertainty_is_the_maximum_over_members(tiny, exact):
    # exact: every member is evaluated at the state of the particle, otherwise at the state of its own particle
    net, scale = uneven_spread(tiny), units()
    imagined = imagine(net, ACTIONS, scale, exact=exact)
    *_, inputs = walk(net, scale, ACTIONS)  # [E N H 3]
    expected = np.zeros((3, 4, 5))
    for e, n, h in np.ndindex(3, 4, 5):
        inputs_of_members = [inputs[e if exact else other, n, h] for other in range(3)]
        expected[e, n, h] = max(deviation(net, other, x) for other, x in enumerate(inputs_of_members))
    for particle in range(6):
        np.testing.assert_allclose(imagined.uncertainty[:, particle], expected[particle // 2], rtol=0.02)
    assert expected.max() / expected.min() > 1.2


def test_exact_and_own_uncertainty_agree_where_all_particles_are_in_one_state(tiny):
    net = uneven_spread(tiny)
    own_state, exact = (imagine(net, ACTIONS, units(), exact=flag).uncertainty for flag in (False, True))
    np.testing.assert_allclose(own_state[..., 0], exact[..., 0], rtol=1e-5)
    assert float(jnp.abs(own_state[..., 1:] / exact[..., 1:] - 1.0).max()) > 0.01


@pytest.mark.parametrize(("ends", "alive"), [(True, [1, 0, 0, 0, 0]), (False, [1, 1, 1, 1, 1])])
def test_a_predicted_end_is_the_last_step_that_counts(tiny, ends, alive):
    # a net that predicts an end everywhere, with and without ends in the data
    imagined = imagine(constant_spread(tiny, -40.0, end=3.0), ACTIONS, units(ends=ends))
    np.testing.assert_array_equal(imagined.alive, np.broadcast_to(alive, (4, 6, 5)))


def test_bfloat16_products_are_close(tiny):
    # bfloat16 has 8 bits: products have a relative error near 2^−8, which adds up over five steps
    net = constant_spread(tiny, -3.0)
    plain, half_precision = (imagine(net, ACTIONS, units(), products=kind) for kind in ("float32", "bfloat16"))
    size = float(jnp.abs(plain.reward).max())
    assert float(jnp.abs(plain.reward - half_precision.reward).max()) < 0.05 * size
    np.testing.assert_allclose(plain.uncertainty, half_precision.uncertainty, rtol=0.05)
    assert half_precision.reward.dtype == jnp.float32
    assert not np.array_equal(plain.reward, half_precision.reward)


def test_shapes(tiny):
    imagined = imagine(constant_spread(tiny, -3.0), ACTIONS[:, :3], units())
    assert all(part.shape == (4, 6, 3) and part.dtype == jnp.float32 for part in imagined)


def test_balance_gives_noisy_quantities_their_share_of_the_gradient():
    # two quantities with the same error of 1, one predicted with a variance of 1e-4 and one with 1: the gradients of their means
    # are 2 · error / variance, times variance^balance
    net = ensemble.init(jr.key(0), 1, 1, EnsembleSettings(members=1, hidden=2, layers=1))
    logvar = jnp.log(jnp.asarray([1e-4, 1.0, 1.0]))

    def loss_of(mean: Any, balance: float) -> Any:
        prediction = ensemble.Prediction(mean[None, None], logvar[None, None], jnp.zeros((1, 1)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ensemble_fit, "predict", lambda *_: prediction)
            parts = jnp.zeros((1, 1, 2)), jnp.zeros((1, 1, 3)), jnp.zeros((1, 1)), jnp.ones(1)
            return ensemble_fit.loss(net, *parts, make_scale(S=1), (0.0, 0.0), balance)[0]

    ratios = {}
    for balance in (0.0, 0.5, 1.0):
        of_state, of_reward, _ = jax.grad(loss_of)(jnp.ones(3), balance)
        ratios[balance] = float(of_state / of_reward)
    assert ratios == pytest.approx({0.0: 1e4, 0.5: 1e2, 1.0: 1.0}, rel=1e-3)
