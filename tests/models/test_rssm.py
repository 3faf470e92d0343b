"""The image model's parts equal known values: KL, convolutions, filter, loss, uncertainty, rollouts. Training works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.data.image_episodes import ImageBatch
from capax.models import convolution, layers, rssm, rssm_rollout
from capax.models.rssm import Belief, Gaussian, RSSMSettings
from capax.models.rssm_fit import margin_samples

TINY = RSSMSettings(deter=12, stoch=4, hidden=16, depth=2, batch=3, chunk=5, products="float32")
A = 2


@pytest.fixture(scope="module")
def net() -> rssm.RSSM:
    return rssm.init(jr.key(0), 3, A, TINY)


def random_batch(seed: int = 0, batch: int = 3, steps: int = 5) -> ImageBatch:
    rng = np.random.default_rng(seed)
    return ImageBatch(
        rng.integers(0, 256, (batch, steps + 1, 64, 64, 3), np.uint8),
        rng.uniform(-1, 1, (batch, steps, A)).astype(np.float32),
        rng.normal(size=(batch, steps)).astype(np.float32),
        rng.integers(0, 2, (batch, steps)).astype(np.float32),
    )


# Gaussians.


def test_kl_by_monte_carlo():
    p = Gaussian(jnp.array([0.3, -1.0]), jnp.array([0.5, 1.2]))
    q = Gaussian(jnp.array([0.0, 0.5]), jnp.array([1.0, 0.8]))
    x = p.mean + p.sd * jr.normal(jr.key(0), (400_000, 2))

    def log(g: Gaussian) -> Any:
        return (-0.5 * jnp.square((x - g.mean) / g.sd) - jnp.log(g.sd)).sum(-1)

    ratio = np.asarray(log(p) - log(q))
    assert float(rssm.kl(p, q)) == pytest.approx(ratio.mean(), abs=4 * float(ratio.std()) / 632)


def test_kl_by_hand():
    # σ 1 and 2, means 1 apart: log 2 + (1 + 1)/8 − ½
    p, q = Gaussian(jnp.array([0.0]), jnp.array([1.0])), Gaussian(jnp.array([1.0]), jnp.array([2.0]))
    assert float(rssm.kl(p, q)) == pytest.approx(np.log(2.0) + 0.25 - 0.5)
    assert float(rssm.kl(p, p)) == 0.0


def test_standard_deviations_are_above_the_minimum(net):
    _, prior = rssm.prior_step(net, rssm.initial_belief((7,), TINY), jnp.full((7, A), -50.0), 0.1)
    assert float(prior.sd.min()) > 0.1


# Shapes and pictures.


def test_images_are_reduced_to_32_levels_and_centred():
    image = np.array([0, 7, 8, 128, 255], np.uint8).reshape(1, 5, 1)
    np.testing.assert_allclose(
        rssm.quantise(jnp.asarray(image)).ravel(), [-0.5, -0.5, -0.5 + 1 / 32, 0.0, 31 / 32 - 0.5]
    )


@pytest.mark.parametrize("shape", [(40, 64, 64, 3), (5, 3, 1)])
def test_dequantisation_noise_is_uniform(shape):
    noise = np.asarray(rssm.dequantisation_noise(jr.key(0), shape))
    assert noise.shape == shape and noise.min() > 0.0 and noise.max() < 1.0
    assert not np.array_equal(noise, rssm.dequantisation_noise(jr.key(1), shape))
    if noise.size > 1e5:
        counts = np.bincount((noise.ravel() * 256.0).astype(int), minlength=256)
        # each of the 256 steps has n/256 on average, with sd √(n/256): χ² with 255 degrees of freedom: 255 ± √510
        each = noise.size / 256.0
        assert abs((np.square(counts - each) / each).sum() - 255.0) < 5.0 * np.sqrt(510.0)
        quarters = noise.reshape(-1, 4) - 0.5  # the four values of a word: no two are correlated
        correlation = quarters.T @ quarters / len(quarters) * 12.0
        np.testing.assert_allclose(correlation, np.eye(4), atol=5.0 / np.sqrt(len(quarters)))


def test_convolutions_have_the_sizes_of_the_paper():
    full = jax.eval_shape(lambda key: rssm.init(key, 3, A, RSSMSettings()), jr.key(0))
    assert jax.eval_shape(rssm.encode, full, jnp.zeros((1, 64, 64, 3))).shape == (1, 1024)
    assert jax.eval_shape(rssm.decode, full, jnp.zeros((1, 230))).shape == (1, 64, 64, 3)


@pytest.mark.parametrize("side", [6, 14, 31])
def test_downsample_equals_a_convolution_of_stride_2(side):
    x, w = jr.normal(jr.key(0), (2, side, side, 3)), jr.normal(jr.key(1), (4, 4, 3, 5))
    expected = jax.lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(convolution.downsample(x, w), expected, rtol=1e-4, atol=1e-4)


def test_acting_and_training_encode_images_alike(net):
    x = jr.uniform(jr.key(0), (2, 64, 64, 3)) - 0.5
    prepared = rssm.prepare_filter(net)
    assert all(layer.w.shape[0] == len(layer.b) for layer in prepared.encoder) and prepared.decoder is None
    training, acting = rssm.encode(net, x), jnp.stack([rssm.encode_image(prepared, image) for image in x])
    assert float(training.std()) > 1e-3
    np.testing.assert_allclose(acting, training, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3])
def test_imagewise_gradient_equals_xlas(k):
    x, w = jr.normal(jr.key(0), (3, 7, 6, 2)), jr.normal(jr.key(1), (k, k, 2, 5))

    def gradients(form):
        return jax.grad(lambda x, w: jnp.sin(form(x, w)).sum(), (0, 1))(x, w)

    for own, xlas in zip(gradients(convolution.conv_imagewise), gradients(convolution.xla_conv), strict=True):
        np.testing.assert_allclose(own, xlas, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "kernel"), [(64, 4), (31, 3), (15, 3), (8, 3)])
def test_a_strided_convolution_has_xlas_gradient(size, kernel):
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((3, size, size, 5), (kernel, kernel, 5, 6)))

    def gradients(convolve: Any) -> Any:
        return jax.grad(lambda x, w: jnp.sin(convolve(x, w)).sum(), (0, 1))(x, w)

    for own, xlas in zip(
        gradients(convolution.conv_stride2_imagewise), gradients(convolution.xla_conv_stride2), strict=True
    ):
        np.testing.assert_allclose(own, xlas, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("side", "k"), [(1, 5), (5, 5), (13, 6), (30, 6)])
def test_upsample_equals_a_transposed_convolution(side, k):
    # y[2m + a] takes x[m] times tap a; JAX has the taps in the other order
    x, w = jr.normal(jr.key(0), (2, side, side, 3)), jr.normal(jr.key(1), (k, k, 3, 5))
    expected = jax.lax.conv_transpose(x, w[::-1, ::-1], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert expected.shape[1] == 2 * (side - 1) + k
    np.testing.assert_allclose(convolution.upsample(x, w), expected, rtol=1e-4, atol=1e-4)


def test_a_gru_by_hand():
    # all weights 0: the gates are ½ and the candidate is tanh(0) = 0, so half of h stays; a large bias of z keeps
    # all of it
    gru = layers.GRU(layers.Dense(jnp.zeros((2, 9)), jnp.zeros(9)), layers.Dense(jnp.zeros((3, 9)), jnp.zeros(9)))
    h = jnp.array([1.0, -2.0, 4.0])
    np.testing.assert_allclose(gru(jnp.ones(2), h), 0.5 * h)
    keep = eqx.tree_at(lambda g: g.x.b, gru, jnp.array([0.0, 0, 0, 50, 50, 50, 0, 0, 0]))
    np.testing.assert_allclose(keep(jnp.ones(2), h), h)


# The filter.


def test_observe_equals_filter_step_by_step(net):
    T, B = 6, 3
    keys = jr.split(jr.key(1), 3)
    actions, embedded, noise = (
        jr.normal(k, (T, B, n)) for k, n in zip(keys, (A, 32 * TINY.depth, TINY.stoch), strict=True)
    )
    belief = rssm.initial_belief((B,), TINY)
    beliefs, prior, posterior = rssm.observe(net, belief, actions, embedded, noise, TINY.min_sd)
    for t in range(T):
        belief, step_prior, step_posterior = rssm.filter_step(
            net, belief, actions[t], embedded[t], noise[t], min_sd=TINY.min_sd
        )
        for batched, single in ((beliefs, belief), (prior, step_prior), (posterior, step_posterior)):
            for a, b in zip(batched, single, strict=True):
                np.testing.assert_allclose(a[t], b, rtol=1e-5, atol=1e-6)


def test_one_belief_is_filtered_like_a_batch(net):
    # acting filters one image, training many
    action, embedded, noise = jnp.ones((1, A)), jr.normal(jr.key(0), (1, 32 * TINY.depth)), jnp.ones((1, TINY.stoch))
    many, *_ = rssm.filter_step(net, rssm.initial_belief((1,), TINY), action, embedded, noise, min_sd=0.1)
    one, *_ = rssm.filter_step(net, rssm.initial_belief((), TINY), action[0], embedded[0], noise[0], min_sd=0.1)
    np.testing.assert_allclose(one.feature, many.feature[0], rtol=1e-5, atol=1e-6)


# The loss.


def zero_weights(net: rssm.RSSM, reward: float, logit: float) -> rssm.RSSM:
    """All weights are 0. The decoder returns 0, the heads these values, and prior and posterior are equal."""
    zero = jax.tree.map(jnp.zeros_like, net)
    zero = eqx.tree_at(lambda n: n.reward[-1].b, zero, jnp.array([reward]))
    return eqx.tree_at(lambda n: n.cost[-1].b, zero, jnp.array([logit]))


def test_the_loss_by_hand(net):
    # black images: the level −½ with noise in [0, 1/32) on 64·64·3 pixels, decoded as 0; mean of (−½ + x)² for
    # uniform x. Rewards 2 predicted as ½: 2.25; costs 1 with logit −1: log(1 + e^(−1)) + 1; KL 0 is raised to the
    # free nats
    net_of_zeros = zero_weights(net, 0.5, -1.0)
    data = ImageBatch(np.zeros((3, 6, 64, 64, 3), np.uint8), np.zeros((3, 5, A), np.float32),
                 np.full((3, 5), 2.0, np.float32), np.ones((3, 5), np.float32))  # fmt: skip
    total, parts = rssm.loss(net_of_zeros, data, jnp.asarray(True), jr.key(0), TINY)
    w = 1 / 32
    assert float(parts.image) == pytest.approx(64 * 64 * 3 * (0.25 - 0.5 * w + w**2 / 3), rel=1e-3)
    assert float(parts.reward) == pytest.approx(2.25)
    assert float(parts.cost) == pytest.approx(np.log1p(np.exp(-1.0)) + 1.0)
    assert float(parts.kl) == pytest.approx(3.0)
    # members predict 0; s has mean 0 and sd log 2 + .1, and each of five members has its square as loss
    s = (np.log(2.0) + 0.1) * jr.normal(jr.split(jr.key(0))[0], (6, 3, TINY.stoch))[1:]
    assert float(parts.members) == pytest.approx(5 * float(jnp.square(s).mean()), rel=1e-5)
    weighted = float(sum(parts)) + 99.0 * float(parts.reward + parts.cost)
    assert TINY.signal_weight == 100.0 and float(total) == pytest.approx(weighted, rel=1e-6)
    _, real = rssm.loss(net_of_zeros, data, jnp.asarray(False), jr.key(0), TINY)
    assert float(real.cost) == pytest.approx(4.0)  # (1 − (−1))²


def test_the_members_loss_does_not_train_the_beliefs(net):
    def members_alone(net: rssm.RSSM) -> Any:
        return rssm.loss(net, random_batch(), jnp.asarray(True), jr.key(0), TINY)[1].members

    grads = jax.grad(members_alone)(net)
    other_parts = eqx.tree_at(lambda n: n.members, grads, None)
    assert all(float(jnp.abs(leaf).max()) == 0.0 for leaf in jax.tree.leaves(other_parts))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads.members)) > 0.0


def test_a_reward_is_predicted_from_the_belief_after_its_action(net):
    # the loss of reward t depends on image t + 1, the result of the same action, and not on later images
    data = random_batch(steps=3)

    def reward_of(images: Any) -> Any:
        return rssm.loss(net, data._replace(image=images), jnp.asarray(True), jr.key(0), TINY)[1].reward

    last_changed = data.image.copy()
    last_changed[:, -1] = 0
    assert float(reward_of(data.image)) != float(reward_of(last_changed))


def test_training_lowers_the_reconstruction_loss():
    # a bright square that moves from image to image: beliefs must carry its position
    rng = np.random.default_rng(0)
    image = np.zeros((3, 6, 64, 64, 3), np.uint8)
    for b in range(3):
        for t in range(6):
            x = 8 + 8 * b + 4 * t
            image[b, t, 20:36, x : x + 12] = 255
    action = rng.uniform(-1, 1, (3, 5, A)).astype(np.float32)
    data = ImageBatch(image, action, np.ones((3, 5), np.float32), np.zeros((3, 5), np.float32))
    settings = replace(TINY, learning_rate=3e-3)
    net = rssm.init(jr.key(0), 3, A, settings)
    optimiser_state = rssm.optimiser(settings).init(net)
    image_losses = []
    for number in range(150):
        net, optimiser_state, parts = rssm.update(net, optimiser_state, data, np.bool_(True), jr.key(number), settings)
        image_losses.append(float(parts.image))
    assert np.mean(image_losses[-10:]) < 0.5 * np.mean(image_losses[:3])
    assert float(parts.reward) < 0.2 and float(parts.cost) < 0.3


# Uncertainty.


def test_members_that_agree_have_no_uncertainty(net):
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), net.members)
    h, action = jr.normal(jr.key(0), (9, TINY.deter)), jr.normal(jr.key(1), (9, A))
    _, u = rssm.disagreement(same, h, action)
    np.testing.assert_allclose(u, 0.0, atol=1e-12)
    expected, u = rssm.disagreement(net.members, h, action)
    np.testing.assert_allclose(u, np.var(expected, axis=0, ddof=1).mean(-1), rtol=1e-4)


def test_uncertainty_rises_away_from_the_data():
    # members learn s = 0 for |h| ≤ 1; far from there they have no data
    members = rssm.init(jr.key(0), 3, A, TINY).members
    h, action = jr.uniform(jr.key(1), (256, TINY.deter), minval=-1.0), jr.uniform(jr.key(2), (256, A), minval=-1.0)

    @jax.jit
    def step(members: Any) -> Any:
        grads = jax.grad(lambda m: jnp.square(rssm.disagreement(m, h, action)[0]).mean((1, 2)).sum())(members)
        return jax.tree.map(lambda leaf, grad: leaf - 0.3 * grad, members, grads)

    for _ in range(300):
        members = step(members)
    at_data, far_away = (float(rssm.disagreement(members, scale * h, action)[1].mean()) for scale in (1.0, 5.0))
    assert far_away > 10.0 * at_data


# Imagining.


def test_a_rollout_equals_the_prior_step_by_step(net):
    N, H = 4, 3
    actions = jr.uniform(jr.key(3), (N, H, A), minval=-1.0)
    first = Belief(jr.normal(jr.key(4), (TINY.deter,)), jr.normal(jr.key(5), (TINY.stoch,)))
    imagined = rssm_rollout.rollout(rssm_rollout.prepare_rollout(net, TINY), first, actions, jr.key(6), settings=TINY)
    noise = jr.normal(jr.key(6), (H, 1, TINY.stoch))
    belief = Belief(*(jnp.broadcast_to(part, (N, part.shape[-1])) for part in first))
    for t in range(H):
        _, u = rssm.disagreement(net.members, belief.h, actions[:, t])
        h, prior = rssm.prior_step(net, belief, actions[:, t], TINY.min_sd)
        belief = Belief(h, prior.mean + prior.sd * noise[t])
        np.testing.assert_allclose(
            imagined.reward[:, 0, t], rssm.head(net.reward, belief.feature), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(imagined.cost[:, 0, t], rssm.head(net.cost, belief.feature), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(imagined.uncertainty[:, 0, t], TINY.multiplier * (u + TINY.floor**2), rtol=1e-4)
    assert (imagined.alive == 1.0).all()


def test_half_precision_is_close(net):
    actions = jr.uniform(jr.key(3), (4, 3, A), minval=-1.0)
    one, other = (
        rssm_rollout.rollout(
            rssm_rollout.prepare_rollout(net, settings),
            rssm.initial_belief((), TINY),
            actions,
            jr.key(6),
            settings=settings,
        )
        for settings in (replace(TINY, products=products) for products in ("float32", "bfloat16"))
    )
    np.testing.assert_allclose(one.reward, other.reward, atol=0.05)
    np.testing.assert_allclose(one.uncertainty, other.uncertainty, rtol=0.1)


def test_margin_samples_equal_rollouts_of_the_recorded_actions(net):
    # 9 steps: stretches of 5 that begin at 2, 3 and 4
    data = random_batch(steps=9)
    logit, u, cost, reward = margin_samples(net, data, jr.key(0), TINY)
    assert logit.shape == u.shape == cost.shape == reward.shape == (9,)
    _, _, belief, _, _ = rssm.infer_beliefs(net, data, jr.key(0), TINY)
    for number, begin in enumerate((2, 3, 4)):
        for row in range(3):
            row_number, span = 3 * number + row, slice(begin, begin + 5)
            start = Belief(belief.h[begin, row], belief.s[begin, row])
            move = data.action[row : row + 1, span]
            imagined = rssm_rollout.rollout(
                rssm_rollout.prepare_rollout(net, TINY), start, move, jr.key(0), settings=TINY
            )
            worst = int(jnp.argmin(-imagined.cost / imagined.uncertainty))
            np.testing.assert_allclose(logit[row_number], imagined.cost[0, 0, worst], rtol=1e-4)
            np.testing.assert_allclose(u[row_number], imagined.uncertainty[0, 0, worst], rtol=1e-4)
            assert float(cost[row_number]) == data.cost[row, span].max()
            np.testing.assert_allclose(reward[row_number], data.reward[row, span].sum(), rtol=1e-5)
