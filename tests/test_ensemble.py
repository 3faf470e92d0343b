"""Are the ensemble's loss, its predictions and what it imagines those computed by hand?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from ensembles import init, predict, rollout
from scipy.stats import norm

from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling, bce, nll
from capax.planning.ccem import Imagined


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
